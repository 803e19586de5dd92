"""What a batch is cut from, and names of mappings that steps and features hand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqe_chain.ports import Bounds, Header, Rows, TopicInfo, TopicPartition

Infos = Mapping[str, TopicInfo]
"""Input topic -> what the broker reports of it."""
Headers = Mapping[tuple[int, int], Header]
"""(stage index, cell) -> header."""
Offsets = Mapping[TopicPartition, int]
HeaderRows = Mapping[tuple[int, int], Rows]
"""(stage index, cell) -> rows that are written with its header."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a batch is cut from.

    Attributes:
        bounds: of the input partitions, as far as they may be read.
        limit: records of a batch, over all partitions.
        at_end: no more input is expected.
        final: the input is finite, and all of it is read: open windows are closed.
    """

    bounds: Mapping[TopicPartition, Bounds]
    limit: int
    at_end: bool = False
    final: bool = False
