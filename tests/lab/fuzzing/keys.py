"""Record keys: SQE's 20 bytes and its hash, and the partition that Kafka gives a key; against their definitions."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from struct import unpack
from typing import Final

from sqe_chain.envelope.partitioner import murmur2, partition_of
from sqe_chain.envelope.sqe_key import SqeKey, murmur_hash_64a, process_id, read_sqe_key
from sqe_chain.errors import OutOfBounds
from tests.lab.fuzzing.ways import Difference

_64: Final = 2**64 - 1
_32: Final = 2**32 - 1
_PARTITIONS: Final = (1, 2, 3, 8, 50, 2**31 - 1)


def check(data: bytes, seen: set[Hashable]) -> int:
    """Read each key of an input; returns how many those are. Keys come one after the other, each after its size."""
    at = count = 0
    while at < len(data):
        size = data[at]
        _check_key(data[at + 1 : at + 1 + size], seen)
        at += 1 + size
        count += 1
    return count


def mutated(data: bytes, most: int, random: Random) -> bytes:
    """Another input, of 64 keys: many of them of 20 bytes, and numbers at their bounds."""
    del data
    keys = []
    for _ in range(64):
        size = random.choice((20, 20, 20, 19, 21, 0, 1, 7, 8, 9, random.randrange(64)))
        key = (
            random.randbytes(size)
            if random.random() < 0.5
            else random.choice((b"\x00", b"\x7f", b"\x80", b"\xff")) * size
        )
        if size == 20 and random.random() < 0.5:
            key = key[:8] + random.choice((0, 1, 2**31 - 1, 2**31, _32)).to_bytes(4) + key[12:]
        keys.append(bytes([size]) + key)
    return b"".join(keys)[:most]


def _check_key(key: bytes, seen: set[Hashable]) -> None:
    found = read_sqe_key(key)
    expected = unpack(">qiq", key) if len(key) == 20 else None
    _same("read_sqe_key", key, found, expected)
    if found is not None:
        _same("to_bytes", key, found.to_bytes(), key)
        _check_destination(key, found)
    seen.add((len(key), found is not None and found.partition < 0, len(key) % 8))
    _same("murmur2", key, murmur2(key), _murmur2(key))
    for partitions in _PARTITIONS:
        _same("partition_of", key, partition_of(key, partitions), (_murmur2(key) & 0x7FFFFFFF) % partitions)
    hashed = _murmur64(key, 0xE17A1465)
    _same("murmur_hash_64a", key, murmur_hash_64a(key), hashed)
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return
    _same("process_id", key, process_id(text, "", ""), hashed - 2**64 if hashed >> 63 else hashed)


def _check_destination(key: bytes, found: SqeKey) -> None:
    for partitions in _PARTITIONS:
        try:
            chosen = found.destination(partitions)
        except OutOfBounds:
            if found.partition >= 0:
                raise Difference(f"no destination for {key!r}") from None
        else:
            _same("destination", key, chosen, found.partition % partitions if found.partition >= 0 else None)


def _same(what: str, key: bytes, found: object, right: object) -> None:
    if found != right:
        raise Difference(f"{what} of {key!r}: {found}, right is {right}")


def _murmur2(key: bytes) -> int:
    """MurmurHash2 of 32 bits, as in Austin Appleby's code: what Kafka's clients in Java use."""
    mixer, value = 0x5BD1E995, 0x9747B28C ^ len(key)
    at = 0
    while len(key) - at >= 4:
        word = key[at] | key[at + 1] << 8 | key[at + 2] << 16 | key[at + 3] << 24
        word = word * mixer & _32
        word ^= word >> 24
        word = word * mixer & _32
        value = value * mixer & _32 ^ word
        at += 4
    rest = len(key) - at
    if rest == 3:
        value ^= key[at + 2] << 16
    if rest >= 2:
        value ^= key[at + 1] << 8
    if rest >= 1:
        value = (value ^ key[at]) * mixer & _32
    value ^= value >> 13
    value = value * mixer & _32
    return value ^ value >> 15


def _murmur64(key: bytes, seed: int) -> int:
    """MurmurHash64A, as in Austin Appleby's code."""
    mixer = 0xC6A4A7935BD1E995
    value = seed ^ (len(key) * mixer & _64)
    at = 0
    while len(key) - at >= 8:
        word = sum(key[at + index] << 8 * index for index in range(8))
        word = word * mixer & _64
        word ^= word >> 47
        value = (value ^ (word * mixer & _64)) * mixer & _64
        at += 8
    rest = len(key) - at
    for index in reversed(range(rest)):
        value ^= key[at + index] << 8 * index
    if rest:
        value = value * mixer & _64
    value ^= value >> 47
    value = value * mixer & _64
    return value ^ value >> 47
