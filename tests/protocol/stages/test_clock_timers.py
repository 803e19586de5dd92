"""Goal: a timer of the batch's clock fires once, not before its time, whatever crashes, comes late or is folded again.

Method: each event sets a timer of its own. Its results are counted in three places: in the output, in a stage behind a
shuffle, and by a service that reads the output. Random batches, kills, crashes, rebuilds, and clocks that jump, also back.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.rehearsal import Rehearsal

START_MS = 4_200_000_000_000
Event = dict[str, Any]
State = dict[str, Any]


def key_of(event: Event) -> str:
    return str(event["key"])


def settle(state: State, event: Event, context: Context) -> None:
    """Each event has a timer at its own time; its timer is set again until it has fired three times."""
    context.set_timer(event["due"], event["id"], clock="batch")
    state["open"] = [*state.get("open", []), event["id"]]


def fire(state: State, timer: Timer, context: Context) -> list[Event]:
    assert timer.clock == "batch"
    assert context.key is not None
    name, _, again = timer.name.partition("/")
    if len(again) < 2:
        context.set_timer(timer.at_ms + 3_000, f"{name}/{again}x", clock="batch")
    else:
        state["open"].remove(name)
        if not state["open"]:
            context.delete_state()
    return [{"key": context.key.decode(), "id": timer.name}]


def count(state: State, event: Event) -> None:
    state[event["id"]] = state.get(event["id"], 0) + 1


def settling(partitions: int) -> Flow:
    flow = Flow("settling", state_partitions=partitions)
    stage = flow.source("in", dict, raw=True).aggregate(
        "open", key=key_of, state=dict, fold=settle, on_timer=fire
    )
    stage.to("fired", key=key_of, partitions=2)
    stage.changes().to("open", partitions=2)
    stage.key_by(lambda event: event["id"]).aggregate("counts", state=dict, fold=count)
    return flow


def reading() -> Flow:
    flow = Flow("reading", state_partitions=2)
    flow.source("fired", dict).aggregate("totals", key=key_of, state=dict, fold=count)
    return flow


class World:
    """A service with timers, and one that reads what they give."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.log = MemoryLog(f"clock-timers-{seed}")
        self.partitions = draw.choice([1, 2, 3])
        self.log.create_topic("in", self.partitions)
        flow = settling(draw.choice([self.partitions, 1, 2]))
        rows = draw.choice([1, 3, 5_000])
        settings = Settings(max_records=draw.choice([2, 9, 400_000]))
        self.service = Rehearsal(
            flow, log=self.log, settings=settings, max_rows_per_write=rows, now_ms=START_MS
        )
        self.reader = Rehearsal(reading(), log=self.log)
        self.events: list[Event] = []

    def feed(self) -> None:
        for _ in range(self.draw.randrange(1, 5)):
            due = START_MS + self.draw.choice([0, 2_000, 40_000, 90_000, 900_000, 40_000_000])
            event = {"key": f"k{self.draw.randrange(5)}", "id": f"e{len(self.events)}", "due": due}
            self.events.append(event)
            at_ms = START_MS + len(self.events)
            self.service.feed("in", event, partition=self.draw.randrange(self.partitions), timestamp_ms=at_ms)

    def batch(self, who: Rehearsal) -> None:
        try:
            who.batch()
        except Crash:
            who.service = None

    def step(self) -> None:
        what, who = self.draw.randrange(20), self.draw.choice([self.service, self.service, self.reader])
        if what < 9:
            self.batch(who)
        elif what < 11:
            who.service = None
        elif what < 13:
            who.crash_at_write(self.draw.randrange(1, 12), self.draw.choice(["before", "after"]))
            for _ in range(3):
                self.batch(who)
        elif what < 14 and who.events("sealed"):
            try:
                who.rebuild()
            except Crash:
                who.service = None
        elif what < 17:
            self.service.clock.jump(self.draw.choice([-700_000, -50, 50, 1_000, 30_000, 600_000]))
        else:
            self.feed()

    def finish(self) -> None:
        self.service.run_until_caught_up()
        for _ in range(5):
            self.service.clock.jump(80_000_000)
            self.service.run_until_caught_up()
        self.reader.run_until_caught_up()

    def check(self) -> None:
        expected = Counter(
            {f"{event['id']}{again}": 1 for event in self.events for again in ("", "/x", "/xx")}
        )
        keys = {f"{event['id']}{again}": event["key"] for event in self.events for again in ("", "/x", "/xx")}
        assert self.service.states("open") == {}
        counts = self.service.states("counts")
        assert {key.decode(): state for key, state in counts.items()} == {
            name: {name: 1} for name in expected
        }
        found = {envelope.event_id: envelope for envelope in self.service.published("fired")}.values()
        ids = Counter(payload["id"] for one in found for payload in one.payloads_as(dict) if payload)
        assert ids == expected
        newest = {envelope.key: envelope.payloads[-1] for envelope in self.service.published("open")}
        assert newest == {event["key"].encode(): None for event in self.events}
        totals = {key.decode(): state for key, state in self.reader.states("totals").items()}
        assert totals == {
            key: {name: 1 for name, own in keys.items() if own == key} for key in set(keys.values())
        }


