"""Keys go where Kafka's own clients put them."""

from __future__ import annotations

import pytest

from sqe_chain.envelope.partitioner import Partitioner, cell_of, murmur2, partition_of

# Kafka's own, from UtilsTest.testMurmur2: a key -> its hash, as Java's signed number.
HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", HASHES)
def test_hashes_are_those_of_kafka(key: bytes) -> None:
    assert murmur2(key) == HASHES[key] & 0xFFFFFFFF


@pytest.mark.parametrize("partitions", [1, 3, 7, 10, 1000])
def test_a_negative_hash_loses_its_sign_bit_as_in_kafka(partitions: int) -> None:
    """`Utils.toPositive`: neither the absolute value nor the unsigned number, which differ where P is no power of two."""
    for key, found in HASHES.items():
        wanted = (found + 2**31 if found < 0 else found) % partitions
        assert partition_of(key, partitions) == wanted
        assert Partitioner(partitions)(key) == wanted


def test_the_buckets_of_a_state_partition_are_cells_side_by_side() -> None:
    for key in HASHES:
        assert cell_of(key, 7, 4) // 4 == partition_of(key, 7)
        assert cell_of(key, 7, 1) == partition_of(key, 7)
    assert len({cell_of(str(number).encode(), 2, 3) for number in range(100)}) == 6, "all are used"
