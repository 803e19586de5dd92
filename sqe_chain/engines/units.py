"""Units on their way through a shuffle: packed about a thousand together, and put into order again on the other side.

A message for each unit would cost several microseconds. So the units for one (state partition, stage) are packed into
blobs, with `marshal`, the fastest. That is safe: all processes of a service run the same Python, and no blob outlives them.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sqe_chain.task.results import UnitRow

ROWS = 1_000
"""Records packed together."""

BYTES = 1 << 20
"""Bytes packed together; a single record may be larger."""

RECORD_BYTES = 64
"""Size of a record without its value, roughly."""

_HELD_UNITS = 20_000

Key = tuple[int, int, str, int, int, bytes]
"""The first six columns of a unit, by which units are ordered: state partition, stage, topic, partition, offset, path."""

Packed = tuple[Key, bytes]
"""Units of one (state partition, stage), in order: the key of the first one, and all of them."""


class UnitPacker:
    """Packs units as they come; holds back a bounded number."""

    def __init__(self) -> None:
        self._units: defaultdict[tuple[int, int], list[UnitRow]] = defaultdict(list)
        self._count = 0

    def add(self, rows: Iterable[UnitRow]) -> Iterator[Packed]:
        """Take units; gives what is full."""
        units, before = self._units, self._count
        for row in rows:
            units[row[0], row[1]].append(row)
            self._count += 1
        if self._count > before:
            yield from self._flush(1 if self._count >= _HELD_UNITS else ROWS)

    def finish(self) -> Iterator[Packed]:
        """Give the rest."""
        yield from self._flush(1)

    def _flush(self, least: int) -> Iterator[Packed]:
        for key, units in self._units.items():
            if len(units) >= least:
                self._count -= len(units)
                units.sort()  # nearly free, they should be in order already; but merging depends on it
                sizes = [len(unit[8]) + len(unit[9]) + RECORD_BYTES for unit in units]
                for piece in cut(units, sizes):
                    yield piece[0][:6], marshal.dumps(piece)
                self._units[key] = []


def merged(packed: Iterable[Packed]) -> Iterator[UnitRow]:
    """All units, in order.

    The units in a blob are in order. So whatever sorts before the next blob's first unit is final. Only blobs that
    overlap are unpacked at the same time: about one for each process that packed them.

    Args:
        packed: in the order of their first units.
    """
    held: list[UnitRow] = []
    for first, blob in packed:
        if held:
            final = bisect_left(held, first)  # `first` has the six columns that units begin with
            yield from held[:final]
            del held[:final]
        overlap = bool(held)
        held += marshal.loads(blob)  # noqa: S302 - made by `UnitPacker`, in this service
        if overlap:
            held.sort()  # merges sorted runs: Timsort does that in linear time
    yield from held


def cut(records: list, sizes: Sequence[int]) -> Iterator[list]:  # type: ignore[type-arg] # of anything
    """Cut into runs of at most `ROWS` records and about `BYTES` bytes; none is empty.

    >>> [len(piece) for piece in cut(list(range(2500)), [1] * 2500)]
    [1000, 1000, 500]
    """
    start = size = 0
    for index, length in enumerate(sizes):
        if index > start and (index - start >= ROWS or size + length > BYTES):
            yield records[start:index]
            start, size = index, 0
        size += length
    if start < len(records):
        yield records[start:]
