"""Envelopes are read as they were written; each defect has its own error; templates write the bytes of protobuf."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain import Coordinates, read, republish, wrap
from sqe_chain._proto.envelope_pb2 import Chain as ChainMessage
from sqe_chain._proto.envelope_pb2 import Envelope as EnvelopeMessage
from sqe_chain.chain import (
    MAX_EPOCH,
    MAX_LINKS,
    MAX_OF,
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_SHARD,
    Chain,
    Link,
    event_id,
    root_position,
)
from sqe_chain.envelope.message import (
    MAX_TIMESTAMP_MS,
    is_enveloped,
    last_of,
    parse_chain,
    parse_head,
    payloads_of,
)
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.envelope.wire import MAGIC, PREFIX, diagnose, next_field, sealed, varint
from sqe_chain.errors import (
    ChainTooLong,
    EmptyValue,
    EnvelopeError,
    InconsistentEnvelope,
    MalformedField,
    MissingField,
    NotAnEnvelope,
    OutOfBounds,
    TrailingBytes,
    TruncatedEnvelope,
    WrongChecksum,
    WrongPayloadType,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TIME_MS = 1_700_000_000_123
AT_RAW = Coordinates(topic="robot.raw", topic_id=b"r" * 16, partition=2, offset=7, leader_epoch=1)
AT_OK = Coordinates(topic="robot.ok", topic_id=b"k" * 16, partition=0, offset=2**40, leader_epoch=0)
SCREWS = StringValue(value="3 screws")


def origin(**changes: Any) -> bytes:
    return wrap(
        SCREWS, **{"key": "robot-7", "timestamp_ms": TIME_MS, "event_id": bytes(range(16)), **changes}
    )


def hop(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {"output": "standard/ok", "key": "robot-7", "of": 2, **changes}
    return republish(read(origin()), AT_RAW, SCREWS, **arguments)


def edited(value: bytes, **changes: Any) -> bytes:
    """The envelope with fields changed (None: cleared) and a correct checksum."""
    message = EnvelopeMessage.FromString(value)
    message.ClearField("crc32")
    for name, field in changes.items():
        message.ClearField(name)  # type: ignore[arg-type] # the stub knows literals only
        if isinstance(field, ChainMessage):
            message.chain.CopyFrom(field)
        elif isinstance(field, list):
            getattr(message, name).extend(field)
        elif field is not None:
            setattr(message, name, field)
    return sealed(message.SerializeToString(deterministic=True))


# --- what is written is read ----------------------------------------------------------------------


def test_an_origin_envelope_is_read_as_it_was_wrapped() -> None:
    envelope = read(origin(), strict=True)
    assert (envelope.key, envelope.timestamp_ms, envelope.type) == (
        b"robot-7",
        TIME_MS,
        "google.protobuf.StringValue",
    )
    assert envelope.payload_as(StringValue) == SCREWS
    assert (envelope.chain, envelope.lane, envelope.position) == (Chain(), 0, b"")


def test_ids_at_the_origin_are_random_and_ordered_by_time() -> None:
    ids = [read(origin(timestamp_ms=TIME_MS + later, event_id=None)).event_id for later in range(50)]
    assert ids == sorted(ids)
    assert len({read(origin(event_id=None)).event_id for _ in range(50)}) == 50
    assert {(one[6] >> 4, one[8] >> 6) for one in ids} == {(7, 2)}


@pytest.mark.parametrize("key", [None, b"", b"k"])
def test_a_null_key_is_not_an_empty_one(key: bytes | None) -> None:
    assert read(origin(key=key)).key == key
    assert read(hop(key=key)).key == key


def test_republishing_appends_a_link_and_keeps_the_time() -> None:
    first = read(hop(ordinal=1), strict=True)
    envelope = read(
        republish(first, AT_OK, SCREWS, output="totals/lines", key="l", shard=0, ordinal=4, of=6),
        strict=True,
    )
    assert envelope.chain.links == (
        Link("robot.raw", b"r" * 16, 2, 7, 1, "standard/ok", None, 1, 2),
        Link("robot.ok", b"k" * 16, 0, 2**40, 0, "totals/lines", 0, 4, 6),
    )
    assert (envelope.lane, envelope.position) == (envelope.chain.lane(), envelope.chain.position())
    assert envelope.timestamp_ms == TIME_MS
    assert envelope.event_id == event_id(envelope.lane, envelope.position)


def test_a_republisher_that_crashed_writes_the_same_bytes_again() -> None:
    source = read(origin())
    values = {republish(source, AT_RAW, SCREWS, output="standard/ok", key="k") for _ in range(3)}
    assert len(values) == 1


def test_a_raw_input_is_its_own_root_and_needs_a_time() -> None:
    value = republish(None, AT_RAW, SCREWS, output="o", key=None, timestamp_ms=5)
    assert read(value, strict=True).position == root_position(1, 7) + bytes(4)
    with pytest.raises(ValueError, match="timestamp_ms"):
        republish(None, AT_RAW, SCREWS, output="o", key=None)


def test_a_collection_keeps_its_payloads_and_their_order() -> None:
    payloads = [SCREWS, StringValue(), StringValue(value="b")]
    for value in (
        wrap(payloads, key=None, timestamp_ms=0),
        republish(read(origin()), AT_RAW, payloads, output="o", key=None),
    ):
        envelope = read(value, strict=True)
        assert list(envelope.payloads_as(StringValue)) == payloads
        with pytest.raises(WrongPayloadType, match="collection of 3"):
            envelope.payload_as(StringValue)


def test_payloads_of_several_types_or_none_are_refused() -> None:
    for payloads in ([], [SCREWS, BytesValue()]):
        with pytest.raises(ValueError, match="one type"):
            wrap(payloads, key=None, timestamp_ms=0)
    with pytest.raises(ValueError, match="16 bytes"):
        origin(event_id=b"short")


def test_a_wrong_payload_type_is_named() -> None:
    with pytest.raises(WrongPayloadType, match=r"StringValue, expected a google\.protobuf\.BytesValue"):
        read(origin()).payload_as(BytesValue)
    with pytest.raises(MalformedField, match=r"not a google\.protobuf\.StringValue"):
        read(edited(origin(), payload=b"\xff")).payload_as(StringValue)


def test_a_deleted_payload_is_none_and_an_empty_one_is_not() -> None:
    template = OutputTemplate(lane=0, topic="t", topic_id=bytes(16), partition=0, output="o")
    for payloads in ([None], [b""], [None, b"a", b"", None], [b"", None]):
        value, _ = template.encode(b"", 1, 1, 0, 1, root_position(1, 1), 9, None, "x.Y", payloads)
        assert read(value, strict=True).payloads == tuple(payloads)
    value, _ = template.encode(
        b"", 1, 1, 0, 1, root_position(1, 1), 9, None, StringValue.DESCRIPTOR.full_name, [None]
    )
    assert read(value).payloads_as(StringValue) == (None,)
    with pytest.raises(WrongPayloadType, match="deleted"):
        read(value).payload_as(StringValue)


# --- templates write what protobuf writes -----------------------------------------------------------

topics = st.text("abcZ09._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
ids = st.binary(min_size=16, max_size=16)
names = st.text("aü/.-_Z€", min_size=1, max_size=150)
payload_lists = st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=4)
ofs = st.integers(1, MAX_OF)


@st.composite
def links(draw: st.DrawFn) -> Link:
    of = draw(ofs)
    return Link(
        draw(topics),
        draw(ids),
        draw(st.integers(0, MAX_PARTITION)),
        draw(st.integers(0, MAX_OFFSET)),
        draw(st.integers(0, MAX_EPOCH)),
        draw(names),
        draw(st.none() | st.integers(0, MAX_SHARD)),
        draw(st.integers(0, of - 1)),
        of,
    )


def by_protobuf(
    chain: Chain,
    timestamp_ms: int,
    key: bytes | None,
    type_name: str,
    payloads: list[bytes | None],
    previous: bytes,
    watermark_ms: int = 0,
) -> bytes:
    message = EnvelopeMessage(
        magic=MAGIC,
        timestamp_ms=timestamp_ms,
        key=key,
        type=type_name,
        payload=payloads[0] or b"",
        size=len(payloads) if len(payloads) > 1 else 0,
        more=[payload or b"" for payload in payloads[1:]],
        lane=chain.lane(),
        position=chain.position(),
        previous=previous,
        deleted=[index for index, payload in enumerate(payloads) if payload is None],
        watermark_ms=watermark_ms,
    )
    for link in chain:
        message.chain.links.add(
            topic=link.topic,
            topic_id=link.topic_id,
            partition=link.partition,
            output=link.output,
            shard=link.shard,
            offset=link.offset,
            leader_epoch=link.leader_epoch,
            ordinal=link.ordinal,
            of=link.of,
        )
    return sealed(message.SerializeToString(deterministic=True))


@settings(max_examples=40, deadline=None)
@given(
    before=st.lists(links(), max_size=3),
    link=links(),
    rounds=st.lists(
        st.tuples(
            st.integers(0, MAX_OFFSET),
            st.integers(-1, MAX_TIMESTAMP_MS) | st.integers(0, 2**43),
            st.none() | st.binary(max_size=5000),
            names,
            payload_lists,
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    watermark_ms=st.integers(0, MAX_TIMESTAMP_MS),
)
def test_templates_write_exactly_what_protobuf_writes(
    before: list[Link],
    link: Link,
    rounds: list[tuple[int, int, bytes | None, str, list[bytes | None], bool]],
    watermark_ms: int,
) -> None:
    source = Chain(tuple(before))
    template = OutputTemplate(
        lane=source.lane(),
        topic=link.topic,
        topic_id=link.topic_id,
        partition=link.partition,
        output=link.output,
        shard=link.shard,
        watermark_ms=watermark_ms,
    )
    chain_bytes = EnvelopeMessage.FromString(
        by_protobuf(source, 0, None, "x", [b"p"], b"")
    ).chain.SerializeToString(deterministic=True)
    for offset, timestamp_ms, key, type_name, payloads, witnessed in rounds:
        made = Link(
            link.topic,
            link.topic_id,
            link.partition,
            offset,
            link.leader_epoch,
            link.output,
            link.shard,
            link.ordinal,
            link.of,
        )
        chain = source.append(made)
        previous = bytes(len(chain.position())) if witnessed else b""
        value, position = template.encode(
            chain_bytes,
            offset,
            link.leader_epoch,
            link.ordinal,
            link.of,
            source.position() or root_position(link.leader_epoch, offset),
            timestamp_ms,
            key,
            type_name,
            payloads,
            previous,
        )
        assert value == by_protobuf(chain, timestamp_ms, key, type_name, payloads, previous, watermark_ms)
        assert position == chain.position()
        envelope = read(value, strict=True)
        assert envelope.chain == chain
        assert envelope.payloads == tuple(payloads)
        assert envelope.watermark_ms == watermark_ms
        assert (envelope.timestamp_ms, envelope.key, envelope.type, envelope.previous) == (
            timestamp_ms,
            key,
            type_name,
            previous,
        )
        assert last_of(envelope.chain_bytes) == link.of


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_varints_are_protobuf_s(number: int) -> None:
    signed = number - 2**64 if number >= 2**63 else number
    assert EnvelopeMessage(timestamp_ms=signed).SerializeToString()[1:] == (varint(number) if number else b"")
    assert varint(signed) == varint(number)


def test_a_template_remembers_nothing_of_the_message_before() -> None:
    """Times move in both directions; lengths are on both sides of a varint's next byte."""
    template = OutputTemplate(lane=0, topic="t", topic_id=bytes(16), partition=0, output="o")
    chain = Chain((Link("t", bytes(16), 0, 1, 1, "o"),))
    lengths = (0, 1, 127, 128, 4095, 4096, 16383, 16384)
    times = (TIME_MS, TIME_MS - 2**20, TIME_MS + 2**20, 0, 1, 16383, 16384, -1, TIME_MS)
    for timestamp_ms in times:
        for length in lengths:
            for type_name in ("x.Y", "x.Z"):
                payloads: list[bytes | None] = [bytes(length)]
                arguments = (timestamp_ms, b"k" * length, type_name, payloads, b"")
                value, _ = template.encode(b"", 1, 1, 0, 1, root_position(1, 1), *arguments)
                assert value == by_protobuf(chain, *arguments)


