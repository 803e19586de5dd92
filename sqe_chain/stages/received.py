"""Makes records from messages, for filters that are used without a flow, and for their tests."""

from __future__ import annotations

from typing import Any

from sqe_chain.chain import Coordinates, read_lane, root_position
from sqe_chain.codecs import Codec
from sqe_chain.envelope.message import read
from sqe_chain.ports import Headers
from sqe_chain.stages.record import Record, Spot


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
            value=found,
            key=key if envelope.key is None else envelope.key,
            timestamp_ms=envelope.timestamp_ms,
            topic=at.topic,
            topic_id=at.topic_id,
            partition=at.partition,
            offset=at.offset,
            spot=Spot(lane, position + index.to_bytes(4, "big")),
            headers=headers,
            root=(root.topic, root.topic_id, root.partition),
            root_position=position,
        )
        for index, found in enumerate(envelope.payloads_as(payload, codec))
        if found is not None
    ]
