"""The ways in which a block of records may be taken, so that tests can compare them: all of them give the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sqe_chain.envelope import runs
from sqe_chain.envelope.block import Block
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.task import level, poison, reading
from tests.support import naive_operators
from tests.support.naive_operators import NaiveCompiler

NEVER = 1 << 30
"""No block has this length."""


@contextmanager
def taken_as(*, block: int = 1, run: int = 1, naive: bool = False) -> Iterator[list[int]]:
    """Take records in another way.

    Args:
        block: blocks of at least this number of records are read by columns.
        run: at least this number of ordinary records is decided about as a run.
        naive: the operators are closures.

    Yields:
        The lengths of the runs.
    """
    taken: list[int] = []
    accept = runs.accept_run

    def noted(marks: PartitionMarks, found: Block, begin: int, end: int) -> bool:
        if not accept(marks, found, begin, end):
            return False
        taken.append(end - begin)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqe_chain.task.records.WORTHWHILE", block)
        patch.setattr("sqe_chain.task.records.WORTHWHILE_RUN", run)
        patch.setattr(runs, "accept_run", noted)
        if naive:
            patch.setattr(reading, "Compiler", NaiveCompiler)
            patch.setattr(level, "Compiler", NaiveCompiler)
            patch.setattr(poison, "_OURS", (*poison._OURS, naive_operators.__file__))
        yield taken


@contextmanager
def one_by_one() -> Iterator[None]:
    """Record by record, through closures."""
    with taken_as(block=NEVER, run=NEVER, naive=True):
        yield
