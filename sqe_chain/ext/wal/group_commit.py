"""Group commit: what many callers append is written and synced together.

The first caller writes at once. Records that arrive while the disk syncs are the next group, so groups grow with the load. One
thread at a time writes: a waiting caller if no other thread does, which saves a wake-up, or else a thread of its own.

In the main thread a signal may raise an exception after any call, while others wait for the group that is being written. So a
group stays the first one until it has ended, and is marked before it is written. The next writer ends a marked group by what the
log has: appended or not. Locks are taken by `with`: no exception comes between it and its body, unlike with a `Condition`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from threading import Condition, Lock, Thread, get_ident, main_thread
from typing import Final

from sqe_chain.errors import LogClosed, LogFull, LogLocked, LogUnwritable, RecordTooLarge, WriteAheadLogError
from sqe_chain.ext.wal.group import CommitGroup, Pending, Receipt, WaitingFuture, wake
from sqe_chain.ext.wal.log import WriteAheadLog
from sqe_chain.ext.wal.record import Frames, Record
from sqe_chain.ext.wal.segment import GROUP_OVERHEAD
from sqe_chain.ext.wal.tail import Appended

_MAIN: Final = main_thread().ident
_WAITING_GROUPS: Final = 4
"""Groups that may wait for the disk, in memory."""


class GroupCommit:
    """Takes records from any number of threads and event loops.

    Args:
        log: the log; from now on nobody else appends to it.
        on_durable: called after each group.
    """

    def __init__(self, log: WriteAheadLog, *, on_durable: Callable[[], None]) -> None:
        self._log, self._on_durable = log, on_durable
        self._most_records, self._most_bytes = log.limits.group_records, log.limits.group_bytes
        self._process = os.getpid()
        self._numbers = count(log.end)
        self._writing = Lock()  # held while a group is written
        self._lock = Lock()  # guards everything below
        self._changed, self._room = Condition(self._lock), Condition(self._lock)
        self._idle = False
        self._groups: deque[CommitGroup] = deque()
        self._pending_bytes = 0
        self._waiting = 0
        self._room_futures: dict[WaitingFuture, None] = {}
        self._closing = False
        self._thread = Thread(target=self._run, name="sqe-chain wal commit", daemon=True)
        self._thread.start()

    # Handing records over.

    def append(self, records: Sequence[Record], timeout_s: float) -> list[Receipt]:
        """Append records, together or not at all, and return when they are durable.

        Raises:
            LogUnwritable: the disk is full or fails.
            RecordTooLarge, LogFull, LogClosed, LogLocked: see `submit`.
        """
        group, first = self._put(self._framed(records), timeout_s)
        try:
            self._write_or_leave(group)
        finally:
            self._go_on()
        if not group.ended:
            self.wait(group)
        return group.receipts(first, first + len(records))

    def _write_or_leave(self, group: CommitGroup) -> None:
        """Write what comes up to a group, unless another thread is writing: then the group is left to it, and to those after it."""
        if get_ident() == _MAIN:
            if not self._writing.locked():
                with self._writing:
                    self._write(until=group)
        elif self._writing.acquire(blocking=False):
            try:
                self._write(until=group)
            finally:
                self._writing.release()

    def wait(self, group: CommitGroup) -> None:
        """Return when a group has ended."""
        with self._lock:
            event = group.event()
        event.wait()

    def submit(self, record: Record, timeout_s: float) -> Pending:
        """Hand over a record; wait for room if there is none.

        Raises:
            RecordTooLarge: it is too large, or several together are too many for a group.
            LogFull: no room in time.
            LogClosed, LogLocked: this object cannot be used any more.
        """
        group, first = self._put(self._framed((record,)), timeout_s)
        self._go_on()
        return Pending(self, group, first)

    async def append_async(self, records: Sequence[Record], timeout_s: float) -> list[Receipt]:
        """`append` in asyncio."""
        group, first = await self._put_async(self._framed(records), timeout_s)
        if not group.ended:
            await self.ended(group)
        return group.receipts(first, first + len(records))

    async def _put_async(self, framed: Frames, timeout_s: float) -> tuple[CommitGroup, int]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:  # until there is room, or the deadline
            with self._lock:  # held for microseconds
                full = self._refusal(framed)
                if full is None:
                    if self._idle:
                        self._changed.notify()
                    return self._add(framed)
                left = deadline - loop.time()
                if left <= 0:
                    raise full
                future: WaitingFuture = loop.create_future()
                self._room_futures[future] = None
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(future, left)
            finally:  # a caller that no longer waits is forgotten
                with self._lock:
                    self._room_futures.pop(future, None)

    async def ended(self, group: CommitGroup) -> None:
        """Wait in asyncio until a group is durable, or refused."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if group.ended:
                return
            future: WaitingFuture = loop.create_future()
            group.futures.append(future)
        await future

    def _framed(self, records: Sequence[Record]) -> Frames:
        """Frames and partitions: made by the caller, while others are written."""
        if os.getpid() != self._process:
            raise LogLocked(
                f"The write-ahead log in {self._log.files.where} was opened by process {self._process}, and this one is its fork. "
                "Open a log of its own in each process, after the fork"
            )
        return self._log.framed(records, self._numbers)

    def _put(self, framed: Frames, timeout_s: float) -> tuple[CommitGroup, int]:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while (full := self._refusal(framed)) is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise full
                self._waiting += 1
                self._room.wait(left)
                self._waiting -= 1
            return self._add(framed)

    def _refusal(self, framed: Frames) -> LogFull | None:
        """Why records cannot be taken now; None: they can."""
        records, size = len(framed.partitions), framed.size
        if self._closing:
            raise LogClosed(f"The write-ahead log in {self._log.files.where} is closed.")
        if records > 1 and (records > self._most_records or size > self._most_bytes):
            raise RecordTooLarge(
                f"{records:,} records of {size:,} bytes at once; at most {self._most_records:,} (group_records) and "
                f"{self._most_bytes:,} bytes (group_bytes), because they are written together or not at all: send fewer at once"
            ).at(self._log.topic)
        if self._pending_bytes + size + GROUP_OVERHEAD > self._log.room():
            return self._log.full()
        if len(self._groups) > _WAITING_GROUPS and not self._fits(self._groups[-1], records, size):
            return LogFull(
                f"The disk of the write-ahead log in {self._log.files.where} does not keep up: {self._pending_bytes:,} bytes wait "
                "for it. Try again later"
            ).at(self._log.topic)
        return None

    def _fits(self, group: CommitGroup, records: int, size: int) -> bool:
        fits = group.count + records <= self._most_records and group.size + size <= self._most_bytes
        return fits and not group.begun

    def _add(self, framed: Frames) -> tuple[CommitGroup, int]:
        group = self._groups[-1] if self._groups else None
        new = group is None or not self._fits(group, len(framed.partitions), framed.size)
        if group is None or new:
            group = CommitGroup()
        size = framed.size + GROUP_OVERHEAD
        first = group.add(framed, size)
        if new:
            self._groups.append(group)
        self._pending_bytes += size
        return group, first

    # Writing.

    def _go_on(self) -> None:
        """Wake the thread if there is something to write.

        Called after `_writing` was released or was not free. Its holder calls this afterwards, and sees what was added before.
        """
        if self._groups:
            with self._lock:
                if self._idle:
                    self._changed.notify()

    def _run(self) -> None:
        while True:  # the thread's life: until the log is closed and all that was added is written
            with self._lock:
                while not self._groups:
                    if self._closing:
                        return
                    self._idle = True
                    self._changed.wait()
                    self._idle = False
            with self._writing:
                self._write(until=None)

    def _write(self, until: CommitGroup | None) -> None:
        """Write groups in their order, until one has ended; None: one group. `_writing` is held."""
        while until is None or not until.ended:
            with self._lock:
                if not self._groups:
                    return
                group, before = self._groups[0], self._log.appended
                interrupted = group.begun
                if not interrupted:
                    group.before, group.begun = before, True
            result = self._found(group) if interrupted else self._append(group)
            self._end(group, result)
            if isinstance(result, Appended):
                self._on_durable()
            if until is None:
                return

    def _append(self, group: CommitGroup) -> Appended | WriteAheadLogError:
        try:
            return self._log.append_frames(*group.frames())
        except WriteAheadLogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a bug: whoever waits must not wait for ever
            return LogUnwritable(f"Writing the write-ahead log failed: {type(error).__name__}: {error}")

    def _found(self, group: CommitGroup) -> Appended | WriteAheadLogError:
        """The result of a group whose writer was interrupted: it is the last one in the log, or missing."""
        last = self._log.appended
        if last is not None and last is not group.before:
            return last
        return LogUnwritable(
            f"Writing the write-ahead log in {self._log.files.where} was interrupted by an exception of a signal's handler, in the main "
            "thread. Try again"
        )

    def _end(self, group: CommitGroup, result: Appended | WriteAheadLogError) -> None:
        with self._lock:
            group.end(result)
            if group.futures or self._room_futures:
                wake([*group.futures, *self._room_futures])
            if self._waiting:
                self._room.notify_all()
            self._pending_bytes -= group.reserved  # once: no calls in these two lines
            group.reserved, group.futures, self._room_futures = 0, [], {}
            if self._groups and self._groups[0] is group:
                self._groups.popleft()

    def room_freed(self) -> None:
        """Wake callers that wait for room after a deletion."""
        with self._lock:
            futures = self._take_room_futures()
        wake(futures)

    def _take_room_futures(self) -> dict[WaitingFuture, None]:
        if self._waiting:
            self._room.notify_all()
        futures, self._room_futures = self._room_futures, {}
        return futures

    def close(self) -> None:
        """Take no more records, and return when all that were handed over are written."""
        with self._lock:
            self._closing = True
            self._changed.notify()
            futures = self._take_room_futures()
        wake(futures)
        self._thread.join()
        with self._writing:  # a caller may be writing
            self._write(until=None)
