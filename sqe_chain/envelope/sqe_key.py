"""The record key of SQE (JW Player's Storm query engine): who produced a record, from which source offset.

20 bytes, big-endian: process id (int64), partition (int32) and offset (int64) of the source. The process id
names the producer and its source: MurmurHash64A over topology name, stream name, ZooKeeper hosts and
ZooKeeper path, concatenated.

    >>> key = SqeKey(process_id("test-topo", "test-stream", "brokers", "path"), partition=6, offset=41)
    >>> key.to_bytes().hex(" ", -4)
    '9a36bd1b 1d3817ff 00000006 00000000 00000029'
    >>> read_sqe_key(key.to_bytes()) == key, key.destination(4)
    (True, 2)

To migrate *from* SQE, read its topics with `drop_replays()` and write envelopes. To feed a topology that still
runs, write `SqeKey(...).to_bytes()` as the key, to partition `destination(N)`, with the source's coordinates.
Test vectors for other languages: proto/sqe_vectors.json.

Source: SQE's `StreamMetadata`, `StreamAdapter.createPid` and `SourcePartitionPartitioner`.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - the name of an exception class
from typing import NamedTuple

from sqe_chain.errors import OutOfBounds

_KEY_LENGTH = 20
"""Bytes of a key; anything longer or shorter is not a key of SQE's."""
SEED = 0xE17A1465
"""Seed of the process id's hash (stream-lib's default)."""

_KEY = Struct(">qiq")
_WORDS = Struct("<Q")
_MULTIPLIER = 0xC6A4A7935BD1E995
_MASK = 0xFFFFFFFFFFFFFFFF
_SHIFT = 47
_WORD = 8


class SqeKey(NamedTuple):
    """Where a record comes from, in SQE's terms. Every combination of numbers is a valid key.

    Attributes:
        process_id: names the producer and its source, signed as Java's long; see `process_id`.
        partition: partition of the source, an int32.
        offset: offset in the source, an int64.
    """

    process_id: int
    partition: int
    offset: int

    def to_bytes(self) -> bytes:
        """The 20 bytes.

        Raises:
            OutOfBounds: a number does not fit into its field.
        """
        try:
            return _KEY.pack(*self)
        except StructError as error:
            raise OutOfBounds(
                f"{self} is not a key of SQE's. Expected signed 64-bit numbers as process id and offset, and a "
                "signed 32-bit one as partition. Convert a process id that is shown as unsigned hexadecimal"
            ) from error

    def destination(self, partitions: int) -> int:
        """The partition that SQE writes the record to: the source's, modulo their number.

        Replays then meet their originals, and the source's order is kept.

        Args:
            partitions: number of partitions of the topic written to, 1 or more.

        Raises:
            OutOfBounds: the source partition is negative, or there are no partitions.
        """
        if self.partition < 0 or partitions < 1:
            raise OutOfBounds(
                f"no destination for source partition {self.partition} among {partitions} partitions. "
                "Expected a source partition of 0 or more, and one or more in the topic. Check what made the key"
            )
        return self.partition % partitions


def read_sqe_key(key: bytes | None) -> SqeKey | None:
    """The key of a record; None if it is null or not 20 bytes long.

    A foreign key of 20 bytes is read as one, too: the format does not distinguish them.
    """
    if key is None or len(key) != _KEY_LENGTH:
        return None
    return SqeKey._make(_KEY.unpack(key))


def process_id(topology: str, stream: str, zookeeper_hosts: str, zookeeper_path: str = "") -> int:
    """SQE's process id of a stream of a topology, signed as Java's long.

    The four are joined without a separator, so ("ab", "c") and ("a", "bc") are one producer; that is SQE's format.

    Args:
        topology: name of the topology.
        stream: name of the stream.
        zookeeper_hosts: as configured, joined by commas.
        zookeeper_path: where the brokers are registered (Storm's default is "/brokers").
    """
    text = topology + stream + zookeeper_hosts + zookeeper_path
    hashed = murmur_hash_64a(text.encode())
    return hashed - (_MASK + 1) if hashed >> 63 else hashed


def murmur_hash_64a(data: bytes, seed: int = SEED) -> int:
    """MurmurHash64A, unsigned.

    Args:
        data: any bytes.
        seed: 0 to 2^64 - 1.

    Source: Austin Appleby's MurmurHash2, 64-bit variant A.

    >>> hex(murmur_hash_64a(b"ABCDEF"))
    '0xf6106105304a543'
    """
    hashed = seed ^ len(data) * _MULTIPLIER & _MASK
    whole = len(data) & -_WORD
    for (word,) in _WORDS.iter_unpack(data[:whole]):
        mixed = word * _MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> _SHIFT) * _MULTIPLIER & _MASK
        hashed = (hashed ^ mixed) * _MULTIPLIER & _MASK
    if whole != len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> _SHIFT) * _MULTIPLIER & _MASK
    return hashed ^ hashed >> _SHIFT
