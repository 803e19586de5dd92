"""Envelopes from bytes that mostly stay the same: frames, and what they hold.

A *frame* is what an envelope holds apart from key, type, payloads and checksum. Those of one input share nearly all bytes of it;
`frames` makes one after the other, `sqe_chain.envelope.run_template` those of a block at once. Then `seal` makes envelopes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from sqe_chain.envelope.wire import CHECKSUM, varint

if TYPE_CHECKING:
    from sqe_chain.envelope.template import OutputTemplate

Source = tuple[bytes, int, int, bytes, int]
"""What envelopes state of their input: chain, offset, leader epoch plus one (0 for none), position and event time."""
Payload = bytes | None | list[bytes | None]
"""What an envelope holds: one payload, None for "deleted", or a list of them as a collection."""
Frames = tuple[list[bytes], list[bytes]]
"""What envelopes hold apart from key, type, payloads and checksum: all before the key, and all from the lane to `previous`."""

LINK_COUNTS: Final = Struct("<BIBI")
"""Ordinal and `of`, which end the link, each after its tag."""
_ORDINAL: Final = Struct(">I")
_FEW: Final = 33
_ORDINALS: Final = tuple(_ORDINAL.pack(ordinal) for ordinal in range(_FEW))


def link_counts(ordinal: int, of: int) -> bytes:
    """The end of a link: its ordinal and `of`."""
    return LINK_COUNTS.pack(0x45, ordinal, 0x4D, of)


_COUNTS: Final = tuple(tuple(link_counts(ordinal, of) for ordinal in range(of)) for of in range(_FEW))
"""The packed end of the link, for up to 32 envelopes: `_COUNTS[of][ordinal]`."""
_SHORT: Final = 4096
_join: Final = b"".join


class WrittenLane:
    """A lane that an output writes, and what it wrote there last.

    So no position is written twice. Those of one input differ by their ordinals, those of two inputs by the inputs' own. Nobody
    else writes the lane in the batch.

    Attributes:
        offset: that of the last input whose envelopes were made; -1 for none.
        previous: output partition -> the field `previous` of the next envelope there.
    """

    __slots__ = ("offset", "previous", "template")

    def __init__(self, template: OutputTemplate) -> None:
        self.template = template
        self.offset = -1
        self.previous: dict[int, bytes] = {}


def frames(rows: Iterable[tuple[WrittenLane, Source, int, int, int]]) -> Frames:
    """The frames of envelopes; each names the highest position before it on its lane and output partition.

    Args:
        rows: of each envelope its lane, its input (the same object for all that are made of it), its ordinal, `of`, and its
            output partition.

    Raises:
        ChainTooLong: an input has 32 links already.
    """
    starts: list[bytes] = []
    ends: list[bytes] = []
    known: Source | None = None
    place = time = end = mark = b""
    for lane, source, ordinal, of, partition in rows:
        if source is not known:
            known = source
            place, time, end, mark = lane.template.frame(*source)
        if of < _FEW and ordinal < of:
            counts, last = _COUNTS[of][ordinal], _ORDINALS[ordinal]
        else:
            counts, last = link_counts(ordinal, of), _ORDINAL.pack(ordinal)
        previous = lane.previous
        before, own = previous.get(partition, b""), mark + last
        starts.append(place + counts + time)
        ends.append(end + last + before)
        if own > before:  # not for a replay that is passed on: its position lies further back
            previous[partition] = own
    return starts, ends


class _Heads(dict[int, bytes]):
    """Size of a payload -> the field of its type, and what precedes the payload."""

    def __init__(self, type_name: str) -> None:
        name = type_name.encode()
        self._type = b"\x32" + varint(len(name)) + name if name else b""

    def __missing__(self, size: int) -> bytes:
        head = self._type + b"\x3a" + varint(size) if size else self._type  # protobuf leaves an empty one out
        if size < _SHORT:
            self[size] = head
        return head


_heads: Final = lru_cache(64)(_Heads)
_checksum: Final = CHECKSUM.pack


def seal(
    template: OutputTemplate,
    framed: Frames,
    keys: Sequence[bytes],
    types: Sequence[str],
    payloads: Sequence[Payload],
) -> list[bytes]:
    """The envelopes, from their frames, fields of keys, names of types and payloads; `template` is that of one of their lanes.

    Raises:
        ValueError: an empty list of payloads.
    """
    values: list[bytes] = []
    tail, name, heads = template.tail, "", _heads("")
    for start, end, key, own, payload in zip(*framed, keys, types, payloads, strict=True):
        if own is not name:
            name, heads = own, _heads(own)
        if payload.__class__ is bytes:
            body = _join((start, key, heads[len(payload)], payload, end, tail))
        else:
            size, fields, deleted = _fields(payload if isinstance(payload, list) else [payload])
            body = _join((start, key, heads[size], fields, end, deleted, tail))
        values.append(body + _checksum(crc32(body)))
    return values


def key_field(key: bytes | None) -> bytes:
    """The key as a field of an envelope; b"" for None."""
    return b"" if key is None else b"\x2a" + varint(len(key)) + key


def _fields(payloads: Sequence[bytes | None]) -> tuple[int, bytes, bytes]:
    """The size of the first payload, that and the fields of all others, and the field of deleted indexes."""
    if not payloads:
        raise ValueError("an envelope has at least one payload")
    first = payloads[0] or b""
    fields = [first]
    if len(payloads) > 1:
        fields.append(b"\x40" + varint(len(payloads)))
        fields += [b"\x4a" + varint(len(held or b"")) + (held or b"") for held in payloads[1:]]
    indexes = _join([varint(index) for index, held in enumerate(payloads) if held is None])
    return len(first), _join(fields), b"\x6a" + varint(len(indexes)) + indexes if indexes else b""
