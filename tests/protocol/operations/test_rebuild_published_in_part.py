"""Goal: who has heard a part of a batch hears the same again, also when the flow was folded again in between.

Method: a flow publishes the changes of two keys, so what it makes of an input depends on where a batch ends. It
crashes at every write of a batch, is rebuilt in all ways, and more inputs come meanwhile; a second flow counts
what it hears.
"""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory import MemoryMessage
from sqe_chain.errors import LostOffsets, RecreatedTopic, TruncatedInput
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow import Flow
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.published_in_part import BAD, Pair, add, side
from tests.support.receiving import received

HOUR_MS = 3_600_000


def every_write() -> int:
    """The writes of the second batch: seal, two outputs, one state partition, the commit."""
    at = 0
    while Pair(at).crashed:
        at += 1
    return at


def rebuild(pair: Pair) -> None:
    pair.up.rebuild()


def rebuild_twice(pair: Pair) -> None:
    pair.up.rebuild()
    pair.up.rebuild()


def rewind(pair: Pair) -> None:
    pair.up.rebuild({("numbers", 0): 0})


def rewind_and_rebuild(pair: Pair) -> None:
    """The second one has to know how far the first one was silent."""
    pair.up.rebuild({("numbers", 0): 0})
    pair.up.rebuild()


def rebuild_and_move(pair: Pair) -> None:
    pair.up.rebuild()
    lines = pair.up.exported()
    pair.store.restore_all()
    pair.up.imported(lines)


def rebuild_and_grow(pair: Pair) -> None:
    """A partition enters while the batch is still due; it waits."""
    pair.up.rebuild()
    pair.up.log.grow("numbers", 2)


WAYS = [rebuild, rebuild_twice, rewind, rewind_and_rebuild, rebuild_and_move, rebuild_and_grow]


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_published_in_part_is_finished_as_it_was_cut(way: object) -> None:
    for at in range(every_write()):
        pair = Pair(at)
        pair.feed(4)
        way(pair)  # type: ignore[operator]
        pair.finish()
        assert pair.sums() == {b"low": 10, b"high": 4_010}
        assert pair.heard() == "1001 1 3006 6 4010 10", at
        assert Rebuilding.of(pair.plan()).unfinished is None
        pair.feed(5)
        pair.finish()
        assert pair.heard().endswith("4010 10 5015 15")


def test_what_is_republished_on_demand_keeps_to_it_too() -> None:
    """What lies before it comes again, as asked for; the batch itself is as it was."""
    pair = Pair(1)
    pair.feed(4)
    pair.up.rebuild({("numbers", 0): 0}, republish=True)
    pair.finish()
    assert pair.heard() == "1001 1 3006 6 4010 10"


def test_inputs_that_it_skipped_stay_skipped_whatever_the_code_does_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(1, (2, BAD))
    monkeypatch.setattr("tests.support.published_in_part.strict", False)
    pair.feed(4)
    pair.up.rebuild()
    pair.finish()
    assert pair.sums()[b"low"] == 7
    assert pair.heard() == "1001 1 2003 3 3007 7"


def test_its_clock_is_the_one_of_then() -> None:
    pair = Pair(1)
    clock_ms = pair.plan().clock_ms
    pair.up.rebuild()
    assert pair.plan().clock_ms != clock_ms
    pair.up.batch()
    assert pair.plan().clock_ms == clock_ms


@pytest.mark.parametrize(
    ("lose", "error"),
    [
        (lambda log: log.truncate_after("numbers", 0, 2), TruncatedInput),
        (lambda log: log.recreate("numbers"), RecreatedTopic),
        (lambda log: log.truncate_before("numbers", 0, 2), LostOffsets),
    ],
)
def test_when_its_inputs_are_gone_the_service_stops(lose: object, error: type[Exception]) -> None:
    pair = Pair(1)
    pair.up.rebuild()
    lose(pair.up.log)  # type: ignore[operator]
    with pytest.raises(error):
        pair.up.run_until_caught_up()


def test_when_its_last_record_is_another_one_the_service_stops() -> None:
    pair = Pair(1)
    pair.up.rebuild()
    pair.up.log.truncate_after("numbers", 0, 2)
    for number in (8, 9):
        pair.feed(number)
    with pytest.raises(TruncatedInput, match=r"numbers\[0\]@2"):
        pair.up.run_until_caught_up()


