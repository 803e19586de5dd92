"""The log itself: append, read, note what was published, delete what is not needed any more. A plain object.

    >>> from sqe_chain.ext.wal import MemoryFiles
    >>> files = MemoryFiles()
    >>> log = WriteAheadLog(files, "robot.raw", partitions=2, now_ms=lambda: 1_000)
    >>> [log.append(Record(b"3 screws", key=key)) for key in (b"robot-1", b"robot-2", b"robot-1")]
    [0, 1, 2]
    >>> [(one.offset, one.epoch, one.partition, one.sequence) for one in log.read(0)]
    [(0, 1000, 0, 0), (1, 1000, 1, 0), (2, 1000, 0, 1)]
    >>> log.acknowledge(2)
    >>> log.close()
    >>> again = WriteAheadLog(files, "robot.raw", partitions=2, now_ms=lambda: 2_000)
    >>> again.position, again.end, [one.record.value for one in again.read(again.position)]
    (2, 3, [b'3 screws'])

**Epoch.** Each record has the epoch of its segment. Opening the log raises the epoch, to the time in milliseconds or by one. So
does a failed write or sync: after it, numbers may repeat those of records that were not acknowledged or that a disk has lost.
A greater epoch separates such records. A record keeps its epoch and sequence number however often it is published.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from threading import Lock
from typing import Final, Self

from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.errors import ConfigurationError, LogClosed, LogFull, RecordTooLarge
from sqe_chain.ext.wal.files import Files, unwritable
from sqe_chain.ext.wal.notes import ID_LENGTH, Identity, write_position
from sqe_chain.ext.wal.record import Entry, Frames, Record, encode_all
from sqe_chain.ext.wal.recovery import UNNOTED, recover
from sqe_chain.ext.wal.segment import Reader, Segment
from sqe_chain.ext.wal.tail import MIB, Appended, Limits, Tail

DEFAULT: Final = Limits()


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class WriteAheadLog:
    """A log in a directory, open and locked. One thread appends, one may read and acknowledge.

    Args:
        files: the directory: `LocalFiles`, or `MemoryFiles`.
        topic: the topic that its records are for; permanent.
        partitions: over how many partitions of it they are spread, by key; permanent.
        limits: of its size; what would exceed them is refused.
        now_ms: the time, for epochs.
        new_id: 8 bytes for a new log.
        accept_loss: go on if acknowledged records are missing; `losses` has their offsets.

    Attributes:
        files: the directory.
        topic: as above.
        partitions: as above.
        limits: as above.

    Raises:
        LogLocked: another process has it open.
        LogDamaged: what was acknowledged has changed or is missing.
        LogUnwritable: the directory cannot be read or written.
        PartitionsMismatch: it is of another topic, or has another number of partitions.
        ConfigurationError: no topic, or no partitions.
    """

    def __init__(
        self,
        files: Files,
        topic: str,
        partitions: int,
        *,
        limits: Limits = DEFAULT,
        now_ms: Callable[[], int] = now_ms,
        new_id: Callable[[], bytes] = lambda: os.urandom(ID_LENGTH),
        accept_loss: bool = False,
    ) -> None:
        if not topic or partitions < 1:
            raise ConfigurationError(
                f"A write-ahead log needs a topic and partitions; found {topic!r}, {partitions}."
            )
        self.files, self.topic, self.partitions = files, topic, partitions
        self.limits = limits
        self._partitioner = Partitioner(partitions)
        self._saving = Lock()
        self._closed = False
        try:
            files.lock()
        except OSError as error:
            raise unwritable(files, "opened", error) from error
        try:
            recovered = recover(files, Identity(new_id(), topic, partitions), accept_loss=accept_loss)
            self._tail = Tail(files, recovered, limits, now_ms, self.full)
        except OSError as error:
            files.unlock()
            raise unwritable(files, "opened", error) from error
        except BaseException:
            files.unlock()
            raise
        self._identity, self._saved = recovered.identity, recovered.position
        self._published = recovered.position.published

    # What it holds.

    @property
    def log_id(self) -> bytes:
        """8 bytes; another directory is another log."""
        return self._identity.log_id

    @property
    def losses(self) -> tuple[tuple[int, int], ...]:
        """Offsets that were given up by `accept_loss`: from the first to before the second; none of them is given out again.

        A lost end is as long as what was acknowledged after the last note can be: up to 10,000 records.
        """
        return self._identity.losses

    @property
    def begin(self) -> int:
        """Offset of the first record that is still there."""
        with self._tail.lock:
            return self._tail.segments[0].base if self._tail.segments else self._tail.end

    @property
    def end(self) -> int:
        """Offset after the last durable record."""
        return self._tail.end

    @property
    def position(self) -> int:
        """Everything before this offset was acknowledged by Kafka."""
        return self._published

    @property
    def epoch(self) -> int:
        """Of the last segment; 0 if there is none."""
        return self._tail.epoch

    @property
    def used_bytes(self) -> int:
        """Bytes of all segments."""
        return self._tail.used

    def partition_of(self, key: bytes | None, number: int) -> int:
        """The partition of a record: murmur2 of its key, as Kafka's; without a key, the number modulo the partitions."""
        return number % self.partitions if key is None else self._partitioner(key)

    # Appending.

    def append(self, record: Record) -> int:
        """Append one record; when this returns, it is durable.

        Returns:
            Its offset.

        Raises:
            RecordTooLarge, LogFull, LogUnwritable, LogClosed: it is not acknowledged.
        """
        framed = self.framed((record,), count(self.end))
        return self.append_frames(framed.pieces, framed.partitions).first

    def framed(self, records: Sequence[Record], numbers: Iterator[int]) -> Frames:
        """Frames and partitions of records; `numbers` spread those without a key.

        Raises:
            RecordTooLarge: one has more than `max_record_bytes`.
        """
        frames, largest = encode_all(records, self.partitions, self._partitioner, numbers)
        if largest > self.limits.max_record_bytes:
            raise RecordTooLarge(
                f"A record for {self.topic} takes {largest:,} bytes, the write-ahead log in {self.files.where} accepts "
                f"{self.limits.max_record_bytes:,}: send less at once, or raise max_record_bytes here and max.message.bytes of the topic"
            ).at(self.topic)
        return frames

    def append_frames(self, frames: Sequence[bytes], partitions: Sequence[int]) -> Appended:
        """Append a group of records with one write and one sync: all of them, or none.

        Args:
            frames: from `framed`, at least one; in any number of pieces.
            partitions: of each record.

        Raises:
            LogFull: there is no room.
            LogUnwritable: the disk is full or fails. The group may be there nevertheless, and is then published once.
            LogClosed: the log is closed.
        """
        if self._closed:
            raise LogClosed(f"The write-ahead log in {self.files.where} is closed.")
        appended = self._tail.append(frames, partitions)
        noted = self._saved.durable
        if noted <= self._tail.segments[-1].base or self.end - noted > UNNOTED:
            self.save()  # so the segment would be missed if it were gone, and its end be known within bounds
        return appended

    @property
    def appended(self) -> Appended | None:
        """What was appended last, since the log was opened; None: nothing."""
        return self._tail.appended

    def room(self) -> int:
        """Bytes of frames that can be appended as one group, at least, before the log is full."""
        return self._tail.room()

    def full(self) -> LogFull:
        """The error for a log without room."""
        return LogFull(
            f"The write-ahead log in {self.files.where} is full: {self.used_bytes:,} of {self.limits.max_bytes:,} bytes, and "
            f"{self.end - self._published:,} records wait for Kafka. Try again later; is Kafka up, and does topic {self.topic} "
            "exist? To bridge longer outages raise max_bytes"
        ).at(self.topic)

    # Reading and publishing.

    def read(self, offset: int, max_records: int = 1_000, max_bytes: int = 4 * MIB) -> list[Entry]:
        """The records from an offset on, those of whole groups; see `Reader.read`."""
        return self.reader(offset).read(max_records, max_bytes)

    def reader(self, offset: int) -> Reader:
        """A place in the log, to read on from there; for one thread."""
        return Reader(self.files, self._segment_at, offset)

    def _segment_at(self, offset: int) -> tuple[Segment | None, int, int]:
        """For `Reader`: the segment that holds an offset, where its records end, and how many bytes can be read.

        Raises:
            ValueError: the record was deleted, after it was published.
        """
        tail = self._tail
        with tail.lock:
            if offset >= tail.end:
                return None, 0, 0
            if tail.segments and offset < min(tail.segments[0].base, self._published):
                raise ValueError(f"the log begins at {tail.segments[0].base}, {offset} was deleted")
            for segment in tail.segments:
                if segment.end > offset:
                    return segment, segment.end, segment.size
        return None, 0, 0

    def acknowledge(self, offset: int) -> None:
        """Note that Kafka has acknowledged everything before an offset; durable after `save` or `trim`.

        Raises:
            ValueError: it is beyond the end.
        """
        if offset > self.end:
            raise ValueError(f"the log ends at {self.end}, {offset} cannot have been published")
        self._published = max(self._published, offset)

    @property
    def unsaved(self) -> bool:
        """Whether `save` would write anything."""
        return (self._published, self.end) != self._saved[1:]

    def save(self) -> None:
        """Make durable what was acknowledged, if anything has changed.

        Raises:
            LogUnwritable: the disk fails.
        """
        with self._saving:
            end, published = self.end, self._published
            if (published, end) == self._saved[1:]:
                return
            try:
                self._saved = write_position(self.files, self._saved, published, end)
            except OSError as error:
                raise unwritable(self.files, "updated", error) from error

    def trimmable(self) -> bool:
        """Whether `trim` would delete anything."""
        with self._tail.lock:
            segments = self._tail.segments
            return len(segments) > 1 and segments[0].end <= self._published

    def trim(self) -> int:
        """Delete the segments whose records were all published; never the last one.

        Returns:
            Bytes that were freed.

        Raises:
            LogUnwritable: the disk fails.
        """
        if not self.trimmable():
            return 0
        self.save()  # first: otherwise the records would be missed
        tail, freed = self._tail, 0
        while True:  # bounded by the segments: each round deletes one
            with tail.lock:
                if len(tail.segments) < 2 or tail.segments[0].end > self._saved.published:  # noqa: PLR2004
                    return freed
                segment = tail.segments[0]
            try:
                size = self.files.size(segment.name)
                self.files.remove(segment.name)
            except OSError as error:
                raise unwritable(self.files, "trimmed", error) from error
            tail.drop_first(size)
            freed += size

    def close(self) -> None:
        """Save, and release the directory. What was appended is durable without it."""
        if self._closed:
            return
        self._closed = True
        try:
            self._tail.close()
            self.save()
        finally:
            self.files.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