def test_a_template_follows_a_chain_of_another_length() -> None:
    """Writers in other languages may add fields to their links that this one does not know."""
    source = read(hop())
    longer = source.chain_bytes + b"\x12\x03abc"
    template = OutputTemplate(lane=source.lane, topic="t", topic_id=bytes(16), partition=0, output="o")
    for chain in (source.chain_bytes, longer, source.chain_bytes):
        value, _ = template.encode(chain, 1, 1, 0, 1, source.position, 9, None, "x.Y", [b"p"])
        assert read(value, strict=True).chain_bytes.startswith(chain)


def test_a_template_refuses_what_its_caller_got_wrong() -> None:
    template = OutputTemplate(lane=0, topic="t", topic_id=bytes(16), partition=0, output="o")
    root = root_position(1, 1)
    with pytest.raises(ValueError, match="at least one payload"):
        template.encode(b"", 1, 1, 0, 1, root, 9, None, "x.Y", [])
    with pytest.raises(ValueError, match="previous has 3 bytes"):
        template.encode(b"", 1, 1, 0, 1, root, 9, None, "x.Y", [b"p"], b"abc")
    with pytest.raises(OutOfBounds):
        OutputTemplate(lane=0, topic="t/", topic_id=bytes(16), partition=0, output="o")


def test_a_loop_of_services_ends_at_32_links() -> None:
    envelope = read(origin())
    for _ in range(MAX_LINKS):
        envelope = read(republish(envelope, AT_RAW, SCREWS, output="loop/back", key=None), strict=True)
    assert len(envelope.chain) == MAX_LINKS
    with pytest.raises(ChainTooLong, match="loop/back"):
        republish(envelope, AT_RAW, SCREWS, output="loop/back", key=None)


