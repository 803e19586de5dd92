"""Goal: a trace lists the records that made a value, and notices a value that they did not make.

Method: flows in memory behind a republisher that repeats itself; sums are computed from the values that were fed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.envelope.partitioner import cell_of, partition_of
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.explain.audit import audit, audited_stages
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.reading import Pass
from sqe_chain.ext.explain.recording import Place, _RecordingWork
from sqe_chain.ext.explain.report import page_of, trace_as_object, verdict_of
from sqe_chain.ext.explain.trace import Trace, name_of, trace
from sqe_chain.features.event_times import EventTime
from sqe_chain.flow import Flow, count
from sqe_chain.flow.stage_kind import StageWork
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.number_flows import add

VALUES = [*range(40), 500, 50, *range(41, 49)]
"""500 is filtered, 50 cannot be processed."""


def is_small(value: Int64Value) -> bool:
    return value.value < 100


def check(value: Int64Value) -> Int64Value:
    if value.value == 50:
        raise ValueError("no fifty")
    return value


def key_of(value: Int64Value) -> str:
    return f"k{value.value % 3}"


def republisher() -> Flow:
    flow = Flow("up")
    flow.source("raw", Int64Value).to("numbers", key=key_of, partitions=2)
    return flow


def second_republisher() -> Flow:
    flow = Flow("middle")
    flow.source("numbers", Int64Value).to("again", key=key_of, partitions=2)
    return flow


def totals(topic: str = "numbers") -> Flow:
    flow = Flow("totals", state_partitions=4, poison="skip")
    checked = flow.source(topic, Int64Value).filter(is_small).map(check)
    stage = checked.aggregate("total", key=key_of, state=Int64Value, fold=add)
    stage.changes().to("sums", partitions=1)
    return flow


def hours() -> Flow:
    flow = Flow("hours", state_partitions=1)
    flow.source("numbers", Int64Value).windowed(
        "hourly", Tumbling(size_ms=10), key=key_of, state=Int64Value, fold=add, retention_ms=10**9
    )
    return flow


def waiting() -> Rehearsal:
    """A service whose records wait for event time: one partition has a single record."""
    service = Rehearsal(hours(), partitions={"numbers": 2})
    for number in range(12):
        service.feed("numbers", Int64Value(value=number), partition=number == 0, timestamp_ms=number)
    service.start()
    while service.batch():
        pass
    return service


def run_chain(flow: Flow, *, hops: int = 1) -> Rehearsal:
    """A flow behind republishers that have published a part of their output twice."""
    services = [Rehearsal(republisher(), partitions={"raw": 2})]
    if hops == 2:
        services.append(Rehearsal(second_republisher(), log=services[0].log))
    service = Rehearsal(flow, log=services[0].log)
    for number, value in enumerate(VALUES):
        services[0].feed("raw", Int64Value(value=value), partition=number % 2, timestamp_ms=number)
    for upstream in services:
        upstream.run_until_caught_up()
    service.run_until_caught_up()
    for upstream in services:
        topic = upstream.flow.input_topics[0]
        ends = upstream.log.bounds([(topic, 0), (topic, 1)])
        upstream.rewind({tp: min(5, bounds.stable_end) for tp, bounds in ends.items()})
        upstream.run_until_caught_up()
    service.run_until_caught_up()
    return service


def trace_keys(service: Rehearsal, *keys: bytes) -> Trace:
    env = environment_of(service)
    return trace(env, env.flow.stages[0], keys)


def values_of(key: str) -> list[int]:
    return [value for value in VALUES if value not in (500, 50) and f"k{value % 3}" == key]


def records_of(service: Rehearsal, topic: str) -> list[tuple[Place, int]]:
    """Place and value of each record."""
    return [
        ((message.topic(), message.partition(), message.offset()), envelope.payload_as(Int64Value).value)
        for message, envelope in zip(service.log.records(topic), service.published(topic), strict=True)
    ]


@pytest.mark.parametrize("hops", [1, 2])
def test_the_records_of_a_key_sum_up_to_its_state(hops: int) -> None:
    service = run_chain(totals("numbers" if hops == 1 else "again"), hops=hops)
    result = trace_keys(service, b"k0")
    assert result.equal
    assert len(result.contributions) == len(values_of("k0"))
    assert int(str(result.contributions[-1].state)) == sum(values_of("k0"))
    assert {unit.root[0] for unit in result.contributions} == {"raw"}
    assert all(unit.chain.count(" -> ") == hops - 1 for unit in result.contributions)
    roots = Counter(unit.root[1:] for unit in result.contributions)
    fed = [(number % 2, number // 2) for number, value in enumerate(VALUES) if value in values_of("k0")]
    assert roots == Counter(fed)


def test_replays_are_listed_with_the_record_that_was_counted() -> None:
    service = run_chain(totals())
    result = trace_keys(service, b"k0")
    records = dict(records_of(service, "numbers"))
    assert len(result.replays) > 5
    for replay in result.replays:
        assert replay.original[2] < replay.place[2]
        assert records[replay.original] == records[replay.place]
    assert {replay.original for replay in result.replays} <= {unit.place for unit in result.contributions}


def test_a_trace_publishes_commits_and_stores_nothing() -> None:
    service = run_chain(totals())
    before = service.log.records("sums"), service.commits(), service.copy_stores()
    trace_keys(service, b"k0", b"k1")
    assert (service.log.records("sums"), service.commits(), service.copy_stores()) == before


def alter(service: Rehearsal, key: bytes, value: int) -> None:
    """Change a stored state by hand."""
    store, flow, stage = service.stores[""], service.flow, service.flow.stages[0]
    for cell in flow.cells[stage.index]:
        header = store.headers(flow.name, stage.name, [cell])[0]
        if header is not None and any(row == key for row, _ in store.scan(flow.name, stage.name, cell)):
            rows = [(key, Int64Value(value=value).SerializeToString())]
            store.write(flow.name, stage.name, cell, header, header, rows)


def test_a_state_that_was_altered_is_found_with_the_first_record_that_it_lacks() -> None:
    service = run_chain(totals())
    result = trace_keys(service, b"k1")
    topic, partition, offset = result.contributions[-1].place
    alter(service, b"k1", int(str(result.contributions[-2].state)))
    altered = trace_keys(service, b"k1")
    assert altered.equal is False
    assert altered.different == (b"k1",)
    assert f"{topic}[{partition}]@{offset} is the first record that it lacks" in verdict_of(altered, b"k1")
    alter(service, b"k1", 12_345)
    assert "that after none of the" in verdict_of(trace_keys(service, b"k1"), b"k1")


def test_windows_are_compared_each() -> None:
    service = run_chain(hours())
    result = trace_keys(service, b"k0", b"k1", b"k2")
    assert result.equal
    assert len(result.stored.states) == len(service.windows("hourly")) > 5
    assert len(result.contributions) == len(VALUES)


def test_windows_that_event_time_has_closed_without_a_record_of_their_key_are_as_stored() -> None:
    """In one flow with windows of windows: results of moments reach the second stage."""
    flow = Flow("ended", state_partitions=5)
    tens = flow.source("numbers", Int64Value).windowed(
        "tens", Tumbling(10), key=lambda value: f"k{value.value}", state=Int64Value, fold=add
    )
    tens.windowed("all", Tumbling(1_000), key=lambda _: "all", n=count()).to("sums", partitions=1)
    service = Rehearsal(flow)
    for number in range(8):
        service.feed("numbers", Int64Value(value=number), timestamp_ms=1_000 + number)
    service.run_until_caught_up()
    service.feed("numbers", Int64Value(value=8), timestamp_ms=1_500)
    service.run_until_caught_up()
    env = environment_of(service)
    assert [window.key for window in service.windows("tens")] == [b"k8"]
    for stage in audited_stages(env, ()):
        found = audit(env, stage, 10, Random(1))
        assert (found.keys > 0, found.different, found.missing) == (True, (), ()), stage.name
    result = trace(env, env.flow.stages[1], [b"all"])
    assert result.equal
    assert len(result.contributions) == 8
    assert {name_of(unit.place)[:11] for unit in result.contributions} == {"the moment "}


def test_a_recorded_stage_does_all_that_its_own_one_does() -> None:
    """A method of `StageWork` with a default would do nothing in its place."""
    missing = [
        name for name in vars(StageWork) if not name.startswith("_") and name not in vars(_RecordingWork)
    ]
    assert missing == []


def test_deleted_records_are_named_and_nothing_is_compared() -> None:
    service = run_chain(totals())
    partition = trace_keys(service, b"k0").contributions[0].place[1]
    service.log.truncate_before("numbers", partition, 3)
    result = trace_keys(service, b"k0")
    assert result.equal is None
    assert f"the topics no longer have numbers[{partition}] offsets 0 to 2" in verdict_of(result, b"k0")


def test_an_unknown_stage_is_refused() -> None:
    service = run_chain(totals())
    with pytest.raises(ConfigurationError, match="Expected one of total"):
        audited_stages(environment_of(service), ["nothing"])


def test_every_record_has_a_fate_and_each_fate_is_right() -> None:
    service = run_chain(totals())
    env, first = environment_of(service), set[int]()
    verdicts: Counter[str] = Counter()
    for place, value in records_of(service, "numbers"):
        fate = find_fate(env, place)
        verdicts[fate.verdict] += 1
        expected = {500: "filtered", 50: "skipped"}.get(value, "counted")
        assert fate.verdict == ("replay" if value in first else expected), fate
        first.add(value)
    assert verdicts["counted"] == len(VALUES) - 2
    assert set(verdicts) == {"counted", "replay", "filtered", "skipped"}
    end = service.log.bounds([("numbers", 0)])["numbers", 0].stable_end
    assert find_fate(env, ("numbers", 0, end)).verdict == "absent"


def test_a_filter_that_drops_a_record_is_named_with_its_line() -> None:
    service = run_chain(totals())
    place = next(place for place, value in records_of(service, "numbers") if value == 500)
    fate = find_fate(environment_of(service), place)
    assert "filter is_small" in fate.reason
    assert "test_trace.py:" in fate.reason


def test_a_late_record_was_dropped_and_an_unread_one_is_not_read() -> None:
    service = run_chain(hours())
    upstream = Rehearsal(republisher(), log=service.log)
    upstream.feed("raw", Int64Value(value=3), partition=0, timestamp_ms=1)
    upstream.run_until_caught_up()
    place = [place for place, value in records_of(service, "numbers") if value == 3][-1]
    assert find_fate(environment_of(service), place).verdict == "not read"
    service.run_until_caught_up()
    fate = find_fate(environment_of(service), place)
    assert fate.verdict == "dropped"
    assert "late" in fate.reason


def test_hostile_keys_change_nothing_in_a_page() -> None:
    key = "<script>alert(1)</script>\x1b[2J\u202e"
    flow = Flow("hostile", state_partitions=1)
    flow.source("numbers", Int64Value).aggregate("total", key=lambda _: key, state=Int64Value, fold=add)
    service = Rehearsal(flow)
    service.feed("numbers", Int64Value(value=1))
    service.run_until_caught_up()
    result = trace_keys(service, key.encode())
    page = page_of(result, key.encode())
    assert not {"<script>", "\x1b", "\u202e"} & {
        mark for mark in ("<script>", "\x1b", "\u202e") if mark in page
    }
    assert trace_as_object(result, key.encode())["equal"] is True


def test_progress_counts_the_records_that_are_read_and_not_their_offsets() -> None:
    flow = totals()
    service = Rehearsal(flow, partitions={"numbers": 1})
    for _ in range(3):
        service.feed("numbers", Int64Value(value=1), offset=None)
    service.log.truncate_before("numbers", 0, 2)
    service.settings = replace(service.settings, start="earliest")
    service.run_until_caught_up()
    env, seen = environment_of(service), list[tuple[int, int]]()
    reading = Pass(progressed=lambda read, wanted: seen.append((read, wanted)))
    trace(env, env.flow.stages[0], [b"k1"], with_records=False, reading=reading)
    assert seen == [(0, 1), (1, 1)]


def test_states_are_read_only_when_no_plan_is_written_in_part() -> None:
    service = run_chain(totals())
    store, flow, stage = service.stores[""], service.flow, service.flow.stages[0]
    cell = cell_of(b"k0", flow.state_partitions, 1)
    elsewhere = next(
        key for key in (b"a", b"b", b"c", b"d") if cell_of(key, flow.state_partitions, 1) != cell
    )
    header = store.headers(flow.name, stage.name, [cell])[0]
    assert header is not None
    store.write(flow.name, stage.name, cell, header, replace(header, number=header.number + 1), [])
    with pytest.raises(Unavailable, match="a plan is persisted in part"):
        trace_keys(service, b"k0", elsewhere)


def test_records_that_wait_for_event_time_are_not_counted_yet() -> None:
    flow = Flow("hours", state_partitions=2, poison="skip")
    numbers = flow.source("numbers", Int64Value)
    numbers.windowed("minutes", Tumbling(10), key=key_of, state=Int64Value, fold=add).to("sums", partitions=1)
    numbers.aggregate("total", key=key_of, state=Int64Value, fold=add)
    service = Rehearsal(flow, partitions={"numbers": 2})
    waiting = []
    for number in range(12):
        for partition in (0, 1):
            if partition == 0 or number < 7:
                value = Int64Value(value=number)
                service.feed("numbers", value, partition=partition, timestamp_ms=number * 5)
        service.batch()
        assert isinstance(service.service, StagedService)
        last = service.service.last
        assert last is not None
        waiting.append(EventTime.of(last).waiting)
        for stage in audited_stages(environment_of(service), ()):
            found = audit(environment_of(service), stage, 10, Random(1))
            assert found.different == (), (number, stage.name, found.first)
    assert max(waiting) >= 5


def test_an_audit_of_a_thousand_keys_finds_the_one_that_was_altered() -> None:
    flow = Flow("many", state_partitions=4)
    flow.source("numbers", Int64Value).aggregate(
        "total", key=lambda value: f"k{value.value % 1_000}", state=Int64Value, fold=add
    )
    service = Rehearsal(flow, partitions={"numbers": 2})
    for number in range(3_000):
        service.feed("numbers", Int64Value(value=number), partition=number % 2, timestamp_ms=number)
    service.run_until_caught_up()
    env = environment_of(service)
    (stage,) = audited_stages(env, ())
    sound = audit(env, stage, 5_000, Random(1))
    assert (sound.keys, sound.different) == (1_000, ())
    alter(service, b"k617", 1)
    altered = audit(env, stage, 5_000, Random(1))
    assert (altered.different, len(altered.first)) == ((b"k617",), 1)


@pytest.mark.parametrize(("flow", "read"), [(totals(), 12), (hours(), 40)])
def test_why_not_reads_no_further_than_the_answer_needs(flow: Flow, read: int) -> None:
    service = Rehearsal(flow, partitions={"numbers": 1}, settings=Settings(max_records=4))
    for number in range(40):
        service.feed("numbers", Int64Value(value=number), timestamp_ms=number)
    service.run_until_caught_up()
    seen = list[int]()
    fate = find_fate(
        environment_of(service),
        ("numbers", 0, 9),
        reading=Pass(progressed=lambda now, _all: seen.append(now)),
    )
    assert fate.verdict == "counted"
    assert seen[-1] == read


@pytest.mark.parametrize("astray", [False, True])
def test_a_trace_reads_only_the_partition_of_a_key_where_no_key_ever_lay_elsewhere(astray: bool) -> None:
    """Without a shuffle a service looks at each key. Its plans have whether all lay where they belong, also after a restart."""
    flow = Flow("placed", state_partitions=4)
    flow.source("numbers", Int64Value).aggregate(
        "total", key=lambda value: str(value.value % 20), state=Int64Value, fold=add
    )
    service = Rehearsal(flow, partitions={"numbers": 4})
    for number in range(80):
        key, elsewhere = str(number % 20).encode(), astray and number == 13
        partition = (partition_of(key, 4) + elsewhere) % 4
        service.feed("numbers", Int64Value(value=number), partition=partition)
        if number in (30, 60):
            service.run_until_caught_up()
            service.service = None
    service.run_until_caught_up()
    seen = list[tuple[int, int]]()
    reading = Pass(progressed=lambda read, wanted: seen.append((read, wanted)))
    env = environment_of(service)
    result = trace(env, env.flow.stages[0], [b"7"], with_records=False, reading=reading)
    partition = partition_of(b"7", 4)
    own = service.log.bounds([("numbers", partition)])["numbers", partition].stable_end
    assert result.equal
    assert seen[-1] == ((80, 80) if astray else (own, own))
    service.log.truncate_before("numbers", (partition + 1) % 4, 2)
    assert trace(env, env.flow.stages[0], [b"7"]).equal is (None if astray else True)
