"""Republishing from template bytes: the hot path of every service that writes envelopes.

Building an envelope field by field costs 4 µs. But on one lane and output nearly all bytes of chain,
link, lane and type stay the same. So they are cached, and only what changes is packed between them.
The result is byte for byte what protobuf writes (a property test compares them).

A *frame* is what an envelope holds apart from key, type, payloads and checksum. `frames` makes one after the other,
`sqe_chain.envelope.run_template` makes those of a block at once. Then `seal` makes envelopes of them:

    magic  chain of the input, own link  time | key  type  payloads | lane  position  previous | deleted  watermark  checksum
    ---------------- start -----------------                          --------- end ----------

The own link ends with its ordinal and `of`. Of the envelopes of one input, starts differ there alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from struct import Struct
from typing import Any, Final
from zlib import crc32

from sqe_chain.chain import (
    MAX_LINKS,
    ORDINAL_LENGTH,
    ROOT_LENGTH,
    TOPIC_ID_LENGTH,
    Link,
    check_link,
    next_position,
    read_lane,
    written_lane,
)
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.envelope.revisions import written_shard
from sqe_chain.envelope.wire import CHECKSUM, PREFIX, varint
from sqe_chain.errors import ChainTooLong, OutOfBounds

Source = tuple[bytes, int, int, bytes, int]
"""What envelopes state of their input: chain, offset, leader epoch plus one (0 for none), position and event time."""
Payload = bytes | None | list[bytes | None]
"""What an envelope holds: one payload, None for "deleted", or a list of them as a collection."""
Frames = tuple[list[bytes], list[bytes]]
"""What envelopes hold apart from key, type, payloads and checksum: all before the key, and all from the lane to `previous`."""

_LINK_COUNTS: Final = Struct("<BIBI")
"""Ordinal and `of`, which end the link, each after its tag."""
_ORDINAL: Final = Struct(">I")
# Nearly every input gives a handful of envelopes; these ends are packed once, at import.
_FEW: Final = 33
_ORDINALS: Final = tuple(_ORDINAL.pack(ordinal) for ordinal in range(_FEW))


def link_counts(ordinal: int, of: int) -> bytes:
    """The end of a link: its ordinal and `of`."""
    return _LINK_COUNTS.pack(0x45, ordinal, 0x4D, of)


_COUNTS: Final = tuple(tuple(link_counts(ordinal, of) for ordinal in range(of)) for of in range(_FEW))
"""The packed end of the link, for up to 32 envelopes: `_COUNTS[of][ordinal]`."""
# Sizes of longer payloads hardly come again, and would only fill the memo.
_SHORT: Final = 4096
_join: Final = b"".join

_LINK_PLACE: Final = Struct("<BQBI")
"""Offset and leader epoch of a link, each after its tag."""
_FIXED64: Final = Struct("<Q")
_LONG: Final = 0x80
"""From this length on a varint takes two bytes."""
_LOW_BITS: Final = 14
_LOW_TIMES: Final = tuple(bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(1 << _LOW_BITS))
"""The first two bytes of a time's varint: they change every millisecond, the others every 16 s."""
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