@pytest.mark.parametrize(
    "changes",
    [{"ordinal": 2}, {"of": 0}, {"shard": -1}, {"output": ""}, {"watermark_ms": 2**48}, {"watermark_ms": -1}],
)
def test_republishing_beyond_the_bounds_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OutOfBounds):
        hop(**changes)


# --- whatever is wrong has a name -------------------------------------------------------------------


@pytest.mark.parametrize("value", [origin(), hop(previous=bytes(16))])
def test_truncation_at_any_length_is_recognised(value: bytes) -> None:
    for length in range(1, len(value)):
        with pytest.raises(TruncatedEnvelope, match=f"after {length} bytes"):
            parse_head(value[:length])


@pytest.mark.parametrize("value", [b"", None])
def test_an_empty_value_is_no_envelope(value: bytes | None) -> None:
    with pytest.raises(EmptyValue):
        parse_head(value)
    assert not is_enveloped(value)


@pytest.mark.parametrize(
    "value",
    [
        SCREWS.SerializeToString(),
        b"\x00",
        b"\r\n plain text that is long enough",
        b'{"json": true}',
        b"\x0d" + bytes(8),
    ],
)
def test_other_messages_are_not_envelopes(value: bytes) -> None:
    with pytest.raises(NotAnEnvelope, match="raw source"):
        parse_head(value)
    assert not is_enveloped(value)


