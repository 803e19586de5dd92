"""Goal: a redo sees what the batch saw, its clock too, and never skips what the batch has counted.

Method: a crash right after the seal; then time has passed, or user code fails on what it took before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow, wrap
from sqe_chain.errors import PlanMismatch
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Context
from sqe_chain.plans.events import When
from sqe_chain.plans.plan import Plan
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Crash, Rehearsal
from tests.support.typed_results import states_as

BROKEN: list[bool] = []


def add(total: Int64Value, number: Int64Value, context: Context) -> list[Int64Value]:
    """Fold: emits the batch's clock."""
    if BROKEN and number.value == 2:
        raise ValueError("fails only now")
    total.value += number.value
    return [Int64Value(value=context.now_ms)]


def crashed_after_the_seal(poison: Literal["stop", "skip", "dead_letter"]) -> Rehearsal:
    flow = Flow("sums", state_partitions=1, poison=poison)
    stage = flow.source("numbers", Int64Value).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=add
    )
    stage.to("clocks", partitions=1)
    rehearsal = Rehearsal(flow, partitions={"numbers": 1})
    rehearsal.start()
    for number in (1, 2, 3):
        rehearsal.log.append(
            "numbers", 0, wrap(Int64Value(value=number), key="a", timestamp_ms=1), timestamp_ms=1
        )
    rehearsal.crash(step=4, when="after")
    with pytest.raises(Crash):
        rehearsal.batch()
    return rehearsal


def published(rehearsal: Rehearsal) -> list[int]:
    return [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("clocks")]


def total(rehearsal: Rehearsal) -> dict[bytes, int]:
    return {key: state.value for key, state in states_as(Int64Value, rehearsal, "sum").items()}


def test_the_clock_of_a_redo_is_that_of_the_batch() -> None:
    rehearsal = crashed_after_the_seal("stop")
    sealed_ms = rehearsal.clock.now
    rehearsal.clock.jump(3_600_000)
    rehearsal.restart()
    found = published(rehearsal)
    assert len(found) == 3
    assert max(found) < sealed_ms + 3_600_000


@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_what_fails_only_in_a_redo_stops_it_and_is_not_skipped(
    poison: Literal["skip", "dead_letter"],
) -> None:
    rehearsal = crashed_after_the_seal(poison)
    BROKEN.append(True)
    try:
        with pytest.raises(PlanMismatch, match="did not fail"):
            rehearsal.restart()
        assert (published(rehearsal), total(rehearsal)) == ([], {})
    finally:
        BROKEN.clear()
    rehearsal.run_until_caught_up()
    assert total(rehearsal) == {b"all": 6}
    assert len(published(rehearsal)) == 3


# --- event time ------------------------------------------------------------------------------------------


def minutes(*, crashes: bool) -> Rehearsal:
    """Two partitions; the second one falls silent. Its writer is marked idle where no more input is expected."""
    flow = Flow("minutes", state_partitions=2)
    flow.source("numbers", Int64Value).windowed(
        "minute", Tumbling(60_000), key=lambda _: "all", state=Int64Value, fold=add_plainly
    ).to("closed", partitions=1)
    rehearsal = Rehearsal(flow, partitions={"numbers": 2})
    rehearsal.start()
    for partition, at_ms in ((0, 1_000), (1, 2_000), (0, 200_000)):
        rehearsal.feed("numbers", Int64Value(value=1), partition=partition, timestamp_ms=at_ms)
    rehearsal.batch()  # what both have written is known now, and waits
    assert rehearsal.chains("closed") == []
    if crashes:
        rehearsal.crash(step=4, when="after")
        with pytest.raises(Crash):
            rehearsal.batch(at_end=True)
        rehearsal.restart()
    else:
        rehearsal.batch(at_end=True)
    return rehearsal


def add_plainly(total: Int64Value, number: Int64Value) -> None:
    total.value += number.value


def test_writers_that_a_batch_did_not_wait_for_are_not_waited_for_in_its_redo() -> None:
    found = [minutes(crashes=crashes) for crashes in (False, True)]
    closed = [[chain.links[-1].offset for chain in each.chains("closed")] for each in found]
    assert closed == [[(1 << 52) + 60_000]] * 2, "the first minute, by its end"


