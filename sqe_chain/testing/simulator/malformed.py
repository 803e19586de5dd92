"""Messages that no reader may accept, with a right magic number and a right checksum."""

from __future__ import annotations

from sqe_chain.chain import ORDINAL_LENGTH, root_position
from sqe_chain.envelope import is_enveloped, read
from sqe_chain.wire import PREFIX, sealed, varint

KINDS = ("rubbish", "event id", "no event id", "more", "position", "far position", "chain")

_MORE_OF_VARINT = 0x80
_EVENT_ID, _MORE, _POSITION, _CHAIN, _SIZE = 0x1A, 0x4A, 0x5A, 0x12, 0x40


def made(kind: str, like: bytes | None, number: int) -> bytes:
    """A malformed message.

    Args:
        kind: one of `KINDS`.
        like: a sound one of the topic; without one it is rubbish.
        number: makes it differ from others.
    """
    if kind == "rubbish" or like is None or not is_enveloped(like):
        return b"rubbish %d" % number
    origin = like[5] != _CHAIN
    body = like[:-5]
    field = {
        "event id": _field(_EVENT_ID, b"abc%d" % (number % 10)),
        "no event id": _field(_EVENT_ID, b""),
        "more": _field(_MORE, b"\x0a\x01x") * (1 + number % 3),
        "position": _field(_POSITION, root_position(1, number) + bytes(3)),
        "far position": _field(_POSITION, _beyond(like, number)),
        "chain": _field(_CHAIN, b"\x0a\x02\x0a\x00"),
    }[kind]
    if kind in {"no event id", "event id"} and not origin:
        field = _field(_POSITION, b"\x00")
    return sealed(body + field)


def at(origin: bytes, timestamp_ms: int) -> bytes:
    """A message of an origin with another event time, also one that `wrap` would refuse."""
    start = len(PREFIX) + 2 + 16  # its event id
    end = next(index for index in range(start + 1, len(origin)) if origin[index] < _MORE_OF_VARINT) + 1
    return sealed(origin[:start] + origin[start : start + 1] + varint(timestamp_ms) + origin[end:-5])


def _beyond(like: bytes, number: int) -> bytes:
    """A root offset that no log has, of the length that positions of this lane have."""
    links = len(read(like).chain)
    return b"\x00\x00\x00\x01" + b"\xff" * 7 + bytes([number % 250]) + bytes(ORDINAL_LENGTH * links)


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content