@pytest.mark.parametrize("seed", range(24))
def test_each_timer_fires_once(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()
    world.feed()
    world.finish()
    world.check()


def remind(state: State, event: Event, context: Context) -> None:
    state["id"] = event["id"]
    context.set_timer(context.now_ms + 60_000, clock="batch")


def give(state: State, timer: Timer, context: Context) -> list[Event]:
    assert (len(context.event_id), context.root.topic) == (16, "-timers.reminders")
    return [{"id": f"e{state['id']}", "key": "all"}]


def reminding(**settings: Any) -> Flow:
    flow = Flow("reminding", state_partitions=2, **settings)
    flow.source("in", dict, raw=True).aggregate(
        "reminders", key=key_of, state=dict, fold=remind, on_timer=give
    ).to("reminded", key=key_of, partitions=1)
    return flow


def fed(flow: Flow, times_ms: list[int], **settings: Any) -> Rehearsal:
    rehearsal = Rehearsal(flow, partitions={"in": 2}, **settings)
    for number, at_ms in enumerate(times_ms):
        event = {"key": f"k{number}", "id": number}
        rehearsal.feed("in", event, partition=number % 2, timestamp_ms=at_ms)
    return rehearsal


def test_timers_fire_though_nothing_comes_and_what_they_give_is_never_late() -> None:
    """Its event time is how far event time has come, after all that was read. Windows of a reader take it at once, and none of it is late."""
    windows = Flow("windows", state_partitions=1)
    stage = windows.source("reminded", dict).windowed(
        "windows", Tumbling(1_000), key=key_of, state=dict, fold=count
    )
    stage.to("counted", partitions=1)
    stage.dropped().to("late", partitions=1)
    service = fed(reminding(), [10_000, 20_000])
    reader = Rehearsal(windows, log=service.log)
    for batch in range(4):
        service.run_until_caught_up()
        reader.run_until_caught_up()
        service.clock.jump(70_000)
        reader.clock.jump(70_000)
        if batch == 1:
            for number in (2, 3, 4):
                event = {"key": f"k{number}", "id": number}
                service.feed("in", event, partition=number % 2, timestamp_ms=25_000 + number)
    reader.run_until_caught_up()
    assert service.published("late") == []
    given = [(envelope.timestamp_ms, len(envelope.payloads)) for envelope in service.published("reminded")]
    assert Counter({20_001: 2, 25_005: 3}) == sum((Counter({at_ms: n}) for at_ms, n in given), Counter[int]())
    assert [envelope.timestamp_ms for envelope in service.published("counted")] != []


def test_what_timers_of_a_silent_partition_give_is_not_before_what_the_output_has_promised() -> None:
    keys = {partition_of(str(number).encode(), 2): str(number) for number in range(20)}
    service = Rehearsal(reminding(), partitions={"in": 2})
    for partition, at_ms in enumerate([10_000, 20_000]):
        service.feed("in", {"key": keys[partition], "id": 0}, partition=partition, timestamp_ms=at_ms)
    service.run_until_caught_up()
    assert service.events("shuffled") == []
    service.clock.jump(30_000)
    service.feed("in", {"key": keys[1], "id": 1}, partition=1, timestamp_ms=50_000)
    service.run_until_caught_up()
    service.clock.jump(45_000)
    service.run_until_caught_up()
    given = [(envelope.timestamp_ms, envelope.watermark_ms) for envelope in service.published("reminded")]
    assert given == [(50_001, 50_000)]


def failing(state: State, timer: Timer, context: Context) -> list[Event]:
    raise ZeroDivisionError("oh")


def refuse(event: Event) -> Event:
    raise ZeroDivisionError("oh")


def refuse_to_fold(state: State, event: Event) -> None:
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize("where", ["timer", "operator", "stage"])
@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_what_fails_by_the_clock_stops_the_service_and_no_input_is_blamed(poison: Any, where: str) -> None:
    flow = Flow("failing", poison=poison)
    on_timer = failing if where == "timer" else give
    stage = flow.source("in", dict, raw=True).aggregate(
        "reminders", key=key_of, state=dict, fold=remind, on_timer=on_timer
    )
    if where == "operator":
        stage.map(refuse).to("out", partitions=1)
    else:
        stage.key_by(lambda event: "x").aggregate("next", state=dict, fold=refuse_to_fold)
    rehearsal = fed(flow, [0])
    rehearsal.run_until_caught_up()
    sealed = len(rehearsal.events("sealed"))
    rehearsal.clock.jump(70_000)
    text = {
        "timer": "on_timer, for the timer",
        "operator": "what came of the timer at .* ms of key .* of stage 'reminders'",
        "stage": "what came of the timer at .* ms of key .* of stage 'reminders'",
    }
    with pytest.raises(PoisonError, match=rf"{text[where]}.*oh"):
        rehearsal.run_until_caught_up()
    assert len(rehearsal.events("sealed")) == sealed