@pytest.mark.parametrize("more", [b"\0", b"\n", bytes(5), b"\x7d" + bytes(4), origin(), b"\xff" * 20])
def test_trailing_bytes_are_named(more: bytes) -> None:
    value = hop()
    with pytest.raises(TrailingBytes, match=f"{len(more)} bytes follow"):
        parse_head(value + more)


def test_a_wrong_checksum_is_named_with_both_numbers() -> None:
    value = hop()
    with pytest.raises(WrongChecksum, match=r"stated checksum is [0-9a-f]{8}, that of"):
        parse_head(value[:-1] + bytes((value[-1] ^ 1,)))
    with pytest.raises(WrongChecksum, match="no field begins"):
        parse_head(value[:5] + b"\x07" + value[6:])


@settings(deadline=None)
@given(st.data())
def test_no_flipped_bit_passes(data: st.DataObject) -> None:
    value = bytearray(hop(previous=bytes(16)))
    for place in data.draw(st.lists(st.integers(0, 8 * len(value) - 1), min_size=1, max_size=3, unique=True)):
        value[place // 8] ^= 1 << place % 8
    with pytest.raises((NotAnEnvelope, TruncatedEnvelope, TrailingBytes, WrongChecksum)):
        parse_head(bytes(value))


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from([bytes, sealed]))
def test_bytes_of_any_kind_give_an_envelope_error(noise: bytes, finish: Callable[[bytes], bytes]) -> None:
    value = b"\x0dSQE\xff" + noise
    with pytest.raises(EnvelopeError):
        read(finish(value), strict=True)


