"""A group of records on its way to the disk, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, repeat
from threading import Event
from typing import NamedTuple, Protocol, cast

from sqe_chain.errors import WriteAheadLogError
from sqe_chain.wal.tail import Appended

WaitingFuture = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Receipt(NamedTuple):
    """Says that a record is durable: it will be published, whatever happens to this process.

    Attributes:
        offset: its place in the log.
        partition: of the topic.
        epoch: with the sequence number, names the record in the topic.
        sequence: rises by one within the partition.
    """

    offset: int
    partition: int
    epoch: int
    sequence: int


class Group:
    """Records that are written together. Who fills it and who ends it holds the lock of `GroupCommit`.

    Attributes:
        records: frame and partition of each; one list, so that an interrupted thread cannot leave half a record.
        size: bytes of the frames.
        reserved: bytes that they may take in the log.
        ended: whether they are durable, or refused.
        futures: of coroutines that wait for the end.
    """

    __slots__ = ("_appended", "_error", "_receipts", "ended", "futures", "records", "reserved", "size")

    def __init__(self) -> None:
        self.records: list[tuple[bytes, int]] = []
        self.size = self.reserved = 0
        self.ended = Event()
        self.futures: list[WaitingFuture] = []
        self._appended: Appended | None = None
        self._error: WriteAheadLogError | None = None
        self._receipts: list[Receipt] | None = None

    def end(self, found: Appended | WriteAheadLogError) -> None:
        """Say what became of it."""
        if isinstance(found, Appended):
            self._appended = found
        else:
            self._error = found
        self.ended.set()

    def receipts(self, first: int, end: int) -> list[Receipt]:
        """Of some of its records, after its end.

        Raises:
            WriteAheadLogError: they are not acknowledged.
        """
        if self._error is not None:
            # A new one for each caller: a traceback belongs to one thread.
            raise type(self._error)(str(self._error)).at(self._error.topic) from self._error
        if self._receipts is None:
            self._receipts = self._all_receipts()
        return self._receipts[first:end]

    def _all_receipts(self) -> list[Receipt]:
        if self._appended is None:
            raise AssertionError("the group has not ended")
        offset, epoch, before = self._appended
        sequences, numbers = list(before), list[int]()
        partitions = [partition for _, partition in self.records]
        for partition in partitions:
            number = sequences[partition]
            numbers.append(number)
            sequences[partition] = number + 1
        # As `Receipt(…)` makes them, in half the time: that is a function in Python.
        receipts = map(tuple.__new__, repeat(Receipt), zip(count(offset), partitions, repeat(epoch), numbers))
        return cast("list[Receipt]", list(receipts))


class Ending(Protocol):
    """Waits in asyncio for the end of a group."""

    async def ended(self, group: Group) -> None:
        """Return when the group has ended."""


class Pending:
    """A record that is on its way to the disk."""

    __slots__ = ("_group", "_index", "_owner")

    def __init__(self, owner: Ending, group: Group, index: int) -> None:
        self._owner, self._group, self._index = owner, group, index

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._group.ended.is_set()

    def result(self) -> Receipt:
        """Wait until the record is durable.

        Raises:
            LogUnwritable: the disk is full or fails: the record is not acknowledged.
        """
        self._group.ended.wait()
        return self._group.receipts(self._index, self._index + 1)[0]

    async def wait(self) -> Receipt:
        """The same in asyncio. A wait that is cancelled does not take the record back."""
        if not self._group.ended.is_set():
            await self._owner.ended(self._group)
        return self._group.receipts(self._index, self._index + 1)[0]


def wake(futures: Sequence[WaitingFuture]) -> None:
    """Let waiting coroutines go on: one call for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in futures:
        loops.setdefault(loop, []).append(future)
    for loop, waiting in loops.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, waiting)


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
