"""Goal: what timers give, and when states expire, depends on the records alone.

Method: a root topic whose partitions are in the order of their times, far apart and at different rates, read directly or
through republishers. Random batches, kills, crashes and rebuilds of all services. Compared with a naive run over all records,
sorted by time: each output once, and the same states.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.testing.rehearsal import Rehearsal
from tests.support.disturbed_services import DisturbedServices

MINUTE_MS = 60_000
SILENT_MS, REMIND_MS = 40 * MINUTE_MS, 25 * MINUTE_MS
LIFE_MS = 90 * MINUTE_MS
END_MS = 10**12
NUMBERS = itertools.count()
Event = dict[str, Any]
State = dict[str, Any]


def key_of(event: Event) -> str:
    return str(event["key"])


def watch(state: State, event: Event, context: Context) -> Iterator[Event]:
    """Emit each third event; set a timer for silence; a "stop" deletes it."""
    state["seen"] = [*state.get("seen", []), event["id"]]
    if event["what"] == "stop":
        context.delete_timer("silent")
    elif event["what"] == "forget":
        context.delete_state()
    else:
        context.set_timer(context.timestamp_ms + SILENT_MS, "silent")
        context.set_timer(event["at"] + event["after"], "once")
    if len(state["seen"]) % 3 == 0:
        yield {"key": event["key"], "third": event["id"]}


def report_silence(state: State, timer: Timer, context: Context) -> list[Event]:
    assert context.key is not None
    report = {"key": context.key.decode(), timer.name: timer.at_ms, "seen": state["seen"][-4:]}
    if timer.name == "silent":
        state["seen"] = [*state["seen"], "silent"]
        context.set_timer(timer.at_ms + REMIND_MS, "again")
    elif timer.name == "again" and len(state["seen"]) > 8:
        context.delete_state()
    return [report]


def last(state: State, event: Event) -> None:
    state["ids"] = [*state.get("ids", []), event["id"]]


def flow_of(source: str, *, raw: bool, partitions: int) -> Flow:
    flow = Flow("timers", state_partitions=partitions)
    events = flow.source(source, dict, raw=raw)
    watched = events.aggregate(
        "watched", key=key_of, state=dict, fold=watch, on_timer=report_silence, guard=None
    )
    watched.to("reports", partitions=2)
    living = events.aggregate(
        "living", key=key_of, state=dict, fold=last, expire_after_ms=LIFE_MS, guard=None
    )
    living.changes().to("lives", partitions=2)
    return flow


class World(DisturbedServices):
    """A topic, services in between, and the service with timers."""

    def __init__(self, seed: int, hops: int) -> None:
        draw = self.draw = random.Random(f"{seed} {hops}")
        self.log = MemoryLog(f"timers-{next(NUMBERS)}")
        self.events: list[Event] = []
        self.waiting: dict[int, list[Event]] = {}
        moments = iter(draw.sample(range(24 * 60, 48 * 60), 300))  # no two at the same time
        partitions = draw.randrange(1, 4)
        self.log.create_topic("in", partitions)
        for partition in range(partitions):
            times = sorted(itertools.islice(moments, draw.choice([5, 30, 60])))
            own = [self._event(partition, number, at) for number, at in enumerate(times)]
            self.events += own
            self.waiting[partition] = own.copy()
        self.everyone, topic = list[Rehearsal](), "in"
        for hop in range(hops):
            relay, source = Flow(f"relay-{hop}"), topic
            topic = f"hop-{hop}"
            relay.source(source, dict, raw=hop == 0).to(topic, key=key_of, partitions=draw.randrange(1, 4))
            self.everyone.append(Rehearsal(relay, log=self.log, settings=self.drawn_settings()))
        flow = flow_of(topic, raw=not hops, partitions=draw.choice([1, 2, 3, partitions]))
        rows = draw.choice([2, 5_000])
        self.service = Rehearsal(flow, log=self.log, settings=self.drawn_settings(), max_rows_per_write=rows)
        self.everyone.append(self.service)

    def _event(self, partition: int, number: int, minute: int) -> Event:
        return {
            "key": f"k{self.draw.randrange(4)}",
            "at": minute * MINUTE_MS,
            "id": f"{partition}-{number}",
            "what": self.draw.choice(["go"] * 8 + ["stop", "forget"]),
            "after": self.draw.choice([-30, 0, 5, 20, 200]) * MINUTE_MS + 1,
        }

    def feed(self) -> bool:
        left = [partition for partition, events in self.waiting.items() if events]
        if not left:
            return False
        partition = self.draw.choice(left)
        for _ in range(self.draw.randrange(1, 12)):
            if events := self.waiting[partition]:
                self.append(partition, events.pop(0))
        return True

    def append(self, partition: int, event: Event) -> None:
        self.log.append("in", partition, json.dumps(event).encode(), None, None, event["at"])

    def finish(self) -> None:
        while self.feed():
            pass
        self.catch_up()
        for number in range(30):  # so that event time passes everything, in each state partition
            end = {"key": f"end{number}", "at": END_MS + number, "id": "end", "what": "stop", "after": 0}
            self.events.append(end)
            self.append(0, end)
        self.catch_up()

    def reports(self) -> Counter[str]:
        found, known = Counter[str](), set[bytes]()
        for message in self.log.records("reports"):
            envelope = read(message.value(), headers=message.headers())
            if envelope.event_id not in known:
                found.update(
                    json.dumps(json.loads(payload or b""), sort_keys=True) for payload in envelope.payloads
                )
            known.add(envelope.event_id)
        return found

    def lives(self) -> dict[str, list[str] | None]:
        """What a receiver of changes() knows in the end: the newest state of each key."""
        found: dict[str, list[str] | None] = {}
        for message in self.log.records("lives"):
            envelope = read(message.value(), headers=message.headers())
            for payload in envelope.payloads:
                assert envelope.key is not None
                found[envelope.key.decode()] = None if payload is None else json.loads(payload)["ids"]
        return found

    def check(self) -> None:
        naive = Naive(sorted(self.events, key=lambda event: int(event["at"])))
        wanted = Counter(json.dumps(one, sort_keys=True) for one in naive.reports)
        assert self.reports() == wanted
        states = {key.decode(): state["seen"] for key, state in self.service.states("watched").items()}
        assert states == {key: one["seen"] for key, one in naive.states.items()}
        ids = {key.decode(): state["ids"] for key, state in self.service.states("living").items()}
        assert ids == {f"end{number}": ["end"] for number in range(30)}
        lives = self.lives()
        assert {key: one for key, one in lives.items() if one is not None} == ids
        assert {key for key, one in lives.items() if one is None} <= {"k0", "k1", "k2", "k3"}


class Call:
    """The context of a naive run: what the functions here use of it."""

    def __init__(self, key: str, at_ms: int, timers: dict[str, int]) -> None:
        self.key = key.encode()
        self.timestamp_ms = at_ms
        self.timers = timers
        self.deleted = False

    def set_timer(self, at_ms: int, name: str = "") -> None:
        self.timers[name] = at_ms

    def delete_timer(self, name: str = "") -> None:
        self.timers.pop(name, None)

    def delete_state(self) -> None:
        self.deleted = True


class Naive:
    """All events, one after the other; before and after each, the first of all timers that are due, until none is."""

    def __init__(self, events: list[Event]) -> None:
        self.states: dict[str, State] = {}
        self.timers: dict[str, dict[str, int]] = {}
        self.reports: list[Event] = []
        for event in events:
            self.fire(event["at"])
            self.call(event["key"], event["at"], lambda state, call, event=event: watch(state, event, call))
            self.fire(event["at"])

    def fire(self, now_ms: int) -> None:
        while due := [
            (at_ms, key, name)
            for key, own in self.timers.items()
            for name, at_ms in own.items()
            if at_ms <= now_ms
        ]:
            at_ms, key, name = min(due)
            del self.timers[key][name]
            timer = Timer(name, at_ms)
            self.call(key, at_ms, lambda state, call, timer=timer: report_silence(state, timer, call))

    def call(self, key: str, at_ms: int, function: Any) -> None:
        state, call = self.states.get(key, {}), Call(key, at_ms, self.timers.get(key, {}))
        self.reports += function(state, call)
        self.states[key], self.timers[key] = state, call.timers
        if call.deleted:
            del self.states[key], self.timers[key]


@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_live_is_a_naive_run(seed: int, hops: int) -> None:
    world = World(seed, hops)
    for _ in range(60):
        world.step()
    world.finish()
    world.check()
