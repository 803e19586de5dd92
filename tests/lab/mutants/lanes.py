"""Lanes and paths, and where an output goes on on them."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

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
        "a topic that is created again goes on with its lanes",
        (
            "chain.py",
            '    return b64(lane.to_bytes(8, "little"), topic.encode(), topic_id, _UINT32.pack(partition))',
            '    return b64(lane.to_bytes(8, "little"), topic.encode(), bytes(16), _UINT32.pack(partition))',
        ),
        tests=(
            "tests/unit/test_chain.py::test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane",
        ),
        schedules=200,
    ),
    mutant(
        "what no stage precedes is on the lane of state partition 0",
        ("chain.py", 'b"" if shard is None else _UINT32.pack(shard))', "_UINT32.pack(shard or 0))"),
        tests=(
            "tests/unit/test_chain.py::test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane",
        ),
        unsimulated="not simulated: no output has both there",
    ),
    mutant(
        "the id of a topic in between belongs to the path",
        (
            "chain.py",
            'link.topic, b"" if index else link.topic_id, link.partition)',
            "link.topic, link.topic_id, link.partition)",
        ),
        tests=("tests/unit/test_chain.py::test_a_path_forgets_topic_ids_except_the_root_s",),
        schedules=500,
    ),
    mutant(
        "the id of the topic at hand belongs to the path",
        (
            "chain.py",
            '    return read_lane(path, topic, b"" if chain else topic_id, partition)',
            "    return read_lane(path, topic, topic_id, partition)",
        ),
        tests=("tests/unit/test_chain.py::test_a_path_forgets_topic_ids_except_the_root_s",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "the id of the root's topic does not belong to the path",
        (
            "chain.py",
            'link.topic, b"" if index else link.topic_id, link.partition)',
            'link.topic, b"", link.partition)',
        ),
        tests=("tests/unit/test_chain.py::test_a_path_forgets_topic_ids_except_the_root_s",),
        schedules=200,
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
        unsimulated="not simulated: no writer states another lane there than its chain",
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
        unsimulated="not simulated: no writer states another position there than its chain",
    ),
    mutant(
        "an output writes one lane for all state partitions",
        ("task/target.py", "            shard=self._shard,\n", "            shard=self._shard and 0,\n"),
        tests=("tests/protocol/test_lanes.py::test_emissions_beside_changes_into_one_topic",),
        schedules=100,
    ),
    mutant(
        "a replay that is passed on moves back what was written last",
        (
            "task/outputs.py",
            "            if own > before:  # not for a replay that is passed on: its position lies further back\n",
            "            if own != before:\n",
        ),
        tests=("tests/unit/segment/test_run_outputs.py::test_a_run_gives_the_records_of_its_inputs",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "what was written last is forgotten in the order in which it was written",
        (
            "task/outputs.py",
            "    for where, at, known in reversed(undo):",
            "    for where, at, known in undo:",
        ),
        tests=("tests/unit/segment/test_run_outputs.py::test_a_run_gives_the_records_of_its_inputs",),
        schedules=1500,
    ),
    mutant(
        "records without a key go to partition 0",
        (
            "task/outputs.py",
            '                partition, field = tp.partition % target.partitions, b""\n            else:\n                partition, field = keys.get(key)',
            '                partition, field = 0, b""\n            else:\n                partition, field = keys.get(key)',
        ),
        tests=("tests/unit/segment/test_run_outputs.py::test_a_run_gives_the_records_of_its_inputs",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a key without its sign bit goes elsewhere than in Kafka",
        (
            "envelope/partitioner.py",
            "        murmur2(key) & 0x7FFFFFFF\n    ) % partitions",
            "        murmur2(key)\n    ) % partitions",
        ),
        tests=("tests/unit/test_partitioner.py::test_a_negative_hash_loses_its_sign_bit_as_in_kafka",),
        unsimulated="not simulated: totals are exact with any partitioner",
    ),
    mutant(
        "what an input that is taken back has written with its chain in headers stays known as written",
        (
            "task/outputs.py",
            "                undo.append((writing.previous, partition, before))\n                writing.previous[partition] = own",
            "                writing.previous[partition] = own",
        ),
        tests=(
            "tests/unit/segment/test_run_outputs.py::test_an_input_that_is_taken_back_leaves_no_position_behind",
        ),
        schedules=80,
    ),
    mutant(
        "with chains in headers a replay that is passed on is named as written before",
        (
            "task/outputs.py",
            "            if own > before:\n                undo.append((writing.previous",
            "            if own != before:\n                undo.append((writing.previous",
        ),
        tests=(
            "tests/unit/segment/test_run_outputs.py::test_after_a_replay_an_envelope_names_the_highest_position_before_it",
        ),
        unsimulated="not found by 1,500 schedules",
    ),
)
