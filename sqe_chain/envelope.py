"""Bytes <-> Envelope: wrap messages at the origin, read them anywhere, republish them.

Needs protobuf alone, and is the only reader of the generated code. The format is described in
`proto/sqe_chain/v1/envelope.proto`.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> value = wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=1_700_000_000_000)
    >>> envelope = read(value)
    >>> envelope.key, envelope.payload_as(StringValue).value, len(envelope.chain)
    (b'robot-7', '3 screws', 0)

What is made of it is published by `sqe_chain.template.republish`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar
from zlib import crc32

from google.protobuf.message import DecodeError, Message

from sqe_chain import chain as ideas
from sqe_chain._proto.envelope_pb2 import Chain as ChainMessage
from sqe_chain._proto.envelope_pb2 import Envelope as EnvelopeMessage
from sqe_chain._proto.envelope_pb2 import Link as LinkMessage
from sqe_chain._proto.head_pb2 import EnvelopeHead
from sqe_chain.chain import MAX_LINKS, ORDINAL_LENGTH, ROOT_LENGTH, Chain, Link
from sqe_chain.errors import (
    EnvelopeError,
    InconsistentEnvelope,
    MalformedField,
    MissingField,
    WrongPayloadType,
)
from sqe_chain.wire import (
    CHECKSUM_TAG,
    MAGIC,
    PREFIX,
    RESIDUE,
    check_order,
    diagnose,
    sealed,
)

if TYPE_CHECKING:
    import builtins
    from collections.abc import Sequence

__all__ = [
    "Envelope",
    "EnvelopeHead",
    "check_consistent",
    "check_head",
    "is_enveloped",
    "last_of",
    "open_head",
    "parse_chain",
    "parse_head",
    "payloads_of",
    "read",
    "serialized",
    "wrap",
]

EVENT_ID_LENGTH: Final = 16
_OF_TAG: Final = 0x4D
_OF_LENGTH: Final = 5
_head_from: Final = EnvelopeHead.FromString
_UINT32: Final = Struct("<I")
_POSITION_LENGTHS: Final = frozenset(
    ROOT_LENGTH + ORDINAL_LENGTH * links for links in range(1, MAX_LINKS + 1)
)
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What one enveloped message says.

    Attributes:
        event_id: 16 bytes; random for a message wrapped at the origin, derived from lane and position
            (so the same in every replay) for a republished one.
        timestamp_ms: milliseconds since 1970, of the first cause.
        key: None and b"" are two different keys.
        type: full protobuf name of the payloads.
        payloads: one, or the parts of a collection; None says "deleted".
        lane: as its writer stated it, without the place of reading; 0 when the chain is empty.
        position: the place on the lane; b"" when the chain is empty.
        previous: the highest position written before on this lane and output partition in the same
            batch; b"" for the first.
        chain_bytes: the chain as it stands on the wire.
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

    @property
    def chain(self) -> Chain:
        """The links, root first; parsed when asked for. Raises EnvelopeError."""
        return parse_chain(self.chain_bytes)

    def payload_as(self, cls: builtins.type[M]) -> M:
        """The only payload, parsed.

        Raises:
            WrongPayloadType: it is of another type, deleted, or one of several (`payloads_as`).
            MalformedField: it does not parse.
        """
        payloads = self.payloads_as(cls)
        if len(payloads) != 1:
            message = f"the envelope holds a collection of {len(payloads)} payloads: use payloads_as"
            raise WrongPayloadType(message)
        if payloads[0] is None:
            message = f"the payload ({self.type}) says 'deleted': use payloads_as, which gives None for it"
            raise WrongPayloadType(message)
        return payloads[0]

    def payloads_as(self, cls: builtins.type[M]) -> tuple[M | None, ...]:
        """All payloads, parsed; None for one that says "deleted".

        Raises:
            WrongPayloadType: they are of another type.
            MalformedField: one does not parse.
        """
        if self.type != cls.DESCRIPTOR.full_name:
            message = f"the payload is a {self.type}, expected was a {cls.DESCRIPTOR.full_name}"
            raise WrongPayloadType(message)
        return tuple(None if payload is None else _parse(cls, payload) for payload in self.payloads)


def wrap(
    payload: Message | Sequence[Message],
    *,
    key: bytes | str | None,
    timestamp_ms: int,
    event_id: bytes | None = None,
) -> bytes:
    """The value to produce for a message at its origin: its chain is empty.

    What Kafka's own producer retries needs `enable.idempotence`: two records of one value are two
    events, since each is its own root.

    Args:
        payload: one message, or several of one type as a collection.
        key: the record's key; str as UTF-8.
        timestamp_ms: milliseconds since 1970.
        event_id: 16 bytes; by default random and ordered by time (UUID version 7).

    Raises:
        ValueError: no payload, payloads of several types, or an event id of another length.
    """
    if event_id is None:
        event_id = _random_id(timestamp_ms)
    if len(event_id) != EVENT_ID_LENGTH:
        message = f"an event id has {EVENT_ID_LENGTH} bytes, not {len(event_id)}"
        raise ValueError(message)
    name, payloads = serialized(payload)
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


def serialized(payload: Message | Sequence[Message]) -> tuple[str, list[bytes]]:
    """Full protobuf name of payloads, and their bytes. Raises ValueError unless they have one type."""
    payloads = [payload] if isinstance(payload, Message) else list(payload)
    names = {message.DESCRIPTOR.full_name for message in payloads}
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise ValueError(f"an envelope holds payloads of one type, at least one; found: {found}")
    return names.pop(), [message.SerializeToString(deterministic=True) for message in payloads]


def is_enveloped(value: bytes | None) -> bool:
    """Whether a value begins like an envelope: then it must not be read as a raw message."""
    return value is not None and value.startswith(PREFIX)


def parse_head(value: bytes | None) -> EnvelopeHead:
    """The fields of an envelope, the chain left as bytes. The hot path: `read` is the friendly one.

    Guarantees the prefix, the checksum, the required fields, and lengths that agree. What the chain
    says is not looked at (`read(value, strict=True)` does).

    Raises:
        EmptyValue, NotAnEnvelope, TruncatedEnvelope, TrailingBytes, WrongChecksum: before parsing.
        MissingField, MalformedField: after it.
    """
    head = open_head(value)
    check_head(head)
    return head


def open_head(value: bytes | None) -> EnvelopeHead:
    """The fields of an envelope with prefix and checksum checked, nothing else; then `check_head`.

    For a reader that compares type, size and position with what it knows of the lane anyway.

    Raises:
        EmptyValue, NotAnEnvelope, TruncatedEnvelope, TrailingBytes, WrongChecksum: before parsing.
        MalformedField: it does not parse.
    """
    if value is None or value[:5] != PREFIX or value[-5] != CHECKSUM_TAG or crc32(value) != RESIDUE:
        raise diagnose(value) or MalformedField("the last field is not the checksum")
    try:
        return _head_from(value)
    except DecodeError as error:
        raise MalformedField(
            f"checksum and magic number are right, but it is no envelope: {error}"
        ) from error


def check_head(head: EnvelopeHead) -> None:
    """Check the required fields of an envelope, and that its lengths agree.

    Raises:
        MissingField, MalformedField: they do not.
    """
    position = head.position
    if position:
        sound = len(position) in _POSITION_LENGTHS
    else:
        sound = len(head.event_id) == EVENT_ID_LENGTH and not head.chain
    if not sound or not head.type or len(head.more) != (head.size or 1) - 1:
        raise _malformed(head)


def payloads_of(head: EnvelopeHead) -> list[bytes | None]:
    """The payloads of an envelope; None for one that says "deleted"."""
    payload = head.payload
    if payload and not head.size:
        return [payload]
    return _all_payloads(head)


def _all_payloads(head: EnvelopeHead) -> list[bytes | None]:
    payloads: list[bytes | None] = [head.payload, *head.more]
    for index in head.deleted:
        if index >= len(payloads) or payloads[index]:
            raise MalformedField(f"payload {index} of {len(payloads)} is listed as deleted, but is not empty")
        payloads[index] = None
    return payloads


def read(value: bytes | None, *, strict: bool = False) -> Envelope:
    """What an envelope says.

    Args:
        value: a record's value.
        strict: also check every bound of the chain, that lane and position agree with it, and the
            order of the fields. Receivers compare only lane and position, so a writer that states
            them wrongly is found here, or when the first message of a lane reaches its marks.

    Raises:
        EnvelopeError: one named error for each thing that can be wrong.
    """
    head = parse_head(value)
    envelope = Envelope(
        event_id=ideas.event_id(head.lane, head.position) if head.position else head.event_id,
        timestamp_ms=head.timestamp_ms,
        key=head.key if head.HasField("key") else None,
        type=head.type,
        payloads=tuple(payloads_of(head)),
        lane=head.lane,
        position=head.position,
        previous=head.previous,
        chain_bytes=head.chain,
    )
    if strict and value is not None:
        check_order(value)
        check_consistent(head)
        _all_payloads(head)
    return envelope


def check_consistent(head: EnvelopeHead) -> Chain:
    """The chain, after a check that lane, position and the last `of` are what it says.

    Raises:
        InconsistentEnvelope: they are not.
        EnvelopeError: the chain does not parse, or is outside the bounds.
    """
    chain = parse_chain(head.chain)
    if chain.lane() != head.lane:
        raise InconsistentEnvelope(
            f"the lane is {head.lane:016x}, but {chain.lane():016x} by its chain {chain}"
        )
    if chain.position() != head.position:
        raise InconsistentEnvelope(
            f"the position is {head.position.hex()}, but {chain.position().hex()} by its chain {chain}"
        )
    if chain and last_of(head.chain) != chain.links[-1].of:
        raise InconsistentEnvelope(f"the chain does not end with `of` of its last link: {chain}")
    if head.previous and len(head.previous) != len(head.position):
        raise InconsistentEnvelope(
            f"previous has {len(head.previous)} bytes, the position {len(head.position)}: they name one lane"
        )
    if chain and head.event_id:
        raise InconsistentEnvelope("a republished envelope carries an event id: lane and position are its id")
    return chain


def last_of(chain: bytes) -> int:
    """How many envelopes the last republisher made from its input, read from the chain's last bytes.

    Raises:
        MissingField: the chain does not end with this number.
    """
    if len(chain) >= _OF_LENGTH and chain[-_OF_LENGTH] == _OF_TAG:
        return int(_UINT32.unpack_from(chain, len(chain) - _UINT32.size)[0])
    raise MissingField("the chain does not end with `of` of its last link")


def parse_chain(chain: bytes) -> Chain:
    """The links of a chain's bytes, root first; every bound checked.

    Raises:
        MalformedField: the bytes do not parse.
        MissingField: a link lacks a required field.
        ChainTooLong: more than 32 links.
        OutOfBounds: a number or name outside its bounds.
    """
    return Chain(tuple(_link(link) for link in _parse(ChainMessage, chain).links))


def _link(message: LinkMessage) -> Link:
    for name in ("offset", "leader_epoch", "ordinal", "of"):
        if not message.HasField(name):
            raise MissingField(f"a link (topic {message.topic!r}, output {message.output!r}) has no {name}")
    link = Link(
        message.topic,
        message.topic_id,
        message.partition,
        message.offset,
        message.leader_epoch,
        message.output,
        message.shard if message.HasField("shard") else None,
        message.ordinal,
        message.of,
    )
    ideas.check_link(link)
    return link


def _malformed(head: EnvelopeHead) -> EnvelopeError:
    """The name of what `parse_head` found wrong."""
    if not head.type:
        return MissingField("the envelope has no type: the full protobuf name of its payloads")
    if len(head.more) != (head.size or 1) - 1:
        return MalformedField(f"size is {head.size or 'absent'}, but there are {len(head.more) + 1} payloads")
    if head.position:
        return MalformedField(
            f"the position has {len(head.position)} bytes, allowed are {ROOT_LENGTH} "
            f"and {ORDINAL_LENGTH} for each of 1 to {MAX_LINKS} links"
        )
    if head.chain:
        return MissingField("the envelope has a chain but no position")
    if head.event_id:
        return MalformedField(f"the event id has {len(head.event_id)} bytes, not {EVENT_ID_LENGTH}")
    return MissingField("the envelope has neither a position nor an event id")


def _random_id(timestamp_ms: int) -> bytes:
    """UUID version 7 (RFC 9562): 48 bits of time, then randomness."""
    number = (timestamp_ms & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(os.urandom(10))
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return number.to_bytes(EVENT_ID_LENGTH)


def _parse(cls: type[M], serialized: bytes) -> M:
    try:
        return cls.FromString(serialized)
    except DecodeError as error:
        raise MalformedField(f"{len(serialized)} bytes are no {cls.DESCRIPTOR.full_name}: {error}") from error
