"""Goal: no backlog and no outage upstream makes anything late.

Method: departures of three airports at very different rates, each airport's partition in the order of its times, counted by
airport and day. They are counted in one batch, in small batches, and behind a republisher that worked off a backlog. Then live
with restarts against a rebuild of the same, and while a republisher was down. Nothing may be late, and all counts are equal.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow
from sqe_chain.protocol.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing.rehearsal import Rehearsal

MINUTE_MS, DAY_MS = 60_000, 86_400_000
DAYS = 20
RATES = {"JFK": 10, "LGA": 45, "BUF": 200}
"""Airport -> mean number of minutes between two departures."""
Departure = dict[str, Any]


def departures() -> list[list[Departure]]:
    """Of each airport, in the order of their times."""
    draw, found = random.Random(11), list[list[Departure]]()
    for airport, minutes in RATES.items():
        at_ms, own = 0, list[Departure]()
        while at_ms < DAYS * DAY_MS:
            own.append({"airport": airport, "at": at_ms})
            at_ms += draw.randrange(2 * minutes) * MINUTE_MS
        found.append(own)
    return found


def wanted() -> Counter[tuple[str, int]]:
    return Counter((one["airport"], one["at"] // DAY_MS) for own in departures() for one in own)


def count(total: Int64Value, _: Departure) -> None:
    total.value += 1


def service_of(log: MemoryLog, topic: str, *, raw: bool, partitions: int = 3, **settings: Any) -> Rehearsal:
    flow = Flow("departures", state_partitions=4)
    windows = flow.source(topic, dict, raw=raw).windowed(
        "per-day",
        Tumbling(DAY_MS),
        key=lambda one: one["airport"],
        state=Int64Value,
        fold=count,
        retention_ms=10**12,
    )
    windows.to("days", partitions=1)
    windows.dropped().to("late", partitions=1)
    return Rehearsal(flow, partitions={topic: partitions}, log=log, settings=Settings(**settings))


def relay_of(log: MemoryLog, name: str, source: str, target: str, partitions: int = 3) -> Rehearsal:
    flow = Flow(name)
    flow.source(source, dict, raw=True).to(target, key=lambda one: one["airport"], partitions=2)
    return Rehearsal(flow, partitions={source: partitions}, log=log)


def append(log: MemoryLog, topic: str, partition: int, departure: Departure) -> None:
    log.append(topic, partition, json.dumps(departure).encode(), None, None, departure["at"])


def counted(service: Rehearsal) -> Counter[tuple[str, int]]:
    return Counter(
        {
            (window.key.decode(), window.span.start_ms // DAY_MS): window.state.value
            for window in service.windows("per-day")
        }
    )


def check(service: Rehearsal, expected: Counter[tuple[str, int]] | None = None) -> None:
    assert not service.log.records("late")
    assert counted(service) == (wanted() if expected is None else expected)


@pytest.mark.parametrize("max_records", [400_000, 400, 7])
def test_in_one_batch_or_in_small_ones(max_records: int) -> None:
    log = MemoryLog(f"table-batches-{max_records}")
    service = service_of(log, "in", raw=True, max_records=max_records)
    for partition, own in enumerate(departures()):
        for one in own:
            append(log, "in", partition, one)
    service.run_until_caught_up(10_000)
    check(service)


def test_behind_a_republisher_that_has_worked_off_a_backlog() -> None:
    log = MemoryLog("table-backlog")
    relay = relay_of(log, "relay", "in", "mid")
    for partition, own in enumerate(departures()):
        for one in own:
            append(log, "in", partition, one)
    relay.run_until_caught_up()
    service = service_of(log, "mid", raw=False, partitions=2, max_records=400)
    service.run_until_caught_up()
    check(service)


def test_live_with_restarts_is_what_a_rebuild_gives() -> None:
    log, draw = MemoryLog("table-live"), random.Random(3)
    relay = relay_of(log, "relay", "in", "mid")
    service = service_of(log, "mid", raw=False, partitions=2, max_records=400)
    waiting = departures()
    while any(waiting):
        partition = draw.choice([number for number, own in enumerate(waiting) if own])
        for _ in range(draw.randrange(1, 150)):
            if waiting[partition]:
                append(log, "in", partition, waiting[partition].pop(0))
        if draw.randrange(3):
            relay.batch()
        if draw.randrange(4) == 0:
            draw.choice([relay, service]).service = None
        service.batch()
        service.clock.jump(MINUTE_MS)
    relay.run_until_caught_up()
    service.run_until_caught_up()
    check(service)
    service.rebuild()
    check(service)


def test_a_republisher_that_was_down_is_waited_for() -> None:
    """Two of them; every minute brings something for both. One is down for 20 minutes of 60."""
    log = MemoryLog("table-down")
    relays = [relay_of(log, f"relay-{one}", f"in-{one}", "mid", partitions=1) for one in ("a", "b")]
    flow = Flow("minutes", state_partitions=4)
    windows = flow.source("mid", dict).windowed(
        "per-day",
        Tumbling(MINUTE_MS),
        key=lambda one: one["airport"],
        state=Int64Value,
        fold=count,
        lateness_ms=5 * MINUTE_MS,
        retention_ms=10**12,
    )
    windows.to("minutes", partitions=1)
    windows.dropped().to("late", partitions=1)
    service = Rehearsal(flow, partitions={"mid": 2}, log=log)
    for minute in range(60):
        for one in ("a", "b"):
            for second in (10, 40):
                at_ms = minute * MINUTE_MS + second * 1_000
                append(log, f"in-{one}", 0, {"airport": f"{one}{second}", "at": at_ms})
        relays[0].batch()
        if not 20 <= minute < 40:
            relays[1].batch()
        service.clock.jump(MINUTE_MS)  # so that a silent writer has been silent for long
        service.batch()
        service.batch()
    service.run_until_caught_up()
    assert not log.records("late")
    found = {
        (window.key.decode(), window.span.start_ms // MINUTE_MS): window.state.value
        for window in service.windows("per-day")
    }
    assert found == {
        (f"{one}{second}", minute): 1 for one in "ab" for second in (10, 40) for minute in range(60)
    }
