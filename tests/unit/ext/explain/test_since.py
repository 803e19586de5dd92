"""Goal: a trace can begin with an export: it names the states that it trusts, and reads only what came after them.

Method: flows in memory behind a republisher; an export is taken between two runs. Sums are computed from the values that were fed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.audit import audit, audited_stages
from sqe_chain.ext.explain.report import page_of, trace_as_object, verdict_of
from sqe_chain.ext.explain.trace import Trace, trace
from sqe_chain.features.event_times import EventTime
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.unit.ext.explain.test_trace import alter, hours, key_of, republisher, totals, waiting


def run_to_export(flow: Flow, folder: Path) -> tuple[Rehearsal, Rehearsal, Path]:
    """A republisher, a flow behind it, and an export of what the flow had counted of 20 values; it has counted 20 more since."""
    upstream = Rehearsal(republisher(), partitions={"raw": 2})
    service = Rehearsal(flow, log=upstream.log)
    feed(upstream, service, range(20))
    file = export_of(service, folder / "first.jsonl")
    feed(upstream, service, range(20, 40))
    return upstream, service, file


def feed(upstream: Rehearsal, service: Rehearsal, numbers: range) -> None:
    for number in numbers:
        upstream.feed("raw", Int64Value(value=number), partition=number % 2, timestamp_ms=number)
    upstream.run_until_caught_up()
    service.run_until_caught_up()


def export_of(service: Rehearsal, file: Path) -> Path:
    file.write_text("".join(f"{line}\n" for line in service.exported()))
    return file


def trace_since(service: Rehearsal, since: Path | None, *keys: bytes) -> Trace:
    env = environment_of(service)
    return trace(env, env.flow.stages[0], keys, since=since)


def sum_of(key: str, *, below: int = 40) -> int:
    return sum(number for number in range(below) if key_of(Int64Value(value=number)) == key)


def test_only_what_came_after_the_export_is_listed_and_its_state_is_named(tmp_path: Path) -> None:
    _, service, file = run_to_export(totals(), tmp_path)
    result = trace_since(service, file, b"k1")
    found = trace_as_object(result, b"k1")
    assert result.equal
    assert found["trusted"] == {
        "plan": result.before and result.before.number,
        "states": [{"window": None, "state": sum_of("k1", below=20)}],
    }
    assert [unit.state for unit in result.contributions][-1] == sum_of("k1")
    assert len(result.contributions) == len([n for n in range(20, 40) if n % 3 == 1])
    assert "whose state is trusted" in verdict_of(result, b"k1")
    assert "trusted, not checked" in page_of(result, b"k1")


def test_windows_that_were_open_go_on(tmp_path: Path) -> None:
    _, service, file = run_to_export(hours(), tmp_path)
    result = trace_since(service, file, b"k0", b"k1", b"k2")
    assert result.equal
    assert len(result.trusted) < len(result.stored.states)


def test_replays_of_what_the_export_has_counted_are_ignored(tmp_path: Path) -> None:
    upstream, service, file = run_to_export(totals(), tmp_path)
    upstream.rewind({("raw", 0): 5})
    upstream.run_until_caught_up()
    service.run_until_caught_up()
    result = trace_since(service, file, b"k0", b"k1", b"k2")
    assert result.equal
    assert len(result.contributions) == 20


def test_an_altered_state_is_found_and_an_untouched_export_is_recognized(tmp_path: Path) -> None:
    _, service, file = run_to_export(totals(), tmp_path)
    alter(service, b"k1", sum_of("k1", below=20))
    result = trace_since(service, file, b"k1")
    assert result.equal is False
    assert f"the stored state is that of plan {result.before and result.before.number}" in verdict_of(
        result, b"k1"
    )


def test_records_deleted_before_the_export_are_not_needed_and_later_ones_are_named(tmp_path: Path) -> None:
    _, service, file = run_to_export(totals(), tmp_path)
    found = trace_since(service, file, b"k1")
    assert found.before is not None
    partition = found.contributions[0].place[1]
    stop = found.before.next_offsets()["numbers", partition]
    service.log.truncate_before("numbers", partition, stop)
    assert trace_since(service, None, b"k1").equal is None
    assert trace_since(service, file, b"k1").equal
    service.log.truncate_before("numbers", partition, stop + 1)
    late = trace_since(service, file, b"k1")
    assert late.equal is None
    assert f"numbers[{partition}] offsets {stop} to {stop}" in verdict_of(late, b"k1")


def test_an_audit_trusts_an_export_too(tmp_path: Path) -> None:
    _, service, file = run_to_export(totals(), tmp_path)
    env = environment_of(service)
    (stage,) = audited_stages(env, ())
    sound = audit(env, stage, 10, Random(1), since=file)
    assert (sound.keys, sound.different) == (3, ())
    assert sound.trusted is not None
    alter(service, b"k2", 1)
    assert audit(env, stage, 10, Random(1), since=file).different == (b"k2",)


def test_exports_of_another_history_are_refused(tmp_path: Path) -> None:
    _, service, file = run_to_export(totals(), tmp_path)
    newer = export_of(service, tmp_path / "newer.jsonl")
    _, other, _ = run_to_export(totals(), tmp_path)
    with pytest.raises(ConfigurationError, match="Expected an export of the same"):
        trace_since(other, newer, b"k1")
    with pytest.raises(ConfigurationError, match="no such file"):
        trace_since(service, tmp_path / "12", b"k1")
    early = Rehearsal(totals(), partitions={"numbers": 2})
    early.run_until_caught_up()
    with pytest.raises(ConfigurationError, match="Expected an older export"):
        trace_since(early, file, b"k1")


def test_records_that_waited_for_event_time_at_the_export_are_read_again(tmp_path: Path) -> None:
    service = waiting()
    file = export_of(service, tmp_path / "waiting.jsonl")
    for number in range(12, 24):
        service.feed("numbers", Int64Value(value=number), partition=1, timestamp_ms=number)
    service.run_until_caught_up()
    result = trace_since(service, file, b"k0", b"k1", b"k2")
    assert result.before is not None
    assert EventTime.of(result.before).waiting == 11
    assert result.equal
    assert {unit.place[1] for unit in result.contributions} == {0, 1}
