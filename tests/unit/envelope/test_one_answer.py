"""What a fuzzer has found: each reader, and each encoding of the same envelope, gets one answer."""

from __future__ import annotations

from zlib import crc32

import pytest

from sqe_chain.codecs import codec_for
from sqe_chain.envelope.columns import Columns
from sqe_chain.envelope.head import parse_head
from sqe_chain.envelope.message import Envelope, payloads_of, read, wrap
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import (
    EnvelopeError,
    MalformedField,
    MissingField,
    WrongChecksum,
    WrongPayloadType,
)
from tests.lab.fuzzing.reference import judge

TIME, TYPE = b"\x20\x05", b"\x32\x06bytes:"
BODY = wrap(b"x", key=b"k", timestamp_ms=5, event_id=b"e" * 16)[:-5]
OTHERS = sealed(BODY)


@pytest.mark.parametrize(
    ("name", "error"), [(b"", MissingField), (b"\x32\x00", MissingField), (b"\x32\x01\xff", MalformedField)]
)
def test_an_envelope_without_a_sound_type_is_not_ordinary_for_a_decoder_that_takes_any(
    name: bytes, error: type[EnvelopeError]
) -> None:
    value = sealed(BODY.replace(TYPE, name))
    with pytest.raises(error):
        parse_head(value)
    for values in ([value], [OTHERS, value], [value] * 3):
        ordinary = Columns(values, None).ordinary.tolist()
        assert ordinary == [one == OTHERS for one in values]


@pytest.mark.parametrize(
    "unknown", [b"\x82\x01\x00" * 2, b"\x10\x01" * 2, b"\x9b\x06\x9c\x06" * 2, b"\x9b\x06\x1a\x01x\x9c\x06"],
    ids=["of a later version", "of another wire type", "groups", "within a group"],
)  # fmt: skip
def test_what_protobuf_does_not_know_may_be_repeated_however_the_rest_is_written(unknown: bytes) -> None:
    canonical = sealed(BODY + unknown)
    longer = sealed(BODY.replace(TIME, b"\x20\x85\x00") + unknown)  # one more byte for the time than it needs
    assert parse_head(canonical).timestamp_ms == parse_head(longer).timestamp_ms == 5


@pytest.mark.parametrize("size", [b"", b"\x40\x01"], ids=["without a size", "with one"])
@pytest.mark.parametrize("deleted", [b"\x6a\x01\x00", b"\x68\x00", b"\x68\x01"])
def test_a_payload_that_is_there_or_that_there_is_not_cannot_be_deleted(size: bytes, deleted: bytes) -> None:
    value = sealed(BODY + size + deleted)
    for strict in (False, True):
        with pytest.raises(MalformedField, match="listed as deleted"):
            read(value, strict=strict)
    with pytest.raises(MalformedField, match="listed as deleted"):
        parse_head(value)


def test_a_payload_that_is_empty_can_be_deleted() -> None:
    assert payloads_of(parse_head(sealed(BODY.replace(b"\x3a\x01x", b"") + b"\x68\x00"))) == [None]


@pytest.mark.parametrize("tag", [b"\x20", b"\x32"], ids=["number", "size"])
def test_a_number_of_more_than_ten_bytes_is_damage_and_no_end(tag: bytes) -> None:
    value = BODY + tag + b"\x80" * 10 + b"\x00"
    with pytest.raises(WrongChecksum, match=f"no field begins at byte {len(BODY)}"):
        parse_head(value + crc32(value).to_bytes(4, "big"))


def test_null_in_json_is_a_value_and_no_deletion() -> None:
    codec = codec_for(object, "json")
    envelope = Envelope(b"e" * 16, 5, None, "json:", (b"null",))
    assert envelope.payload_as(object, codec) is None
    with pytest.raises(WrongPayloadType, match="deleted"):
        Envelope(b"e" * 16, 5, None, "json:", (None,)).payload_as(object, codec)


@pytest.mark.parametrize(
    "value",
    [
        sealed(BODY[:-3] + b"\x3a\x06x"),
        sealed(BODY[:-3] + b"\x3a\x86\x00x"),
        sealed(BODY + b"\x82\x01\x05"),
        sealed(BODY + b"\x9b\x06"),
        sealed(BODY + b"\x41"),
        sealed(BODY + b"\x80\x01"),
        sealed(BODY[:5] + b"\x7d\1\2\3\4" + BODY[5:]),
        sealed(BODY[:5] + b"\x7d\0\0\0\0" + BODY[5:]),
    ],
    ids=[
        *(
            "the payload",
            "the payload, in two bytes",
            "one of a later version",
            "a group",
            "a fixed number",
            "a number",
        ),
        *("a checksum before", "a zero before"),
    ],
)
def test_the_checksum_is_a_field_of_its_own_the_last_and_the_only_one(value: bytes) -> None:
    for strict in (False, True):
        with pytest.raises(MalformedField):
            read(value, strict=strict)
    with pytest.raises(MalformedField):
        parse_head(value)
    with pytest.raises(MalformedField):
        read(b"x", headers=[("sqe-chain", value)])
    assert Columns([OTHERS, value, OTHERS], None).ordinary.tolist() == [True, False, True]
    assert judge(value).refusals == {"MalformedField"}
