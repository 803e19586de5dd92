"""The end of a log, where it is appended to: which segment is trusted, and when the epoch rises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

from sqe_chain.errors import ConfigurationError, LogFull
from sqe_chain.ext.wal.files import TEMPORARY, Files, unwritable, write_whole
from sqe_chain.ext.wal.recovery import RecoveredLog
from sqe_chain.ext.wal.segment import GROUP_OVERHEAD, Segment, group, header, header_size, segment_name

MIB: Final = 1 << 20
_LEAST_SEGMENT: Final = 1_024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a log; they may be changed whenever it is opened.

    Attributes:
        max_bytes: of all segments on the disk: how much may wait for Kafka.
        segment_bytes: of one segment, 1 KiB or more; at most half of `max_bytes`. Disk space is freed by whole segments.
        max_record_bytes: of one record with its key and headers, and 30 bytes. The default is what topics with Kafka's default
            limits take; the topic's `max.message.bytes` should be a little more.
        group_records: records that are written and synced at once, at most.
        group_bytes: the same in bytes; at most `segment_bytes`.

    Raises:
        ConfigurationError: one is out of its bounds.
    """

    max_bytes: int = 1_024 * MIB
    segment_bytes: int = 32 * MIB
    max_record_bytes: int = 1_000_000
    group_records: int = 1_000
    group_bytes: int = 4 * MIB

    def __post_init__(self) -> None:
        if not _LEAST_SEGMENT <= self.segment_bytes <= self.max_bytes // 2:
            raise ConfigurationError(
                f"segment_bytes is {self.segment_bytes:,}: at least {_LEAST_SEGMENT:,}, at most half of max_bytes ({self.max_bytes:,})"
            )
        if not 0 < self.max_record_bytes <= self.segment_bytes:
            raise ConfigurationError(
                f"max_record_bytes is {self.max_record_bytes:,}: at least 1, at most segment_bytes ({self.segment_bytes:,})"
            )
        if self.group_records < 1 or not 0 < self.group_bytes <= self.segment_bytes:
            raise ConfigurationError(
                f"group_records is {self.group_records:,} and group_bytes {self.group_bytes:,}: at least 1, and at most "
                f"segment_bytes ({self.segment_bytes:,})"
            )


_ZEROS: Final = 256 << 10
"""Bytes that a file grows by, ahead of small groups: those that are then written are synced in half the time."""


class Appended(NamedTuple):
    """Records that are durable."""

    first: int  # offset of the first one; the others follow
    epoch: int  # of all of them
    sequences: tuple[int, ...]  # the next sequence number of each partition before them


class Tail:
    """Appends groups; for one thread. Others may read what the lock guards.

    Args:
        files: the directory.
        recovered: what is in it.
        limits: of the log.
        now_ms: the time, for epochs.
        full: makes the error for a log without room.

    Attributes:
        lock: guards the rest.
        segments: all of them, in order; the last one may be appended to.
        end: offset after the last durable record.
        used: bytes of the segments.
        epoch: of the last segment; 0 if there is none.
        appended: what was appended last; None: nothing since the log was opened.
    """

    def __init__(
        self,
        files: Files,
        recovered: RecoveredLog,
        limits: Limits,
        now_ms: Callable[[], int],
        full: Callable[[], LogFull],
    ) -> None:
        self.lock = Lock()
        self.segments, self.end, self.used = recovered.segments, recovered.end, 0
        self.epoch = recovered.segments[-1].epoch if recovered.segments else 0
        self._files, self._limits, self._now_ms, self._full = files, limits, now_ms, full
        self._log_id, self._sequences = recovered.identity.log_id, recovered.sequences
        self._header = header_size(recovered.identity.partitions)
        self.appended: Appended | None = None
        self._active: Segment | None = None
        self._filled = 0  # bytes of its file, with the zeros
        self._epoch_used = True
        self.used = sum(segment.size for segment in recovered.segments)
        if recovered.segments:
            self._cut(recovered.segments[-1])  # a torn tail, or zeros
        if self.end > (self.segments[-1].end if self.segments else 0):
            self._new_segment()  # behind what was given up, durable before anything is appended

    def append(self, frames: Sequence[bytes], partitions: Sequence[int]) -> Appended:
        """Append frames, as `WriteAheadLog.append_frames`."""
        count = len(partitions)
        data = group(frames, count, self.end)
        segment = self._segment_for(len(data))
        # In doubt until it is done: whatever ends this early, the next group begins another segment, with a greater epoch.
        self._active, self._epoch_used = None, True
        try:
            self._write(segment, data)
            self._files.sync(segment.name)
        except BaseException as error:
            # Nobody knows what of it the disk has, or will have. What was acknowledged was synced before: the next segment begins there.
            self._cut(segment)
            if isinstance(error, OSError):
                raise unwritable(self._files, "appended to", error) from error
            raise  # of a signal
        before = tuple(self._sequences)
        sequences, size = list(before), len(data)
        for partition in set(partitions):
            sequences[partition] += partitions.count(partition)
        appended = Appended(self.end, segment.epoch, before)
        with self.lock:  # no calls in here, so no signal comes between
            segment.size += size
            self.used += size
            segment.end = self.end = self.end + count
            self._sequences, self.appended = sequences, appended
            self._active, self._epoch_used = segment, False
        return appended

    def _write(self, segment: Segment, data: bytes) -> None:
        """Write a group; before a small one that makes the file grow, also the zeros that the next ones are written over."""
        end, zeros = segment.size + len(data), 0
        if end > self._filled and len(data) <= _ZEROS // 4:
            limits = self._limits
            zeros = min(_ZEROS, limits.segment_bytes - end, limits.max_bytes - self.used - len(data))
        self._files.write(segment.name, segment.size, data, max(0, zeros))
        self._filled = max(self._filled, end + max(0, zeros))

    def close(self) -> None:
        """Cut off what is only zeros. The log is as good with it."""
        if self._active is not None and self._filled > self._active.size:
            self._cut(self._active)
        self._active = None

    def room(self) -> int:
        """The room that is left, as `WriteAheadLog.room`."""
        return max(0, self._limits.max_bytes - self.used - self._header - GROUP_OVERHEAD)

    def drop_first(self, size: int) -> None:
        """Forget the first segment, after its file was deleted; `size` in bytes."""
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
        self.close()
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
        self._active, self._epoch_used, self._filled = segment, False, segment.size
        return segment

    def _cut(self, segment: Segment) -> None:
        """Cut off what follows the acknowledged records of a segment, if the disk lets us."""
        with suppress(OSError):
            self._files.truncate(segment.name, segment.size)
        with suppress(OSError):
            size = self._files.size(segment.name)
            with self.lock:
                self.used += size - segment.size
