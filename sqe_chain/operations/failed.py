"""Records that failed, as one lists, releases and discards them: the same for every kind of flow and policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.operations.patterns import RecordPatterns
from sqe_chain.task.dead_letters import Identity
from sqe_chain.task.failed_log import FailedStatus

UNDECIDED: Final[frozenset[FailedStatus]] = frozenset({"open", "parked", "releasing", "unsure", "unreadable"})
"""What has one of these is not done with yet."""
MOST_REASONS: Final = 20
"""The number of records that a result lists with the reason why they stay as they are."""


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """An input that a flow has skipped, and what has become of it.

    Attributes:
        topic: where the flow read it.
        topic_id: id of that topic, 16 bytes.
        partition: its partition there.
        offset: its offset there.
        lane: its lane as the flow sees it; 0 if its envelope cannot be read.
        position: its position on the lane, or what stands for it.
        status: what has become of it.
        error: class of the error.
        text: the error's text.
        key: Kafka's key.
        time_ms: the record's time, in milliseconds since 1970; -1: unknown.
        decided_by: name of the release or the discard that decided about it; empty: none has.
        place: where it is kept, as ``topic[partition]@offset``; empty: in the flow's store.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    lane: int
    position: bytes
    status: FailedStatus
    error: str
    text: str
    key: bytes | None = field(repr=False)
    time_ms: int
    decided_by: str = ""
    place: str = ""

    @property
    def identity(self) -> Identity:
        """What it is known by, wherever it comes again."""
        return self.lane, self.position

    def __str__(self) -> str:
        """Where the flow read it: ``topic[partition]@offset``."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSelection(RecordPatterns):
    """Which failed records are meant; without arguments all of them.

    Attributes:
        topic: only records that were read there.
        since_ms: only records of this time or a later one, in milliseconds since 1970.
        until_ms: only records of an earlier time.
        places: only records that were read at these places, each as ``topic[partition]@offset``.
    """

    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    places: frozenset[str] | None = None

    def __call__(self, record: FailedRecord) -> bool:
        """Whether a record is one of them."""
        return (
            self.match(record.error, record.key)
            and self.topic in (None, record.topic)
            and (self.since_ms is None or record.time_ms >= self.since_ms)
            and (self.until_ms is None or record.time_ms < self.until_ms)
            and (self.places is None or str(record) in self.places)
        )


@dataclass(slots=True)
class ReleaseResult:
    """What became of failed records that were to be released.

    Attributes:
        released: how many count now, those of interrupted releases included.
        outputs: how many records were published for them.
        again: how many failed again; they stay open.
        stuck: how many cannot be released, only discarded.
        left: how many are undecided now, selected or not.
        dropped: "stage/reason" -> what stages have dropped of those that were released.
        reasons: for some of those that failed again or are stuck, where they were read and why.
    """

    released: int = 0
    outputs: int = 0
    again: int = 0
    stuck: int = 0
    left: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    reasons: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: ReleaseResult) -> None:
        """Add what another run has done."""
        self.released += other.released
        self.outputs += other.outputs
        self.again += other.again
        self.stuck += other.stuck
        self.dropped.update(other.dropped)
        for place, reason in other.reasons:
            self.note(place, reason)

    def note(self, place: str, reason: str) -> None:
        """Keep why a record stays as it is, for the first few of them."""
        if len(self.reasons) < MOST_REASONS:
            self.reasons.append((place, reason))


@dataclass(frozen=True, slots=True)
class DiscardResult:
    """What became of failed records that were to be discarded.

    Attributes:
        discarded: how many never count.
        left: how many are undecided now, selected or not.
    """

    discarded: int = 0
    left: int = 0


def undecided(records: Iterable[FailedRecord]) -> int:
    """How many records are not done with yet."""
    return sum(record.status in UNDECIDED for record in records)
