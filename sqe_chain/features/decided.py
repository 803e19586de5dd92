"""What a plan decides about dead-letter records, and how the places of records are kept in plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any, Self

from sqe_chain.plans.plan import Plan
from sqe_chain.task.dead_letters import Identity
from sqe_chain.task.failed_log import Decision, DecisionKind, suffix_of
from sqe_chain.task.parking import ParkedRecord, Releasing

Place = tuple[str, str, int, int]
"""Topic, id of the topic in hexadecimal, partition, offset."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a plan decides about dead-letter records of one partition of their topic.

    Attributes:
        kind: `release` or `discard`.
        partition: the partition of the dead-letter topic.
        letters: what they are known by; of a release the same number as `records`.
        records: what a release processes; empty: it discards them.
        failed: where those of them were read that have failed again. Nothing is decided about these.
    """

    kind: DecisionKind
    partition: int
    letters: tuple[Identity, ...]
    records: tuple[ParkedRecord, ...] = ()
    failed: tuple[Place, ...] = ()

    def releasing(self, before: str) -> Releasing:
        """The batch that processes them; the same in a redo.

        Args:
            before: id of the plan before.
        """
        return Releasing(self.records, suffix_of(name_after(before, map(place_of, self.records))))

    def decision(self, flow: str, plan: Plan) -> Decision | None:
        """What the dead-letter topic gets; None: all have failed again.

        Args:
            flow: name of the flow, as it is declared.
            plan: the plan that decides.
        """
        if self.kind == "discard":
            name = name_after(plan.previous_id, self.letters)
            return Decision(flow, self.kind, self.letters, by=name)
        places = [place_of(record) for record in self.records]
        tried = zip(self.letters, places, strict=True)
        letters = tuple(letter for letter, place in tried if place not in self.failed)
        name = name_after(plan.previous_id, places)
        return Decision(flow, self.kind, letters, by=name, clock_ms=plan.clock_ms) if letters else None

    def to_json(self) -> dict[str, Any]:
        """For json.dumps."""
        return {
            "kind": self.kind,
            "partition": self.partition,
            "letters": [[lane, position.hex()] for lane, position in self.letters],
            "records": [record.to_json() for record in self.records],
            "failed": plain_places(self.failed),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        letters = tuple((lane, bytes.fromhex(position)) for lane, position in raw["letters"])
        records = tuple(ParkedRecord.from_json(record) for record in raw["records"])
        return cls(raw["kind"], raw["partition"], letters, records, places_in(raw["failed"]))


def name_after(before: str, of: Iterable[Place | Identity]) -> str:
    """The name of a release or discard, which no other one has: of what it decides, and after which plan."""
    digest = blake2b(repr((before, tuple(sorted(of)))).encode(), digest_size=8)
    return digest.hexdigest()


def plain_places(places: Iterable[Place]) -> list[Any]:
    """Places for json.dumps, with the offsets of each partition together."""
    return [
        [*partition, [place[3] for place in own]]
        for partition, own in groupby(places, key=lambda place: place[:3])
    ]


def places_in(raw: Iterable[list[Any]]) -> tuple[Place, ...]:
    """What `plain_places` gave."""
    return tuple(
        (topic, topic_id, partition, offset) for topic, topic_id, partition, own in raw for offset in own
    )


def place_of(record: ParkedRecord) -> Place:
    """Where a record was read."""
    topic, topic_id, partition, offset = record.at
    return topic, topic_id.hex(), partition, offset
