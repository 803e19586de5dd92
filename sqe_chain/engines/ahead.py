"""Reads the ranges of a small batch together: one after the other they would mostly wait for brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqe_chain.ports import Log, Message, Range
from sqe_chain.task.results import Portion

Blocks = Iterable[Sequence[Message]]

SMALL_RECORDS = 2_000
"""A batch of at most this number of records is small: its records are all kept in memory before the first is looked at."""


def ahead(log: Log, portions: Sequence[Portion]) -> Callable[[Range], Blocks]:
    """A function like `log.read`, which reads all ranges of a small batch with the first one."""
    wanted = [portion.read for portion in portions if portion.read.start < portion.read.stop]
    records = sum(read.stop - read.start for read in wanted)
    if records > SMALL_RECORDS:
        return log.read
    records_of: dict[Range, Sequence[Message]] = {}

    def read(planned: Range) -> Blocks:
        if not records_of:
            records_of.update(zip(wanted, log.read_all(wanted), strict=True))
        block = records_of.get(planned)
        return [block] if block else []

    return read