def test_a_whole_envelope_has_no_diagnosis() -> None:
    assert diagnose(hop()) is None
    assert is_enveloped(hop())


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (edited(origin(), type=None), MissingField, "no type"),
        (edited(origin(), event_id=None), MissingField, "neither"),
        (edited(origin(), event_id=b"short"), MalformedField, "event id has 5"),
        (edited(hop(), position=None), MissingField, "chain but no position"),
        (edited(hop(), position=None, event_id=bytes(16)), MissingField, "chain but no position"),
        (edited(hop(), position=bytes(12)), MalformedField, "position has 12"),
        (edited(hop(), position=bytes(17)), MalformedField, "position has 17"),
        (edited(hop(), position=bytes(15 + 4 * MAX_LINKS)), MalformedField, "position has 143"),
        (edited(hop(), position=bytes(16 + 4 * MAX_LINKS)), ChainTooLong, "33 links"),
        (edited(origin(), size=2), MalformedField, "size is 2, but there are 1"),
        (edited(origin(), more=[b"lost"]), MalformedField, "size is absent, but there are 2"),
        (edited(origin(), size=3, more=[b"a"]), MalformedField, "size is 3, but there are 2"),
        (edited(origin(), size=2, more=[b"a"], deleted=[2]), MalformedField, "payload 2 of 2"),
        (sealed(b"\x0dSQE\xff\x0f"), MalformedField, "not an envelope"),
        (sealed(b"\x0dSQE\xff\x32\x01\xff"), MalformedField, "not an envelope"),
    ],
)
def test_wrong_fields_are_named_although_the_checksum_is_right(
    value: bytes, error: type[EnvelopeError], text: str
) -> None:
    with pytest.raises(error, match=text):
        read(value)


def chain_with(**changes: Any) -> ChainMessage:
    chain = ChainMessage()
    chain.CopyFrom(EnvelopeMessage.FromString(hop()).chain)
    for name, field in changes.items():
        chain.links[0].ClearField(name)  # type: ignore[arg-type] # the stub knows literals only
        if field is not None:
            setattr(chain.links[0], name, field)
    return chain


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"offset": None}, MissingField, "no offset"),
        ({"leader_epoch": None}, MissingField, "no leader_epoch"),
        ({"ordinal": None}, MissingField, "no ordinal"),
        ({"topic": None}, OutOfBounds, "topic"),
        ({"topic": "."}, OutOfBounds, "topic"),
        ({"topic": ".."}, OutOfBounds, "topic"),
        ({"topic_id": b"short"}, OutOfBounds, "topic id"),
        ({"output": None}, OutOfBounds, "output"),
        ({"offset": 2**63}, OutOfBounds, "offset"),
        ({"partition": 2**31}, OutOfBounds, "partition"),
        ({"ordinal": 2}, OutOfBounds, "ordinal"),
        ({"leader_epoch": 2**31 + 1}, OutOfBounds, "leader epoch"),
        ({"topic": "robot.other"}, InconsistentEnvelope, "lane"),
        ({"shard": 0}, InconsistentEnvelope, "lane"),
        ({"ordinal": 1}, InconsistentEnvelope, "position"),
        ({"offset": 8}, InconsistentEnvelope, "position"),
    ],
)
def test_a_chain_out_of_bounds_or_against_lane_and_position_is_found_by_the_strict_check(
    changes: dict[str, Any], error: type[EnvelopeError], text: str
) -> None:
    value = edited(hop(), chain=chain_with(**changes))
    read(value)
    with pytest.raises(error, match=text):
        read(value, strict=True)


