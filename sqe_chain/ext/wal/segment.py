"""Segment files: a header, then groups of records, each group written and synced at once.

All numbers are little-endian. The header of a segment begins with `SQEWAL1` and a newline (8 bytes) and the id of the log (8).
Epoch (8) and the offset of its first record (8) follow. Then come epoch, first offset and end of the segment before it (8 each, 0 and 0: none).
The number of partitions (4), the next sequence number of each partition (8 each), and the CRC-32 of all that (4) are last.

The head of a group is `WALg` (4), size of its frames in bytes (4), number of records (4), and first offset (8). The
CRC-32 of these 20 bytes (4) ends it. The frames follow (see `sqe_chain.ext.wal.record`), then `gLAW` (4).

A group is acknowledged after it was synced, and the next one is written after that. So only the last group can be one that was
never acknowledged. A crash cuts it off, and nothing follows but zeros, which some file systems show after a loss of power. Disks
write sectors in any order, so whole sectors in its middle may read as zeros. Everything else that is wrong was right once, and is
damage. The mark at the end of a group, in which no byte is zero, separates the two cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final
from zlib import crc32

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal.files import Files
from sqe_chain.ext.wal.record import Entry, decode

MAGIC: Final = b"SQEWAL1\n"
_HEAD: Final = Struct("<8s8sQQQQQI")
_NUMBER: Final = Struct("<Q")
_CRC: Final = Struct("<I")
_GROUP: Final = Struct("<4sIIQ")
_GROUP_BEGIN: Final = b"WALg"
_GROUP_END: Final = b"gLAW"
_GROUP_HEAD: Final = _GROUP.size + _CRC.size

GROUP_OVERHEAD: Final = _GROUP_HEAD + len(_GROUP_END)
"""Bytes of a group beside its frames."""
SUFFIX: Final = ".wal"
SECTOR: Final = 512
"""Bytes that a disk writes as a whole, at least, or not at all."""
_READ_AHEAD: Final = 1 << 20


@dataclass(slots=True)
class Segment:
    """One file.

    Attributes:
        previous_end: where that one's records end: at this one's base, unless records in between were given up.
        end: offset after its last record, by the next segment. Records after that were never acknowledged.
    """

    name: str  # of the file
    epoch: int  # of its records
    base: int  # offset of its first record
    previous: tuple[int, int]  # epoch and base of the segment before it; (0, 0): there is none
    previous_end: int
    sequences: tuple[int, ...]  # the next sequence number of each partition, at its beginning
    size: int  # bytes that can be trusted, of the last segment; bytes of the file, of others
    end: int


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group, found in a file."""

    first: int  # offset of its first record
    count: int  # number of its records
    frames: bytes  # their frames
    after: int  # where the next group begins in the file


def header_size(partitions: int) -> int:
    """Bytes of a segment's header."""
    return _HEAD.size + partitions * _NUMBER.size + _CRC.size


def segment_name(base: int, epoch: int) -> str:
    """The name of a segment's file; names are in the order of the log."""
    return f"{base:020d}-{epoch:020d}{SUFFIX}"


def header(log_id: bytes, segment: Segment) -> bytes:
    """The bytes of a segment's header."""
    numbers = (segment.epoch, segment.base, *segment.previous, segment.previous_end, len(segment.sequences))
    content = _HEAD.pack(MAGIC, log_id, *numbers) + b"".join(map(_NUMBER.pack, segment.sequences))
    return content + _CRC.pack(crc32(content))


def read_header(files: Files, name: str, log_id: bytes, partitions: int) -> Segment:
    """The header of a segment's file; size and end are not set.

    Raises:
        LogDamaged: it is not as it was written, or belongs to another log.
    """
    size = header_size(partitions)
    content = files.read(name, 0, size)
    if len(content) < size or _CRC.pack(crc32(content[: -_CRC.size])) != content[-_CRC.size :]:
        raise LogDamaged(f"{files.where}/{name}: its header is damaged. {_WAYS_OUT}")
    magic, owner, epoch, base, *previous, previous_end, count = _HEAD.unpack_from(content)
    if (magic, owner, count) != (MAGIC, log_id, partitions) or name != segment_name(base, epoch):
        raise LogDamaged(
            f"{files.where}/{name}: it is not a segment of this log, but of {owner.hex()} with {count} partitions, from offset "
            f"{base} on; this log is {log_id.hex()} with {partitions}. Move it back to where it came from"
        )
    numbers = (_NUMBER.unpack_from(content, _HEAD.size + index * _NUMBER.size)[0] for index in range(count))
    before = (previous[0], previous[1])
    return Segment(name, epoch, base, before, previous_end, tuple(numbers), size, base)


