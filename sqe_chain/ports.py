"""The seams: what the protocol needs from Kafka, from a store and from an engine, as Protocols.

Implementations of `Log` and `StateStore` are *addresses*: small objects that can be pickled, carry
settings only, and open their clients lazily, cached once per process. So the same object works in the
driver and in the tasks of a cluster.

All errors of drivers are mapped to `sqe_chain.errors` inside the implementation: what may be tried
again is `Unavailable`, everything else has a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

TopicPartition = tuple[str, int]
"""Topic name and partition number."""

Headers = list[tuple[str, bytes | None]]
"""Kafka record headers, in order; names may repeat."""

Output = tuple[str, int, bytes | None, bytes | None, Headers | None, int]
"""One record to publish: topic, partition, key, value, headers, timestamp in milliseconds."""

Rows = Sequence[tuple[bytes, bytes | None]]
"""Keys and their new states, in key order; None deletes the state."""


ViewKind = Literal["json", "hash"]
"""How a state is shown to other programs, beside itself: as a JSON text, or field by field."""

Shown = str | Mapping[str, str]
"""One state shown: a JSON text, or its fields as texts."""


@dataclass(frozen=True, slots=True)
class Views:
    """How changed states are shown, for one atomic step.

    Attributes:
        kind: the form.
        shown: key -> what is shown; every key that is written and not deleted has one.
    """

    kind: ViewKind
    shown: Mapping[bytes, Shown]

    def size(self, key: bytes) -> int:
        """Bytes of a key's view (UTF-8); 0 when it has none."""
        found = self.shown.get(key, "")
        if isinstance(found, str):
            return _utf8_bytes(found)
        return sum(_utf8_bytes(name) + _utf8_bytes(text) for name, text in found.items())


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class Message(Protocol):
    """One record as a log gives it. The methods are those of confluent-kafka's Message."""

    def topic(self) -> str:
        """Topic name."""

    def partition(self) -> int:
        """Partition number."""

    def offset(self) -> int:
        """Offset, 0 or more."""

    def key(self) -> bytes | None:
        """Key bytes; None for a null key."""

    def value(self) -> bytes | None:
        """Value bytes; None for a tombstone."""

    def headers(self) -> Headers | None:
        """Headers; None when there are none."""

    def timestamp(self) -> tuple[int, int]:
        """Kind of timestamp, and milliseconds since 1970 (-1 unknown)."""

    def leader_epoch(self) -> int | None:
        """Leader epoch of the record's own batch; None in old message formats."""


NO_LIMIT = (1 << 63) - 1
"""A time limit of a topic that refuses nothing, in milliseconds: Kafka's own way to say so."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a broker says of a topic: what it is, and what it refuses.

    Attributes:
        name: topic name.
        topic_id: the broker's 16-byte UUID of this topic's incarnation.
        partitions: number of partitions.
        compacted: whether `cleanup.policy` contains `compact`.
        max_message_bytes: largest record batch the topic accepts, in bytes: the smaller one of
            `max.message.bytes` and `segment.bytes`.
        replicas: replication factor.
        min_insync_replicas: replicas that must acknowledge a write.
        before_max_ms: how far behind the broker's clock a record's time may lie
            (`message.timestamp.before.max.ms`).
        after_max_ms: how far ahead of it (`message.timestamp.after.max.ms`).
        append_time: the broker sets the time of every record itself (`message.timestamp.type` is
            LogAppendTime), so it refuses none for it.
    """

    name: str
    topic_id: bytes
    partitions: int
    compacted: bool = False
    max_message_bytes: int = 1_048_588
    replicas: int = 1
    min_insync_replicas: int = 1
    before_max_ms: int = NO_LIMIT
    after_max_ms: int = NO_LIMIT
    append_time: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition's log begins and how far it is stable.

    Attributes:
        begin: first offset that retention has left.
        stable_end: last stable offset: one past the last record that a read-committed reader may see.
    """

    begin: int
    stable_end: int


@dataclass(frozen=True, slots=True)
class Range:
    """The part of one input partition that one batch reads.

    Attributes:
        topic: topic name.
        topic_id: 16 bytes; the incarnation that the offsets belong to.
        partition: partition number.
        start: first offset to read.
        stop: one past the last offset to read; equal to start for an idle partition.
        leader_epoch: leader epoch plus one of the last record before `start`; 0 when unknown.
            A reader announces it to the broker, so that a truncated log is noticed.
    """

    topic: str
    topic_id: bytes
    partition: int
    start: int
    stop: int
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed offset with its metadata text (at most 4,095 characters)."""

    offset: int
    metadata: str = ""


