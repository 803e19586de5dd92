"""Reads the ranges of a small batch at the same time: one after the other they would mostly wait for brokers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from sqe_chain.ports import Log, Message, Range
from sqe_chain.segment.results import Portion

Blocks = Iterable[Sequence[Message]]

SMALL_RECORDS = 2_000
"""A batch of at most so many records is small: its records are all kept in memory before the first is looked at."""

_READERS = 8


def ahead(log: Log, portions: Sequence[Portion]) -> Callable[[Range], Blocks]:
    """A function like `log.read`, which begins at once to read small batches.

    Args:
        log: where the records are; several threads read from it.
        portions: what will be read.
    """
    wanted = [portion.read for portion in portions if portion.read.start < portion.read.stop]
    records = sum(one.stop - one.start for one in wanted)
    if len(wanted) <= 1 or records > SMALL_RECORDS:
        return log.read
    pool = _pool(os.getpid())
    begun = {one: pool.submit(_all, log, one) for one in wanted}

    def read(one: Range) -> Blocks:
        found = begun.pop(one, None)
        return log.read(one) if found is None else found.result()

    return read


def _all(log: Log, wanted: Range) -> Sequence[Sequence[Message]]:
    return list(log.read(wanted))


@cache
def _pool(_pid: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent do not exist here."""
    return ThreadPoolExecutor(_READERS, "sqe-chain read")