def test_the_strict_check_finds_what_no_writer_may_do() -> None:
    for value, error in (
        (edited(hop(), lane=1), InconsistentEnvelope),
        (sealed(origin()[:-5] + b"\x70\x05\x6a\x00"), MalformedField),
    ):
        read(value)
        with pytest.raises(error):
            read(value, strict=True)


def at(epoch: int, offset: int, ordinal: int) -> bytes:
    return struct.pack(">IQI", epoch, offset, ordinal)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (edited(hop(), previous=bytes(12)), InconsistentEnvelope),
        (edited(origin(), previous=bytes(16)), InconsistentEnvelope),
        (edited(hop(), event_id=bytes(16)), InconsistentEnvelope),
        (edited(hop(), lane=None), InconsistentEnvelope),
        (edited(hop(), chain=None), InconsistentEnvelope),
        (edited(origin(), lane=1), InconsistentEnvelope),
        (edited(hop(), chain=chain_with(of=None)), MissingField),
        (edited(origin(), timestamp_ms=-2), OutOfBounds),
        (edited(origin(), timestamp_ms=MAX_TIMESTAMP_MS + 1), OutOfBounds),
        (edited(hop(), timestamp_ms=2**63 - 1), OutOfBounds),
        (edited(hop(), timestamp_ms=-(2**63)), OutOfBounds),
        (sealed(origin()[:-5] + b"\x20\x05"), MalformedField),
        (edited(origin(), payload=b"a", deleted=[0]), MalformedField),
        (sealed(origin()), MalformedField),
    ],
)
def test_what_contradicts_itself_is_refused_wherever_it_is_read(
    value: bytes, error: type[EnvelopeError], strict: bool
) -> None:
    with pytest.raises(error):
        read(value, strict=strict)
    with pytest.raises(error):
        parse_head(value)


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 1, MAX_TIMESTAMP_MS])
def test_times_within_the_bounds_are_read(timestamp_ms: int) -> None:
    assert read(edited(hop(), timestamp_ms=timestamp_ms), strict=True).timestamp_ms == timestamp_ms


@pytest.mark.parametrize("timestamp_ms", [-2, MAX_TIMESTAMP_MS + 1, -(2**63), 2**63])
def test_nobody_can_wrap_or_republish_what_nobody_would_read(timestamp_ms: int) -> None:
    with pytest.raises(OutOfBounds, match="event time"):
        wrap(StringValue(), key=None, timestamp_ms=timestamp_ms)
    place = Coordinates(topic="t", topic_id=bytes(16), partition=0, offset=0)
    with pytest.raises(OutOfBounds, match="event time"):
        republish(None, place, StringValue(), output="f/o", key=None, timestamp_ms=timestamp_ms)


@pytest.mark.parametrize(
    ("position", "sound"),
    [
        (at(MAX_EPOCH, MAX_OFFSET, 0), True),
        (at(MAX_EPOCH, 0, 1), True),
        (at(0, MAX_OFFSET, 1), True),
        (at(0, MAX_OFFSET + 1, 0), False),
        (at(0, 2**64 - 1, 0), False),
        (at(MAX_EPOCH + 1, 0, 0), False),
        (at(2**32 - 1, 0, 0), False),
        (at(1, 7, 2), False),
        (at(1, 7, 2**32 - 1), False),
    ],
)
def test_a_position_out_of_bounds_is_refused_although_no_chain_is_walked(
    position: bytes, sound: bool
) -> None:
    """Such a position would silence its lane: everything after it would count as a replay."""
    value = edited(hop(), position=position)
    if sound:
        assert parse_head(value).position == position
    else:
        with pytest.raises(OutOfBounds, match="position"):
            parse_head(value)