class Writer(Protocol):
    """Publishes records. Used by one thread."""

    def write(self, outputs: Sequence[Output]) -> None:
        """Hand over records; per topic and partition they land in the order given, without holes.

        Blocks while the client's buffer is full. A record whose time its topic does not accept gets the
        time of sending (`sqe_chain.accepting.window`), for what is sealed must be published.

        Raises:
            OutputTooLarge: a record is larger than its topic accepts; nothing of it was sent.
            OutputRefused: the broker refuses a record however often it is sent; the writer must be closed.
            Unavailable: the broker refused or lost a record for good; what was written before may or
                may not have landed, and the writer must be closed.
        """

    def flush(self) -> None:
        """Return when every record written so far is acknowledged by all in-sync replicas.

        Raises:
            OutputRefused: as `write`.
            Unavailable: not within the bounded time (minimum in-sync replicas not met, broker away).
        """

    def close(self) -> None:
        """Give the writer back. After an error its client is thrown away, else kept for the process."""


class Log(Protocol):
    """Kafka, as seen by a service: topics, ranges of records, group commits."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """What the broker knows of these topics; a topic that does not exist is absent.

        Raises:
            Unavailable: no answer.
            ConfigurationError: the broker gives no topic ids, or refuses the login.
        """

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with the broker's default replication; one that exists is left as it is."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all that is in it; one that does not exist is no error."""

    def delete_group(self, group: str) -> None:
        """Delete a group's commits; no error if there are none, `ConfigurationError` if it has members."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Where each partition begins and how far it is stable now (read committed)."""

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """Every committed record of a range, in offset order, in blocks of at most some 1,000.

        Guarantees: complete when the iterator ends: the reader's own position (or an
        end-of-partition event's own offset) reached `stop`. Offsets may be sparse (transactions,
        compaction). Records at or beyond `stop` are never given.

        Raises:
            LostOffsets: the log now begins after `start`.
            TruncatedInput: the log ends before `stop`, or was truncated behind `leader_epoch`.
            RecreatedTopic: the topic has another id now.
            Unavailable: no answer within the bounded time.
        """

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """The group's committed offsets with metadata; partitions without one are absent."""

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """Commit offsets with metadata for a group that has no members."""

    def writer(self) -> Writer:
        """A writer of this process, idempotent, acknowledged by all in-sync replicas."""

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """First offset whose record's time is at or after the timestamp; the stable end if none is."""


@dataclass(frozen=True, slots=True)
class Home:
    """A flow's claim and the number of its last plan, as the home store holds them.

    Attributes:
        epoch: grows with each claim.
        run_id: random name of the run that holds the claim; empty after it was released.
        owner: who that is, for people and for "is that process dead?": JSON with host, pid, started.
        number: number of the last sealed plan; -1 before the birth plan.
        plan_id: id of the last sealed plan; empty before the birth plan.
    """

    epoch: int
    run_id: str
    owner: str
    number: int
    plan_id: str

    def __str__(self) -> str:
        """For error texts."""
        by = f"run {self.run_id}" if self.run_id else "no run"
        return f"{_plan(self.number, self.plan_id)}, claimed by {by} with epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class Header:
    """What each (stage, state partition) stores beside its states.

    Attributes:
        epoch: epoch of the run that stamped it last.
        run_id: random name of that run.
        number: number of the last plan applied in full.
        plan_id: id of that plan.
        begun_id: id of the plan that is being applied in chunks; empty when none is.
        cursor: the last key written of the plan begun, keys going in order; None when none is begun.
    """

    epoch: int
    run_id: str
    number: int
    plan_id: str
    begun_id: str = ""
    cursor: bytes | None = None

    def __str__(self) -> str:
        """For error texts."""
        begun = f", plan {self.begun_id} begun" if self.begun_id else ""
        return (
            f"{_plan(self.number, self.plan_id)}{begun}, stamped by run {self.run_id} with epoch {self.epoch}"
        )


