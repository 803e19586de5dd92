"""The dead-letter topic as the log of what was decided about the records in it.

A dead-letter record keeps an input that a flow has skipped. A *decision* follows in the same partition: these records are
released, or discarded. It holds if none of them was decided before it. Else it is void as a whole, and its command decides again
about what is left. So of two operators at once, the first one holds. `done` follows when all outputs of a release are published.
Retention takes prefixes, so no dead-letter record outlives its decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqe_chain.errors import ServiceStopped
from sqe_chain.ports import Bounds, Log, Message, Output, Range, TopicInfo
from sqe_chain.ports.log import shown_place
from sqe_chain.task.dead_letters import DeadLetter, Identity, parse_dead_letter

DECISION: Final = "sqe-decision"
"""The header of a decision; its value is the kind."""
MOST_LETTERS: Final = 1_000
"""Dead-letter records of one decision at most."""

DecisionKind = Literal["release", "discard", "done"]
FailedStatus = Literal["open", "parked", "releasing", "released", "discarded", "unsure", "unreadable"]
"""What has become of an input that failed. Only open and parked ones can be released; those, unsure and unreadable ones can be discarded."""
_FORMAT: Final = 1
_KINDS: Final[dict[int, dict[bytes, DecisionKind]]] = {
    _FORMAT: {b"release": "release", b"discard": "discard", b"done": "done"}
}
"""The kinds of decisions, by the format that knows them."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about some dead-letter records.

    Attributes:
        flow: name of the flow, since flows may share a dead-letter topic.
        kind: `release`, `discard`, or `done`: the release with the same `by` has been published.
        letters: which of them.
        digest: of all that a release gives.
        by: a random name, unique for each release or discard. Outputs of a release have it in their names.
        clock_ms: the batch's clock for the functions of a release, in milliseconds since 1970.
    """

    flow: str
    kind: DecisionKind
    letters: tuple[Identity, ...]
    digest: str = ""
    by: str = ""
    clock_ms: int = 0

    @property
    def suffix(self) -> str:
        """What the names of outputs have at their ends, so that they have lanes of their own."""
        return suffix_of(self.by)

    def output(self, topic: str, partition: int) -> Output:
        """The record to append to their partition."""
        value: dict[str, object] = {
            "format": _FORMAT,
            "flow": self.flow,
            "letters": [[f"{lane:016x}", position.hex()] for lane, position in self.letters],
            "by": self.by,
        }
        if self.kind == "release":
            value |= {"digest": self.digest, "clock_ms": self.clock_ms}
        data = json.dumps(value, separators=(",", ":")).encode()
        return topic, partition, None, data, [(DECISION, self.kind.encode())], 0


def suffix_of(release: str) -> str:
    """What the names of outputs have at their ends, so that those of a release have lanes of their own."""
    return f"/released.{release}"


def _parse_decision(message: Message) -> Decision | None:
    """The decision that a record is; None: it is none.

    Raises:
        ServiceStopped: it is one that this version does not understand.
    """
    kind = next((value for name, value in message.headers() or () if name == DECISION), None)
    if kind is None:
        return None
    try:
        value: dict[str, Any] = json.loads(message.value() or b"")
        name = _KINDS[value["format"]][kind]
        letters = tuple((int(lane, 16), bytes.fromhex(position)) for lane, position in value["letters"])
        return Decision(
            value["flow"],
            name,
            letters,
            value.get("digest", ""),
            value["by"],
            value.get("clock_ms", 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceStopped(
            f"{shown_place(message)}: a decision about dead-letter records that cannot be understood ({error}). Expected format {_FORMAT}. Run the "
            "version of sqe-chain that has written it"
        ).at(message.topic(), message.partition(), message.offset()) from None


@dataclass(frozen=True, slots=True)
class Letter:
    """An input that a flow has skipped.

    Attributes:
        dead: what its headers hold.
        message: its record in the dead-letter topic, which has the key and the value of the input.
        unsure: nobody knows whether the input was published, or decided before. It can be discarded, not released.
    """

    dead: DeadLetter
    message: Message = field(repr=False)
    unsure: bool = False


@dataclass(slots=True)
class FailedLog:
    """One partition of a dead-letter topic, from its beginning: the records of one flow, and the decisions about them.

    Attributes:
        topic: the dead-letter topic.
        topic_id: its id, 16 bytes.
        partition: the partition.
        begin: first offset that is kept.
        end: next offset to read.
        letters: the first record of each input, in their order.
        decided: the decisions that hold, by input.
        releasing: releases that hold and are not done, by `Decision.by`, in their order; with the offset of each.
        decisions: offsets of all decisions that hold, by `Decision.by`.
        others: other records than those of the flow.
    """

    flow: str
    topic: str
    topic_id: bytes
    partition: int
    begin: int
    end: int
    letters: dict[Identity, Letter] = field(default_factory=dict)
    decided: dict[Identity, Decision] = field(default_factory=dict)
    releasing: dict[str, Decision] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    others: int = 0

    def add(self, message: Message) -> None:
        """Take in the next record."""
        self.end = message.offset() + 1
        decision = _parse_decision(message)
        if decision is not None:
            if decision.flow == self.flow:
                self._decide(decision, message.offset())
            return
        dead = parse_dead_letter(message)
        if dead is None or dead.flow != self.flow:
            self.others += 1
            return
        # What a paused run writes late may be a second copy, whose decision retention has taken.
        late = dead.after is not None and dead.after < self.begin
        self.letters.setdefault(dead.identity, Letter(dead, message, dead.unsure or late))

    def _decide(self, decision: Decision, offset: int) -> None:
        if decision.kind == "done":
            self.releasing.pop(decision.by, None)
        elif self.decided.keys().isdisjoint(decision.letters):
            self.decided |= dict.fromkeys(decision.letters, decision)
            self.decisions[decision.by] = offset
            if decision.kind == "release":
                self.releasing[decision.by] = decision

    def place_of(self, decision: Decision) -> str:
        """Where a decision that holds is, for people: ``topic[partition]@offset``."""
        return f"{self.topic}[{self.partition}]@{self.decisions[decision.by]}"

    @property
    def known(self) -> set[Identity]:
        """All inputs that the flow has skipped, as far as this partition knows."""
        return self.letters.keys() | self.decided.keys()

    def status(self, identity: Identity) -> FailedStatus:
        """What has become of an input that was skipped."""
        decision, letter = self.decided.get(identity), self.letters.get(identity)
        if decision is not None and decision.kind == "discard":
            return "discarded"
        if decision is not None:
            return "releasing" if decision.by in self.releasing else "released"
        if letter is None or letter.unsure:
            return "unsure"
        return "open" if letter.dead.readable else "unreadable"


def read_failed_logs(log: Log, flow: str, info: TopicInfo) -> list[FailedLog]:
    """All partitions of a dead-letter topic, as they are now.

    Args:
        log: Kafka.
        flow: name of the flow, as it is declared.
        info: its dead-letter topic.
    """
    tps = [(info.name, partition) for partition in range(info.partitions)]
    return [
        read_failed_log(log, flow, info, partition, bounds)
        for (_, partition), bounds in sorted(log.bounds(tps).items())
    ]


def read_failed_log(log: Log, flow: str, info: TopicInfo, partition: int, bounds: Bounds) -> FailedLog:
    """One partition of a dead-letter topic, as it is now."""
    begin, end = bounds.begin, bounds.stable_end
    known = FailedLog(flow, info.name, info.topic_id, partition, begin, begin)
    _read_to(log, known, end)
    return known


def read_on(log: Log, known: FailedLog) -> None:
    """Take in what was appended since."""
    tp = known.topic, known.partition
    _read_to(log, known, log.bounds([tp])[tp].stable_end)


def _read_to(log: Log, known: FailedLog, end: int) -> None:
    read = Range(known.topic, known.topic_id, known.partition, known.end, end)
    blocks: Iterable[Sequence[Message]] = log.read(read) if end > known.end else ()
    for block in blocks:
        for message in block:
            known.add(message)
    known.end = max(end, known.end)
