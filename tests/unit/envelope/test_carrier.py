"""Goal: a record with its chain in headers is equivalent to an envelope, and nothing else is taken for one.

Method: every envelope of the published vectors with one payload is taken apart and read; headers are spoiled.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Envelope, read, wrap
from sqe_chain.envelope.carrier import CHAIN_HEADER, find_head, in_headers, passed_on
from sqe_chain.errors import (
    EmptyValue,
    EnvelopeError,
    MalformedField,
    NotAnEnvelope,
    PoisonError,
    TruncatedEnvelope,
)
from tests.support.docs_examples import ROOT

VECTORS: dict[str, Any] = json.loads((ROOT / "proto" / "vectors.json").read_text(encoding="utf-8"))
ENVELOPES = [
    *(bytes.fromhex(vector["bytes"]) for vector in VECTORS["envelopes"].values()),
    *(bytes.fromhex(vector["envelope"]) for vector in VECTORS["carried"].values()),
]
SINGLE = [value for value in ENVELOPES if len(read(value).payloads) == 1]


@pytest.mark.parametrize("envelope", SINGLE, ids=range(len(SINGLE)))
def test_an_envelope_split_into_headers_and_value_is_read_back_equal(envelope: bytes) -> None:
    value, headers = in_headers(envelope, source="flow/output")
    whole = read(envelope, strict=True)
    assert value == whole.payloads[0]
    assert read(value, headers=headers, strict=True) == whole
    attributes = {name: (content or b"").decode() for name, content in headers[1:]}
    assert attributes["ce_specversion"] == "1.0"
    assert attributes["ce_id"] == whole.event_id.hex()
    assert (attributes["ce_type"], attributes["ce_source"]) == (whole.type, "flow/output")
    assert ("ce_time" in attributes) == (0 <= whole.timestamp_ms < 253_370_764_800_000)
    assert len(headers[0][1] or b"") <= len(envelope)


def test_vectors_hold_every_kind_of_envelope() -> None:
    found = [read(value) for value in SINGLE]
    assert any(one.payloads == (None,) for one in found)
    assert any(one.payloads == (b"",) for one in found)
    assert any(one.chain for one in found)
    assert any(not one.chain for one in found)


def chained(payload: object = "3 screws") -> tuple[bytes | None, list[tuple[str, bytes | None]]]:
    return in_headers(wrap(payload, key="k", timestamp_ms=5), source="robots")


def test_several_payloads_have_no_room() -> None:
    with pytest.raises(ValueError, match="holds 2 payloads"):
        in_headers(wrap(["a", "b"], key=None, timestamp_ms=0), source="robots")


def test_a_payload_that_is_an_envelope_would_be_read_as_one() -> None:
    inner = wrap("a", key=None, timestamp_ms=0)
    with pytest.raises(PoisonError, match="begins like an envelope"):
        in_headers(wrap(inner, key=None, timestamp_ms=0), source="robots")


@pytest.mark.parametrize(
    ("value", "spoil", "error", "text"),
    [
        (b"x", lambda own: [], NotAnEnvelope, "."),
        (b"x", lambda own: None, NotAnEnvelope, "."),
        (b"x", lambda own: [("other", b"y")], NotAnEnvelope, "."),
        (None, lambda own: own, EmptyValue, "is not marked 'deleted'"),
        (b"x", lambda own: [own[0], own[0]], MalformedField, "2 headers"),
        (b"x", lambda own: [(CHAIN_HEADER, None)], EmptyValue, "."),
        (b"x", lambda own: [(CHAIN_HEADER, (own[0][1] or b"")[:-1])], EnvelopeError, "."),
        (b"x", lambda own: [(CHAIN_HEADER, (own[0][1] or b"")[:20])], TruncatedEnvelope, "."),
        (
            b"x",
            lambda own: [(CHAIN_HEADER, wrap("a", key=None, timestamp_ms=0))],
            MalformedField,
            "holds a payload",
        ),
        (
            b"x",
            lambda own: [(CHAIN_HEADER, wrap(["", ""], key=None, timestamp_ms=0))],
            MalformedField,
            "holds a payload",
        ),
    ],
)
def test_a_wrong_chain_header_is_refused_by_name(
    value: Any, spoil: Any, error: type[Exception], text: str
) -> None:
    _, headers = chained()
    for reader in (lambda: read(value, headers=spoil(headers)), lambda: find_head(value, spoil(headers))):
        with pytest.raises(error, match=text):
            reader()


def test_a_deleted_one_has_no_value() -> None:
    (deleted,) = [value for value in SINGLE if read(value).payloads == (None,)][:1]
    value, headers = in_headers(deleted, source="x")
    assert value is None
    assert read(value, headers=headers).payloads == (None,)
    for present in (b"x", b""):  # an empty value is one
        with pytest.raises(MalformedField, match="is marked 'deleted', but there is a value"):
            read(present, headers=headers)


def test_a_value_that_is_an_envelope_is_read_as_one() -> None:
    _, headers = chained("in headers")
    envelope: Envelope = read(wrap("in the value", key=None, timestamp_ms=0), headers=headers)
    assert envelope.payload_as(str) == "in the value"


def test_what_a_transform_of_others_makes_of_the_value_keeps_the_chain() -> None:
    """Kafka Connect may change values and leave headers as they are."""
    _, headers = chained({"a": 1})
    assert read(b'{"a":1,"b":2}', headers=headers).payload_as(dict) == {"a": 1, "b": 2}


def test_content_types() -> None:
    for payload, found in (
        ({"a": 1}, b"application/json"),
        (StringValue(value="a"), b"application/protobuf"),
        (b"a", b"application/octet-stream"),
    ):
        assert dict(chained(payload)[1])["content-type"] == found


def test_headers_that_describe_the_input_are_not_passed_on() -> None:
    own = ("trace", b"1")
    _, headers = chained()
    assert passed_on(None, carrier="headers") is None
    assert passed_on([own, *headers], carrier="headers") == [own]
    assert passed_on([own, *headers], carrier="value") == [own]
    foreign: list[tuple[str, bytes | None]] = [own, ("ce_id", b"7"), ("content-type", b"text/plain")]
    assert passed_on(foreign, carrier="value") == foreign
    assert passed_on(foreign, carrier="headers") == [own]