def test_plans_without_it_do_not_speak_of_it() -> None:
    """So the ids of older plans stay as they are."""
    pair = Pair(1)
    assert b"unfinished" not in pair.plan().to_bytes()
    assert b"attempt" not in pair.plan().to_bytes()
    pair.up.rebuild()
    plan = pair.plan()
    assert Rebuilding.of(plan).unfinished is not None
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert plan.with_id() == plan


def test_a_raw_input_created_again_is_no_other_root_while_the_batch_is_due() -> None:
    flow = Flow("raw", state_partitions=1)
    source = flow.source("bytes", lambda value: Int64Value(value=int(value)), raw=True)
    source.aggregate("sums", key=side, state=Int64Value, fold=add).changes().to("totals", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("bytes", b"1")
    rehearsal.crash(step=5, when="after")
    rehearsal.run_until_crash()
    rehearsal.rebuild({("bytes", 0): 0})
    rehearsal.log.recreate("bytes")
    with pytest.raises(RecreatedTopic):
        rehearsal.start()


def windowed() -> Flow:
    flow = Flow("up", state_partitions=1)
    windows = flow.source("numbers", Int64Value).windowed(
        "sums", Tumbling(HOUR_MS), key=lambda _: "all", state=Int64Value, fold=add, retention_ms=10**12
    )
    windows.changes().to("totals", partitions=1)
    return flow


def heard_of(rehearsal: Rehearsal) -> list[MemoryMessage]:
    """What a receiver counts of what was published."""
    topic_id = rehearsal.log.describe(["totals"])["totals"].topic_id
    return [*received("totals", topic_id, rehearsal.log.records("totals"))]


def test_what_it_took_of_what_waits_for_event_time_it_takes_again() -> None:
    """The limit up to which a rebuild takes it in silence is none for the batch that is published."""

    def fed(at: int | None) -> Rehearsal:
        found = Rehearsal(windowed(), partitions={"numbers": 1})
        for hour, number in enumerate((1, 2, 3, 4)):
            found.feed("numbers", Int64Value(value=number), timestamp_ms=hour * HOUR_MS)
            if number == 1:
                found.run_until_caught_up()
            if number != 3:
                continue
            if at is None:
                found.batch()
            else:
                found.crash_at_write(at, "after")
                found.run_until_crash()
                found.script.writes.clear()
        if at is not None:
            found.rebuild({("numbers", 0): 0})
        found.run_until_caught_up()
        return found

    undisturbed = len(heard_of(fed(None)))
    for at in range(3):
        rehearsal = fed(at)
        assert rehearsal.crashes == 1
        assert len(heard_of(rehearsal)) == undisturbed, at


def test_who_was_not_waited_for_then_is_not_waited_for_when_it_is_repeated() -> None:
    """Else the waiting records that it had taken come with a later batch, and `changes()` gives fewer states."""

    def fed(at: int | None) -> Rehearsal:
        settings = Settings(idle_ms=5_000, allow_weak_durability=True)
        found = Rehearsal(windowed(), partitions={"numbers": 2}, settings=settings)

        def feed(partition: int, hour: float) -> None:
            at_ms = int(hour * HOUR_MS)
            found.feed("numbers", Int64Value(value=1), partition=partition, timestamp_ms=at_ms)

        for partition, hour in ((0, 0), (0, 1), (0, 2), (1, 0)):
            feed(partition, hour)
        found.batch()
        found.clock.jump(6_000)
        if at is None:
            found.batch()
        else:
            found.crash_at_write(at, "after")
            found.run_until_crash()
            found.script.writes.clear()
        feed(0, 2.5)
        feed(1, 5)
        if at is not None:
            found.rebuild({("numbers", 0): 0, ("numbers", 1): 0})
        found.run_until_caught_up()
        return found

    undisturbed = len(heard_of(fed(None)))
    for at in range(3):
        rehearsal = fed(at)
        assert rehearsal.crashes == 1
        assert len(heard_of(rehearsal)) == undisturbed, at
