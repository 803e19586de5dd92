"""Units of a shuffle as tuples in tests, and as the blocks that tasks send."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from sqe_chain.task.shuffling import ShuffledUnits

UnitRow = tuple[int, int, str, int, int, bytes, bytes, str, bytes, str | None, tuple[Any, ...]]
"""State partition, stage, topic, partition, offset, path: so far the order of units. Key, tag, value, cause, what is carried of the input."""


def blocks_of(rows: Iterable[UnitRow]) -> list[ShuffledUnits]:
    """The blocks of units, as they come."""
    found: list[ShuffledUnits] = []
    for place, own in groupby(rows, key=lambda row: row[:4]):
        columns: Any = map(list, zip(*(row[4:] for row in own), strict=True))
        found.append(ShuffledUnits(place, *columns))
    return found


def rows_of(blocks: Iterable[ShuffledUnits]) -> list[UnitRow]:
    """The units of blocks, as they come."""
    return [(*block.place, *one) for block in blocks for one in zip(*block[1:], strict=True)]
