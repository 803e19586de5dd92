"""One record of a write-ahead log, and its bytes.

A record's frame is little-endian. Its head begins with the size of the fields up to the checksum (4 bytes), the partition (4), and
the time in milliseconds (8). The sizes of key and value (4 each, -1: null) and the number of headers (2) follow. Then come key, value, and the headers.
A header has the size of its name (2), the size of its content (4, -1: null), name and content. The CRC-32 of all that is last.

    >>> frame = encode(Record(b"3 screws", key=b"robot-7", timestamp_ms=5), partition=1)
    >>> decode(frame, 0)
    (1, Record(value=b'3 screws', key=b'robot-7', headers=None, timestamp_ms=5), 45)
    >>> decode(frame.replace(b"3", b"4"), 0) is None
    True
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - the name of an exception class
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from sqe_chain.errors import RecordTooLarge

if TYPE_CHECKING:
    from sqe_chain.ports import Headers

_FIXED: Final = Struct("<IIqiiH")
_HEADER: Final = Struct("<Hi")
_CRC: Final = Struct("<I")
_FIXED_SIZE: Final = _FIXED.size
_pack_fixed, _pack_crc = _FIXED.pack, _CRC.pack
_MOST_HEADERS: Final = 0xFFFF
_LONGEST_NAME: Final = 0xFFFF

FRAME_OVERHEAD: Final = _FIXED.size + _CRC.size
"""Bytes of a frame beside key, value and headers."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is appended.

    Attributes:
        value: None is a tombstone.
        key: decides the partition; None: a null key.
        headers: Kafka headers; names that begin with `sqe-wal-` are the log's own.
        timestamp_ms: event time, milliseconds since 1970.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int = 0


