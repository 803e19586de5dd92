"""Event time moves over a run of messages as it does over one after the other."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqe_chain.envelope.block import EnvelopeBlock
from sqe_chain.segment.event_times import ORIGIN, EventTimes
from sqe_chain.segment.run_times import PlacedRun, place_run
from sqe_chain.segment.source_times import writer_of
from sqe_chain.stages import JumpGuard
from tests.support.read_in_blocks import TYPE, Record, Told, records_of

GUARD = JumpGuard(max_jump_ms=30, confirmations=2)
told = st.lists(
    st.builds(
        Told,
        st.integers(0, 2),
        st.sampled_from(["plain", "plain", "plain", "root"]),
        st.just("ant"),
        st.integers(1, 60),
        st.sampled_from([0, 0, 5, 20, 40, 59]),
    ),
    min_size=1,
    max_size=10,
)


def block_of(records: list[Record]) -> EnvelopeBlock:
    return EnvelopeBlock(cast("Any", records), TYPE.encode())


def observe_each(times: EventTimes, names: dict[int, str], block: EnvelopeBlock) -> list[int]:
    """One after the other, as `SourcePartition` does it."""
    places = []
    for index in range(len(block.messages)):
        head = block.head(index)
        if head.lane not in names:
            names[head.lane], hops = writer_of(head)
            times.introduce(names[head.lane], hops)
        stated_ms = head.watermark_ms or None
        places.append(times.observe(names[head.lane], head.lane, head.timestamp_ms, stated_ms))
    return places


@settings(deadline=None)
@example(
    before=[Told(0, "plain", "ant", 10, 0)],
    settled=True,
    guarded=False,
    run=[Told(1, "plain", "ant", 20, 40)],
)
@example(
    before=[Told(0, "plain", "ant", 10, 0)],
    settled=True,
    guarded=False,
    run=[Told(0, "plain", "ant", 30, 0), Told(1, "plain", "ant", 20, 0)],
)
@given(before=told, settled=st.booleans(), guarded=st.booleans(), run=told)
def test_a_run_has_the_places_of_its_messages(
    before: list[Told], settled: bool, guarded: bool, run: list[Told]
) -> None:
    records = records_of(before + run)
    first, second = block_of(records[: len(before)]), block_of(records[len(before) :])
    times, names = EventTimes(0, guard=GUARD if guarded else None, clock_ms=7), {0: ORIGIN}
    observe_each(times, names, first)
    if settled:  # another batch: lanes that are not beyond what writers state are forgotten
        times, names = times.settled().copy(clock_ms=9, guard=times.guard), {0: ORIGIN}
    known = dict(names)
    other = times.copy(clock_ms=times.clock_ms, guard=times.guard)
    placed = place_run(times, names, second, 0, len(run))
    assert times == other, "nothing has moved yet"
    expected = observe_each(other, names, second)
    if placed is None:
        assert guarded or not set(names.values()) <= set(times.writers), "it could have been placed"
        return
    assert placed.orders_ms == expected
    assert {head.lane for head in placed.met} == set(names) - set(known)
    move(placed, times)
    assert (times, times.lanes, times.idle) == (other, other.lanes, other.idle)
    times.undo()
    assert times == other, "what is taken back is one message, not a run"


def move(placed: PlacedRun, times: EventTimes) -> None:
    for head in placed.met:
        times.introduce(*writer_of(head))
    placed.move(times)
