"""Reads what filters remember from the rows of their tables, for tests and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from sqe_chain._proto.filters_pb2 import RootMarks, SequenceMark, SqeMarks
from sqe_chain._proto.windows_pb2 import FirstsRow, SightingsRow
from sqe_chain.chain import ROOT_LENGTH
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.stored import Span
from sqe_chain.stages.identity import LONG, SHORT
from sqe_chain.stages.sequences import PRODUCER_ROW

_SCOPES: Final = (b"number/", b"partition/", b"lane/", b"key/")
_MARKS: Final = b"marks/"
_KEY: Final = b"key/"
_ROOT: Final = Struct(">IQ")
"""Leader epoch and offset of a root position."""


class ProducerMark(NamedTuple):
    """Of `drop_replays(by="source")`: the highest offset that passed of one producer and source partition.

    Attributes:
        input: row of the input partition that it was read from.
        process_id: the producer.
        partition: its source partition.
        offset: the highest of its offsets that passed.
    """

    input: bytes
    process_id: int
    partition: int
    offset: int


class RootSeen(NamedTuple):
    """Of `drop_replays(by="key")`: the last root position of a key.

    Attributes:
        key: the key.
        topic: root topic.
        partition: root partition.
        leader_epoch: of the root, plus one.
        offset: of the root.
    """

    key: bytes
    topic: str
    partition: int
    leader_epoch: int
    offset: int


class SequenceSeen(NamedTuple):
    """Of `drop_stale`: the highest number of a scope.

    Attributes:
        scope: the key, the lane (8 bytes), or the row of the input partition.
        epoch: of the producer.
        highest: number.
        producer: its name, where producers are distinguished.
    """

    scope: bytes
    epoch: int
    highest: int
    producer: bytes = b""


class Sighting(NamedTuple):
    """Of `deduplicate`: an id that was forwarded.

    Attributes:
        id: the id; its SHA-256 where it is longer than 128 bytes.
        timestamp_ms: event time of what was forwarded.
    """

    id: bytes
    timestamp_ms: int


class FirstSeen(NamedTuple):
    """Of `distinct`: a window that had its first record.

    Attributes:
        id: the key; its SHA-256 where it is longer than 128 bytes.
        span: the window.
    """

    id: bytes
    span: Span


Remembered = ProducerMark | RootSeen | SequenceSeen | Sighting | FirstSeen
"""One thing that a filter remembers."""


def remembered(kind: str, rows: Mapping[bytes, bytes]) -> list[Remembered]:
    """What a filter remembers, in the order of its rows.

    >>> from sqe_chain.stages.deduplicate import Deduplicate
    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> table = MemoryTable()
    >>> once = Deduplicate(table, interval_ms=1_000)
    >>> once.accept(Record(key=b"robot-7", timestamp_ms=5)).forward
    True
    >>> once.finish(now_ms=5)
    >>> remembered("deduplicate", table.rows())
    [Sighting(id=b'robot-7', timestamp_ms=5)]

    Args:
        kind: of the filter: "replays", "roots", "sequences", "deduplicate" or "distinct".
        rows: names and contents of all its rows.

    Raises:
        ConfigurationError: windows (`results_in` reads those), or a kind of another package.
    """
    if kind == "windows":
        raise ConfigurationError("windows hold states, not what was seen: read them with results_in()")
    if kind not in _READERS:
        raise ConfigurationError(
            f"{kind!r} is not a filter of this package: its rows are read by the package that defines it"
        )
    return [each for name, content in sorted(rows.items()) for each in _READERS[kind](name, content)]


def _producers(name: bytes, content: bytes) -> Iterator[Remembered]:
    if name.startswith(_MARKS):
        for mark in SqeMarks.FromString(content).marks:
            yield ProducerMark(name.removeprefix(_MARKS), mark.process_id, mark.partition, mark.offset)


def _roots(name: bytes, content: bytes) -> Iterator[Remembered]:
    for mark in RootMarks.FromString(content).marks:
        epoch, offset = _ROOT.unpack_from(mark.position.ljust(ROOT_LENGTH, b"\0"))
        yield RootSeen(name.removeprefix(_KEY), mark.topic, mark.partition, epoch, offset)


def _sequences(name: bytes, content: bytes) -> Iterator[Remembered]:
    producer = b""
    if name.startswith(PRODUCER_ROW):
        begin = len(PRODUCER_ROW) + 1
        end = begin + name[begin - 1]
        producer, name = name[begin:end], name[end:]
    scope = next((scope for scope in _SCOPES if name.startswith(scope)), None)
    if scope is not None:
        mark = SequenceMark.FromString(content)
        yield SequenceSeen(name.removeprefix(scope), mark.epoch, mark.highest, producer)


def _sightings(name: bytes, content: bytes) -> Iterator[Remembered]:
    if name[:1] in {SHORT, LONG}:
        for stored in SightingsRow.FromString(content).sightings:
            yield Sighting(name[1:], stored.timestamp_ms)


def _firsts(name: bytes, content: bytes) -> Iterator[Remembered]:
    if name[:1] in {SHORT, LONG}:
        for stored in FirstsRow.FromString(content).firsts:
            yield FirstSeen(name[1:], Span(stored.start_ms, stored.start_ms + stored.length_ms))


_READERS: Final[Mapping[str, Callable[[bytes, bytes], Iterator[Remembered]]]] = {
    "replays": _producers,
    "roots": _roots,
    "sequences": _sequences,
    "deduplicate": _sightings,
    "distinct": _firsts,
}
