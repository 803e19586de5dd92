"""Goal: results of stages that go by event time depend on the records alone.

Method: worlds with root partitions whose records are in the order of their times, at different rates and far apart. None,
one or two republishers; a flow with windows and a filter by event time. Random batches, crashes, outages, restarts, rewinds
and rebuilds of all services. Compared with a naive fold over all records: equal, and nothing is late.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.features.event_times import EventTime
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.stages import Hopping, Sessions, Tumbling, WindowResult
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.rehearsal import Rehearsal

HOUR_MS = 3_600_000
KINDS: dict[str, Any] = {
    "tumbling": Tumbling(HOUR_MS),
    "hopping": Hopping(HOUR_MS, advance_ms=HOUR_MS // 2),
    "sessions": Sessions(HOUR_MS // 6),
}
NUMBERS = itertools.count()
Event = dict[str, Any]


def add(total: Int64Value, _: Event) -> None:
    total.value += 1


def pass_on(total: Int64Value, event: Event) -> list[Event]:
    total.value += 1
    return [event]


def merge(total: Int64Value, later: Int64Value) -> None:
    total.value += later.value


def naive(kind: str, events: list[Event]) -> Counter[tuple[str, int, int]]:
    """(key, begin, end) of a window -> events in it."""
    windows, found = KINDS[kind], Counter[tuple[str, int, int]]()
    if kind != "sessions":
        for event in events:
            for span in windows.spans(event["at"]):
                found[event["key"], *span] += 1
        return found
    by_key: dict[str, list[int]] = {}
    for event in events:
        by_key.setdefault(event["key"], []).append(event["at"])
    for key, times in by_key.items():
        begin = last = -1
        count = 0
        for at_ms in sorted(times):
            if count and at_ms - last > windows.gap_ms:
                found[key, begin, last] = count
                count = 0
            begin = begin if count else at_ms
            last, count = at_ms, count + 1
        if count:
            found[key, begin, last] = count
    return found


@dataclass
class World:
    """Services on one broker."""

    log: MemoryLog
    relays: list[Rehearsal]
    service: Rehearsal
    events: list[Event]
    waiting: list[list[Event]]

    def feed(self, random_: random.Random) -> bool:
        """Append some of a partition's events; False: there are none left."""
        left = [number for number, events in enumerate(self.waiting) if events]
        if not left:
            return False
        partition = random_.choice(left)
        for _ in range(random_.randrange(1, 12)):
            if self.waiting[partition]:
                event = self.waiting[partition].pop(0)
                self.log.append(
                    "in", partition, json.dumps(event).encode(), event["key"].encode(), None, event["at"]
                )
        return True

    @property
    def everyone(self) -> list[Rehearsal]:
        return [*self.relays, self.service]


def world(seed: int, kind: str, *, hops: int) -> World:
    draw = random.Random(f"world {seed} {kind} {hops}")
    log = MemoryLog(f"world-{next(NUMBERS)}")
    waiting: list[list[Event]] = []
    for partition in range(draw.randrange(1, 4)):
        at_ms, step_ms = draw.choice([0, HOUR_MS, 9 * HOUR_MS]), draw.choice([1_000, 60_000, HOUR_MS])
        own: list[Event] = []
        for number in range(draw.choice([0, 5, 40, 80])):
            at_ms += draw.randrange(step_ms)
            own.append({"key": f"k{draw.randrange(3)}", "at": at_ms, "id": f"{partition}-{number}"})
        waiting.append(own)
    relays, topic = list[Rehearsal](), "in"
    for hop in range(hops):
        relay = Flow(f"relay-{hop}", state_partitions=draw.choice([1, 2]))
        source: Any = relay.source(topic, dict, raw=hop == 0)
        topic, how = f"hop-{hop}", draw.choice(["plain", "plain", "filter", "aggregate"])
        if how == "filter":  # it goes by event time itself
            source = source.deduplicate("once", lambda event: event["id"], HOUR_MS, guard=None)
        elif how == "aggregate":  # its fold passes everything on
            source = source.aggregate("all", key=lambda event: event["id"], state=Int64Value, fold=pass_on)
        source.to(topic, key=lambda event: event["key"], partitions=draw.randrange(1, 4))
        partitions = {"in": len(waiting)}
        limited = Settings(max_records=draw.choice([3, 7, 30, 400_000]))
        relays.append(Rehearsal(relay, partitions=partitions, log=log, settings=limited))
    flow = Flow("hours", state_partitions=draw.choice([1, 2, 3, len(waiting)]))
    events = flow.source(topic, dict, raw=not hops)
    windows = events.windowed(
        "windows",
        KINDS[kind],
        key=lambda event: event["key"],
        state=Int64Value,
        fold=add,
        merge=merge if kind == "sessions" else None,
        guard=None,
        retention_ms=10**12,
    )
    windows.to("results", partitions=2)
    windows.dropped().to("late", partitions=1)
    once = events.deduplicate("once", lambda event: event["id"], HOUR_MS, guard=None)
    once.aggregate("ids", key=lambda event: event["key"], state=Int64Value, fold=add)
    settings = Settings(max_records=draw.choice([3, 7, 30, 400_000]))
    service = Rehearsal(
        flow,
        partitions={"in": len(waiting)},
        log=log,
        settings=settings,
        max_rows_per_write=draw.choice([2, 5_000]),
    )
    return World(log, relays, service, [event for own in waiting for event in own], waiting)


