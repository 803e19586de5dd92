"""The end of a log, where it is appended to: which segment is trusted, and when the epoch rises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from sqe_chain.errors import LogFull
from sqe_chain.wal.files import Files, unwritable
from sqe_chain.wal.identity import TEMPORARY, write_whole
from sqe_chain.wal.limits import Limits
from sqe_chain.wal.recovery import Recovered
from sqe_chain.wal.segment import GROUP_OVERHEAD, Segment, group, header, header_size, segment_name


class Appended(NamedTuple):
    """Records that are durable.

    Attributes:
        first: offset of the first one; the others follow.
        epoch: of all of them.
        sequences: the next sequence number of each partition before them.
    """

    first: int
    epoch: int
    sequences: tuple[int, ...]


class Tail:
    """Appends groups; for one thread. Others may read what the lock guards.

    Args:
        files: the directory.
        found: what is in it.
        limits: of the log.
        now_ms: the time, for epochs.
        full: makes the error for a log without room.

    Attributes:
        lock: guards the rest.
        segments: all of them, in order; the last one may be appended to.
        end: offset after the last durable record.
        used: bytes of the segments.
        epoch: of the last segment; 0 if there is none.
    """

    def __init__(
        self,
        files: Files,
        found: Recovered,
        limits: Limits,
        now_ms: Callable[[], int],
        full: Callable[[], LogFull],
    ) -> None:
        self.lock = Lock()
        self.segments, self.end = found.segments, found.end
        self.used = sum(files.size(segment.name) for segment in found.segments)
        self.epoch = found.segments[-1].epoch if found.segments else 0
        self._files, self._limits, self._now_ms, self._full = files, limits, now_ms, full
        self._log_id, self._sequences = found.identity.log_id, found.sequences
        self._header = header_size(found.identity.partitions)
        self._active: Segment | None = None
        self._epoch_used = True

    def append(self, frames: Sequence[bytes], partitions: Sequence[int]) -> Appended:
        """See `WriteAheadLog.append_frames`."""
        data = group(frames, self.end)
        segment = self._segment_for(len(data))
        # In doubt until it is done: whatever ends this early, the next group begins another segment, with a greater epoch.
        self._active, self._epoch_used = None, True
        try:
            self._files.append(segment.name, data)
            self._files.sync(segment.name)
        except OSError as error:
            self._abandon(segment)
            raise unwritable(self._files, "appended to", error) from error
        before = tuple(self._sequences)
        with self.lock:
            first = self.end
            segment.size += len(data)
            self.used += len(data)
            segment.end = self.end = first + len(frames)
        for partition in set(partitions):
            self._sequences[partition] += partitions.count(partition)
        self._active, self._epoch_used = segment, False
        return Appended(first, segment.epoch, before)

    def room(self) -> int:
        """See `WriteAheadLog.room`."""
        return max(0, self._limits.max_bytes - self.used - self._header - GROUP_OVERHEAD)

    def drop_first(self, size: int) -> None:
        """Forget the first segment, after its file was deleted.

        Args:
            size: of the file.
        """
        with self.lock:
            del self.segments[0]
            self.used -= size

    def _segment_for(self, size: int) -> Segment:
        """The segment to append a group to; a new one where the last is full, or not to be trusted."""
        active = self._active
        if (
            active is not None
            and active.size + size > self._limits.segment_bytes
            and active.end > active.base
        ):
            active = None
        new = self._header if active is None else 0
        if self.used + new + size > self._limits.max_bytes:
            raise self._full()
        return active or self._new_segment()

    def _new_segment(self) -> Segment:
        self._active = None
        if self._epoch_used:
            self.epoch = max(self.epoch + 1, self._now_ms())
        # If this fails, there may be a file of this name after a crash. So the next one has another epoch, and name.
        self._epoch_used = True
        last = self.segments[-1] if self.segments else None
        segment = Segment(
            segment_name(self.end, self.epoch),
            self.epoch,
            self.end,
            (last.epoch, last.base) if last else (0, 0),
            last.end if last else self.end,
            tuple(self._sequences),
            self._header,
            self.end,
        )
        try:
            write_whole(self._files, segment.name, header(self._log_id, segment))
        except OSError as error:
            for name in (segment.name + TEMPORARY, segment.name):
                with suppress(OSError):
                    self._files.remove(name)
            raise unwritable(self._files, "appended to", error) from error
        with self.lock:
            self.segments.append(segment)
            self.used += segment.size
        self._active, self._epoch_used = segment, False
        return segment

    def _abandon(self, segment: Segment) -> None:
        """Give up a segment after a failed write or sync: nobody knows what of it the disk has, or will have.

        What was acknowledged was synced before. The next segment begins there, and says so.
        """
        with suppress(OSError):
            self._files.truncate(segment.name, segment.size)
        with suppress(OSError):
            size = self._files.size(segment.name)
            with self.lock:
                self.used += size - segment.size
