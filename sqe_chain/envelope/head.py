"""The head of an envelope: the one rule of what an envelope is, and its fields with the chain left as bytes.

Every reader comes here, or has made sure by other means that this would accept the bytes
(`sqe_chain.envelope.columns`). So all readers accept and refuse the same bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar
from zlib import crc32

from google.protobuf.message import DecodeError, Message

from sqe_chain import chain as ideas
from sqe_chain._proto.envelope_pb2 import Chain as ChainMessage
from sqe_chain._proto.envelope_pb2 import Link as LinkMessage
from sqe_chain._proto.head_pb2 import EnvelopeHead
from sqe_chain.chain import (
    MAX_EPOCH,
    MAX_LINKS,
    MAX_OFFSET,
    ORDINAL_LENGTH,
    ROOT_LENGTH,
    Chain,
    Link,
    root_position,
)
from sqe_chain.envelope.revisions import shard_of
from sqe_chain.envelope.wire import CHECKSUM_TAG, PREFIX, RESIDUE, check_once, diagnose
from sqe_chain.errors import (
    ChainTooLong,
    EnvelopeError,
    InconsistentEnvelope,
    MalformedField,
    MissingField,
    OutOfBounds,
)

__all__ = [
    "EVENT_ID_LENGTH",
    "MAX_TIMESTAMP_MS",
    "OF_LENGTH",
    "OF_TAG",
    "EnvelopeHead",
    "check_consistent",
    "check_fields",
    "check_head",
    "check_timestamp",
    "check_values",
    "is_enveloped",
    "last_of",
    "open_head",
    "parse",
    "parse_chain",
    "parse_head",
]

EVENT_ID_LENGTH: Final = 16
MAX_TIMESTAMP_MS: Final = (1 << 48) - 1
"""Largest event time, in the year 10889: what a UUID of version 7 holds. The smallest is -1, for unknown."""
OF_TAG: Final = 0x4D
OF_LENGTH: Final = 5
_SEAL: Final = 5
_head_from: Final = EnvelopeHead.FromString
_UINT32: Final = Struct("<I")
_ORDINAL: Final = Struct(">I")
_LAST_ROOT: Final = root_position(MAX_EPOCH, MAX_OFFSET)
_SIGN_BIT: Final = 0x80
_OFFSET_SIGN: Final = 4
"""Where the offset begins in a position; its first bit is never set."""
# A root alone has no position in its envelope, so the shortest has one ordinal.
_POSITION_LENGTHS: Final = frozenset(
    ROOT_LENGTH + ORDINAL_LENGTH * links for links in range(1, MAX_LINKS + 1)
)
M = TypeVar("M", bound=Message)


def is_enveloped(value: bytes | None) -> bool:
    """Whether a value begins like an envelope: then it must not be read as a raw message."""
    return value is not None and value.startswith(PREFIX)


def parse_head(value: bytes | None) -> EnvelopeHead:
    """The fields of an envelope, the chain left as bytes. For hot paths; `read` is more convenient.

    This is the one rule of what an envelope is, the same for every message of a lane and for every reader.
    The links of the chain are not checked (`read(value, strict=True)` checks them, and so do marks on the
    first message of a lane).

    Raises:
        EmptyValue, NotAnEnvelope, TruncatedEnvelope, TrailingBytes, WrongChecksum: before parsing.
        EnvelopeError: after parsing; see `check_head`.
    """
    head = open_head(value)
    check_head(head)
    return head


def open_head(value: bytes | None) -> EnvelopeHead:
    """The fields of an envelope: prefix and checksum are checked, and that no field repeats. Call `check_head` next.

    Raises:
        EmptyValue, NotAnEnvelope, TruncatedEnvelope, TrailingBytes, WrongChecksum: before parsing.
        MalformedField: it does not parse, or a field repeats.
    """
    # Cheapest first: each message of every flow passes here. What is wrong, only `diagnose` finds out.
    if value is None or value[:5] != PREFIX or value[-5] != CHECKSUM_TAG or crc32(value) != RESIDUE:
        raise diagnose(value) or MalformedField("the last field is not the checksum")
    body = value[:-_SEAL]
    try:
        head = _head_from(body)  # without its end: a field with a longer length could hold that
    except DecodeError as error:
        raise MalformedField(
            f"checksum and magic number are right, but what is between them is not an envelope: {error}"
        ) from error
    if head.crc32 or head.ByteSize() != len(body):  # it holds something that the parser has dropped
        check_once(value)
    return head


def check_head(head: EnvelopeHead) -> None:
    """Check the required fields of an envelope, their lengths and bounds, and that they fit together.

    Raises:
        MissingField, MalformedField, ChainTooLong: a field is absent, or has an impossible length.
        InconsistentEnvelope: only some of the fields of a republished envelope are there.
        OutOfBounds: the position or the time is outside its bounds.
    """
    check_fields(head)
    check_values(head)


def check_fields(head: EnvelopeHead) -> None:
    """Check that the required fields are there, and that lengths fit together."""
    position = head.position
    if position:
        sound = len(position) in _POSITION_LENGTHS
    else:
        sound = len(head.event_id) == EVENT_ID_LENGTH and not head.chain
    if not sound or not head.type or len(head.more) != (head.size or 1) - 1:
        raise _malformed(head)
    if head.deleted:
        _check_deleted(head)


def _check_deleted(head: EnvelopeHead) -> None:
    payloads = [head.payload, *head.more]
    for index in head.deleted:
        if index >= len(payloads) or payloads[index]:
            raise MalformedField(f"payload {index} of {len(payloads)} is listed as deleted, but is not empty")


def check_values(head: EnvelopeHead) -> None:
    """Check that the fields do not contradict each other, and their bounds."""
    position, previous = head.position, head.previous
    if bool(head.lane) != bool(position) or (previous and len(previous) != len(position)):
        raise _incoherent(head)
    if position:
        if not head.chain or head.event_id:
            raise _incoherent(head)
        of = last_of(head.chain)
        (ordinal,) = _ORDINAL.unpack(position[-ORDINAL_LENGTH:])
        if position[_OFFSET_SIGN] >= _SIGN_BIT or position[:ROOT_LENGTH] > _LAST_ROOT or ordinal >= of:
            raise OutOfBounds(
                f"the position {position.hex()} is out of bounds. Expected an epoch of at most {MAX_EPOCH}, an "
                f"offset of at most {MAX_OFFSET}, and a last ordinal below the {of} envelopes made from the input"
            )
    check_timestamp(head.timestamp_ms)
    if head.watermark_ms:
        check_timestamp(head.watermark_ms)


def check_timestamp(timestamp_ms: int) -> None:
    """Refuse an event time that no envelope can have. Raises OutOfBounds."""
    if not -1 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise OutOfBounds(
            f"the event time is {timestamp_ms} ms. Expected milliseconds since 1970 from 0 to {MAX_TIMESTAMP_MS}, "
            "or -1 for unknown. Does the writer use another unit, or another epoch?"
        )


def check_consistent(head: EnvelopeHead) -> Chain:
    """The parsed chain, after a check that lane, position and the last `of` match it.

    Raises:
        InconsistentEnvelope: they do not match.
        EnvelopeError: the chain does not parse, or is outside the bounds.
    """
    chain = parse_chain(head.chain)
    if chain.lane() != head.lane:
        raise InconsistentEnvelope(
            f"the lane is {head.lane:016x}, but its chain gives {chain.lane():016x}: {chain}"
        )
    if chain.position() != head.position:
        raise InconsistentEnvelope(
            f"the position is {head.position.hex()}, but its chain gives {chain.position().hex()}: {chain}"
        )
    if chain and last_of(head.chain) != chain.links[-1].of:
        raise InconsistentEnvelope(f"the chain does not end with the `of` of its last link: {chain}")
    if (head.previous and len(head.previous) != len(head.position)) or (chain and head.event_id):
        raise _incoherent(head)
    return chain


def last_of(chain: bytes) -> int:
    """How many envelopes the last republisher made from its input; read from the chain's last bytes, without parsing.

    Raises:
        MissingField: the chain does not end with this field.
    """
    if len(chain) >= OF_LENGTH and chain[-OF_LENGTH] == OF_TAG:
        return int(_UINT32.unpack_from(chain, len(chain) - _UINT32.size)[0])
    raise MissingField("the chain does not end with the `of` of its last link")


def parse_chain(chain: bytes) -> Chain:
    """The links of a serialized chain, root first; every bound is checked.

    Raises:
        MalformedField: the bytes do not parse.
        MissingField: a link lacks a required field.
        ChainTooLong: more than 32 links.
        OutOfBounds: a number or name outside its bounds.
    """
    return Chain(tuple(_link(link) for link in parse(ChainMessage, chain).links))


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
        shard_of(message.output, message.shard if message.HasField("shard") else None),
        message.ordinal,
        message.of,
    )
    ideas.check_link(link)
    return link


def _malformed(head: EnvelopeHead) -> EnvelopeError:
    if not head.type:
        return MissingField("the envelope has no type (the full protobuf name of its payloads)")
    if len(head.more) != (head.size or 1) - 1:
        return MalformedField(f"size is {head.size or 'absent'}, but there are {len(head.more) + 1} payloads")
    if head.position:
        return _wrong_length(len(head.position))
    if head.chain:
        return MissingField("the envelope has a chain but no position")
    if head.event_id:
        return MalformedField(f"the event id has {len(head.event_id)} bytes, not {EVENT_ID_LENGTH}")
    return MissingField("the envelope has neither a position nor an event id")


def _wrong_length(length: int) -> EnvelopeError:
    links, rest = divmod(length - ROOT_LENGTH, ORDINAL_LENGTH)
    if links > MAX_LINKS and not rest:
        return ChainTooLong(
            f"the position has {links} links, at most {MAX_LINKS} are allowed: probably services republish in a loop"
        )
    return MalformedField(
        f"the position has {length} bytes, allowed are {ROOT_LENGTH} and {ORDINAL_LENGTH} for each of 1 to {MAX_LINKS} links"
    )


def _incoherent(head: EnvelopeHead) -> EnvelopeError:
    if head.position and head.event_id:
        return InconsistentEnvelope(
            "a republished envelope carries an event id: lane and position are its id"
        )
    if head.previous and len(head.previous) != len(head.position):
        return InconsistentEnvelope(
            f"previous has {len(head.previous)} bytes, the position {len(head.position)}: they are of one lane, so of one length"
        )
    fields = {"chain": bool(head.chain), "lane": bool(head.lane), "position": bool(head.position)}
    present = ", ".join(name for name, there in fields.items() if there)
    return InconsistentEnvelope(
        f"the envelope has only {present}: a republished one has chain, lane and position, one wrapped at the origin has none of them"
    )


def parse(cls: type[M], serialized: bytes) -> M:
    """Parse a protobuf message. Raises MalformedField."""
    try:
        return cls.FromString(serialized)
    except DecodeError as error:
        raise MalformedField(
            f"{len(serialized)} bytes do not parse as {cls.DESCRIPTOR.full_name}: {error}"
        ) from error
