"""Goal: what a plan has to know of the past, each plan after it knows, too, until it is done.

Method: a plan in which everything is set, by hand; then each kind of plan that can come after it. Also what the next batch
reads, for each thing that may still have to be done first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.features.announcing import Announcing, announcement_plan
from sqe_chain.features.closing import Closes
from sqe_chain.features.decision import BatchDecision, Taken
from sqe_chain.features.event_times import EventTime, needed_offsets
from sqe_chain.features.parking import ReleaseRequest
from sqe_chain.features.rebuilding import (
    Reached,
    Rebuilding,
    Unfinished,
    catch_up,
    ends_silence,
    limits_behind,
)
from sqe_chain.features.ticking import Timers
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Refold, Role
from sqe_chain.plans.layout import Layout, StageLayout, layout_of
from sqe_chain.plans.look import Look
from sqe_chain.plans.plan import Plan, PlannedRange, encoded_sections
from sqe_chain.plans.planning import birth_plan, layout_plan
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Bounds, TopicInfo, TopicPartition
from sqe_chain.protocol.decide import batch_plan, decide_again, decide_batch
from sqe_chain.protocol.entering import sections_entering
from sqe_chain.protocol.finish import OwnedFlow
from sqe_chain.stages import Tumbling
from sqe_chain.task.event_times import EventTimes, Frontier, WaitingRange
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import PartitionEnd, Report
from sqe_chain.task.roots import Closing, Ticks
from sqe_chain.task.states import Claim

CLAIM = Claim(9, "run")
ONE, TWO = ("t", 0), ("t", 1)
TOPIC_ID = bytes(16)
FLOW = Flow("f", state_partitions=2)
FLOW.source("t", dict, raw=True).windowed(
    "s", Tumbling(10), key=lambda _: "k", state=dict, fold=lambda _state, _value: None, retention_ms=1
)


def planned(partition: int, start: int, stop: int, last: int = -1) -> PlannedRange:
    return PlannedRange("t", TOPIC_ID.hex(), partition, start, stop, last, 1, 5, 77)


REST = Unfinished(3, (planned(0, 4, 6), planned(1, 4, 7)), (Exclusion("t", 0, 5, "skip", "E", "text"),))
FRONTIER, REACHED, HEARD = Frontier(10, "t", 0), Frontier(20, "t", 1), Frontier(30, "t", 1)


SECTIONS = (Rebuilding, EventTime, Timers, Closes)
NAMES = {one.name: kind for kind in SECTIONS for one in fields(kind)}


def what(plan: Plan, name: str) -> Any:
    """A value of a section of a plan."""
    return getattr(Closes.of(plan) if name == "closes" else NAMES[name].of(plan), name, Closes.of(plan))


def changed(plan: Plan, **changes: Any) -> Plan:
    """The same plan with other fields, its own or those of its sections."""
    own = {name: change for name, change in changes.items() if name not in NAMES and name != "closes"}
    plan = replace(plan, **own)
    for kind in SECTIONS:
        others = {name: change for name, change in changes.items() if NAMES.get(name) is kind}
        plan = plan.with_sections(replace(kind.of(plan), **others))
    return (plan.with_sections(changes["closes"]) if "closes" in changes else plan).with_id()


def last_plan(**changes: Any) -> Plan:
    """Counted up to 4 in one partition and 2 in the other, after a rebuild: more was published."""
    plan = Plan(
        7,
        "",
        "six",
        Claim(8, "older"),
        1_000,
        Layout(2, {"s": StageLayout(0, 1, "f")}, {}, {"t": (TOPIC_ID.hex(), 2)}, gone=("old",)),
        (planned(0, 1, 4, 3), planned(1, 1, 2, 1)),
        {tp: PartitionMarks(tp[0], TOPIC_ID, tp[1]) for tp in (ONE, TWO)},
    ).with_sections(
        Rebuilding(
            silent=True,
            silent_until={ONE: 4, TWO: 4},
            unfinished=REST,
            attempt=5,
            published_until={ONE: 4, TWO: 9},
            reached=Reached({ONE: EventTimes(50)}, REACHED, 40),
            heard=Reached({TWO: EventTimes(60)}, HEARD, 50),
        ),
        EventTime({ONE: EventTimes(0), TWO: EventTimes(1)}, FRONTIER, ((900, 8), (990, 9))),
        Timers(30, {("s", 0): 90}),
        Closes((5,), {ONE: (4,), TWO: (2,)}, 1, 1),
    )
    return changed(plan, **changes)


LAST = last_plan()
BEHIND = Rebuilding.of(LAST)
SPEC = Refold(
    5,
    {},
    {ONE: 4, TWO: 4},
    encoded_sections(
        Rebuilding(
            silent_until={ONE: 4, TWO: 4},
            unfinished=REST,
            attempt=5,
            published_until={TWO: 9},
            reached=BEHIND.reached,
            heard=BEHIND.heard,
        ),
        replace(Closes.of(LAST), done=0),
    ),
)


def environment(spec: Refold | None = None, flow: Flow = FLOW) -> Any:
    clock, settings = SimpleNamespace(now_ms=lambda: 0), Settings(idle_ms=1)
    log = SimpleNamespace(describe=lambda _topics: {}, read_all=lambda _ranges: [])
    return SimpleNamespace(
        flow=flow.compile(), settings=settings, role=Role(refold=spec), clock=clock, log=log
    )


def batch_ranges(stops: Mapping[TopicPartition, int], last: Plan = LAST) -> tuple[PlannedRange, ...]:
    return tuple(
        replace(input_range, start=input_range.stop, stop=stops[input_range.tp])
        for input_range in last.ranges
    )


def batch_after(
    last: Plan, stops: Mapping[TopicPartition, int], spec: Refold | None = None, **decided: Any
) -> Plan:
    ranges = batch_ranges(stops, last)
    ends = [
        PartitionEnd(*input_range.tp, last.marks[input_range.tp])
        for input_range in ranges
        if input_range.start < input_range.stop
    ]
    taken = Taken(decided.pop("frontier", EventTime.of(last).frontier))
    sealed = BatchDecision(ranges, taken=taken, **decided)
    plan = batch_plan(environment(spec), last, CLAIM, sealed, Report(ends), ())
    return Plan.from_bytes(plan.to_bytes())


def entering(
    infos: Mapping[str, TopicInfo],
    starts: Mapping[TopicPartition, tuple[int, bool]],
    spec: Refold | None = None,
) -> Plan:
    """The plan after the last one by which partitions enter."""
    plan = layout_plan(LAST, LAST.ranges, CLAIM, 2_000, LAST.layout, infos, starts)
    return plan.with_sections(*sections_entering(environment(spec), LAST, plan)).with_id()


def test_a_plan_by_which_partitions_enter_keeps_all_that_is_still_to_do() -> None:
    infos = {"t": TopicInfo("t", TOPIC_ID, 3)}
    starts = {("t", 2): (0, False)}
    plan = entering(infos, starts)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    for name in (
        "silent_until",
        "unfinished",
        "published_until",
        "times",
        "frontier",
        "seen",
        "reached",
        "ticked_ms",
        "due",
        "closes",
    ):
        assert what(plan, name) == what(LAST, name), name
    assert (plan.number, plan.previous_id, plan.claim) == (8, LAST.plan_id, CLAIM)
    assert plan.next_offsets() == {ONE: 4, TWO: 2, ("t", 2): 0}
    assert [input_range.last_offset for input_range in plan.ranges] == [3, 1, -1], (
        "the last records that were read"
    )
    assert plan.empty
    assert Rebuilding.of(plan).attempt == -1, "the flow itself seals it"
    again = entering(infos, starts, SPEC)
    assert Rebuilding.of(again).attempt == 5


def test_what_was_read_of_a_topic_that_was_created_again_leaves_the_plan_and_what_is_known_of_it_too() -> (
    None
):
    new_id = bytes(15) + b"1"
    infos = {"t": TopicInfo("t", new_id, 1)}
    marked = {name: mark.copy() for name, mark in LAST.marks.items()}
    marked[ONE].accept_raw(3)
    last = last_plan(marks=marked)
    plan = layout_plan(last, (), CLAIM, 2_000, last.layout, infos, {ONE: (0, False)}).with_id()
    assert len(plan.marks[ONE]) == 0
    assert plan.marks[ONE].topic_id == new_id
    assert EventTime.of(plan).times == {}
    assert Closes.of(plan).stops == {}


def test_the_first_plan_of_a_rebuild_holds_what_the_rebuild_gives_it() -> None:
    flow = Flow("f", state_partitions=2)
    flow.source("t", lambda value: value, raw=True)
    infos = {"t": TopicInfo("t", TOPIC_ID, 2)}
    starts = {ONE: (2, True), TWO: (0, False)}
    plan = birth_plan(flow.so_far(), CLAIM, 1, infos, starts, SPEC)
    assert (
        plan.number,
        Rebuilding.of(plan).attempt,
        Rebuilding.of(plan).silent_until,
        Rebuilding.of(plan).unfinished,
    ) == (5, 5, BEHIND.silent_until, REST)
    assert Rebuilding.of(plan).published_until == {TWO: 9}
    assert (Rebuilding.of(plan).reached, Rebuilding.of(plan).heard) == (BEHIND.reached, BEHIND.heard)
    assert Closes.of(plan) == replace(Closes.of(LAST), done=0)
    assert plan.layout.starts == {ONE: 2}
    assert [plan.marks[tp].entered_in_middle for tp in (ONE, TWO)] == [True, False]
    assert Rebuilding.of(birth_plan(flow.so_far(), CLAIM, 1, infos, starts)).attempt == -1


def test_a_silent_batch_keeps_what_comes_after_the_silence() -> None:
    plan = batch_after(LAST, {ONE: 4, TWO: 3}, silent=True)
    for name in ("silent_until", "unfinished", "reached", "heard", "closes", "ticked_ms"):
        assert what(plan, name) == what(LAST, name), name
    assert Rebuilding.of(plan).silent
    assert what(plan, "published_until") == what(LAST, "published_until"), "not all is taken again"
    plan = batch_after(LAST, {ONE: 4, TWO: 3}, silent=True, frontier=REACHED)
    assert what(plan, "published_until") == what(LAST, "published_until"), "receivers have more"
    plan = batch_after(LAST, {ONE: 4, TWO: 3}, silent=True, frontier=HEARD)
    assert what(plan, "published_until") == {TWO: 9}, "the first partition has passed what receivers have"


def test_the_last_silent_batch_goes_on_from_where_event_time_had_come_when_it_was_published() -> None:
    last = last_plan(silent_until={TWO: 4})
    plan = batch_after(last, {ONE: 4, TWO: 4}, silent=True, frontier=REACHED)
    assert BEHIND.reached is not None
    assert EventTime.of(plan).times == {**EventTime.of(last).times, **BEHIND.reached.times}
    assert EventTime.of(plan).frontier == REACHED
    assert (
        what(batch_after(last, {ONE: 4, TWO: 3}, silent=True, frontier=REACHED), "times")
        == EventTime.of(last).times
    )
    assert what(batch_after(last, {ONE: 4, TWO: 4}, silent=True), "times") == EventTime.of(last).times, (
        "not all is taken again"
    )


def test_where_receivers_have_all_again_it_goes_on_from_where_event_time_had_come_there() -> None:
    last = last_plan(silent=False, silent_until={}, published_until={TWO: 4})
    assert BEHIND.heard is not None
    plan = batch_after(last, {ONE: 4, TWO: 4}, frontier=HEARD)
    assert EventTime.of(plan).times == {**EventTime.of(last).times, **BEHIND.heard.times}
    for stop, frontier in ((3, HEARD), (4, REACHED)):
        plan = batch_after(last, {ONE: 4, TWO: stop}, frontier=frontier)
        assert EventTime.of(plan).times == EventTime.of(last).times, "not all is taken again"


def test_a_silent_batch_is_marked_silent_though_the_plan_before_was_never_folded_again() -> None:
    last = changed(LAST).with_sections(Rebuilding()).with_id()
    assert Rebuilding.name not in last.sections
    decision = BatchDecision(last.ranges, silent=True)
    plan = batch_plan(environment(), last, CLAIM, decision, Report(), ())
    assert Rebuilding.of(plan).silent


def test_a_batch_that_is_published_ends_the_silence_and_keeps_the_batch_that_is_due() -> None:
    last = last_plan(silent=False, silent_until={})
    plan = batch_after(last, {ONE: 4, TWO: 3})
    assert (what(plan, "silent"), what(plan, "silent_until")) == (False, {})
    assert what(plan, "reached") is None
    assert what(plan, "heard") == BEHIND.heard, "receivers are still ahead"
    assert what(batch_after(changed(last, published_until={}), {ONE: 4, TWO: 3}), "heard") is None
    assert Rebuilding.of(plan).unfinished == REST
    assert Rebuilding.of(plan).attempt == -1
    assert what(batch_after(last, {ONE: 4, TWO: 3}, SPEC, silent=True), "attempt") == 5


def test_the_batch_that_was_due_is_due_no_more() -> None:
    assert what(batch_after(last_plan(silent_until={}), {ONE: 6, TWO: 7}, sealed=()), "unfinished") is None


@pytest.mark.parametrize(("stop", "known"), [(8, {TWO: 9}), (9, {}), (10, {})])
def test_receivers_are_ahead_until_a_batch_reaches_what_they_have(stop: int, known: dict[str, int]) -> None:
    last = last_plan(silent_until={}, unfinished=None, published_until={TWO: 9}, heard=None)
    assert what(batch_after(last, {ONE: 4, TWO: stop}), "published_until") == known


def test_an_idle_partition_keeps_its_last_record() -> None:
    plan = batch_after(LAST, {ONE: 4, TWO: 3}, silent=True)
    assert plan.ends()[ONE] == replace(LAST.ends()[ONE], start=4)


def test_the_clock_of_timers_goes_on_only_where_they_fire() -> None:
    assert what(batch_after(LAST, {ONE: 4, TWO: 3}, silent=True), "ticked_ms") == 30
    assert what(batch_after(LAST, {ONE: 4, TWO: 3}, silent=True, ticks=Ticks(35, {})), "ticked_ms") == 35


def test_a_plan_that_republishes_states_reads_nothing_and_forgets_nothing() -> None:
    last = last_plan(silent_until={}, unfinished=None)
    plan = announcement_plan(last, CLAIM, 2_000, {"s": ("ab", "")})
    for name in ("times", "frontier", "seen", "ticked_ms", "due", "closes"):
        assert what(plan, name) == what(last, name), name
    assert (plan.marks, plan.layout) == (last.marks, last.layout)
    assert plan.empty
    assert plan.next_offsets() == last.next_offsets()
    assert Announcing.of(plan).digests == {"s": ("ab", "")}


@pytest.mark.parametrize(
    "change",
    [
        {"wakes": True},
        {"ranges": (planned(0, 1, 2),)},
        {"ranges": (replace(planned(0, 4, 4), again=2),)},
    ],
)
def test_a_plan_is_empty_only_if_it_reads_releases_and_closes_nothing(change: dict[str, Any]) -> None:
    empty = last_plan(ranges=(planned(0, 4, 4), planned(1, 2, 2)))
    assert empty.empty
    assert not changed(empty, **change).empty


def test_the_id_of_a_plan_is_that_of_its_history_too() -> None:
    assert last_plan(previous_id="other").plan_id != LAST.plan_id


# --- what the next batch reads --------------------------------------------------------------------------


THERE = {ONE: Bounds(0, 100), TWO: Bounds(0, 100)}


PLAIN = Flow("f", state_partitions=2)
"""Its records are taken as they come."""
PLAIN.source("t", dict, raw=True).aggregate(
    "s", key=lambda _: "k", state=dict, fold=lambda _state, _value: None
)


def next_after(spec: Refold | None = None, limit: int = 1_000, **changes: Any) -> BatchDecision:
    known = {"closes": Closes(), "reached": None, "heard": None} | changes
    env = environment(spec, PLAIN)
    look = Look(THERE, limit)
    decision = decide_batch(env, IdleWriters(env), ReleaseRequest(), last_plan(**known), look, 2_000)
    assert decision is not None
    return decision


def test_as_long_as_any_partition_lags_behind_what_was_published_it_is_read_first_and_alone() -> None:
    part = next_after()
    assert part.silent
    assert part.stops == {ONE: 4, TWO: 4}, "one has nothing to read, the other no more than was published"
    assert part.sealed is None
    small = next_after(limit=1, silent_until={ONE: 4, TWO: 9})
    assert small.stops == {ONE: 4, TWO: 4}, "a batch takes a record of each partition at least"


def test_as_long_as_inputs_wait_that_had_been_taken_nothing_else_is_read() -> None:
    last = last_plan(silent_until={ONE: 4, TWO: 2}, reached=BEHIND.reached, heard=None)
    assert limits_behind(last) == last.next_offsets()
    assert catch_up(environment(), last, BatchDecision(last.ranges), Look(THERE, 1_000)).silent
    part = next_after(
        silent_until={}, unfinished=None, published_until={}, reached=BEHIND.reached, frontier=REACHED
    )
    assert (part.silent, part.stops) == (False, {ONE: 100, TWO: 100})


def test_then_the_batch_that_was_begun_as_it_was_sealed() -> None:
    part = next_after(
        silent_until={ONE: 4}, unfinished=replace(REST, ranges=(planned(0, 4, 6), planned(1, 2, 7)))
    )
    assert not part.silent
    assert part.stops == {ONE: 6, TWO: 7}
    assert part.sealed == REST.exclusions
    assert (
        next_after(
            silent_until={}, limit=1, unfinished=replace(REST, ranges=(planned(0, 4, 6), planned(1, 2, 7)))
        ).stops
        == part.stops
    )


def test_after_a_rewind_what_comes_before_it_is_published_and_no_more() -> None:
    """One partition is where the batch begins, and waits for the other."""
    part = next_after(silent_until={})
    assert (part.stops, part.silent, part.sealed) == ({ONE: 4, TWO: 4}, False, None)


def test_a_partition_that_has_entered_since_waits_until_that_batch_is_done() -> None:
    """What it brings would change states before the batch that has to be as it was."""
    part = next_after(silent_until={}, unfinished=replace(REST, ranges=(planned(0, 6, 8),)))
    assert (part.stops, part.sealed) == ({ONE: 6, TWO: 2}, None)


def test_while_receivers_are_ahead_batches_end_where_they_are() -> None:
    """Until then it publishes no states, for they would be older than those of the receivers."""
    part = next_after(silent_until={}, unfinished=None)
    assert (part.stops, part.silent, part.sealed) == ({ONE: 4, TWO: 9}, False, None)
    assert next_after(silent_until={}, unfinished=None, limit=1).stops == {ONE: 4, TWO: 4}


def test_then_whatever_is_there() -> None:
    part = next_after(silent_until={}, unfinished=None, published_until={})
    assert (part.stops, part.silent, part.sealed) == ({ONE: 100, TWO: 100}, False, None)


def test_a_rebuild_reads_whatever_is_there_in_silence() -> None:
    part = next_after(SPEC, silent_until={})
    assert (part.stops, part.silent) == ({ONE: 100, TWO: 100}, True)


def test_batches_end_where_windows_were_closed_and_then_they_are_closed_again() -> None:
    closes = Closes((5, 9), {ONE: (4, 8), TWO: (3, 9)}, done=0, published=0)
    before = next_after(silent_until={}, unfinished=None, closes=closes)
    assert (before.stops, before.closing) == ({ONE: 4, TWO: 3}, None)
    there = (planned(0, 1, 4), planned(1, 1, 3))
    for done, published, silent in ((0, 0, False), (0, 1, True), (0, 2, True)):
        again = next_after(
            silent_until={},
            unfinished=None,
            ranges=there,
            closes=replace(closes, done=done, published=published),
        )
        assert (again.closing, again.silent) == (Closing(1, 5), silent)
    known: dict[str, Any] = {"silent_until": {}, "unfinished": None, "published_until": {}}
    after = next_after(**known, ranges=there, closes=replace(closes, done=1))
    assert (after.stops, after.closing) == ({ONE: 8, TWO: 9}, None)


@pytest.mark.parametrize(
    ("stops", "ends"), [({ONE: 4, TWO: 3}, False), ({ONE: 4, TWO: 4}, True), ({ONE: 9, TWO: 9}, True)]
)
def test_the_silence_ends_when_all_partitions_have_passed_what_was_published(
    stops: dict[TopicPartition, int], *, ends: bool
) -> None:
    silent = BatchDecision(batch_ranges(stops), silent=True, taken=Taken(REACHED))
    assert ends_silence(LAST, silent) == ends
    assert not ends_silence(LAST, replace(silent, silent=False))
    assert not ends_silence(LAST, replace(silent, taken=Taken(FRONTIER))), (
        "not all that was taken is taken again"
    )


def test_a_plan_keeps_what_its_redo_needs_to_know() -> None:
    """Up to where it took inputs, what it read again for that, and what was skipped, wherever it failed."""
    last = last_plan(silent=False, silent_until={})
    ranges = tuple(replace(input_range, start=input_range.stop, again=2) for input_range in last.ranges)
    skipped = (Exclusion("t", 0, 3, "skip", "E", "in a stage"), Exclusion("t", 1, 1, "skip", "E", "before"))
    decision = BatchDecision(ranges, 77, taken=Taken(REACHED))
    report = Report(excluded=[skipped[1]])
    env = environment()
    plan = batch_plan(env, last, CLAIM, decision, report, skipped)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert (EventTime.of(plan).frontier, plan.clock_ms) == (REACHED, 77)
    assert [input_range.begin for input_range in plan.ranges] == [2, 2]
    assert plan.exclusions == skipped
    again = decide_again(env.flow, plan, last)
    assert (again.ranges, again.clock_ms, again.sealed) == (plan.ranges, 77, skipped)
    assert again.taken == Taken(REACHED, times=again.times)


def test_what_waits_is_needed_from_its_first_input_on() -> None:
    times = EventTimes(0)
    times.waiting, times.lanes = WaitingRange(2, 90, 2), {5: 95}
    last = last_plan(times={ONE: times})
    assert Plan.from_bytes(last.to_bytes()) == last
    assert EventTime.of(last).waiting == 2
    assert needed_offsets(last) == {ONE: 2, TWO: 2}
    assert last.next_offsets() == {ONE: 4, TWO: 2}


def test_outputs_stay_known_when_they_are_not_declared_any_more() -> None:
    """Their names are permanent: declared again, with other partitions, replays would take other lanes."""
    flow = Flow("f", state_partitions=2)
    flow.source("t", lambda value: value, raw=True).to("new", partitions=1, name="later")
    known = replace(LAST.layout, outputs={"earlier": ("old", 3)})
    layout = layout_of(flow.compile(), {"t": TopicInfo("t", TOPIC_ID, 2)}, 8, known)
    assert layout.outputs == {"earlier": ("old", 3), "later": ("new", 1)}


def test_topics_are_not_compared_again_with_a_layout_unless_files_may_enter() -> None:
    nowhere: Any = None
    infos: dict[str, TopicInfo] = {}
    for sources, entered in ((), True), (("files",), False):
        env: Any = SimpleNamespace(flow=SimpleNamespace(file_sources=sources))
        owned = OwnedFlow(env, CLAIM, nowhere, LAST, entered=(infos, LAST.layout))
        assert owned.is_entered(infos) is entered
        assert not owned.is_entered(dict(infos))
        owned.last = replace(LAST, layout=replace(LAST.layout))
        assert not owned.is_entered(infos)
