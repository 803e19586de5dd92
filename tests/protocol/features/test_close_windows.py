"""Goal: the end of a finite input closes all windows, once: through crashes at every step, loads day after day, and rebuilds.

Method: a flow with windows after windows reads a load for each day, and closes. A naive fold closes everything by hand. Worlds
with crashes, other batches, rebuilds and rewinds must have published, dropped and kept the same as one that nothing disturbs.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from sqe_chain import read
from sqe_chain._proto.dropped_pb2 import Dropped
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.errors import ConfigurationError, NotCaughtUp, PlanMismatch, PoisonError, ServiceStopped
from sqe_chain.features import closing
from sqe_chain.features.closing import Closes
from sqe_chain.features.events import Filtered
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.stages import Hopping, Sessions, Tumbling, Window
from sqe_chain.task.roots import Closing
from sqe_chain.testing import Crash, Rehearsal
from tests.support.plans import last_plan
from tests.support.rebuilding import rebuild_after_a_crash
from tests.support.receiving import received

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KINDS: dict[str, Any] = {
    "tumbling": Tumbling(HOUR_MS),
    "hopping": Hopping(HOUR_MS, advance_ms=HOUR_MS // 2),
    "sessions": Sessions(HOUR_MS // 6),
}
KEYS = "abcdefg"
names = itertools.count()
Event = dict[str, Any]
WINDOW: Any = Window[dict]  # type: ignore[type-arg]


def add(state: dict[str, int], _: Event) -> None:
    state["n"] = state.get("n", 0) + 1


def add_window(state: dict[str, int], window: Any) -> None:
    state["n"] = state.get("n", 0) + window.state["n"]
    state["windows"] = state.get("windows", 0) + 1


def merge(state: dict[str, int], later: dict[str, int]) -> None:
    state["n"] += later["n"]


def flow_of(kind: str = "tumbling", *, partitions: int = 2, early: bool = False, **settings: Any) -> Flow:
    """Windows of each key; then days of each group of keys, after another shuffle; then a total of all days."""
    flow = Flow("loads", state_partitions=partitions, **settings)
    windows = flow.source("in", dict, raw=True).windowed(
        "windows",
        KINDS[kind],
        key=lambda event: event["key"],
        state=dict,
        fold=add,
        merge=merge if kind == "sessions" else None,
        retention_ms=7 * DAY_MS,
        guard=None,
    )
    windows.to("out", partitions=2)
    windows.dropped().to("late", partitions=1)
    if early:
        windows.changes().to("early", partitions=1)
    days: Any = windows.windowed(
        "days",
        Tumbling(DAY_MS),
        key=lambda window: "even" if ord(window.key) % 2 else "odd",
        state=dict,
        fold=add_window,
        retention_ms=DAY_MS,
    )
    days.to("days", partitions=1)
    days.dropped().to("late-days", partitions=1)
    days.aggregate("total", key=lambda _: "all", state=dict, fold=add_window).changes().to(
        "total", partitions=1
    )
    return flow


def load(draw: random.Random, day: int, count: int = 30) -> list[Event]:
    """Events of a day, between 2 and 22 o'clock."""
    times = sorted(draw.randrange(2 * HOUR_MS, 22 * HOUR_MS) for _ in range(count))
    return [{"key": draw.choice(KEYS), "at": day * DAY_MS + at_ms} for at_ms in times]


def naive(kind: str, events: list[Event]) -> Counter[tuple[str, int, int]]:
    """(key, begin, end) of a window -> events in it, where all windows are closed after these."""
    counts = Counter[tuple[str, int, int]]()
    if kind != "sessions":
        for event in events:
            for span in KINDS[kind].spans(event["at"]):
                counts[event["key"], *span] += 1
        return counts
    for key in KEYS:
        session: list[int] = []
        for at_ms in [*sorted(event["at"] for event in events if event["key"] == key), 1 << 60]:
            if session and at_ms - session[-1] > KINDS[kind].gap_ms:
                counts[key, session[0], session[-1]] = len(session)
                session = []
            session.append(at_ms)
    return counts


