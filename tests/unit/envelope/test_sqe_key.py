"""SQE's keys are read and written as in SQE; the published vectors follow from the documented rules alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.envelope.sqe_key import SEED, SqeKey, murmur_hash_64a, process_id, read_sqe_key
from sqe_chain.errors import OutOfBounds

ROOT = Path(__file__).resolve().parents[3]
VECTORS: dict[str, Any] = json.loads((ROOT / "proto" / "sqe_vectors.json").read_text(encoding="utf-8"))
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def unsigned(number: int) -> int:
    return number & 0xFFFFFFFFFFFFFFFF


def independent_hash(data: bytes, seed: int) -> int:
    """MurmurHash64A byte by byte, with the modulus written out."""
    size, multiplier = 2**64, 0xC6A4A7935BD1E995
    value = seed ^ (len(data) * multiplier % size)
    for start in range(0, len(data), 8):
        block = data[start : start + 8]
        word = sum(byte * 256**index for index, byte in enumerate(block))
        if len(block) == 8:
            word = word * multiplier % size
            word = (word ^ word // 2**47) * multiplier % size
        value = (value ^ word) * multiplier % size
    value = (value ^ value // 2**47) * multiplier % size
    return value ^ value // 2**47


def test_the_published_process_ids() -> None:
    assert unsigned(process_id("ABCDEF", "", "")) == 0x0F6106105304A543
    assert unsigned(process_id("test-topo", "test-stream", "brokers", "path")) == 0x9A36BD1B1D3817FF
    assert process_id("test-topo", "test-stream", "brokers", "path") < 0


def test_nothing_separates_the_names() -> None:
    assert process_id("AB", "C", "D", "EF") == process_id("ABCDEF", "", "")


@given(st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_the_hash_is_the_one_written_down_twice(data: bytes, seed: int) -> None:
    assert murmur_hash_64a(data, seed) == independent_hash(data, seed)


def test_a_key_is_20_bytes_in_network_order() -> None:
    assert SqeKey(1, 2, 3).to_bytes() == bytes.fromhex("0000000000000001 00000002 0000000000000003")
    assert SqeKey(-1, -2, -3).to_bytes() == bytes.fromhex("ffffffffffffffff fffffffe fffffffffffffffd")


@given(INT64, INT32, INT64)
def test_what_is_written_is_read(pid: int, partition: int, offset: int) -> None:
    key = SqeKey(pid, partition, offset)
    assert read_sqe_key(key.to_bytes()) == key


@pytest.mark.parametrize("key", [None, b"", bytes(19), bytes(21)])
def test_other_keys_are_none_of_sqe_s(key: bytes | None) -> None:
    assert read_sqe_key(key) is None


@pytest.mark.parametrize("key", [SqeKey(2**63, 0, 0), SqeKey(0, 2**31, 0), SqeKey(0, 0, -(2**63) - 1)])
def test_numbers_that_do_not_fit_are_refused(key: SqeKey) -> None:
    with pytest.raises(OutOfBounds, match="not a key of SQE's"):
        key.to_bytes()


@pytest.mark.parametrize(("partition", "partitions"), [(-1, 4), (-(2**31), 1), (0, 0), (3, -1)])
def test_there_is_no_destination_for_a_negative_partition(partition: int, partitions: int) -> None:
    with pytest.raises(OutOfBounds, match="no destination"):
        SqeKey(0, partition, 0).destination(partitions)


@given(st.integers(0, 2**31 - 1), st.integers(1, 1000))
def test_the_destination_is_the_source_partition_modulo_their_number(partition: int, partitions: int) -> None:
    assert SqeKey(0, partition, 0).destination(partitions) == partition % partitions


def test_vectors_of_process_ids_and_hashes_follow_from_the_rules() -> None:
    seed = int(VECTORS["seed"], 16)
    assert seed == SEED
    for vector in VECTORS["process_ids"]:
        names = [vector[name] for name in ("topology", "stream", "zookeeper_hosts", "zookeeper_path")]
        hashed = independent_hash("".join(names).encode(), seed)
        assert (f"{hashed:016x}", unsigned(int(vector["process_id"]))) == (vector["hex"], hashed)
    for vector in VECTORS["hashes"]:
        assert f"{independent_hash(bytes.fromhex(vector['bytes']), seed):016x}" == vector["hash"]


def test_vectors_of_keys_and_destinations_follow_from_the_rules() -> None:
    for vector in VECTORS["keys"].values():
        numbers = (vector["process_id"], 8), (vector["partition"], 4), (vector["offset"], 8)
        parts = [int(number).to_bytes(length, "big", signed=True) for number, length in numbers]
        assert b"".join(parts).hex() == vector["bytes"]
    assert all(len(bytes.fromhex(key)) != 20 for key in VECTORS["no_keys"])
    for vector in VECTORS["destinations"]:
        assert vector["destination"] == vector["partition"] % vector["partitions"]


def test_vectors_of_the_filter_follow_from_the_rules() -> None:
    highest: dict[str, int] = {}
    for vector in VECTORS["filter"]:
        key = vector["key"]
        if key is None:
            assert vector["passes"]
            continue
        source, offset = key[:24], int(key[24:], 16)
        assert vector["passes"] == (source not in highest or offset > highest[source])
        highest[source] = max(offset, highest.get(source, offset))