def test_a_redo_promises_what_was_promised_though_it_does_not_know_who_was_silent() -> None:
    """The watermark is in the bytes of an output, so a lower one would be taken for other code."""
    up = Flow("up")
    up.source("raw", Int64Value).to("numbers", key=lambda number: str(number.value), partitions=2)
    upstream = Rehearsal(up, partitions={"raw": 2})
    flow = Flow("sums", state_partitions=1)
    flow.source("numbers", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add).to(
        "clocks", partitions=1
    )
    rehearsal = Rehearsal(flow, log=upstream.log)
    for number, partition, at_ms in ((3, 1, 1_902), (3, 0, 2_356), (1, 1, 3_200)):
        upstream.feed("raw", Int64Value(value=number), partition=partition, timestamp_ms=at_ms)
        upstream.run_until_caught_up()
    upstream.feed("raw", Int64Value(value=3), partition=0, timestamp_ms=4_108)
    rehearsal.run_until_caught_up()
    upstream.run_until_caught_up()
    rehearsal.crash(step=5, when="after")
    with pytest.raises(Crash):
        rehearsal.batch()
    promised = rehearsal.published("clocks")[-1].watermark_ms
    assert promised > 1_000
    rehearsal.restart()
    assert [envelope.watermark_ms for envelope in rehearsal.published("clocks")[-2:]] == [promised] * 2
    assert total(rehearsal) == {b"all": 10}


def refuse_two(total: Int64Value, number: Int64Value) -> None:
    if number.value == 2:
        raise ValueError("it is two")
    total.value += number.value


@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_what_was_tried_and_skipped_leaves_nothing_in_what_is_sealed(
    poison: Literal["skip", "dead_letter"],
) -> None:
    """A redo does not try it again, so a time that it leaves in states would be taken for other code."""
    flow = Flow("minutes", state_partitions=1, poison=poison)
    flow.source("numbers", Int64Value).windowed(
        "minute", Tumbling(60_000), key=lambda _: "all", state=Int64Value, fold=refuse_two
    ).to("closed", partitions=1)
    rehearsal = Rehearsal(flow, partitions={"numbers": 1})
    rehearsal.start()
    rehearsal.feed("numbers", Int64Value(value=1), partition=0, timestamp_ms=1_000)
    rehearsal.batch(at_end=True)
    rehearsal.feed("numbers", Int64Value(value=2), partition=0, timestamp_ms=5_000)
    rehearsal.crash(step=4, when="after")
    with pytest.raises(Crash):
        rehearsal.batch(at_end=True)
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert len(rehearsal.published("closed")) == 0


def flow_that_gives(emitted: int, added: int) -> Flow:
    def fold(total: Int64Value, number: Int64Value) -> list[Int64Value]:
        total.value += number.value + added
        return [Int64Value(value=number.value + emitted)]

    flow = Flow("sums", state_partitions=4)
    stage = flow.source("numbers", Int64Value).aggregate(
        "sum", key=lambda number: str(number.value), state=Int64Value, fold=fold
    )
    stage.to("copies", partitions=2)
    return flow


def crashed_at(step: int, when: When) -> Rehearsal:
    rehearsal = Rehearsal(flow_that_gives(0, 0), partitions={"numbers": 2})
    rehearsal.start()
    for number in range(20):
        rehearsal.feed("numbers", Int64Value(value=number), partition=number % 2)
    rehearsal.crash(step=step, when=when)
    with pytest.raises(Crash):
        rehearsal.batch()
    return rehearsal


MOMENTS: list[tuple[int, When]] = [(4, "after"), (5, "before"), (5, "after"), (6, "before")]


@pytest.mark.parametrize(("step", "when"), MOMENTS)
@pytest.mark.parametrize(("emitted", "added"), [(0, 1), (100, 0), (100, 1)])
def test_a_redo_that_gives_something_else_changes_nothing(
    step: int, when: When, emitted: int, added: int
) -> None:
    rehearsal = crashed_at(step, when)
    copies = [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("copies")]
    rehearsal.flow = flow_that_gives(emitted, added)
    expected = (
        f"{'states/sum/' if added else 'topic/copies'}.*Run that code with --once.*--accept-changed-batch"
    )
    with pytest.raises(PlanMismatch, match=expected):
        rehearsal.start()
    assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("copies")] == copies
    assert total(rehearsal) == {}
    rehearsal.flow = flow_that_gives(0, 0)
    rehearsal.start()
    assert total(rehearsal) == {str(number).encode(): number for number in range(20)}


def test_a_redo_goes_on_with_what_it_gives_now_where_that_is_accepted() -> None:
    rehearsal = crashed_at(4, "after")
    rehearsal.flow = flow_that_gives(0, 1)
    rehearsal.start(settings_of(takeover=True, allow_weak_durability=True, accept_changed_batch=True))
    assert total(rehearsal) == {str(number).encode(): number + 1 for number in range(20)}


def test_a_plan_of_an_older_version_is_redone_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "from_bytes", _without_digests(Plan.from_bytes))
    rehearsal = crashed_at(4, "after")
    rehearsal.flow = flow_that_gives(0, 1)
    rehearsal.start()
    assert total(rehearsal) == {str(number).encode(): number + 1 for number in range(20)}


def _without_digests(read: Callable[[bytes], Plan]) -> Callable[[bytes], Plan]:
    return lambda data: replace(read(data), gives=None)
