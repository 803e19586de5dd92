"""Lanes and paths, and where an output goes on on them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "the partition that a message is read from does not belong to its lane",
        (
            "chain.py",
            "topic.encode(), topic_id, _UINT32.pack(partition))",
            "topic.encode(), topic_id, _UINT32.pack(0))",
        ),
        tests=(
            "tests/unit/test_chain.py::test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane",
        ),
        schedules=100,
    ),
    mutant(
        "what no stage precedes is on the lane of state partition 0",
        ("chain.py", 'b"" if shard is None else _UINT32.pack(shard))', "_UINT32.pack(shard or 0))"),
        tests=(
            "tests/unit/test_chain.py::test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane",
        ),
        unsimulated="no output has both there",
    ),
    mutant(
        "the lane of a first message is not checked against its chain",
        (
            "envelope/head.py",
            "    if chain.lane() != head.lane:",
            "    if chain.lane() != head.lane and not head.lane:",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_chain_out_of_bounds_or_against_lane_and_position_is_found_by_the_strict_check",
        ),
        unsimulated="no writer states another lane there than its chain",
    ),
    mutant(
        "the position of a first message is not checked against its chain",
        (
            "envelope/head.py",
            "    if chain.position() != head.position:",
            "    if len(chain.position()) != len(head.position):",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_chain_out_of_bounds_or_against_lane_and_position_is_found_by_the_strict_check",
        ),
        unsimulated="no writer states another position there than its chain",
    ),
    mutant(
        "a key without its sign bit goes elsewhere than in Kafka",
        (
            "partitioner.py",
            "        murmur2(key) & 0x7FFFFFFF\n    ) % partitions",
            "        murmur2(key)\n    ) % partitions",
        ),
        tests=("tests/unit/test_partitioner.py::test_a_negative_hash_loses_its_sign_bit_as_in_kafka",),
        unsimulated="totals are exact with any partitioner",
    ),
)
