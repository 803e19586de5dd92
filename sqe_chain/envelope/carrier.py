"""The chain in Kafka headers: the record's value is the plain payload, so any consumer can read it.

The header `sqe-chain` holds the envelope without its payload; the record's value is the payload. Further headers hold
the attributes of a CloudEvent in binary mode. Consumers that know neither (Kafka Connect, ksqlDB, Flink SQL) read the
value and ignore the headers.

A value that is an envelope is read as one, whatever is in its headers: each record has exactly one reading.

Source: CloudEvents 1.0, Kafka protocol binding.

    >>> from sqe_chain.envelope.message import read, wrap
    >>> value, headers = in_headers(wrap({"screws": 3}, key="robot-7", timestamp_ms=1_700_000_000_000), source="robots")
    >>> value
    b'{"screws":3}'
    >>> for name, content in headers[1:]:
    ...     print(name, content.decode() if name != "ce_id" else "...")
    ce_id ...
    ce_specversion 1.0
    ce_source robots
    ce_type json:
    content-type application/json
    ce_time 2023-11-14T22:13:20.000Z
    >>> read(value, headers=headers).payload_as(dict)
    {'screws': 3}
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from sqe_chain.chain import event_id, read_lane, root_position, stored_epoch
from sqe_chain.codecs import codec_name, codec_named
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS, EnvelopeHead, check_head, is_enveloped, open_head
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import ConfigurationError, EmptyValue, EnvelopeError, MalformedField, PoisonError
from sqe_chain.ports import Headers, Message

CHAIN_HEADER: Final = "sqe-chain"
ROUTES_HEADER: Final = "sqe-routes"
"""Of records whose chains name no topics: by which republishers they have come."""
"""Name of the header that holds the envelope without its payload."""
_CONTENT_TYPE: Final = "content-type"
ATTRIBUTE: Final = "ce_"
"""Prefix of the names of CloudEvents attributes."""

_DAY_BEFORE_LAST_YEAR: Final = 253_370_764_800_000
"""First millisecond of the year 9999: RFC 3339 has no later years, and few programs accept the last one."""


def chain_header(headers: Headers | None) -> bytes | None:
    """The content of the header `sqe-chain`; None when there is none.

    Raises:
        MalformedField: there are several.
    """
    if not headers:
        return None
    chains = [content for name, content in headers if name == CHAIN_HEADER]
    if len(chains) > 1:
        raise MalformedField(
            f"the record has {len(chains)} headers {CHAIN_HEADER!r}: it is not known which one belongs to the value"
        )
    return chains[0] or b"" if chains else None


def is_chained(message: Message) -> bool:
    """Whether a record is an envelope, or has its chain in headers."""
    headers = message.headers()
    return is_enveloped(message.value()) or (
        headers is not None and any(name == CHAIN_HEADER for name, _ in headers)
    )


def is_ordinary_raw(message: Message) -> bool:
    """Whether a record has a value, no chain, and a time that an event may have."""
    return (
        message.value() is not None
        and -1 <= message.timestamp()[1] <= MAX_TIMESTAMP_MS
        and not is_chained(message)
    )


def envelopes_of(messages: Sequence[Message]) -> tuple[list[bytes | None], bool]:
    """The envelopes of a block, where the first message has its own, and whether that is in the headers.

    None for a message that has none there: it has to be looked at by itself.
    """
    values = [message.value() for message in messages]
    if is_enveloped(values[0]):
        return values, False
    return [_chain_in_headers(message) for message in messages], True


def _chain_in_headers(message: Message) -> bytes | None:
    """The envelope in the headers of a record with a value of its own; None where there is none, or another case."""
    value = message.value()
    if value is None or is_enveloped(value):
        return None
    try:
        return chain_header(message.headers())
    except EnvelopeError:
        return None


def open_carried(value: bytes | None, envelope: bytes) -> EnvelopeHead:
    """The fields of a record whose chain is in its headers, as if its value had been an envelope; then `check_head`.

    Args:
        value: the record's value.
        envelope: content of its header `sqe-chain`.

    Raises:
        EnvelopeError: the header is not an envelope, or has a payload of its own. Or it is marked 'deleted' though
            there is a value, or is not, though the value is null.
    """
    head = open_head(envelope)
    if head.payload or head.size or head.more:
        raise MalformedField(f"header {CHAIN_HEADER!r} holds a payload, which must be the record's value")
    if value is None and not head.deleted:
        raise EmptyValue(f"the value is null, and header {CHAIN_HEADER!r} is not marked 'deleted'")
    if value is not None and head.deleted:
        raise MalformedField(f"header {CHAIN_HEADER!r} is marked 'deleted', but there is a value")
    if value:
        head.payload = value
    return head


def find_head(value: bytes | None, headers: Headers | None) -> EnvelopeHead:
    """The fields of an envelope, wherever the record carries it.

    Raises:
        EnvelopeError: it carries none, or a malformed one.
    """
    envelope = None if is_enveloped(value) else chain_header(headers)
    head = open_head(value) if envelope is None else open_carried(value, envelope)
    check_head(head)
    return head


def in_headers(value: bytes, *, source: str) -> tuple[bytes | None, Headers]:
    """Split an envelope from `wrap` or `republish` into the value and the headers to produce.

    Args:
        value: the envelope; with one payload.
        source: `ce_source` of the CloudEvent: a URI reference, such as the name of the service.

    Raises:
        EnvelopeError: it is not an envelope.
        ValueError: it holds several payloads, or one that is itself an envelope.
    """
    head = open_head(value)
    check_head(head)
    if head.size:
        raise ValueError(f"the envelope holds {head.size} payloads: a record's value has room for one")
    payload = None if head.deleted else head.payload
    head.ClearField("payload")
    head.ClearField("crc32")
    envelope = sealed(head.SerializeToString(deterministic=True))
    identity = head.event_id or event_id(head.lane, head.position)
    return check_payload(payload), headers_for(envelope, head.type, source, identity, head.timestamp_ms)


def check_payload(payload: bytes | None) -> bytes | None:
    """Return the payload, if it can be a record's value.

    Raises:
        PoisonError: it would be read as an envelope.
    """
    if is_enveloped(payload):
        raise PoisonError(
            "the payload begins like an envelope: with its chain in headers, readers would take it for one"
        )
    return payload


def headers_for(envelope: bytes, type_name: str, source: str, identity: bytes, timestamp_ms: int) -> Headers:
    """The headers of a record.

    Args:
        envelope: the envelope without its payload.
        type_name: type of the payload.
        source: see `in_headers`.
        identity: id of the event, 16 bytes, the same in every replay.
        timestamp_ms: the event's time, milliseconds since 1970; below 0 if not known.
    """
    headers: Headers = [
        (CHAIN_HEADER, envelope),
        ("ce_id", identity.hex().encode()),
        *_attributes(type_name, source),
    ]
    if 0 <= timestamp_ms < _DAY_BEFORE_LAST_YEAR:
        second, millisecond = divmod(timestamp_ms, 1_000)
        headers.append(("ce_time", b"%s.%03dZ" % (_moment(second), millisecond)))
    return headers


@lru_cache(1_024)
def _attributes(type_name: str, source: str) -> Headers:
    """The headers that are the same for all records of an output and type."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_source", source.encode()),
        ("ce_type", type_name.encode()),
        (_CONTENT_TYPE, content_type(type_name)),
    ]


