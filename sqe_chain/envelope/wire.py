"""The envelope's bytes: checks that need no parsing, and the diagnosis of damaged ones.

An envelope, tag by tag, in the order of its bytes:

    0d:magic       20:time    3a:payload    51:lane        6a:deleted
    12:chain       2a:key     40:size       5a:position    70:watermark
    1a:event-id    32:type    4a:more       62:previous    7d:checksum

The checksum is the CRC-32 of all before its four bytes. A republished envelope has chain, lane and position, one of the origin has an event id instead.

`sqe_chain.envelope.head` checks the first and last bytes and the checksum of every message. Only if one of
them is wrong does it call `diagnose`, which walks the fields to find out what is wrong.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from sqe_chain.errors import (
    EmptyValue,
    EnvelopeError,
    MalformedField,
    NotAnEnvelope,
    TrailingBytes,
    TruncatedEnvelope,
    WrongChecksum,
)

MAGIC: Final = 0xFF455153
PREFIX: Final = b"\x0dSQE\xff"
"""Field 1 with its tag: the first bytes of every envelope, and of no UTF-8 text."""
CHECKSUM_TAG: Final = 0x7D
"""Tag of field 15, the last: five bytes before the end."""
RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any bytes followed by their own CRC-32: one pass checks a whole envelope."""
CHECKSUM: Final = Struct("<I")
_MORE: Final = 9
_MAX_VARINT: Final = 10
# Negative, so that its three low bits are 6, which is no wire type, and it is below every length.
_NO_VARINT: Final = -2
"""What is longer than any number; as a tag it has no number and no wire type."""
_SEVEN_BITS: Final = 0x7F
_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)
_ONCE: Final = {
    **dict.fromkeys((1, CHECKSUM_TAG >> 3), _FIXED32),
    **dict.fromkeys((4, 8, 14), _VARINT),
    **dict.fromkeys((2, 3, 5, 6, 7, 11, 12), _LENGTH),
    10: _FIXED64,
}
"""Fields that may occur once, with their wire types."""


def varint(number: int) -> bytes:
    """The number in protobuf's encoding; negative ones as 64-bit two's complement.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    number &= 0xFFFFFFFFFFFFFFFF
    written = bytearray()
    while number > _SEVEN_BITS:
        written.append(number & _SEVEN_BITS | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def sealed(body: bytes) -> bytes:
    """The body, which must begin with PREFIX, followed by the checksum field."""
    body += b"\x7d"
    return body + CHECKSUM.pack(crc32(body))


def diagnose(value: bytes | None) -> EnvelopeError | None:
    """Why a value is not a complete, undamaged envelope; None when it is one.

    Only prefix and checksum count, not the content of fields. Truncation is recognised at any length, if
    at least a part of the prefix is there.
    """
    if not value:
        return EmptyValue(
            "the value is null: a tombstone is not an envelope"
            if value is None
            else "the value is empty, an envelope never is"
        )
    if not value.startswith(PREFIX):
        if PREFIX.startswith(value):
            return TruncatedEnvelope(f"the value ends after {len(value)} bytes, within the magic number")
        return NotAnEnvelope(
            f"the value begins with {value[:5].hex(' ')}, an envelope with {PREFIX.hex(' ')}: it is another "
            "message type, or was never wrapped (then declare the topic as a raw source)"
        )
    return _diagnose_fields(value)


def _diagnose_fields(value: bytes) -> EnvelopeError | None:
    index = 0
    while index < len(value):
        number, end = next_field(value, index)
        if number == 0:
            return WrongChecksum(f"the bytes are damaged: no field begins at byte {index}")
        if end > len(value):
            return TruncatedEnvelope(f"the value ends after {len(value)} bytes, within field {number}")
        if value[index] == CHECKSUM_TAG:
            return _diagnose_end(value, end)
        index = end
    return TruncatedEnvelope(f"the value ends after {len(value)} bytes, before its checksum")


def _diagnose_end(value: bytes, end: int) -> EnvelopeError | None:
    stated = CHECKSUM.unpack_from(value, end - CHECKSUM.size)[0]
    computed = crc32(value[: end - CHECKSUM.size])
    if stated != computed:
        return WrongChecksum(
            f"the stated checksum is {stated:08x}, that of the bytes before it {computed:08x}: "
            "the bytes were changed after they were written"
        )
    if end < len(value):
        return TrailingBytes(f"{len(value) - end} bytes follow the checksum, which ends at byte {end}")
    return None


def next_field(value: bytes, index: int) -> tuple[int, int]:
    """Number and end of the field that begins at an index.

    Returns:
        The end is beyond the value when the field is cut off; the number is 0 when these bytes do not begin a field.
    """
    tag, start = _read_varint(value, index)
    if start > len(value):
        return tag >> 3 or 1, start
    number, kind = tag >> 3, tag & 7
    if kind == _VARINT:
        content, end = _read_varint(value, start)
        return number if content >= 0 else 0, end
    if kind == _FIXED64:
        return number, start + 8
    if kind == _FIXED32:
        return number, start + 4
    if kind == _LENGTH:
        length, start = _read_varint(value, start)
        return (number, start + length) if length >= 0 else (0, start)
    return 0, start


def _read_varint(value: bytes, start: int) -> tuple[int, int]:
    number = 0
    for index in range(_MAX_VARINT):
        if start + index >= len(value):
            return number, len(value) + 1
        byte = value[start + index]
        number |= (byte & _SEVEN_BITS) << 7 * index
        if byte <= _SEVEN_BITS:
            return number, start + index + 1
    return _NO_VARINT, start + _MAX_VARINT


def check_order(value: bytes) -> None:
    """Refuse a complete envelope unless its fields are in ascending order, each once except `more`.

    Raises:
        MalformedField: names the field and where it begins.
    """
    index = last = 0
    while index < len(value):
        number, end = next_field(value, index)
        if number < last or (number == last and number != _MORE):
            message = f"field {number} at byte {index} follows field {last}: fields must be in ascending order, each once"
            raise MalformedField(message)
        last, index = number, end


def check_once(value: bytes) -> None:
    """Refuse a complete envelope that repeats a field which may occur once.

    Protobuf keeps the last of them, and merges two chains into one: readers would not agree. It drops fields of a later version,
    groups, and known numbers with another wire type, repeated or not. So does this.

    Raises:
        MalformedField: names the field and where it begins.
    """
    # Groups are of no version of the format. Within one protobuf drops everything, so nothing there counts as
    # repeated.
    index, groups, seen = 0, 0, set[int]()
    while index < len(value):
        number, end = next_field(value, index)
        kind = value[index] & 7
        if kind in (_GROUP, _GROUP_END):
            groups += 1 if kind == _GROUP else -1
        elif not groups and _ONCE.get(number) == kind:
            if number in seen:
                raise MalformedField(f"field {number} is repeated at byte {index}: it may occur once")
            seen.add(number)
        index = end
