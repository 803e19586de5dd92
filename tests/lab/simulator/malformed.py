"""Malformed messages that every reader must refuse, although magic number and checksum are right.

Each is a sound message with one field removed, added or replaced, so that nothing else is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqe_chain.chain import ORDINAL_LENGTH, root_position
from sqe_chain.envelope.message import is_enveloped, read
from sqe_chain.envelope.wire import PREFIX, sealed, varint

KINDS = ("rubbish", "event id", "no event id", "more", "position", "far position", "chain", "twice")

_MORE_OF_VARINT = 0x80
_WIRE_TYPE = 0x07
_CHAIN, _EVENT_ID, _MORE, _LANE, _POSITION = 0x12, 0x1A, 0x4A, 0x51, 0x5A
_BEYOND = b"\x00\x00\x00\x01" + b"\xff" * 7
"""A leader epoch and a root offset that no log has, without the last byte."""


def malformed_message(kind: str, like: bytes | None, number: int) -> bytes:
    """Make a malformed message.

    Args:
        kind: one of `KINDS`.
        like: a sound message of the topic; None gives a message that is no envelope.
        number: makes the message unique.
    """
    if kind == "rubbish" or like is None or not is_enveloped(like):
        return b"rubbish %d" % number
    links = len(read(like).chain)
    own, beyond = bytes([number % 250]), _BEYOND + bytes([number % 250])
    if kind == "twice":
        tag, content = (
            (_EVENT_ID, bytes(16)) if not links else (_POSITION, beyond + bytes(ORDINAL_LENGTH * links))
        )
        return sealed(like[:-5] + _field(tag, content))
    if kind == "more":
        known = b"".join(field for tag, field in _fields(like[len(PREFIX) : -5]) if tag == _MORE)
        return _with(
            like, {_MORE: known + _field(_MORE, b"\x0a\x01x" + own)}
        )  # one more than its number, of a collection too
    if kind == "chain":
        return _with(like, {_CHAIN: _field(_CHAIN, b"\x0a\x03\x0a\x01" + own)})
    if not links:  # of the origin
        position = beyond if kind == "far position" else root_position(1, number)
        if kind == "position":
            position += bytes(ORDINAL_LENGTH)
        return _with(
            like,
            {
                "event id": {_EVENT_ID: _field(_EVENT_ID, b"ab" + own)},
                "no event id": {_EVENT_ID: b""},
            }.get(kind, {_EVENT_ID: b"", _POSITION: _field(_POSITION, position)}),
        )
    ordinals = bytes(ORDINAL_LENGTH * links)
    return _with(
        like,
        {
            "event id": {_EVENT_ID: _field(_EVENT_ID, bytes(15) + own)},
            "no event id": {_LANE: b""},
            "position": {_POSITION: _field(_POSITION, root_position(1, number) + ordinals[:-1])},
            "far position": {_POSITION: _field(_POSITION, beyond + ordinals)},
        }[kind],
    )


def with_event_time(origin: bytes, timestamp_ms: int) -> bytes:
    """An origin's message with another event time, which may be one that `wrap` refuses."""
    start = len(PREFIX) + 2 + 16  # its event id
    end = next(index for index in range(start + 1, len(origin)) if origin[index] < _MORE_OF_VARINT) + 1
    return sealed(origin[:start] + origin[start : start + 1] + varint(timestamp_ms) + origin[end:-5])


def _with(like: bytes, changed: dict[int, bytes]) -> bytes:
    """A message with the fields of these tags replaced or removed, in the order of tags."""
    fields = [(tag, field) for tag, field in _fields(like[len(PREFIX) : -5]) if tag not in changed]
    fields += changed.items()
    return sealed(PREFIX + b"".join(field for _, field in sorted(fields, key=lambda one: one[0])))


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message, each with its tag; all tags have one byte."""
    at = 0
    while at < len(body):
        begin, wire_type = at, body[at] & _WIRE_TYPE
        at += 1
        if wire_type in {1, 5}:
            at += 8 if wire_type == 1 else 4
        else:
            size, shift = 0, 0
            while True:
                size |= (body[at] & ~_MORE_OF_VARINT) << shift
                at, shift = at + 1, shift + 7
                if body[at - 1] < _MORE_OF_VARINT:
                    break
            at += size if wire_type == 2 else 0
        yield body[begin], body[begin:at]


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content