@lru_cache(1_024)
def _moment(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00").encode()


def content_type(type_name: str) -> bytes:
    """The media type of payloads of a type."""
    try:
        return codec_named(codec_name(type_name)).content_type.encode()
    except ConfigurationError:  # a codec that was passed as an object and never registered
        return b"application/octet-stream"


def passed_on(headers: Headers | None, *, carrier: str) -> Headers | None:
    """The headers of an input that its outputs repeat: without those that describe the input itself.

    Args:
        headers: the input's.
        carrier: where the output carries its chain: "value" or "headers".
    """
    if not headers:
        return headers
    # A CloudEvent that did not come through this library keeps its attributes, unless the output writes its own.
    own = carrier == "headers" or any(name == CHAIN_HEADER for name, _ in headers)
    return [
        header for header in headers if header[0] != ROUTES_HEADER and not (own and _describes(header[0]))
    ]


def _describes(name: str) -> bool:
    return name in (CHAIN_HEADER, _CONTENT_TYPE) or name.startswith(ATTRIBUTE)


def lane_and_position(head: EnvelopeHead | None, message: Message, topic_id: bytes) -> tuple[int, bytes]:
    """The lane of a record as its reader sees it, and its position there; without an envelope it is its own root."""
    stated_lane, position = (0, b"") if head is None else (head.lane, head.position)
    lane = read_lane(stated_lane, message.topic(), topic_id, message.partition())
    return lane, position or root_position(stored_epoch(message.leader_epoch()), message.offset())
