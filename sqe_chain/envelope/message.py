"""Bytes <-> Envelope: wrap messages at the origin, read them anywhere.

Needs only protobuf. The format is described in `proto/sqe_chain/v1/envelope.proto`.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> value = wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=1_700_000_000_000)
    >>> envelope = read(value)
    >>> envelope.key, envelope.payload_as(StringValue).value, len(envelope.chain)
    (b'robot-7', '3 screws', 0)

`republish` makes the envelope of a message that was made from another one:

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> from sqe_chain.chain import Coordinates
    >>> report = read(wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=1_700_000_000_000))
    >>> at = Coordinates(topic="robot.raw", topic_id=bytes(16), partition=2, offset=7, leader_epoch=1)
    >>> value = republish(report, at, StringValue(value="ok"), output="standard/robot.ok", key="ok")
    >>> print(read(value, strict=True).chain)
    robot.raw[2]@7 > standard/robot.ok 1/1
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqe_chain import chain as ideas
from sqe_chain._proto.envelope_pb2 import Envelope as EnvelopeMessage
from sqe_chain.chain import Chain, Coordinates, Link, check_link, root_position
from sqe_chain.codecs import Codec, codec_for
from sqe_chain.envelope.carrier import chain_header, open_carried
from sqe_chain.envelope.head import (
    EVENT_ID_LENGTH,
    MAX_TIMESTAMP_MS,
    EnvelopeHead,
    check_consistent,
    check_fields,
    check_head,
    check_timestamp,
    check_values,
    is_enveloped,
    last_of,
    open_head,
    parse_chain,
    parse_head,
)
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.envelope.wire import MAGIC, check_order, sealed
from sqe_chain.errors import MalformedField, WrongPayloadType
from sqe_chain.errors.outage import raise_outage
from sqe_chain.ports import Headers

if TYPE_CHECKING:
    import builtins

__all__ = [
    "MAX_TIMESTAMP_MS",
    "Envelope",
    "EnvelopeHead",
    "check_consistent",
    "check_head",
    "check_timestamp",
    "is_enveloped",
    "last_of",
    "open_head",
    "parse_chain",
    "parse_head",
    "payloads_of",
    "read",
    "serialized",
    "wrap",
    "wrap_unchecked",
]

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The content of one enveloped message.

    Attributes:
        event_id: 16 bytes; random for a message wrapped at the origin. That of a republished message is derived from lane
            and position, so it is the same in every replay.
        timestamp_ms: event time of the root, milliseconds since 1970.
        key: None and b"" are two different keys.
        type: full protobuf name of the payloads; of other codecs ``codec:Name``, such as ``json:Order``.
        payloads: one, or the parts of a collection; None means "deleted".
        lane: as its writer stated it, without the partition it is read from; 0 when the chain is empty.
        position: the place on the lane; b"" when the chain is empty.
        previous: the highest position written before on this lane and output partition in the same
            batch; b"" for the first.
        chain_bytes: the chain, serialized.
        watermark_ms: the writer's promise, milliseconds since 1970: all that it writes later under this output's name has this
            time or a later one. 0: no promise.
    """

    event_id: bytes
    timestamp_ms: int
    key: bytes | None
    type: str
    payloads: tuple[bytes | None, ...]
    lane: int = 0
    position: bytes = b""
    previous: bytes = b""
    chain_bytes: bytes = field(default=b"", repr=False)
    watermark_ms: int = 0

    @property
    def chain(self) -> Chain:
        """The links, root first; parsed on every access. Raises EnvelopeError."""
        return parse_chain(self.chain_bytes)

    def payload_as(self, cls: builtins.type[Payload], codec: Codec[Payload] | str | None = None) -> Payload:
        """The only payload, decoded.

        Args:
            cls: its type: a protobuf message, a struct, a dataclass, dict, ...
            codec: a codec, or its name; by default the one registered for this type.

        Raises:
            WrongPayloadType: it is of another type, deleted, or one of several (`payloads_as`).
            MalformedField: it cannot be decoded.
        """
        payloads = self.payloads_as(cls, codec)
        if len(payloads) != 1:
            message = f"the envelope holds a collection of {len(payloads)} payloads: use payloads_as"
            raise WrongPayloadType(message)
        if self.payloads[0] is None:
            message = f"the payload ({self.type}) is deleted: use payloads_as, which gives None for it"
            raise WrongPayloadType(message)
        return cast("Payload", payloads[0])

    def payloads_as(
        self, cls: builtins.type[Payload], codec: Codec[Payload] | str | None = None
    ) -> tuple[Payload | None, ...]:
        """All payloads, decoded; None for one that is deleted.

        Args:
            cls: their type; see `payload_as`.
            codec: see `payload_as`.

        Raises:
            WrongPayloadType: they are of another type.
            MalformedField: one cannot be decoded.
            Unavailable: the codec could not reach what it needs.
        """
        payload_codec = codec_for(cls, codec)
        if not payload_codec.reads(self.type):
            raise WrongPayloadType(f"the payload is a {self.type}, expected a {payload_codec.type_name}")
        return tuple(
            None if payload is None else _decoded(payload_codec, payload) for payload in self.payloads
        )


