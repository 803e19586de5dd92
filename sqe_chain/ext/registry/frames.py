"""How records name the schema of their payload: by a magic byte and an id before it, or by a GUID in a header.

    payload:  00 | id, 4 bytes, big-endian | for Protobuf the path of the message's type | value
    header:   __value_schema_id: 01 | GUID, 16 bytes | for Protobuf the same path; the payload is the value alone

The path is the message's place in its .proto file: numbers from 0, of the message and of those in which it is nested. Each is a
zigzag varint, after how many they are. The first message alone is written as one byte 0.
"""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

from sqe_chain.codecs.codec import RecordHeaders

Framing = Literal["prefix", "header", "either"]
"""Where records name their schema. With "either" each record is looked at; what a flow writes then has the prefix."""

HEADER: Final = "__value_schema_id"
PREFIX_BYTES: Final = 5
_GUID_BYTES: Final = 16
_MOST_INDEXES: Final = 64
"""Depth of nested messages: protoc itself refuses more than 32."""


def prefix(number: int) -> bytes:
    """The bytes before a payload of this schema.

    >>> prefix(7).hex()
    '0000000007'
    """
    return b"\0" + number.to_bytes(4, "big")


def number_in(data: bytes) -> int:
    """The id before a payload.

    Raises:
        ValueError: there is none.
    """
    if len(data) < PREFIX_BYTES or data[0] != 0:
        raise ValueError(
            f"a payload of {len(data)} bytes that begins with 0x{data[:1].hex()}. Expected byte 0 and the id of a schema. Read "
            "plain payloads with another codec; those with the id in a header with framing='header'"
        )
    return int.from_bytes(data[1:PREFIX_BYTES], "big")


def header_of(headers: RecordHeaders) -> bytes | None:
    """What the first header about the schema holds; None: there is none."""
    return next((content for name, content in headers if name == HEADER and content is not None), None)


def guid_header(guid: str, path: bytes = b"") -> tuple[str, bytes]:
    """The header that names a schema.

    >>> guid_header("89791762-2336-4186-9674-299b90a802e2")[1].hex()
    '0189791762233641869674299b90a802e2'
    """
    return HEADER, b"\1" + UUID(guid).bytes + path


def guid_in(content: bytes) -> tuple[str, bytes]:
    """The GUID in a header, and what follows it.

    Raises:
        ValueError: it holds none.
    """
    if len(content) < 1 + _GUID_BYTES or content[0] != 1:
        raise ValueError(
            f"header {HEADER} holds 0x{content.hex()[:80]}. Expected byte 1 and a GUID of 16 bytes"
        )
    return str(UUID(bytes=content[1 : 1 + _GUID_BYTES])), content[1 + _GUID_BYTES :]


def path_bytes(path: tuple[int, ...]) -> bytes:
    """The place of a message in its file.

    >>> path_bytes((0,)).hex(), path_bytes((1, 0)).hex()
    ('00', '040200')
    """
    if path == (0,):
        return b"\0"
    return b"".join(zigzag(number) for number in (len(path), *path))


def path_in(data: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    """The place of a message, and where its bytes end.

    Raises:
        ValueError: there is none.
    """
    count, at = _number_at(data, begin)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(f"the path of a message has {count} numbers. Expected 1 to {_MOST_INDEXES}")
    path = []
    for _ in range(count):
        number, at = _number_at(data, at)
        path.append(number)
    return tuple(path), at


def zigzag(number: int) -> bytes:
    """A whole number, 0 or more, as Avro and Protobuf write it."""
    rest, written = number << 1, bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits in each byte
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 32:  # noqa: PLR2004 - bits of a number
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of it
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("the path of a message ends early, or is too long. Expected zigzag varints")
