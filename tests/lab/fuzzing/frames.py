"""Frames of a write-ahead log: their content, by the definition in `sqe_chain.ext.wal.record`, or that they are damaged."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from struct import pack, unpack_from
from zlib import crc32

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal.memory_files import MemoryFiles
from sqe_chain.ext.wal.record import decode, encode
from sqe_chain.ext.wal.segment import Segment, TornTail, entries, groups
from tests.lab.fuzzing.ways import Difference

Frame = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]
"""Partition, value, key, headers, time."""
_NAME = "0.wal"
_FIXED = 26


def check(data: bytes, seen: set[Hashable]) -> int:
    """Read the frames of an input: by themselves, and as groups of a segment; returns how many frames those are."""
    at = count = 0
    while at < len(data):
        count += 1
        right = _frame(data, at)
        found = decode(data, at)
        if found is None or right is None:
            if (found is None) != (right is None):
                raise Difference(f"frame at {at} of {data!r}: {found}, right is {right}")
            break
        partition, record, end = found
        frame: Frame = (partition, record.value, record.key, record.headers, record.timestamp_ms)
        if (frame, end) != right:
            raise Difference(f"frame at {at} of {data!r}: {frame}, {end}, right is {right}")
        if encode(record, partition) != data[at:end] and not _unusual(data[at:end]):
            raise Difference(f"frame at {at} of {data!r} is written as {encode(record, partition)!r}")
        seen.add((record.key is None, record.value is None, len(record.headers or ())))
        at = end
    seen.add((count, at < len(data), _segment(data)))
    return max(count, 1)


def _segment(data: bytes) -> str:
    """The same bytes as the groups of a segment: what can be read, or a named error."""
    files = MemoryFiles({_NAME: data})
    segment = Segment(_NAME, 1, 0, (0, 0), 0, (0, 0, 0), 0, 0)
    number = 0
    try:
        for group in groups(files, segment, 0, len(data)):
            if group.after > len(data) or group.after <= number:
                raise Difference(f"a group of {data!r} ends at {group.after}")
            entries(files, segment, group, [0, 0, 0], number)
            number = group.after
    except (LogDamaged, TornTail) as error:
        return type(error).__name__
    return "whole"


def _frame(data: bytes, at: int) -> tuple[Frame, int] | None:
    if len(data) - at < _FIXED + 4:
        return None
    size, partition, time_ms, key_size, value_size, count = unpack_from("<IIqiiH", data, at)
    end = at + size
    if size < _FIXED or end + 4 > len(data) or crc32(data[at:end]) != unpack_from("<I", data, end)[0]:
        return None
    at += _FIXED
    found: list[bytes | None] = []
    for each in (key_size, value_size):
        found.append(data[at : at + each] if each >= 0 else None)
        at += max(each, 0)
    headers = []
    for _ in range(count):
        if at + 6 > end:
            return None
        name_size, content_size = unpack_from("<Hi", data, at)
        name = data[at + 6 : at + 6 + name_size]
        at += 6 + name_size
        content = data[at : at + content_size] if content_size >= 0 else None
        at += max(content_size, 0)
        try:
            headers.append((name.decode(), content))
        except UnicodeDecodeError:
            return None
    if at != end:
        return None
    return (partition, found[1], found[0], headers or None, time_ms), end + 4


def _unusual(frame: bytes) -> bool:
    """Whether a null is written as another negative size than -1: read all the same."""
    key_size, value_size, count = unpack_from("<iiH", frame, 16)
    return bool(key_size < -1 or value_size < -1 or count)


def mutated(data: bytes, most: int, random: Random) -> bytes:
    """Another input: frames, some of them wrong under a right checksum; or groups of them."""
    if data and random.random() < 0.3:
        found = bytearray(data)
        for _ in range(random.randrange(1, 4)):
            found[random.randrange(len(found))] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
        return bytes(found[: most if random.random() < 0.7 else random.randrange(len(found) + 1)])
    frames = [_written(random) for _ in range(random.randrange(1, 24))]
    if random.random() < 0.4:
        return b"".join(frames)[:most]
    parts, first = [], 0
    while frames:
        count = random.randrange(1, len(frames) + 1)
        own, frames = frames[:count], frames[count:]
        size, number = sum(map(len, own)), count
        if random.random() < 0.1:
            size, number = random.choice(
                ((size, 0), (size + 1, number), (0, number), (2**32 - 1, number), (size, 2**32 - 1))
            )
        head = pack("<4sIIQ", b"WALg", size, number, first)
        parts += [head, pack("<I", crc32(head)), *own, b"gLAW" if random.random() < 0.95 else b"\0\0\0\0"]
        first += count
    return b"".join(parts)[:most]


def _written(random: Random) -> bytes:
    key, value = (random.choice((None, b"", b"k", random.randbytes(random.randrange(40)))) for _ in range(2))
    headers = [
        (random.choice((b"", b"name", b"\xff", b"\xc3\xa9")), random.choice((None, b"", b"content")))
        for _ in range(random.choice((0, 0, 1, 3)))
    ]
    content = (key or b"") + (value or b"")
    sizes = [-1 if one is None else len(one) for one in (key, value)]
    for name, one in headers:
        size = -1 if one is None else len(one)
        if random.random() < 0.05:
            size = random.choice((-2, size + 1, 2**31 - 1, -(2**31)))
        content += pack("<Hi", len(name) if random.random() < 0.97 else 0xFFFF, size) + name + (one or b"")
    if random.random() < 0.05:
        sizes[random.randrange(2)] = random.choice((-2, -(2**31), 2**31 - 1, 0, 5))
    count = len(headers) if random.random() < 0.95 else random.choice((0, 1, 4, 0xFFFF))
    size = _FIXED + len(content)
    if random.random() < 0.03:
        size = random.choice((0, _FIXED - 1, size - 1, size + 1, 2**32 - 1))
    time_ms = random.choice((0, 5, -1, 2**63 - 1, -(2**63)))
    frame = pack("<IIqiiH", size % 2**32, random.choice((0, 1, 2, 7)), time_ms, *sizes, count) + content
    return frame + pack("<I", crc32(frame) if random.random() < 0.97 else 0)