def finish(found: World) -> None:
    while found.feed(random.Random(0)):
        pass
    for service in found.everyone:
        service.run_until_caught_up()


def check(found: World, kind: str) -> None:
    wanted = naive(kind, found.events)
    windows = {
        (window.key.decode(), *window.span): window.state.value for window in found.service.windows("windows")
    }
    assert windows == wanted
    assert not found.log.records("late")
    results = Counter[tuple[str, int, int]]()
    known = set[bytes]()
    for message in found.log.records("results"):
        envelope = read(message.value(), headers=message.headers())
        if envelope.event_id not in known:
            for payload in envelope.payloads:
                one = WindowResult.FromString(payload or b"")
                results[one.key.decode(), one.start_ms, one.end_ms] += Int64Value.FromString(one.state).value
        known.add(envelope.event_id)
    assert results.items() <= wanted.items()
    ids = {key.decode(): total.value for key, total in found.service.states("ids").items()}
    assert ids == Counter(event["key"] for event in found.events)
    last: Any = found.service.service
    assert EventTime.of(last.last).waiting == 0


def one_batch(service: Rehearsal, *, at_end: bool = False) -> None:
    try:
        service.batch(at_end=at_end)
    except Crash:
        service.service = None


def one_step(found: World, draw: random.Random) -> None:
    what, who = draw.randrange(20), draw.choice(found.everyone)
    if what < 12:
        one_batch(who)
    elif what < 14:
        who.service = None  # killed; the next call starts it again
    elif what < 16:
        who.crash_at_write(draw.randrange(1, 12), draw.choice(["before", "after"]))
        for _ in range(3):
            one_batch(who)
    elif what < 17 and who.events("sealed"):  # a service with stages
        rebuild(who)
    elif what < 17 and who in found.relays:
        rewind(who, draw)
    else:
        found.feed(draw)


def rebuild(service: Rehearsal) -> None:
    try:
        service.rebuild()
    except Crash:
        service.service = None


def rewind(relay: Rehearsal, draw: random.Random) -> None:
    """It republishes some of what it has published; not if it has stages."""
    try:
        if isinstance(relay.service or relay.start(), Republisher):
            back = draw.choice([1, 5, 1_000])
            relay.rewind({tp: max(0, commit.offset - back) for tp, commit in relay.commits().items()})
    except Crash:
        relay.service = None


@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("seed", range(8))
def test_live_is_a_naive_fold(seed: int, kind: str, hops: int) -> None:
    found = world(seed, kind, hops=hops)
    draw = random.Random(seed)
    for _ in range(40):
        one_step(found, draw)
    finish(found)
    check(found, kind)


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("seed", range(8))
def test_nobody_gives_up_on_what_is_still_on_its_way(seed: int, kind: str, hops: int) -> None:
    """Everything is in the root topic; the service is run again and again as if no more input is expected."""
    found = world(seed, kind, hops=hops)
    draw = random.Random(seed)
    while found.feed(draw):
        pass
    for _ in range(40):
        one_batch(draw.choice(found.everyone), at_end=draw.randrange(2) == 0)
    finish(found)
    check(found, kind)
