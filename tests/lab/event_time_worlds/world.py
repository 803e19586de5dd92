"""What a world is: data only, so that it can be drawn, printed, read again and made smaller."""

from __future__ import annotations

from typing import Final

import msgspec

UNIT_MS: Final = 1_000
BEGIN_MS: Final = 1_700_000_000_000 // (60 * UNIT_MS) * 60 * UNIT_MS
"""The clock when a world begins."""
BEAT: Final = "beat"
"""Key of facts that may be heartbeats."""
WINDOWED: Final = ("tumbling", "hopping", "sessions", "chained")
JOINS: Final = ("table", "stream")
FILTERS: Final = ("distinct", "deduplicate")
KINDS: Final = (*WINDOWED, *JOINS, *FILTERS, "timers")
"""What a reader does."""


class Hop(msgspec.Struct, frozen=True, array_like=True):
    """A republisher.

    Attributes:
        partitions: of the topic that it writes.
        keep: how many of ten facts pass.
        by_number: it writes by the fact's number, not by its key.
        max_records: of its batches.
    """

    partitions: int
    keep: int
    by_number: bool
    max_records: int


class Way(msgspec.Struct, frozen=True, array_like=True):
    """A root topic, and the republishers between it and the readers.

    Attributes:
        partitions: of the root topic when the world begins.
        hops: the republishers.
    """

    partitions: int
    hops: tuple[Hop, ...]


class Fact(msgspec.Struct, frozen=True, array_like=True):
    """A fact that is appended to a root topic. Its event time is that of the clock less `age_ms`, but not before its partition's last.

    Attributes:
        way: index of the root topic.
        partition: of the root topic.
        key: its key.
        gap_ms: time that passes before it is appended.
        age_ms: how long after its event time it is appended.
        rows: key and distance in time of each row of an upload; empty: it is no upload.
    """

    way: int
    partition: int
    key: str
    gap_ms: int
    age_ms: int
    rows: tuple[tuple[str, int], ...] = ()


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """A service that reads the end of each way, and has stages that go by event time.

    Attributes:
        state_partitions: of its flow.
        in_place: whether its first level may run where it is read.
        max_records: of its batches.
        max_bytes: of its batches.
    """

    state_partitions: int
    in_place: bool
    max_records: int
    max_bytes: int


class World(msgspec.Struct, frozen=True, array_like=True):
    """A world.

    Attributes:
        kind: what its readers do; see `KINDS`.
        delay_ms: facts are appended at most this long after their event time; `idle_ms` of all services.
        ways: root topics with their republishers.
        facts: in the order in which they are appended.
        readers: the readers.
        steps: what happens, in order: a letter and numbers, see `running.Run`.
        by_clock: how it ends: time passes until nothing waits; otherwise services run as with `--once`.
        close: whether windows are closed in the end.
        beats: whether facts of the key `BEAT` are heartbeats.
        exploded: facts are uploads; see `exploded.ORDERS`. Empty: they are not.
        separate: republishers write an envelope for each row.
        named: readers name the times of rows at their sources, too.
    """

    kind: str
    delay_ms: int
    ways: tuple[Way, ...]
    facts: tuple[Fact, ...]
    readers: tuple[Reader, ...]
    steps: tuple[str, ...]
    by_clock: bool
    close: bool
    beats: bool = False
    exploded: str = ""
    separate: bool = False
    named: bool = False

    def text(self) -> str:
        """The world as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(text: str) -> World:
        """The world of a line of JSON."""
        return msgspec.json.decode(text, type=World)
