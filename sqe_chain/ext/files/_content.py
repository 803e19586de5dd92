"""The content of a file at the first look: a hash, and a checksum of each block for later reads."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sqe_chain.errors import ChangedFile, UnreadableFile
from sqe_chain.ports.files import changed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK: Final = 1 << 20
"""Bytes of a block that has a checksum."""

Stamp = tuple[int, int, int, int]
"""Device, inode, size in bytes, and time of the last change in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file held when it was looked at."""

    path: str  # of the file
    stamp: Stamp  # of the file then
    topic_id: bytes  # the first 16 bytes of its SHA-256
    checksums: array[int] = field(repr=False)  # CRC-32 of each block

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stamp[2]


def stamp_of(stat: os.stat_result) -> Stamp:
    """The stamp of a file."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class _OpenFile(io.RawIOBase):
    """A file of this process by its descriptor; -1 until it is open."""

    _file = -1

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed and self._file >= 0:
            os.close(self._file)
        super().close()


class FirstLook(_OpenFile):
    """Reads a file from its beginning to its end, and finds out what its content is. Raises UnreadableFile: it cannot be opened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._file = open_file(path)
        self._before = stamp_of(os.fstat(self._file))
        self._digest = hashlib.sha256()
        self._checksums: array[int] = array("L")
        self._block, self._in_block, self._size = 0, 0, 0

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer; the number of bytes, 0 at the end."""
        room = memoryview(buffer).cast("B")
        data = os.read(self._file, min(len(room), BLOCK))
        room[: len(data)] = data
        self._digest.update(data)
        self._size += len(data)
        view = memoryview(data)
        while view:
            part = view[: BLOCK - self._in_block]
            self._block = zlib.crc32(part, self._block)
            self._in_block += len(part)
            if self._in_block == BLOCK:
                self._end_block()
            view = view[len(part) :]
        return len(data)

    def finish(self) -> Content:
        """Read what is left, and return what the content is. Raises ChangedFile: it was changed meanwhile."""
        buffer = bytearray(BLOCK)
        while self.readinto(buffer):
            pass
        if self._in_block:
            self._end_block()
        after = stamp_of(os.fstat(self._file))
        if after != self._before or self._size != after[2]:
            raise changed(self._path, "it was written to while it was looked at")
        return Content(self._path, after, self._digest.digest()[:16], self._checksums)

    def _end_block(self) -> None:
        self._checksums.append(self._block)
        self._block = self._in_block = 0


class FixedFile(_OpenFile):
    """Reads a file and verifies the checksum of each block before it returns the block.

    So a read gives what was hashed, whatever times the file system has. Several readers can open it.

    Attributes:
        failure: why it could not be read, once it could not; what reads through a library of another language asks for it.

    Raises:
        ChangedFile: it is gone, or another file.
    """

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content
        self.failure: ChangedFile | None = None
        try:
            self._file = open_file(content.path)
        except UnreadableFile as error:
            raise changed(content.path, f"it cannot be opened any more ({error})") from None
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self.check()

    def check(self) -> None:
        """Compare size and time of the file with those of the first look. Raises ChangedFile: something differs."""
        now, first = stamp_of(os.fstat(self._file)), self._content.stamp
        if now[2:] != first[2:]:
            raise self._changed(
                f"it has {now[2]:,} bytes and was written to at {now[3]}, not {first[2]:,} at {first[3]}"
            )

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._content.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer; the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self._at < self._content.size:
            number, begin = divmod(self._at, BLOCK)
            part = memoryview(self._read_block(number))[begin : begin + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done

    def _read_block(self, number: int) -> bytes:
        known = self._blocks.get(number)
        if known is not None:
            return known
        begin, wanted = number * BLOCK, min(BLOCK, self._content.size - number * BLOCK)
        data = b""
        while len(data) < wanted:  # bounded: each round reads something, or ends
            part = os.pread(self._file, wanted - len(data), begin + len(data))
            if not part:
                break
            data += part
        if len(data) != wanted or zlib.crc32(data) != self._content.checksums[number]:
            raise self._changed(f"bytes {begin:,} to {begin + wanted:,} are others now")
        if len(self._blocks) >= _KEPT:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = data
        return data

    def _changed(self, what: str) -> ChangedFile:
        self.failure = changed(self._content.path, what)
        return self.failure


_KEPT: Final = 4
"""Blocks that an open file keeps: Parquet reads several columns at a time, each from its own place."""


def open_file(path: str) -> int:
    """Open a file for reading; returns its descriptor. Raises UnreadableFile: it is not there, is a folder, or may not be read."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be opened: {error.strerror}") from error
