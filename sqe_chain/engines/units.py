"""Units on their way through a shuffle: packed about a thousand together, and put into order again on the other side.

A message for each unit would cost several microseconds. So the units for one (state partition, stage) are packed into
blobs, with `marshal`, the fastest. That is safe: all processes of a service run the same Python, and no blob outlives them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sqe_chain.task.shuffling import Place, ShuffledUnits

ROWS = 1_000
"""Records packed together."""

BYTES = 1 << 20
"""Bytes packed together; a single record may be larger."""

RECORD_BYTES = 64
"""Size of a record without its value, roughly."""

_HELD_UNITS = 20_000

Key = tuple[int, int, str, int, int, bytes]
"""By what units are ordered: state partition, stage, topic, partition, offset, path."""

Packed = tuple[Key, bytes]
"""Units of one place, in order: the key of the first one, and all of them."""


class UnitPacker:
    """Packs units as they come; holds back a bounded number."""

    def __init__(self) -> None:
        self._units: defaultdict[Place, list[ShuffledUnits]] = defaultdict(list)
        self._count = 0

    def add(self, blocks: Iterable[ShuffledUnits]) -> Iterator[Packed]:
        """Take units; gives what is full."""
        before = self._count
        for block in blocks:
            self._units[block.place].append(block)
            self._count += len(block.keys)
        if self._count > before:
            yield from self._flush(1 if self._count >= _HELD_UNITS else ROWS)

    def finish(self) -> Iterator[Packed]:
        """Give the rest."""
        yield from self._flush(1)

    def _flush(self, least: int) -> Iterator[Packed]:
        for place, blocks in self._units.items():
            if sum([len(block.keys) for block in blocks]) < least:
                continue
            units = ShuffledUnits.joined(blocks)  # merging depends on their order
            self._count -= len(units.keys)
            begin = 0
            for piece in cut(units.keys, units.sizes):
                own = units.only(slice(begin, begin + len(piece)))
                begin += len(piece)
                yield (*place, own.offsets[0], own.paths[0]), own.dumped()
            self._units[place] = []


def merged(packed: Iterable[Packed]) -> Iterator[ShuffledUnits]:
    """All units, in order; the blobs come in the order of their first units.

    The units in a blob are in order. So whatever sorts before the next blob's first unit is final. Only blobs that
    overlap are joined: about one for each process that packed them.
    """
    held: ShuffledUnits | None = None
    for (*_, offset, path), blob in packed:
        units = ShuffledUnits.loaded(blob)
        if held is not None and held.place == units.place:
            final = held.before(offset, path)
            if final < len(held.keys):
                units = ShuffledUnits.joined([held.only(slice(final, None)), units])
            held = held.only(slice(final)) if final < len(held.keys) else held
        if held is not None and held.keys:
            yield held
        held = units
    if held is not None:
        yield held


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