class OutputTemplate:
    """Encodes what one output makes from the messages of one lane.

    Create one for each (lane, output, shard) of an input partition and use it for all its messages. It caches
    bytes, so threads must not share it.

    Attributes:
        lane: the lane that the envelopes state.
        link_size: bytes of the link in the first part of a frame.
        output: permanent name of flow and output.
        tail: the bytes before the checksum.
    """

    __slots__ = (
        "_before_chain",
        "_before_link",
        "_before_mark",
        "_before_position",
        "_chain_length",
        "_high_time",
        "_high_time_bytes",
        "_position_length",
        "lane",
        "link_size",
        "output",
        "tail",
    )

    def __init__(
        self,
        *,
        lane: int,
        topic: str,
        topic_id: bytes,
        partition: int,
        output: str,
        shard: int | None = None,
        watermark_ms: int = 0,
    ) -> None:
        """Prepare the bytes that stay the same.

        Args:
            lane: the lane that the inputs *state* (0 for raw messages and those wrapped at the origin).
            topic: the topic the inputs are read from.
            topic_id: its UUID, 16 bytes.
            partition: the partition the inputs are read from.
            output: permanent name of flow and output.
            shard: the state partition that publishes; None when no keyed stage precedes.
            watermark_ms: promise that whatever this output writes from now on, to any partition, has this time or a later
                one; 0 promises nothing.

        Raises:
            OutOfBounds: an argument is outside the format's bounds.
        """
        check_link(Link(topic, topic_id, partition, 0, output=output, shard=shard))
        if not 0 <= watermark_ms <= MAX_TIMESTAMP_MS:
            raise OutOfBounds(
                f"the watermark is {watermark_ms} ms. Expected milliseconds since 1970, up to {MAX_TIMESTAMP_MS}; 0 promises nothing"
            )
        self.lane = written_lane(read_lane(lane, topic, topic_id, partition), output, shard)
        self.output = output
        name, output_bytes, marked = topic.encode(), output.encode(), written_shard(output, shard)
        link = b"".join(
            (
                b"\x0a" + varint(len(name)) + name,
                b"\x12" + varint(TOPIC_ID_LENGTH) + topic_id,
                b"\x18" + varint(partition) if partition else b"",
                b"\x22" + varint(len(output_bytes)) + output_bytes,
                b"" if marked is None else b"\x28" + varint(marked),
            )
        )
        self._before_link = b"\x0a" + varint(len(link) + _LINK_PLACE.size + _LINK_COUNTS.size) + link
        self.link_size = len(self._before_link) + _LINK_PLACE.size
        self._chain_length = self._position_length = -1
        self._before_chain = self._before_position = self._before_mark = b""
        self._high_time = -1
        self._high_time_bytes = b""
        self.tail = (b"\x70" + varint(watermark_ms) if watermark_ms else b"") + b"\x7d"

    def encode(  # noqa: PLR0913, PLR0917 - the fields of an envelope
        self,
        chain: bytes,
        offset: int,
        leader_epoch: int,
        ordinal: int,
        of: int,
        position: bytes,
        timestamp_ms: int,
        key: bytes | None,
        type: str,  # noqa: A002 - the format's word
        payloads: Sequence[bytes | None],
        previous: bytes = b"",
    ) -> tuple[bytes, bytes]:
        """One envelope, and its position.

        Args:
            chain: the input's chain as bytes; b"" when it is its own root.
            offset: the input's offset.
            leader_epoch: the input's leader epoch plus one; 0 for none.
            ordinal: which of the envelopes made from the input by this output and shard this is.
            of: how many those are; must be known before the first is encoded.
            position: the input's position; `root_position(leader_epoch, offset)` when it is its own root.
            timestamp_ms: the input's time.
            key: None and b"" are two different keys.
            type: full protobuf name of the payloads.
            payloads: one, or several as a collection; None is marked "deleted".
            previous: highest position written before on this lane and output partition in this
                batch; b"" for the first.

        Raises:
            ChainTooLong: the input has 32 links already.
            ValueError: no payload, or `previous` has another length than the new position.
        """
        own = next_position(position, ordinal)
        if previous and len(previous) != len(own):
            raise ValueError(f"previous has {len(previous)} bytes, the position {len(own)}")
        lane = WrittenLane(self)
        if previous:
            lane.previous[0] = b"\x62" + varint(len(previous)) + previous
        source = chain, offset, leader_epoch, position, timestamp_ms
        framed = frames([(lane, source, ordinal, of, 0)])
        (value,) = seal(self, framed, [key_field(key)], [type], [list(payloads)])
        return value, own

    def frame(
        self, chain: bytes, offset: int, leader_epoch: int, position: bytes, timestamp_ms: int
    ) -> tuple[bytes, bytes, bytes, bytes]:
        """The bytes shared by all envelopes made from one input.

        Returns:
            All from the start to the link's ordinal; the time; lane and position without the last ordinal; that position as
            the field `previous`.

        Raises:
            ChainTooLong: the input has 32 links already.
        """
        if len(chain) != self._chain_length or len(position) != self._position_length:
            self._prepare(chain, position)
        high = timestamp_ms >> _LOW_BITS  # the high part changes every 16 s: cached
        if high != self._high_time:
            self._high_time = high
            self._high_time_bytes = varint(high)
        return (
            b"".join(
                (
                    self._before_chain,
                    chain,
                    self._before_link,
                    _LINK_PLACE.pack(0x31, offset, 0x3D, leader_epoch),
                )
            ),
            b"\x20" + _LOW_TIMES[timestamp_ms & _LOW_MASK] + self._high_time_bytes
            if high > 0
            else _rare_time(timestamp_ms),
            self._before_position + position,
            self._before_mark + position,
        )

    def _prepare(self, chain: bytes, position: bytes) -> None:
        """Cache the bytes that depend on lengths, which are the same for nearly all messages of a lane."""
        links = (len(position) - ROOT_LENGTH) // ORDINAL_LENGTH + 1
        if links > MAX_LINKS:
            raise ChainTooLong(
                f"the input has {links - 1} links already, at most {MAX_LINKS} are allowed: output {self.output} "
                "is probably part of a loop of services"
            )
        self._before_chain = PREFIX + b"\x12" + varint(len(chain) + self.link_size + _LINK_COUNTS.size)
        lane = b"\x51" + _FIXED64.pack(self.lane)
        length_bytes = varint(len(position) + ORDINAL_LENGTH)
        self._before_position, self._before_mark = lane + b"\x5a" + length_bytes, b"\x62" + length_bytes
        self._chain_length, self._position_length = len(chain), len(position)


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

    def ends(self) -> Iterator[tuple[int, bytes]]:
        """Output partition, and the highest position that was written there."""
        for partition, field in self.previous.items():
            # A field has its tag, and the length of the position in one byte or two.
            yield partition, field[2 if field[1] < _LONG else 3 :]


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
        if source is not known:  # identity: callers give the same object for all that one input gave
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
    sizes: Iterable[int] = map(len, payloads)  # type: ignore[arg-type]
    tails: Iterable[bytes] = repeat(template.tail, len(payloads))
    contents: Sequence[Any] = payloads
    if set(map(type, payloads)) != {bytes}:
        each = map(_fields, payloads)
        sizes, contents, deleted = zip(*each, strict=True)
        tails = [fields + template.tail for fields in deleted]
    if types.count(types[0]) == len(types):
        heads: Iterable[bytes] = map(_heads(types[0]).__getitem__, sizes)
    else:
        heads = [_heads(name)[size] for name, size in zip(types, sizes, strict=True)]
    bodies = list(map(_join, zip(framed[0], keys, heads, contents, framed[1], tails, strict=True)))
    return list(map(add, bodies, map(_checksum, map(crc32, bodies))))


def key_field(key: bytes | None) -> bytes:
    """The key as a field of an envelope; b"" for None."""
    return b"" if key is None else b"\x2a" + varint(len(key)) + key


def _fields(held: Payload) -> tuple[int, bytes, bytes]:
    """The size of the first payload, that and the fields of all others, and the field of deleted indexes."""
    payloads = held if isinstance(held, list) else [held]
    if not payloads:
        raise ValueError("an envelope has at least one payload")
    first = payloads[0] or b""
    fields = [first]
    if len(payloads) > 1:
        fields.append(b"\x40" + varint(len(payloads)))
        fields += [b"\x4a" + varint(len(payload or b"")) + (payload or b"") for payload in payloads[1:]]
    indexes = _join([varint(index) for index, payload in enumerate(payloads) if payload is None])
    return len(first), _join(fields), b"\x6a" + varint(len(indexes)) + indexes if indexes else b""


def _rare_time(timestamp_ms: int) -> bytes:
    """The time field for what `_LOW_TIMES` does not cover: before 1970-01-01 00:00:16.384, 0 (absent), negative."""
    return b"\x20" + varint(timestamp_ms) if timestamp_ms else b""