def _plan(number: int, plan_id: str) -> str:
    return f"plan {number} ({plan_id})" if plan_id else "no plan"


class StateStore(Protocol):
    """A database that holds states, headers, claims and plans.

    The store compares, never the client: `set_home` and `write` are atomic compare-and-set steps.
    Both are safe to send again after a lost reply: the second attempt finds `after` standing and
    returns it. Flow and stage names are of the alphabet ``[A-Za-z0-9._-]``.
    """

    @property
    def max_rows(self) -> int:
        """Rows that one `write` takes at most."""

    @property
    def max_bytes(self) -> int:
        """Bytes of keys, states and views that one `write` takes at most (a single row may be larger)."""

    @property
    def max_key_bytes(self) -> int:
        """Bytes of a key, at most: a longer one can be neither written nor looked for.

        This one, `max_state_bytes` and `max_plan_bytes` are what the server really takes, asked of it once
        a process where it tells; `write` and `set_home` refuse more with ConfigurationError.

        Raises:
            Unavailable: no answer.
            ConfigurationError: the address or the login is wrong.
        """

    @property
    def max_state_bytes(self) -> int:
        """Bytes that a key, its state and its view take together, at most; raises as `max_key_bytes` does."""

    @property
    def max_plan_bytes(self) -> int:
        """Bytes of a sealed plan, at most; raises as `max_key_bytes` does."""

    @property
    def views(self) -> frozenset[ViewKind]:
        """The kinds of views that this store can write."""

    def check(self) -> list[str]:
        """What is weak about the durability of this server, one clear sentence each; [] when strong.

        A setting that cannot be read counts as weak.

        Raises:
            Unavailable: no answer.
            ConfigurationError: the address or the login is wrong.
        """

    def remarks(self) -> list[str]:
        """What is strong enough but worth knowing, one clear sentence each; services tell it as notices.

        Raises:
            Unavailable: no answer.
            ConfigurationError: the address or the login is wrong.
        """

    def home(self, flow: str) -> tuple[Home | None, int]:
        """The flow's home record, and its heartbeat counter (0 before the first beat)."""

    def set_home(
        self,
        flow: str,
        before: Home | None,
        after: Home,
        plan: bytes | None = None,
        drop_below: int = 0,
    ) -> Home | None:
        """In one atomic step: if the home record equals `before` (None: absent), replace it.

        Args:
            flow: flow name.
            before: what must stand now.
            after: what shall stand.
            plan: when given, stored as the plan with number `after.number` in the same step.
            drop_below: plans with smaller numbers are deleted in the same step.

        Returns:
            The record that stands now: equal to `after` exactly when the step was done, now or by an
            earlier attempt.
        """

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        """Move the heartbeat counter on, if this run holds the claim; else change nothing: False."""

    def plan(self, flow: str, number: int) -> bytes | None:
        """A sealed plan by its number; None when it is not there (any more)."""

    def flows(self) -> list[str]:
        """Names of all flows that have a home record here, sorted. For people: it may look at every key."""

    def forget(self, flow: str, before: Home) -> Home | None:
        """In one atomic step: if the home record equals `before`, delete it, with heartbeat counter and plans.

        Returns the record that stands now: None exactly when there is none any more.
        """

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        """In one atomic step: if the header equals `before`, delete it, with all states that are left.

        Returns the header that stands now: None exactly when there is none any more. Views as hashes are deleted with
        their states, by `write`; so that comes first.
        """

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        """The headers of these state partitions; None where nothing is stored."""

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """The header, the states of these keys (None: no state), and the header again, in that order."""

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        """In one atomic step: if the header equals `before` (None: absent), write rows and `after`.

        With `views`, also how each written state is shown; a deleted state is shown no more.

        Returns:
            The header that stands now: equal to `after` exactly when the step was done, now or by an
            earlier attempt.
        """

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """All keys and states of one state partition, in no particular order; not a snapshot."""

    def close(self) -> None:
        """Close this process's clients of the store; a later call opens them again."""