def _decoded(codec: Codec[Payload], payload: bytes) -> Payload:
    try:
        return codec.decode(payload)
    except Exception as error:
        raise_outage(error, f"the payload, a {codec.type_name}")
        raise MalformedField(f"the payload is not a {codec.type_name}: {error}") from error


def wrap(
    payload: object,
    *,
    key: bytes | str | None,
    timestamp_ms: int,
    event_id: bytes | None = None,
    codec: Codec[Any] | str | None = None,
) -> bytes:
    """The value to produce for a message at its origin: its chain is empty.

    Produce it with `enable.idempotence`. If a retry of Kafka's producer stored the value twice, that would be two events,
    since each record is its own root.

    Args:
        payload: a protobuf message, a struct, a dataclass, a dict, text, a number or bytes. A sequence of them is a
            collection of payloads of one type, so a JSON list is wrapped as ``[the_list]``.
        key: the record's key; str as UTF-8.
        timestamp_ms: milliseconds since 1970.
        event_id: 16 bytes; by default random and ordered by time (UUID version 7).
        codec: a codec, or its name; by default the one registered for the type of the payload.

    Raises:
        ValueError: no payload, payloads of several types, or an event id of another length.
        ConfigurationError: there is no codec for a payload.
        OutOfBounds: an envelope cannot have this time; see `MAX_TIMESTAMP_MS`.
    """
    check_timestamp(timestamp_ms)
    return wrap_unchecked(payload, key=key, timestamp_ms=timestamp_ms, event_id=event_id, codec=codec)


def wrap_unchecked(
    payload: object,
    *,
    key: bytes | str | None,
    timestamp_ms: int,
    event_id: bytes | None = None,
    codec: Codec[Any] | str | None = None,
) -> bytes:
    """`wrap` without the check of the time: for tests of what a faulty producer writes."""
    if event_id is None:
        event_id = _random_id(timestamp_ms)
    if len(event_id) != EVENT_ID_LENGTH:
        message = f"an event id has {EVENT_ID_LENGTH} bytes, not {len(event_id)}"
        raise ValueError(message)
    name, payloads = serialized(payload, codec)
    body = EnvelopeMessage(
        magic=MAGIC,
        event_id=event_id,
        timestamp_ms=timestamp_ms,
        key=key.encode() if isinstance(key, str) else key,
        type=name,
        payload=payloads[0],
        size=len(payloads) if len(payloads) > 1 else 0,
        more=payloads[1:],
    )
    return sealed(body.SerializeToString(deterministic=True))


def serialized(payload: object, codec: Codec[Any] | str | None = None) -> tuple[str, list[bytes]]:
    """The type name of payloads, as envelopes state it, and their bytes.

    Args:
        payload: one, or a sequence of them.
        codec: a codec, or its name; by default the one registered for their type.

    Raises:
        ValueError: no payload, or payloads of several types.
        ConfigurationError: there is no codec for a payload.
    """
    several = isinstance(payload, Sequence) and not isinstance(payload, str | bytes)
    payloads = list(payload) if several else [payload]  # type: ignore[call-overload]  # it is a sequence
    codecs = [codec_for(type(value), codec) for value in payloads]
    names = {each.type_name for each in codecs}
    if len(names) != 1:
        given = ", ".join(sorted(names)) or "none"
        raise ValueError(f"an envelope holds payloads of one type, at least one; found: {given}")
    return names.pop(), [each.encode(value) for each, value in zip(codecs, payloads, strict=True)]