_WAYS_OUT: Final = (
    "Restore the file from a copy; or give its records up: move the file away and open the log with accept_loss=True, "
    "which says what is missing and goes on after it"
)
"""The end of texts about damage."""


def group(frames: Sequence[bytes], count: int, first: int) -> bytes:
    """The bytes of a group: frames in any number of pieces, of at least one record, and the offset of the first one."""
    head = _GROUP.pack(_GROUP_BEGIN, sum(map(len, frames)), count, first)
    return b"".join((head, _CRC.pack(crc32(head)), *frames, _GROUP_END))


class TornTail(Exception):
    """The rest of a file is a group that was being written; it was never acknowledged."""


def groups(files: Files, segment: Segment, at: int, until: int) -> Iterator[StoredGroup]:
    """The groups of a segment, from a place in its file, where one begins, to another one.

    Raises:
        TornTail: what remains is the beginning of a group, with nothing or zeros after it.
        LogDamaged: what remains is no group.
    """
    window, start = b"", at
    while at < until:
        next_group = _group(window, at - start)
        if next_group is None and start + len(window) < until:
            window, start = files.read(segment.name, at, min(_READ_AHEAD, until - at)), at
            next_group = _group(window, 0)
            if next_group is None and len(window) < until - at:
                window = files.read(segment.name, at, min(_size_of(window), until - at))
                next_group = _group(window, 0)
        if next_group is None:
            _judge(files, segment, at, until)
        else:
            at = start + next_group.after
            yield replace(next_group, after=at)


def entries(
    files: Files, segment: Segment, stored: StoredGroup, sequences: list[int], at: int
) -> list[Entry]:
    """The records of a group that begins at a place in a file; the next sequence number of each partition is advanced.

    Raises:
        LogDamaged: a checksum does not match.
    """
    made, position = list[Entry](), 0
    for number in range(stored.first, stored.first + stored.count):
        decoded = decode(stored.frames, position)
        if decoded is None or decoded[0] >= len(sequences):
            raise damaged(files, segment, at, f"the record at offset {number} has a wrong checksum")
        partition, record, position = decoded
        made.append(Entry(number, segment.epoch, partition, sequences[partition], record))
        sequences[partition] += 1
    if position != len(stored.frames):
        raise damaged(files, segment, at, f"{len(stored.frames) - position} bytes follow its last record")
    return made


def damaged(files: Files, segment: Segment, at: int, what: str) -> LogDamaged:
    """The error for what should not be there."""
    return LogDamaged(
        f"{files.where}/{segment.name}, byte {at:,}: {what}. It was acknowledged, and has changed since: the disk, or another "
        f"program. {_WAYS_OUT}"
    )


def _group(window: bytes, at: int) -> StoredGroup | None:
    """The group at a place; None if it is not there as a whole, or not as it was written."""
    begin = at + _GROUP_HEAD
    if len(window) < begin:
        return None
    magic, size, count, first = _GROUP.unpack_from(window, at)
    end = begin + size
    if magic != _GROUP_BEGIN or len(window) < end + len(_GROUP_END) or not _head_is_sound(window, at):
        return None
    if window[end : end + len(_GROUP_END)] != _GROUP_END:
        return None
    return StoredGroup(first, count, window[begin:end], end + len(_GROUP_END))


def _head_is_sound(window: bytes, at: int) -> bool:
    end = at + _GROUP.size
    return bool(crc32(memoryview(window)[at:end]) == _CRC.unpack_from(window, end)[0])


def _size_of(window: bytes) -> int:
    """Bytes of the group at the beginning, by its head."""
    if len(window) < _GROUP_HEAD or not _head_is_sound(window, 0):
        return len(window)
    return int(_GROUP.unpack_from(window)[1]) + GROUP_OVERHEAD


