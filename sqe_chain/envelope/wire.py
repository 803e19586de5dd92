"""The envelope's bytes: what can be said about them without parsing, and what is wrong with them.

`sqe_chain.envelope.message` looks at the first and last bytes and at the checksum of every message; only
when these do not agree does it come here, to find the name of the error by walking the fields.
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
"""Tag of field 15, the last; it stands five bytes before the end."""
RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any bytes followed by their own CRC-32."""
CHECKSUM: Final = Struct("<I")
_MORE: Final = 9
_DELETED: Final = 13
_MAX_VARINT: Final = 10
_SEVEN_BITS: Final = 0x7F
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def varint(number: int) -> bytes:
    """The number as protobuf writes it; negative ones as 64-bit two's complement.

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
    """The body, which must begin with PREFIX, with the last field behind it."""
    body += b"\x7d"
    return body + CHECKSUM.pack(crc32(body))


def diagnose(value: bytes | None) -> EnvelopeError | None:
    """Why a value is no whole, undamaged envelope; None when it is one.

    Prefix and checksum decide; what the fields hold is not looked at. Truncation is recognised at
    any length, as long as the prefix or a part of it is there.
    """
    if not value:
        return EmptyValue(
            "the value is null: a tombstone is no envelope"
            if value is None
            else "the value is empty, an envelope never is"
        )
    if not value.startswith(PREFIX):
        if PREFIX.startswith(value):
            return TruncatedEnvelope(f"the value ends after {len(value)} bytes, within the magic number")
        return NotAnEnvelope(
            f"the value begins with {value[:5].hex(' ')}, an envelope with {PREFIX.hex(' ')}: it is another "
            "message type, or was never wrapped (then read the topic as a raw source)"
        )
    return _diagnose_fields(value)


def _diagnose_fields(value: bytes) -> EnvelopeError | None:
    place = 0
    while place < len(value):
        number, end = next_field(value, place)
        if number == 0:
            return WrongChecksum(f"the bytes are damaged: at byte {place} no field begins")
        if end > len(value):
            return TruncatedEnvelope(f"the value ends after {len(value)} bytes, within field {number}")
        if value[place] == CHECKSUM_TAG:
            return _diagnose_end(value, end)
        place = end
    return TruncatedEnvelope(f"the value ends after {len(value)} bytes, before its checksum")


def _diagnose_end(value: bytes, end: int) -> EnvelopeError | None:
    stated = CHECKSUM.unpack_from(value, end - CHECKSUM.size)[0]
    computed = crc32(value[: end - CHECKSUM.size])
    if stated != computed:
        return WrongChecksum(
            f"the checksum is {stated:08x}, computed over the {len(value)} bytes it is {computed:08x}: "
            "the bytes were changed after they were written"
        )
    if end < len(value):
        return TrailingBytes(f"{len(value) - end} bytes follow the checksum, which ends at byte {end}")
    return None


def next_field(value: bytes, place: int) -> tuple[int, int]:
    """Number and end of the field that begins at a place.

    Returns:
        The end is beyond the value when the field is cut off; number 0 when no field can begin so.
    """
    tag, start = _read_varint(value, place)
    if start > len(value):
        return tag >> 3 or 1, start
    number, kind = tag >> 3, tag & 7
    if kind == _VARINT:
        return number, _read_varint(value, start)[1]
    if kind == _FIXED64:
        return number, start + 8
    if kind == _FIXED32:
        return number, start + 4
    if kind == _LENGTH:
        length, start = _read_varint(value, start)
        return number, start + length
    return 0, start


def _read_varint(value: bytes, place: int) -> tuple[int, int]:
    number = 0
    for index in range(_MAX_VARINT):
        if place + index >= len(value):
            return number, len(value) + 1
        byte = value[place + index]
        number |= (byte & _SEVEN_BITS) << 7 * index
        if byte <= _SEVEN_BITS:
            return number, place + index + 1
    return 0, place + _MAX_VARINT


def check_order(value: bytes) -> None:
    """Refuse a whole envelope whose fields are not in ascending order, each once but for `more`.

    Raises:
        MalformedField: names the field and its place.
    """
    place = last = 0
    while place < len(value):
        number, end = next_field(value, place)
        if number < last or (number == last and number != _MORE):
            message = (
                f"field {number} at byte {place} follows field {last}: fields stand in ascending order, once"
            )
            raise MalformedField(message)
        last, place = number, end


def check_once(value: bytes) -> None:
    """Refuse a whole envelope in which a field stands twice that may stand once.

    Of such a field protobuf keeps the last, and joins two chains into one: readers would not agree.

    Raises:
        MalformedField: names the field and its place.
    """
    place, seen = 0, set[int]()
    while place < len(value):
        number, end = next_field(value, place)
        if number in seen:
            raise MalformedField(f"field {number} stands again at byte {place}: it may stand once")
        if number not in (_MORE, _DELETED):
            seen.add(number)
        place = end