def per_day(windows: Counter[tuple[str, int, int]]) -> Counter[tuple[str, int]]:
    """(group, day) -> events in all windows of it."""
    counts = Counter[tuple[str, int]]()
    for (key, begin, _), number in windows.items():
        counts["even" if ord(key) % 2 else "odd", begin // DAY_MS] += number
    return counts


@dataclass
class World:
    """One flow that is loaded day after day."""

    flow: Flow
    inputs: int = 2
    settings: Settings = field(default_factory=Settings)
    max_rows: int = 5_000

    def __post_init__(self) -> None:
        self.store = MemoryStore(f"closing-{next(names)}", max_rows=self.max_rows)
        self.service = Rehearsal(
            self.flow, partitions={"in": self.inputs}, store=self.store, settings=self.settings
        )

    def feed(self, events: list[Event]) -> None:
        for event in events:
            if self.inputs == self.flow.state_partitions:
                self.service.feed("in", event, key=event["key"], timestamp_ms=event["at"])
            else:  # keys lie anywhere
                self.service.feed("in", event, partition=event["at"] % self.inputs, timestamp_ms=event["at"])

    def heard(self, topic: str) -> list[Any]:
        """What a receiver counts, with the time of each message."""
        log, found = self.service.log, list[Any]()
        for message in received(topic, log.describe([topic])[topic].topic_id, log.records(topic)):
            envelope = read(message.value(), headers=message.headers())
            found += [(envelope.timestamp_ms, payload) for payload in envelope.payloads]
        return sorted(found, key=str)

    def dropped(self, topic: str) -> list[Any]:
        """The same for records that were dropped; without their lanes, which differ from world to world."""
        found = []
        for at_ms, payload in self.heard(topic):
            dropped = Dropped.FromString(payload)
            dropped.lane = 0
            found.append((at_ms, dropped.SerializeToString(deterministic=True)))
        return sorted(found)

    def results(self, topic: str) -> Counter[tuple[str, int, int]]:
        """(key, begin, end) -> number of events; each window once."""
        counts = Counter[tuple[str, int, int]]()
        log = self.service.log
        for message in received(topic, log.describe([topic])[topic].topic_id, log.records(topic)):
            windows: Any = read(message.value(), headers=message.headers()).payloads_as(WINDOW)
            for window in windows:
                where = window.key, window.start_ms, window.end_ms
                assert where not in counts, f"{where} was given twice"
                counts[where] = window.state["n"]
        return counts

    def kept(self) -> Any:
        """All windows in the stores, and the total."""
        return self.service.windows("windows"), self.service.windows("days"), self.service.states("total")

    def everything(self) -> Any:
        dropped = [self.dropped(topic) for topic in ("late", "late-days")]
        return self.heard("out"), self.heard("days"), dropped, self.kept()

    def last_plan(self) -> Plan:
        return last_plan(self.store, "loads")


@pytest.mark.parametrize("inputs", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_days_are_loaded_one_after_the_other(kind: str, inputs: int, seed: int) -> None:
    draw = random.Random(seed)
    world, expected = World(flow_of(kind), inputs), Counter[tuple[str, int, int]]()
    for day in range(4):
        events = load(draw, day)
        world.feed(events)
        world.service.close_windows()
        expected += naive(kind, events)
        assert world.results("out") == expected
        days = world.results("days")
        assert {(key, begin // DAY_MS): number for (key, begin, _), number in days.items()} == per_day(
            expected
        )
        (total,) = world.service.states("total").values()
        assert total["n"] == sum(expected.values())
    assert not world.service.published("late")
    assert not world.service.published("late-days")


def test_nothing_new_closes_nothing() -> None:
    world = World(flow_of())
    world.service.close_windows()
    assert not Closes.of(world.last_plan()), "nothing was read yet"
    world.feed(load(random.Random(1), 0))
    world.service.close_windows()
    plan, published = world.last_plan(), len(world.service.log.records("out"))
    assert plan.wakes
    assert Closes.of(plan).done == 1
    for _ in range(3):
        world.service.service = None
        world.service.close_windows()
    assert world.last_plan().plan_id == plan.plan_id
    assert len(world.service.log.records("out")) == published


def test_what_belongs_before_the_end_is_late_in_all_state_partitions() -> None:
    world = World(flow_of(partitions=3), inputs=3)
    world.feed([{"key": "a", "at": 10 * HOUR_MS + 5}])
    world.service.close_windows()
    early = [{"key": key, "at": 10 * HOUR_MS + 9} for key in KEYS]
    after = [{"key": key, "at": 11 * HOUR_MS} for key in KEYS]
    world.feed(early)
    world.feed(after)
    world.service.close_windows()
    assert len(world.service.published("late")) == len(KEYS)
    assert world.results("out") == naive("tumbling", [{"key": "a", "at": 10 * HOUR_MS + 5}, *after])
    counts: Counter[str] = Counter()
    for event in world.service.script.events:
        if isinstance(event, Filtered):
            counts.update(event.counts)
    assert counts["windows/late"] == len(KEYS)


def test_readers_take_what_the_last_moment_of_all_closes() -> None:
    flow = Flow("last-moment", state_partitions=1)
    windows = flow.source("in", dict).windowed("sums", Tumbling(10), key=lambda _: "k", state=dict, fold=add)
    windows.map(lambda window: window.state).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for at_ms in (5, MAX_TIMESTAMP_MS):
        rehearsal.feed("in", {"n": 1}, timestamp_ms=at_ms)
        rehearsal.run_until_caught_up()
    rehearsal.close_windows()
    assert [envelope.payload_as(dict) for envelope in rehearsal.published("out")] == [{"n": 1}, {"n": 1}]


def test_windows_that_end_after_the_last_record_wait_for_windows_before_them_though_all_are_silent() -> None:
    flow = Flow("silent", state_partitions=2)
    hours = flow.source("in", dict, raw=True).windowed(
        "hours", KINDS["tumbling"], key="key", state=dict, fold=add, lateness_ms=1_000
    )
    days = hours.windowed("days", Tumbling(DAY_MS), key=lambda _: "all", state=dict, fold=add_window)
    days.to("days", partitions=1)
    days.dropped().to("late-days", partitions=1)
    service = Rehearsal(flow, partitions={"in": 2}, settings=Settings(idle_ms=5_000))
    for at_ms in (DAY_MS - 2 * HOUR_MS - 1, DAY_MS - 1):
        service.feed("in", {"key": "a"}, partition=0, timestamp_ms=at_ms)
    for _ in range(8):
        service.batch()
        service.clock.now += 6_000
    service.close_windows()
    assert not service.published("late-days")
    (day,) = (one.payload_as(WINDOW) for one in service.published("days"))
    assert (day.end_ms, day.state) == (DAY_MS, {"n": 2, "windows": 2})


def test_results_bear_the_latest_time_read() -> None:
    world = World(flow_of())
    events = load(random.Random(1), 0)
    world.feed(events)
    world.service.run_until_caught_up()
    before = len(world.service.published("out"))
    world.service.close_windows()
    closed = [
        envelope
        for envelope in world.service.published("out")
        if envelope.chain.links[0].topic.startswith("sqe-")
    ]
    assert len(closed) == len(world.service.published("out")) - before > 0
    assert {one.timestamp_ms for one in closed} == {max(event["at"] for event in events)}
    assert {one.chain.links[0].topic for one in closed} == {"sqe-chain.closing.windows"}
    assert {one.chain.links[0].offset for one in closed} == {1}
    assert world.service.events("windows_closed")[-1]["event_ms"] == max(event["at"] for event in events)


def disturbed(seed: int, kind: str) -> tuple[World, World]:
    """A world that nothing disturbs; and one with crashes, other batches and rebuilds that was fed the same."""
    draw = random.Random(seed)
    inputs, partitions = draw.choice([(2, 2), (3, 2), (1, 3)])
    calm = World(flow_of(kind, partitions=partitions), inputs)
    settings = Settings(max_records=draw.choice([3, 7, 1_000]), keep_plans=draw.choice([2, 20]))
    other = World(flow_of(kind, partitions=partitions), inputs, settings, max_rows=draw.choice([1, 2, 5_000]))
    close = False
    for day in range(3):
        events = load(draw, day, 15)
        if close and draw.random() < 0.7:  # the first of them is late
            events = [{"key": draw.choice(KEYS), "at": day * DAY_MS - 3 * HOUR_MS}, *events]
        close = draw.random() < 0.8
        for world in (calm, other):
            world.feed(events)
            if world is other and draw.random() < 0.7:
                world.service.crash_at_write(draw.randrange(60), draw.choice(["before", "after"]))
            if close:
                world.service.close_windows()
            else:
                world.service.run_until_caught_up()
        other.service.cancel()
        if draw.random() < 0.6:
            rebuild(other, draw)
            if draw.random() < 0.5:
                other.service.run_until_caught_up()
    for world in (calm, other):
        world.service.close_windows()
    return calm, other


def rebuild(world: World, draw: random.Random) -> None:
    """Rebuild, to here or to an earlier point, perhaps with crashes."""
    to = None
    if draw.random() < 0.6:
        offsets = world.last_plan().next_offsets().items()
        to = {tp: draw.randint(0, stop) for tp, stop in offsets if draw.random() < 0.7}
    republish, resume = to is not None and draw.random() < 0.5, False
    if draw.random() < 0.4:
        world.service.crash_at_write(draw.randrange(60), draw.choice(["before", "after"]))
    while True:  # bounded by the one crash
        try:
            world.service.rebuild(to, republish=republish, resume=resume)
        except Crash:
            continue
        except (
            ConfigurationError
        ):  # it lies beyond what the switched flow has read, or there is nothing to resume
            return
        finally:
            world.service.cancel()
        return


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 4, 7, 11])
def test_crashes_batches_and_rebuilds_change_nothing(kind: str, seed: int) -> None:
    calm, other = disturbed(seed, kind)
    assert other.everything() == calm.everything()


def ready(*, partitions: int = 2, max_rows: int = 1, **settings: Any) -> World:
    """A world with a load that is read, and whose windows are still open; its first run closes next."""
    world = World(flow_of("hopping", partitions=partitions, **settings), max_rows=max_rows)
    draw = random.Random(5)
    world.feed(load(draw, 0, 6))
    world.service.close_windows()
    world.feed(load(draw, 1, 6))
    world.service.run_until_caught_up()
    return world


def close_once(world: World) -> bool:
    """Close as one run would, without a supervisor; whether it crashed."""
    service = world.service.service or world.service.start()
    assert isinstance(service, StagedService)
    try:
        service.batch(at_end=True, final=True)
    except Crash:
        world.service.service = None
        return True
    return False


def writes_of_closing(world: World) -> int:
    """Closes, and counts the writes."""
    before = len(world.service.script.written)
    assert not close_once(world)
    return len(world.service.script.written) - before


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("max_rows", [1, 5_000])
def test_a_crash_at_every_write_and_another_one_in_the_redo(partitions: int, max_rows: int) -> None:
    """Without and with a shuffle; states in chunks of one row, and at once."""
    calm = ready(partitions=partitions, max_rows=max_rows)
    expected_writes = writes_of_closing(calm)
    expected = calm.everything()
    assert expected_writes > 8
    for at in range(expected_writes):
        for when in ("before", "after") if max_rows > 1 else ("after",):
            world = ready(partitions=partitions, max_rows=max_rows)
            world.service.crash_at_write(at, when)
            assert close_once(world)
            world.service.script.writes.clear()
            world.service.crash_at_write(
                6 + at % 7, "after"
            )  # while the next run stamps headers, or finishes it
            world.service.close_windows()
            assert world.everything() == expected, (at, when)
            assert len(Closes.of(world.last_plan())) == 2


@pytest.mark.parametrize("republish", [False, True])
def test_a_rebuild_after_a_crash_at_every_write(republish: bool) -> None:
    """What was published in part is published again, the same; what was not is published."""
    calm = ready(max_rows=5_000)
    writes = writes_of_closing(calm)
    expected = calm.everything()
    for at in range(writes):
        world = ready(max_rows=5_000)
        world.service.crash_at_write(at, "after")
        assert close_once(world)
        world.service.script.writes.clear()
        to = {("in", 0): 2, ("in", 1): 1} if republish else None
        world.service.rebuild(to, republish=republish)
        world.service.close_windows()
        assert world.everything() == expected, at


def test_a_run_that_was_paused_before_the_seal_changes_nothing() -> None:
    calm = ready()
    calm.service.close_windows()
    for at in range(0, 40, 3):
        world = ready()

        def other(world: World = world) -> None:
            mine, world.service.service = world.service.service, None
            world.service.close_windows()
            world.service.service = mine

        world.service.meanwhile(other, at=at)
        world.service.close_windows()
        assert world.everything() == calm.everything(), at


def test_a_rebuild_keeps_the_rows_and_the_next_load() -> None:
    """Stream time too: what is late after the rebuild is what was late before it."""
    found = []
    for again in (False, True):
        world = ready(max_rows=5_000)
        world.service.close_windows()
        if again:
            world.service.rebuild()
            assert Closes.of(world.last_plan()).done == 2
            assert not Closes.of(world.last_plan()).pending
        world.feed([{"key": key, "at": DAY_MS + 3 * HOUR_MS} for key in KEYS])
        world.feed(load(random.Random(9), 2))
        world.service.close_windows()
        found.append(world.everything())
    assert found[0] == found[1]


def test_a_rebuild_to_between_two_closings_ends_at_the_first() -> None:
    world = ready()
    world.service.close_windows()
    calm = world.everything()
    first, ends = Closes.of(world.last_plan()).stops_at(0), world.last_plan().next_offsets()
    world.service.rebuild({("in", 0): first["in", 0] - 1})
    plan = world.last_plan()
    assert plan.next_offsets() == {("in", 0): first["in", 0] - 1, ("in", 1): first["in", 1]}
    assert (Closes.of(plan).done, Closes.of(plan).published, len(Closes.of(plan))) == (0, 2, 2)
    service = world.service.start()
    assert isinstance(service, StagedService)
    with pytest.raises(NotCaughtUp, match="after a rebuild"):
        service.batch(at_end=True, final=True)
    with pytest.raises(NotCaughtUp, match=r"it has to (read|close)"):
        republish_states(world)
    world.service.run_until_caught_up()
    assert world.last_plan().next_offsets() == ends
    assert world.everything() == calm


def republish_states(world: World) -> None:
    world.service.announce("total")


def test_a_rebuild_that_is_resumed_closes_where_it_was() -> None:
    calm = ready(max_rows=5_000)
    calm.service.close_windows()
    for at in range(5, 60, 4):
        world = ready(max_rows=5_000)
        world.service.close_windows()
        world.service.crash_at_write(at, "after")
        try:
            world.service.rebuild()
        except Crash:
            world.service.cancel()
            rebuild_after_a_crash(world.service, resume=True)
        assert world.everything() == calm.everything(), at


def test_an_export_carries_them() -> None:
    world = ready()
    world.service.close_windows()
    calm = world.everything()
    lines = world.service.exported()
    world.store.restore_all()
    world.service.imported(lines)
    world.service.rebuild()
    assert Closes.of(world.last_plan()).done == 2
    assert world.everything() == calm


def test_without_its_plans_a_flow_that_was_closed_is_not_folded_again() -> None:
    world = ready()
    world.service.close_windows()
    world.store.restore_all()
    with pytest.raises(ServiceStopped, match="closed 2 times"):
        world.service.rebuild()


def test_early_results_of_windows_that_are_closed_are_none() -> None:
    world = World(flow_of(early=True))
    world.feed(load(random.Random(5), 0))
    world.service.run_until_caught_up()
    before = len(world.service.log.records("early"))
    world.service.close_windows()
    assert len(world.service.log.records("early")) == before > 0


def test_the_flow_without_windows_passes_where_they_were_closed() -> None:
    """New code without windows: what was closed has nothing to close, and the flow goes on."""

    def plain(*, windows: bool) -> Flow:
        flow = Flow("turned", state_partitions=1)
        events = flow.source("in", dict, raw=True)
        events.aggregate("sums", key=lambda event: event["key"], state=dict, fold=add)
        if windows:
            windowed = events.windowed(
                "windows", Tumbling(HOUR_MS), key=lambda event: event["key"], state=dict, fold=add
            )
            windowed.to("out", partitions=1)
        return flow

    service = Rehearsal(plain(windows=True))
    service.feed("in", {"key": "a"}, timestamp_ms=1)
    service.close_windows()
    without = Rehearsal(
        plain(windows=False),
        log=service.log,
        store=service.stores,
        settings=settings_of(drop_stages=("windows",)),
    )
    without.rebuild()
    without.feed("in", {"key": "a"}, timestamp_ms=2)
    without.run_until_caught_up()
    assert without.states("sums") == {b"a": {"n": 2}}


def test_a_guard_of_a_later_stage_does_not_drop_what_is_closed() -> None:
    flow = Flow("far", state_partitions=1)
    quarters = flow.source("in", dict, raw=True).windowed(
        "quarters", Tumbling(90 * DAY_MS), key=lambda event: event["key"], state=dict, fold=add, guard=None
    )
    later: Any = quarters.windowed(
        "years", Tumbling(360 * DAY_MS), key=lambda _: "all", state=dict, fold=add_window
    )
    later.to("years", partitions=1)
    service = Rehearsal(flow, now_ms=0)
    for at_ms in (0, 89 * DAY_MS, 91 * DAY_MS, 170 * DAY_MS):
        service.feed("in", {"key": "a"}, timestamp_ms=at_ms)
    service.close_windows()
    years: list[Any] = [envelope.payload_as(WINDOW) for envelope in service.published("years")]
    (year,) = years
    assert year.state["n"] >= 2


def test_what_a_republisher_still_has_to_bring_is_waited_for() -> None:
    relay = Flow("relay")
    relay.source("raw", dict, raw=True).to("in", key=lambda event: event["key"], partitions=1)
    flow = Flow("loads", state_partitions=1)
    flow.source("in", dict).windowed(
        "windows", Tumbling(HOUR_MS), key=lambda event: event["key"], state=dict, fold=add
    ).to("out", partitions=1)
    relaying = Rehearsal(relay)
    loads = Rehearsal(flow, log=relaying.log)
    relaying.feed("raw", {"key": "a"}, timestamp_ms=1)
    relaying.run_until_caught_up()
    loads.run_until_caught_up()
    relaying.feed("raw", {"key": "a"}, timestamp_ms=2)
    service = loads.service
    assert isinstance(service, StagedService)
    with pytest.raises(NotCaughtUp, match=r"republisher .*in\[0\]"):
        service.batch(at_end=True, final=True)
    relaying.run_until_caught_up()
    with pytest.raises(NotCaughtUp, match=r"new records have come into in\[0\]"):
        service.batch(at_end=True, final=True)
    assert not loads.published("out")
    loads.close_windows()
    (envelope,) = loads.published("out")
    assert envelope.payload_as(WINDOW).state == {"n": 2}


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqe_chain.features.closing.MAX_CLOSES", 2)
    monkeypatch.setattr(closing, "MAX_CLOSES", 2)
    world = ready()
    world.service.close_windows()
    world.service.close_windows()
    world.feed(load(random.Random(1), 2))
    with pytest.raises(ServiceStopped, match=r"were closed 2 times.*heartbeats"):
        world.service.close_windows()
    world.service.service = None
    world.service.run_until_caught_up()
    assert len(Closes.of(world.last_plan())) == 2


@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_what_fails_after_a_window_stops_the_service_before_the_seal(poison: Any) -> None:
    flow, fail = Flow("fails", state_partitions=1, poison=poison), [True]

    def refuse(window: Any) -> Any:
        if fail[0]:
            raise ValueError("no")
        return window

    flow.source("in", dict, raw=True).windowed(
        "windows", Tumbling(HOUR_MS), key=lambda event: event["key"], state=dict, fold=add
    ).map(refuse).to("out", partitions=1)
    service = Rehearsal(flow)
    service.feed("in", {"key": "a"}, timestamp_ms=1)
    with pytest.raises(PoisonError, match=r"closing\.windows\[0\]@1\).*refuse"):
        service.close_windows()
    assert not service.events("windows_closed")
    fail[0], service.service = False, None
    service.crash(step=4, when="after")
    service.run_until_caught_up()
    crashed(service)
    fail[0] = True
    with pytest.raises((PlanMismatch, PoisonError), match="ValueError: no"):
        service.start()
    fail[0] = False
    service.close_windows()
    assert len(service.published("out")) == 1


def crashed(service: Rehearsal) -> None:
    """Close, in a run that crashes."""
    found = service.service
    assert isinstance(found, StagedService)
    with pytest.raises(Crash):
        found.batch(at_end=True, final=True)
    service.service = None


def test_flows_without_windows_are_refused() -> None:
    flow = Flow("none", state_partitions=1)
    flow.source("in", dict, raw=True).aggregate("sums", key=lambda _: "k", state=dict, fold=add)
    with pytest.raises(ConfigurationError, match="no stage of the flow has any"):
        Rehearsal(flow).close_windows()


def test_an_uneven_rebuild_releases_nothing_too_early() -> None:
    """Without closing: one partition is read again from its beginning, the other one is not taken for all there is."""
    found = []
    for to in (None, {("in", 0): 9, ("in", 1): 0}):
        world = World(flow_of(partitions=3))
        world.feed(load(random.Random(3), 0, 25))
        world.service.run_until_caught_up()
        if to is not None:
            world.service.rebuild(to)
            world.service.run_until_caught_up()
        world.service.close_windows()
        found.append(world.everything())
    assert found[0] == found[1]


def test_closes_in_numbers() -> None:
    one = (
        Closes()
        .with_new(5, {("t", 0): 3})
        .with_new(9, {("t", 0): 4, ("t", 1): 2})
        .with_new(11, {("t", 1): 7})
    )
    assert [one.stops_at(index) for index in range(3)] == [
        {("t", 0): 3, ("t", 1): 0},
        {("t", 0): 4, ("t", 1): 2},
        {("t", 0): 4, ("t", 1): 7},
    ]
    assert (one.pending, one.silent, one.due(), one.last()) == (False, False, None, Closing(3, 11))
    assert Closes.from_json(one.to_json()) == one
    assert [one.within({("t", 0): at, ("t", 1): 2}) for at in (2, 3, 4)] == [0, 1, 2]
    assert one.known({("t", 0): 4, ("t", 1): 7})
    assert not one.known({("t", 0): 4, ("t", 1): 8})
    again = Closes(one.times_ms, one.stops, 1, 2)
    assert (again.pending, again.silent, again.due(), again.again()) == (
        True,
        True,
        one.stops_at(1),
        Closing(2, 9),
    )
    assert (again.with_done().silent, again.with_done().pending) == (False, True)
    assert again.with_done().with_done() == one
    assert one.without([("t", 0)]).stops_at(1) == {("t", 1): 2}
    assert one.without([("u", 0)]) is one


def test_who_reads_the_results_still_knows_what_their_writer_has_to_read() -> None:
    """The results of a closing come from no topic: what is known of the writer's own inputs is not forgotten for that."""
    loads = World(flow_of())
    down = Flow("down", state_partitions=2)
    down.source("out", WINDOW).windowed(
        "all", Tumbling(DAY_MS), key=lambda window: window.key, state=dict, fold=add_window
    ).to("sums", partitions=1)
    reader = Rehearsal(down, log=loads.service.log)
    loads.feed(load(random.Random(5), 0))
    loads.service.close_windows()
    reader.close_windows()
    sums: list[Any] = [envelope.payload_as(WINDOW) for envelope in reader.published("sums")]
    assert sum(one.state["n"] for one in sums) == 30
    loads.feed(load(random.Random(6), 1))
    service = reader.service
    assert isinstance(service, StagedService)
    with pytest.raises(NotCaughtUp, match="republisher has not yet passed on"):
        service.batch(at_end=True, final=True)
    loads.service.close_windows()
    reader.close_windows()
    sums = [envelope.payload_as(WINDOW) for envelope in reader.published("sums")]
    assert sum(one.state["n"] for one in sums) == 60