def is_partly_written(files: Files, segment: Segment, at: int) -> bool:
    """Whether the rest of the last file can be one group with sectors that were never written: they read as zeros."""
    rest = files.read(segment.name, at, files.size(segment.name) - at).rstrip(b"\0")
    if len(rest) >= _GROUP_HEAD and _head_is_sound(rest, 0) and len(rest) > _size_of(rest):
        return False  # another group follows, so this one was acknowledged
    begin, bounds = 0, range(SECTOR - at % SECTOR, len(rest), SECTOR)
    for end in bounds:
        if not any(rest[begin:end]):
            return True
        begin = end
    return False


def _judge(files: Files, segment: Segment, at: int, until: int) -> None:
    """Raise the error for the rest of a file where a group should begin."""
    rest = files.read(segment.name, at, until - at).rstrip(b"\0")
    if len(rest) < _GROUP_HEAD:
        # A complete head may end with zeros, too; then nothing but zeros follows it.
        if _GROUP_BEGIN.startswith(rest[: len(_GROUP_BEGIN)]):
            raise TornTail
        raise damaged(files, segment, at, "no group of records begins here")
    if not _head_is_sound(rest, 0) or rest[: len(_GROUP_BEGIN)] != _GROUP_BEGIN:
        raise damaged(files, segment, at, "the head of a group has a wrong checksum")
    if len(rest) < _size_of(rest):
        raise TornTail
    raise damaged(files, segment, at, "a group does not end as it should")


class Reader:
    """A place in a log, for one thread; the log may be appended to meanwhile.

    Args:
        files: the log's.
        segment_at: an offset -> the segment that holds it, where its records end, and how many bytes can be read.
        offset: the first record to read, at or after the log's `begin`.
    """

    def __init__(
        self, files: Files, segment_at: Callable[[int], tuple[Segment | None, int, int]], offset: int
    ) -> None:
        self._files = files
        self._segment_at = segment_at
        self.offset = offset
        self._segment: Segment | None = None
        self._at = 0
        self._next = 0
        self._sequences: list[int] = []

    def read(self, max_records: int, max_bytes: int) -> list[Entry]:
        """The next records, those of whole groups: at least one group, unless nothing more is durable.

        Args:
            max_records: no further group after this number of records.
            max_bytes: no further group after this number of bytes.

        Raises:
            LogDamaged: a record is not as it was written.
            OSError: the disk fails.
        """
        records: list[Entry] = []
        size = 0
        while len(records) < max_records and size < max_bytes:
            segment, end, until = self._segment_at(self.offset)
            if segment is None:
                break
            if segment is not self._segment:
                self._enter(segment)
            if self.offset == end:  # nothing is behind records that were given up
                continue
            size += self._read_from(segment, end, until, records, max_records, max_bytes - size)
        return records

    def _enter(self, segment: Segment) -> None:
        self._segment, self._next = segment, segment.base
        self._sequences, self._at = list(segment.sequences), header_size(len(segment.sequences))
        self.offset = max(self.offset, segment.base)  # records before it may have been given up

    def _read_from(
        self, segment: Segment, end: int, until: int, records: list[Entry], max_records: int, max_bytes: int
    ) -> int:
        """Read groups of a segment that ends at an offset; returns their bytes."""
        begin, files = self._at, self._files
        try:
            for group in groups(files, segment, self._at, until):
                if group.first != self._next or group.first + group.count > end:
                    raise damaged(
                        files, segment, self._at, f"records from offset {group.first} on are out of place"
                    )
                made = entries(files, segment, group, self._sequences, self._at)
                self._next += group.count
                self._at = group.after
                records += [entry for entry in made if entry.offset >= self.offset]
                self.offset = max(self.offset, self._next)
                if self._next == end or len(records) >= max_records or self._at - begin >= max_bytes:
                    return self._at - begin
        except TornTail:
            pass
        except FileNotFoundError:
            raise damaged(files, segment, self._at, "the file is gone") from None
        raise damaged(files, segment, self._at, f"records from offset {self._next} to {end - 1} are missing")
