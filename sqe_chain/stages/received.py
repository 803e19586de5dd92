"""For stages that are used without a flow: records made from messages, and sequence numbers read from records."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqe_chain.chain import Coordinates, read_lane, root_position
from sqe_chain.codecs import Codec
from sqe_chain.envelope.message import read
from sqe_chain.ports import Headers
from sqe_chain.stages.provenance import root_order
from sqe_chain.stages.record import Record, Spot

_NUMBER = re.compile(rb"[+-]?[0-9]+", re.ASCII)


def records_of(
    value: bytes | None,
    payload: type[Any],
    at: Coordinates,
    *,
    key: bytes | None = None,
    headers: Headers | None = None,
    codec: Codec[Any] | str | None = None,
) -> list[Record]:
    """The records of one enveloped message: one for each payload that is not deleted, as a flow would make them.

    Args:
        value: the envelope, or the payload if the chain is in the headers.
        payload: type of its payloads.
        at: coordinates of the message.
        key: the key of the Kafka message, used where the envelope has none.
        headers: the message's headers.
        codec: a codec, or its name; by default the one that takes the type.

    Raises:
        EnvelopeError: it is not an envelope, or its payloads are of another type.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> from sqe_chain import wrap
    >>> value = wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=5)
    >>> (record,) = records_of(value, StringValue, Coordinates(topic="t", topic_id=bytes(16), partition=0, offset=9))
    >>> record.key, record.value.value, record.timestamp_ms, record.root[0], record.root[2]
    (b'robot-7', '3 screws', 5, 't', 0)
    """
    envelope = read(value, headers=headers)
    lane = read_lane(envelope.lane, at.topic, at.topic_id, at.partition)
    position = envelope.position or root_position(at.leader_epoch, at.offset)
    root = envelope.chain.root or at
    return [
        Record(
            value=payload_value,
            key=key if envelope.key is None else envelope.key,
            timestamp_ms=envelope.timestamp_ms,
            topic=at.topic,
            topic_id=at.topic_id,
            partition=at.partition,
            offset=at.offset,
            spot=Spot(lane, position + index.to_bytes(4, "big")),
            headers=headers,
            root=(root.topic, root.topic_id, root.partition),
            root_position=root_order(position, lambda: envelope.chain),
        )
        for index, payload_value in enumerate(envelope.payloads_as(payload, codec))
        if payload_value is not None
    ]


def number_in_text(text: bytes | str) -> int:
    """A decimal number written as text, as Java's `Long.parseLong` reads it: no spaces, no underscores.

    Raises:
        ValueError: it is anything else, or longer than a 64-bit number.
    """
    digits = text.encode() if isinstance(text, str) else text
    longest = 64  # leading zeros are allowed, but Python would also read a million digits
    if len(digits) > longest or not _NUMBER.fullmatch(digits):
        raise ValueError(f"{len(digits)} bytes that are not a decimal number")
    number = int(digits)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def from_value(function: Callable[[Any], int | None]) -> Callable[[Record], int | None]:
    """The number is read from the payload.

    >>> from_value(lambda report: report["number"])(Record(value={"number": 12}))
    12
    """
    return lambda record: function(record.value)


def from_key(function: Callable[[bytes], int | None] = number_in_text) -> Callable[[Record], int | None]:
    """The number is read from the key; None where that is null.

    Beware of keys that *are* sequence numbers: they spread one sequence over all partitions, so its order is lost.

    >>> from_key(number_in_text)(Record(key=b"-3"))
    -3
    """
    return lambda record: None if record.key is None else function(record.key)


def from_header(
    name: str, function: Callable[[bytes], int | None] = number_in_text
) -> Callable[[Record], int | None]:
    """The number is read from the last header of that name; None where there is none, or it is null.

    >>> from_header("sequence")(Record(headers=[("sequence", b"7"), ("sequence", b"8")]))
    8
    """

    def find(record: Record) -> int | None:
        for header, content in reversed(record.headers or ()):
            if header == name:
                return None if content is None else function(content)
        return None

    return find
