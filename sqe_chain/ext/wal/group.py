"""A group of records on its way to the disk, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count, repeat
from threading import Event
from typing import NamedTuple, Protocol, cast

from sqe_chain.errors import WriteAheadLogError
from sqe_chain.ext.wal.record import Frames
from sqe_chain.ext.wal.tail import Appended

WaitingFuture = asyncio.Future[None]


class Receipt(NamedTuple):
    """Proof that a record is durable: it will be published, whatever happens to this process.

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


class CommitGroup:
    """Records that are written together. Filling and ending it needs the lock of `GroupCommit`.

    Attributes:
        parts: what was appended to it: where its records begin among all, and their frames.
        size: bytes of the frames.
        reserved: bytes that they may take in the log.
        begun: whether somebody writes it, or was interrupted: it takes no more records.
        before: what the log had appended last when it was begun.
        ended: whether they are durable, or refused.
        futures: of coroutines that wait for the end.
    """

    __slots__ = (
        "_appended", "_error", "_event", "_receipts", "before", "begun", "ended", "futures", "parts", "reserved", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parts: list[tuple[int, Frames]] = []
        self.size = self.reserved = 0
        self.begun = self.ended = False
        self.before: Appended | None = None
        self.futures: list[WaitingFuture] = []
        self._event: Event | None = None  # seldom needed, and dear
        self._appended: Appended | None = None
        self._error: WriteAheadLogError | None = None
        self._receipts: list[Receipt] | None = None

    @property
    def count(self) -> int:
        """How many records it has."""
        if not self.parts:
            return 0
        first, last = self.parts[-1]
        return first + len(last.partitions)

    def add(self, framed: Frames, size: int) -> int:
        """Add records that take at most a number of bytes in the log. Returns the index of the first one."""
        first = self.count
        self.parts.append((first, framed))
        self.size += framed.size
        self.reserved += size
        return first

    def frames(self) -> tuple[list[bytes], list[int]]:
        """The frames of all records, in pieces, and their partitions."""
        if len(self.parts) == 1:
            return self.parts[0][1].pieces, self.parts[0][1].partitions
        pieces, partitions = list[bytes](), list[int]()
        for _, framed in self.parts:
            pieces += framed.pieces
            partitions += framed.partitions
        return pieces, partitions

    def event(self) -> Event:
        """Set at the end; for those who wait in a thread. The lock is held."""
        if self._event is None:
            self._event = Event()
            if self.ended:
                self._event.set()
        return self._event

    def end(self, result: Appended | WriteAheadLogError) -> None:
        """End the group with its result; only the first result counts."""
        if not self.ended:
            if isinstance(result, Appended):
                self._appended = result
            else:
                self._error = result
            self.ended = True
        if self._event is not None:
            self._event.set()

    def receipts(self, first: int, end: int) -> list[Receipt]:
        """Of some of its records, after its end. Raises WriteAheadLogError: they are not acknowledged."""
        if self._error is not None:
            # A new one for each caller: a traceback belongs to one thread.
            raise type(self._error)(str(self._error)).at(self._error.topic) from self._error
        if self._receipts is None:
            self._receipts = self._all_receipts()
        if end - first == len(self._receipts):
            return self._receipts
        return self._receipts[first:end]

    def _all_receipts(self) -> list[Receipt]:
        if self._appended is None:
            raise AssertionError("the group has not ended")
        offset, epoch, before = self._appended
        partitions = self.frames()[1]
        sequences = list(map(count, before))
        numbers = [next(sequences[partition]) for partition in partitions]
        # As `Receipt(…)` makes them, in half the time: that is a function in Python.
        receipts = map(tuple.__new__, repeat(Receipt), zip(count(offset), partitions, repeat(epoch), numbers))
        return cast("list[Receipt]", list(receipts))


class Ending(Protocol):
    """Waits for the end of a group."""

    def wait(self, group: CommitGroup) -> None:
        """Return when the group has ended."""

    async def ended(self, group: CommitGroup) -> None:
        """The same in asyncio."""


class Pending:
    """A record that is on its way to the disk."""

    __slots__ = ("_group", "_index", "_owner")

    def __init__(self, owner: Ending, group: CommitGroup, index: int) -> None:
        self._owner, self._group, self._index = owner, group, index

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._group.ended

    def result(self) -> Receipt:
        """Wait until the record is durable.

        Raises:
            LogUnwritable: the disk is full or fails: the record is not acknowledged.
        """
        self._owner.wait(self._group)
        return self._group.receipts(self._index, self._index + 1)[0]

    async def wait(self) -> Receipt:
        """The same in asyncio. A wait that is cancelled does not take the record back."""
        if not self._group.ended:
            await self._owner.ended(self._group)
        return self._group.receipts(self._index, self._index + 1)[0]


def wake(futures: Iterable[WaitingFuture]) -> None:
    """Let waiting coroutines go on: one call for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[WaitingFuture]] = {}
    for future in futures:
        loops.setdefault(future.get_loop(), []).append(future)
    for loop, waiting in loops.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, waiting)


def _resolve(futures: Sequence[WaitingFuture]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