def test_a_repeated_field_is_refused_because_readers_would_not_agree() -> None:
    """Protobuf merges two chains into one; a reader that takes them as bytes keeps the last."""
    body = hop(previous=bytes(16))[:-5]
    start, fields = 0, dict[int, bytes]()
    while start < len(body):
        number, end = next_field(body, start)
        fields[number] = body[start:end]
        start = end
    for number, field in fields.items():
        for twice in (body + field, body[: len(PREFIX)] + field + body[len(PREFIX) :]):
            with pytest.raises(MalformedField, match=f"field {number} is repeated"):
                parse_head(sealed(twice))
    assert parse_head(sealed(body + b"\x70\x05")) is not None, "a field of a later version of the format"


def test_a_field_of_a_later_version_may_not_be_repeated_either() -> None:
    body = hop()[:-5]
    read(sealed(body + b"\x70\x05"), strict=True)
    with pytest.raises(MalformedField, match="field 14 is repeated"):
        read(sealed(body + b"\x70\x05\x70\x06"), strict=True)


def test_indexes_of_deleted_payloads_may_be_written_unpacked() -> None:
    """As writers do that do not pack repeated numbers."""
    screws = SCREWS.SerializeToString()
    collection = wrap([SCREWS, SCREWS, SCREWS], key="robot-7", timestamp_ms=TIME_MS)
    body = edited(collection, payload=b"", more=[screws, b""])[:-5]
    assert read(sealed(body + b"\x68\x00\x68\x02")).payloads == (None, screws, None)


@pytest.mark.parametrize("watermark_ms", [-2, MAX_TIMESTAMP_MS + 1])
def test_a_watermark_that_no_event_can_reach_is_refused(watermark_ms: int) -> None:
    value = edited(hop(), watermark_ms=watermark_ms)
    for reads in (read, parse_head):
        with pytest.raises(OutOfBounds, match="event time"):
            reads(value)


def test_another_last_field_with_a_right_checksum_is_no_end() -> None:
    body = hop()[:-5] + b"\x75"
    with pytest.raises(TruncatedEnvelope, match="before its checksum"):
        parse_head(body + crc32(body).to_bytes(4, "little"))


def test_the_strict_check_finds_bytes_that_pass_for_the_last_of() -> None:
    chain = chain_with()
    imitation = b"\xa2\x01\x05\x4d" + (9).to_bytes(4, "little")
    link = chain.links[0].SerializeToString(deterministic=True) + imitation
    value = edited(hop(), chain=ChainMessage.FromString(b"\x0a" + varint(len(link)) + link))
    assert last_of(read(value).chain_bytes) == 9
    with pytest.raises(InconsistentEnvelope, match="does not end with"):
        read(value, strict=True)


def test_a_chain_of_33_links_in_an_envelope_is_refused() -> None:
    chain = ChainMessage()
    for _ in range(MAX_LINKS + 1):
        chain.links.add().CopyFrom(chain_with().links[0])
    with pytest.raises(ChainTooLong):
        parse_chain(chain.SerializeToString())
    with pytest.raises(MalformedField):
        parse_chain(b"\xff")


def test_of_is_read_from_the_end_or_named_as_missing() -> None:
    assert last_of(read(hop()).chain_bytes) == 2
    for chain in (b"", b"\x0a\x00", chain_with(of=None).SerializeToString()):
        with pytest.raises(MissingField, match="`of`"):
            last_of(chain)


def test_the_hot_path_reads_what_the_friendly_one_reads() -> None:
    value = hop(previous=bytes(16))
    head, envelope = parse_head(value), read(value)
    assert (head.chain, head.lane, head.position, head.previous, payloads_of(head)) == (
        envelope.chain_bytes,
        envelope.lane,
        envelope.position,
        envelope.previous,
        list(envelope.payloads),
    )