def payloads_of(head: EnvelopeHead) -> list[bytes | None]:
    """The payloads of an envelope; None for one that is marked "deleted"."""
    payload = head.payload
    if payload and not head.size:
        return [payload]
    payloads: list[bytes | None] = [payload, *head.more]
    for index in head.deleted:  # `check_fields` has compared them
        payloads[index] = None
    return payloads


def read(value: bytes | None, *, headers: Headers | None = None, strict: bool = False) -> Envelope:
    """The content of an envelope.

    Args:
        value: a record's value.
        headers: the record's headers, where the chain may be in them (`to(..., carrier="headers")`).
        strict: also check every bound of the chain, that lane and position agree with it, and the
            order of the fields. Otherwise readers trust the stated lane and position; marks check them
            on the first message of a lane.

    Raises:
        EnvelopeError: one subclass for each thing that can be wrong.
    """
    carried = None if is_enveloped(value) else chain_header(headers)
    head = open_head(value) if carried is None else open_carried(value, carried)
    check_fields(head)
    payloads = payloads_of(head)
    if strict:
        check_order(value or b"" if carried is None else carried)
        check_consistent(head)
    check_values(head)
    return Envelope(
        event_id=ideas.event_id(head.lane, head.position) if head.position else head.event_id,
        timestamp_ms=head.timestamp_ms,
        key=head.key if head.HasField("key") else None,
        type=head.type,
        payloads=tuple(payloads),
        lane=head.lane,
        position=head.position,
        previous=head.previous,
        chain_bytes=head.chain,
        watermark_ms=head.watermark_ms,
    )


def _random_id(timestamp_ms: int) -> bytes:
    """UUID version 7 (RFC 9562): 48 bits of time, then randomness."""
    number = (timestamp_ms & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(os.urandom(10))
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return number.to_bytes(EVENT_ID_LENGTH)


def republish(  # noqa: PLR0913 - keyword-only, each with a default that is right for a plain service
    source: Envelope | None,
    at: Coordinates,
    payload: object,
    *,
    output: str,
    key: bytes | str | None,
    shard: int | None = None,
    ordinal: int = 0,
    of: int = 1,
    previous: bytes = b"",
    watermark_ms: int = 0,
    timestamp_ms: int | None = None,
    codec: Codec[Any] | str | None = None,
) -> bytes:
    """The value to produce for what was made from a message: its chain has one link more.

    A message processed again must give the same outputs, in the same order, under the same names:
    that is how receivers recognise a replay. (For services with many messages per second use `Flow`, or
    `OutputTemplate`.)

    Args:
        source: the input; None when it is a raw message, without an envelope.
        at: where the input was read from.
        payload: one, or several of one type as a collection; see `wrap`.
        output: permanent name of what publishes, "flow/output".
        key: the record's key; str as UTF-8.
        shard: the state partition that publishes; None for a stateless service.
        ordinal: which of the envelopes made from this input this is, from 0.
        of: how many envelopes are made from this input by this output and shard.
        previous: highest position written before on the same lane and output partition in the same batch, see
            `Envelope.previous`. With b"" readers cannot notice a missing message.
        watermark_ms: see `Envelope.watermark_ms`.
        timestamp_ms: by default the input's; required for a raw input.
        codec: as for `wrap`.

    Raises:
        ChainTooLong: the input has 32 links already.
        OutOfBounds: a coordinate, name, number or time is outside the format's bounds.
        ValueError: no payload, payloads of several types, or no time.
        ConfigurationError: there is no codec for a payload.
    """
    lane, chain, position = (source.lane, source.chain_bytes, source.position) if source else (0, b"", b"")
    if timestamp_ms is None:
        if source is None:
            raise ValueError("a raw input has no event time: pass timestamp_ms, for example the record's")
        timestamp_ms = source.timestamp_ms
    offset, epoch = at.offset, at.leader_epoch
    check_link(Link(at.topic, at.topic_id, at.partition, offset, epoch, output, shard, ordinal, of))
    check_timestamp(timestamp_ms)
    template = OutputTemplate(
        lane=lane,
        topic=at.topic,
        topic_id=at.topic_id,
        partition=at.partition,
        output=output,
        shard=shard,
        watermark_ms=watermark_ms,
    )
    name, payloads = serialized(payload, codec)
    position, field = position or root_position(epoch, offset), key.encode() if isinstance(key, str) else key
    value, _ = template.encode(
        chain, offset, epoch, ordinal, of, position, timestamp_ms, field, name, payloads, previous
    )
    return value
