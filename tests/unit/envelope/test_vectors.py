"""The published vectors follow from the rules in proto/README.md, computed here without the library."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from sqe_chain import errors
from sqe_chain.envelope.message import parse_head, read

ROOT = Path(__file__).resolve().parents[3]
VECTORS: dict[str, Any] = json.loads((ROOT / "proto" / "vectors.json").read_text(encoding="utf-8"))
ENVELOPES = list(VECTORS["envelopes"].values())
LINES_ID = bytes.fromhex(VECTORS["topic_id_of_lines"])


def digest(length: int, *fields: bytes) -> bytes:
    hashed = blake2b(digest_size=length)
    for field in fields:
        hashed.update(len(field).to_bytes(4, "big") + field)
    return hashed.digest()


def uint32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def lane_of(links: list[dict[str, Any]], *, ids_behind_root: bool) -> bytes:
    lane = bytes(8)
    for index, link in enumerate(links):
        topic_id = bytes.fromhex(link["topic_id"]) if index == 0 or ids_behind_root else b""
        lane = digest(8, lane, link["topic"].encode(), topic_id, uint32(link["partition"]))
        shard = b"" if link["shard"] is None else uint32(link["shard"])
        lane = digest(8, lane, link["output"].encode(), shard)
    return lane


@pytest.mark.parametrize("vector", ENVELOPES, ids=list(VECTORS["envelopes"]))
def test_hashes_and_positions_follow_from_the_links(vector: dict[str, Any]) -> None:
    links = vector["links"]
    assert vector["lane"] == lane_of(links, ids_behind_root=True).hex()
    read_from = vector["read_from_lines_3"]
    place = (b"lines", LINES_ID, uint32(3))
    assert read_from["lane"] == digest(8, bytes.fromhex(vector["lane"]), *place).hex()
    path_place = (b"lines", b"" if links else LINES_ID, uint32(3))
    assert read_from["path"] == digest(8, lane_of(links, ids_behind_root=False), *path_place).hex()
    position = b""
    if links:
        position = uint32(links[0]["leader_epoch"]) + int(links[0]["offset"]).to_bytes(8, "big")
        position += b"".join(uint32(link["ordinal"]) for link in links)
        assert vector["event_id"] == digest(16, bytes.fromhex(vector["lane"]), position).hex()
    assert vector["position"] == position.hex()


@pytest.mark.parametrize("vector", ENVELOPES, ids=list(VECTORS["envelopes"]))
def test_bytes_are_read_as_described(vector: dict[str, Any]) -> None:
    value = bytes.fromhex(vector["bytes"])
    assert value[:5] == bytes.fromhex("0d535145ff")
    assert value[-5] == 0x7D
    assert crc32(value) == 0x2144DF1C
    envelope = read(value, strict=True)
    for link, described in zip(envelope.chain, vector["links"], strict=True):
        fields = {name: getattr(link, name) for name in described}
        assert fields == {
            **described,
            "topic_id": bytes.fromhex(described["topic_id"]),
            "offset": int(described["offset"]),
        }
    assert [None if payload is None else payload.hex() for payload in envelope.payloads] == vector["payloads"]
    assert (None if envelope.key is None else envelope.key.hex()) == vector["key"]
    assert (envelope.timestamp_ms, envelope.type) == (vector["timestamp_ms"], vector["type"])
    assert envelope.watermark_ms == vector["watermark_ms"]
    assert (envelope.event_id.hex(), envelope.previous.hex()) == (vector["event_id"], vector["previous"])


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the index of the next byte."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def without_payload(envelope: bytes) -> tuple[bytes, bytes]:
    """An envelope without field 7 and with a new checksum; and the content of that field."""
    kept, payload, at = b"", b"", 0
    while at < len(envelope) - 5:
        begin = at
        tag, at = varint(envelope, at)
        size = {1: 8, 5: 4}.get(tag & 7, 0)
        if tag & 7 == 0:
            _, at = varint(envelope, at)
        elif tag & 7 == 2:
            size, at = varint(envelope, at)
        at += size
        if tag >> 3 == 7:
            payload = envelope[at - size : at]
        else:
            kept += envelope[begin:at]
    kept += b"\x7d"
    return kept + crc32(kept).to_bytes(4, "little"), payload


@pytest.mark.parametrize("name", list(VECTORS["carried"]))
def test_a_chain_in_headers_is_the_envelope_without_its_payload(name: str) -> None:
    vector = VECTORS["carried"][name]
    headers = {key: bytes.fromhex(content) for key, content in vector["headers"].items()}
    value = None if vector["value"] is None else bytes.fromhex(vector["value"])
    envelope, payload = without_payload(bytes.fromhex(vector["envelope"]))
    assert headers["sqe-chain"] == envelope
    assert (value or b"") == payload
    whole = read(bytes.fromhex(vector["envelope"]))
    assert read(value, headers=list(headers.items()), strict=True) == whole
    assert headers["ce_id"].decode() == whole.event_id.hex()
    assert headers["ce_type"].decode() == whole.type


@pytest.mark.parametrize("name", list(VECTORS["malformed"]))
def test_malformed_values_are_refused_by_name(name: str) -> None:
    vector = VECTORS["malformed"][name]
    with pytest.raises(getattr(errors, vector["error"])):
        parse_head(bytes.fromhex(vector["bytes"]))


@pytest.mark.parametrize("script", ["generate_vectors.py", "generate_proto.py"])
def test_what_is_checked_in_is_what_the_generators_make(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
