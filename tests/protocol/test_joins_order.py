"""Goal: what is joined depends on the records alone.

Method: two root topics whose partitions are in the order of their times, far apart and at different rates; each is read
directly or through republishers. Random batches, kills, crashes and rebuilds of all services. Compared with a naive join
over all records: each output once, and nothing late.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow
from sqe_chain.testing.rehearsal import Rehearsal
from tests.support.disturbed_services import DisturbedServices

MINUTE_MS = 60_000
BEFORE_MS, AFTER_MS = 10 * MINUTE_MS, 30 * MINUTE_MS
END_MS = 10**12
NUMBERS = itertools.count()
Event = dict[str, Any]


def key_of(event: Event) -> str:
    return str(event["key"])


def pair(first: Event, second: Event | None) -> list[Any]:
    return [first["id"], second and second["id"]]


def is_deleted(event: Event) -> bool:
    return bool(event["gone"])


class World(DisturbedServices):
    """Two topics, services in between, and the service that joins."""

    def __init__(self, seed: int, how: str) -> None:
        draw = self.draw = random.Random(f"{seed} {how}")
        self.how = how
        self.log = MemoryLog(f"joins-{next(NUMBERS)}")
        self.events: dict[str, list[Event]] = {"first": [], "second": []}
        self.waiting: dict[tuple[str, int], list[Event]] = {}
        moments = iter(draw.sample(range(1, 24 * 60), 400))  # no two at the same time
        for topic, events in self.events.items():
            for partition in range(draw.randrange(1, 3)):
                size = draw.choice([0, 10, 60])
                times = sorted(itertools.islice(moments, size))
                own = [self._event(topic, partition, number, at) for number, at in enumerate(times)]
                events.extend(own)
                self.waiting[topic, partition] = own.copy()
        relays, topics = list[Rehearsal](), dict[str, str]()
        for topic in self.events:
            partitions = 1 + max(part for name, part in self.waiting if name == topic)
            topics[topic] = topic
            self.log.create_topic(topic, partitions)
            if draw.randrange(2):
                relay = Flow(f"relay-{topic}")
                topics[topic] = f"{topic}-passed-on"
                relay.source(topic, dict, raw=True).to(
                    topics[topic], key=key_of, partitions=draw.randrange(1, 4)
                )
                relays.append(Rehearsal(relay, log=self.log, settings=self.drawn_settings()))
        flow = Flow("joins", state_partitions=draw.choice([1, 2, 3]))
        first, second = (
            flow.source(topics[topic], dict, raw=topics[topic] == topic).key_by(key_of)
            for topic in self.events
        )
        table = first.join_table("table", second, pair, how=how, deleted=is_deleted, guard=None)  # type: ignore[call-overload]
        table.to("with-table", partitions=1)
        near = first.join_stream(
            "near", second, pair, before_ms=BEFORE_MS, after_ms=AFTER_MS, how=how, guard=None
        )  # type: ignore[call-overload]
        near.to("near", partitions=2)
        for number, joined in enumerate((table, near)):
            joined.dropped().to(f"late-{number}", partitions=1)
        self.service = Rehearsal(
            flow, log=self.log, settings=self.drawn_settings(), max_rows_per_write=draw.choice([2, 5_000])
        )
        self.everyone = [*relays, self.service]

    def _event(self, topic: str, partition: int, number: int, minute: int) -> Event:
        gone = topic == "second" and self.draw.randrange(5) == 0
        key, at_ms = f"k{self.draw.randrange(3)}", minute * MINUTE_MS
        return {"key": key, "at": at_ms, "id": f"{topic} {partition}-{number}", "gone": gone}

    def feed(self) -> bool:
        left = [tp for tp, events in self.waiting.items() if events]
        if not left:
            return False
        topic, partition = self.draw.choice(left)
        for _ in range(self.draw.randrange(1, 12)):
            if events := self.waiting[topic, partition]:
                self.append(topic, partition, events.pop(0))
        return True

    def append(self, topic: str, partition: int, event: Event) -> None:
        self.log.append(topic, partition, json.dumps(event).encode(), None, None, event["at"])

    def finish(self) -> None:
        while self.feed():
            pass
        self.catch_up()
        for key in ("k0", "k1", "k2"):  # so that event time passes everything
            self.append("first", 0, {"key": key, "at": END_MS, "id": "end", "gone": False})
        self.catch_up()

    def joined(self, topic: str) -> Counter[tuple[str, str | None]]:
        found, known = Counter[tuple[str, str | None]](), set[bytes]()
        for message in self.log.records(topic):
            envelope = read(message.value(), headers=message.headers())
            if envelope.event_id not in known:
                for payload in envelope.payloads:
                    first, second = json.loads(payload or b"")
                    if first != "end":
                        found[first, second] += 1
            known.add(envelope.event_id)
        return found

    def check(self) -> None:
        assert not self.log.records("late-0")
        assert not self.log.records("late-1")
        first, second = self.events["first"], sorted(self.events["second"], key=lambda one: one["at"])
        with_table, near = Counter[tuple[str, str | None]](), Counter[tuple[str, str | None]]()
        for one in first:
            versions = [other for other in second if other["key"] == one["key"] and other["at"] <= one["at"]]
            valid = versions[-1]["id"] if versions and not versions[-1]["gone"] else None
            if valid is not None or self.how == "left":
                with_table[one["id"], valid] += 1
            close = [
                other["id"]
                for other in second
                if other["key"] == one["key"] and -BEFORE_MS <= other["at"] - one["at"] <= AFTER_MS
            ]
            near.update((one["id"], other) for other in close)
            if not close and self.how == "left":
                near[one["id"], None] += 1
        assert self.joined("with-table") == with_table
        assert self.joined("near") == near


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("seed", range(12))
def test_live_is_a_naive_join(seed: int, how: str) -> None:
    world = World(seed, how)
    for _ in range(60):
        world.step()
    world.finish()
    world.check()