class Frames(NamedTuple):
    """The frames of records that are appended together."""

    pieces: list[bytes]  # their bytes, one after the other, in any number of pieces
    partitions: list[int]  # of each record
    size: int  # bytes of all


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in the log.

    Attributes:
        offset: its place in the log, from 0; numbers are given once.
        epoch: of the segment that it was appended to; never falls.
        partition: of the topic.
        sequence: how many records of the log came before it for this partition.
        record: what was appended.
    """

    offset: int
    epoch: int
    partition: int
    sequence: int
    record: Record


def encode(record: Record, partition: int) -> bytes:
    """The frame of a record for a partition.

    Raises:
        RecordTooLarge: too many headers, a name too long, or more than 2 GiB.
        TypeError: key, value or a header is neither bytes nor a buffer of single bytes.
        ValueError: the time does not fit into 64 bits.
    """
    key, value, headers = _bytes("key", record.key), _bytes("value", record.value), record.headers
    packed = _packed(headers) if headers else b""
    key_size = -1 if key is None else len(key)
    value_size = -1 if value is None else len(value)
    size = _FIXED_SIZE + len(packed)
    if key:
        size += key_size
    if value:
        size += value_size
    if size >> 31:
        raise _too_long(size)
    count = len(headers) if headers else 0
    try:
        fixed = _pack_fixed(size, partition, record.timestamp_ms, key_size, value_size, count)
    except StructError as error:
        raise _no_time(record) from error
    content = b"".join((fixed, key or b"", value or b"", packed))
    return content + _pack_crc(crc32(content))


def encode_all(
    records: Sequence[Record], partitions: int, partition_of: Callable[[bytes], int], numbers: Iterator[int]
) -> tuple[Frames, int]:
    """The frames of several records, and the size of the largest one. One loop without calls: it is most of what large groups cost.

    Records without a key are spread over the partitions by `numbers`.

    Raises:
        RecordTooLarge, TypeError, ValueError: as `encode`.
    """
    pieces, chosen = list[bytes](), list[int]()
    total, largest, crc_size = 0, 0, _CRC.size
    overhead, pack, checksum, pack_checksum = FRAME_OVERHEAD, _pack_fixed, crc32, _pack_crc
    for record in records:
        key, value = record.key, record.value
        if type(key) is bytes and type(value) is bytes and not record.headers:
            partition = partition_of(key)
            key_size, value_size = len(key), len(value)
            size = overhead + key_size + value_size
            if size >> 31:
                raise _too_long(size)
            try:
                head = pack(size - crc_size, partition, record.timestamp_ms, key_size, value_size, 0) + key
            except StructError as error:
                raise _no_time(record) from error
            pieces += (head, value, pack_checksum(checksum(value, checksum(head))))
        else:  # what can be changed is copied, not referred to
            key = _bytes("key", key)
            partition = next(numbers) % partitions if key is None else partition_of(key)
            frame = encode(record, partition)
            pieces.append(frame)
            size = len(frame)
        chosen.append(partition)
        total += size
        if size > largest:  # noqa: PLR1730 - max() takes five times as long
            largest = size
    return Frames(pieces, chosen, total), largest


def _bytes(what: str, given: object) -> bytes | None:
    """What is given as bytes. The one place where a length is taken: that of other objects need not be one in bytes."""
    if given is None or type(given) is bytes:
        return given
    try:
        view = memoryview(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        kind = type(given).__name__
    else:
        if view.itemsize == 1:
            return view.tobytes()
        kind = f"{type(given).__name__} with items of {view.itemsize} bytes"
    raise TypeError(
        f"{what} of a record: {kind}. Expected bytes, or a buffer of single bytes. Name the bytes with .tobytes() or .encode()"
    )


def _too_long(size: int) -> RecordTooLarge:
    return RecordTooLarge(f"a record of {size:,} bytes; a frame has less than 2 GiB")


def _no_time(record: Record) -> ValueError:
    return ValueError(f"timestamp_ms={record.timestamp_ms} does not fit into 64 bits")


def decode(frames: bytes, at: int) -> tuple[int, Record, int] | None:
    """The frame that begins at a byte: partition, record, and where the next frame begins.

    Returns:
        None: the checksum does not match, the frame does not end within these bytes, or its fields do not fill it.
    """
    if len(frames) - at < FRAME_OVERHEAD:
        return None
    size, partition, timestamp_ms, key_size, value_size, count = _FIXED.unpack_from(frames, at)
    end = at + size
    if size < _FIXED.size or end + _CRC.size > len(frames):
        return None
    if crc32(memoryview(frames)[at:end]) != _CRC.unpack_from(frames, end)[0]:
        return None
    at += _FIXED.size
    key = value = headers = None
    if key_size >= 0:
        key = frames[at : at + key_size]
        at += key_size
    if value_size >= 0:
        value = frames[at : at + value_size]
        at += value_size
    if count:
        try:
            headers, at = _unpacked(frames, at, count)
        except (StructError, UnicodeDecodeError):
            return None
    if at != end:
        return None
    return partition, Record(value, key, headers, timestamp_ms), end + _CRC.size


def _packed(headers: Headers) -> bytes:
    if len(headers) > _MOST_HEADERS:
        raise RecordTooLarge(f"a record with {len(headers):,} headers; at most {_MOST_HEADERS:,}")
    parts = []
    for name, given in headers:
        encoded, content = name.encode(), _bytes(f"header {name!r}", given)
        if len(encoded) > _LONGEST_NAME:
            raise RecordTooLarge(
                f"a header's name of {len(encoded):,} bytes as UTF-8; at most {_LONGEST_NAME:,}"
            )
        parts += [
            _HEADER.pack(len(encoded), -1 if content is None else len(content)),
            encoded,
            content or b"",
        ]
    return b"".join(parts)


def _unpacked(frames: bytes, at: int, count: int) -> tuple[Headers, int]:
    headers: Headers = []
    for _ in range(count):
        name_size, content_size = _HEADER.unpack_from(frames, at)
        at += _HEADER.size
        name = frames[at : at + name_size].decode()
        at += name_size
        content = None if content_size < 0 else frames[at : at + content_size]
        at += max(content_size, 0)
        headers.append((name, content))
    return headers, at
