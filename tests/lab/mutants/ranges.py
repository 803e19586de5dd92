"""Ranges, last stable offsets, and whether an input is what it was."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "records of open transactions are read",
        (
            "adapters/memory/_broker.py",
            "        return min([self.end, *self.open.values()])\n",
            "        return self.end\n",
        ),
        tests=("tests/protocol/test_inputs.py::test_aborted_and_open_transactions_are_not_read",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "the last stable offset is that of the newest open transaction",
        (
            "adapters/memory/_broker.py",
            "        return min([self.end, *self.open.values()])\n",
            "        return max([*self.open.values()], default=self.end)\n",
        ),
        tests=(
            "tests/unit/logs/test_memory_log.py::test_an_open_transaction_holds_back_what_comes_after_it",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "one record lost to retention is no matter",
        ("protocol/inputs.py", "    if bound.begin > next_offset:", "    if bound.begin > next_offset + 1:"),
        tests=("tests/protocol/test_inputs.py::test_retention_that_passed_the_position_stops",),
        unsimulated="not simulated: retention deletes nothing there",
    ),
    mutant(
        "a log that ends before what was read is no matter where nothing is new",
        (
            "protocol/inputs.py",
            "        for tp, offset in offsets.items():\n            check_bounds(tp, offset, bounds[tp])\n",
            "        for tp, offset in offsets.items():\n            if bounds[tp].stable_end != offset:\n                check_bounds(tp, min(offset, bounds[tp].stable_end), bounds[tp])\n",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_ends_before_what_was_read_stops",),
        schedules=200,
    ),
    mutant(
        "the last record is compared by leader epoch and time alone",
        (
            "protocol/same_inputs.py",
            "    if known.last_crc >= 0 and record_crc(found[0].key(), found[0].value()) != known.last_crc:\n        raise TruncatedInput(",
            "    if known.last_crc < -1:\n        raise TruncatedInput(",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_record_replaced_in_the_same_leader_epoch_stops",),
        unsimulated="not simulated: no log is cut off and written again there",
    ),
    mutant(
        "the leader epoch of the last record is not compared",
        (
            "protocol/same_inputs.py",
            "    if (epoch, timestamp_ms) != (known.last_epoch, known.last_timestamp_ms):",
            "    if timestamp_ms != known.last_timestamp_ms:",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_was_truncated_and_written_anew_stops",),
        unsimulated="not simulated: no log is cut off and written again there",
    ),
    mutant(
        "what a batch reads may exceed its limit",
        (
            "protocol/inputs.py",
            "        count_here = max(0, min(waiting[tp], share))\n",
            "        count_here = max(0, waiting[tp] if waiting[tp] <= 2 * share else share)\n",
        ),
        tests=("tests/protocol/test_batch_sizes.py::test_batches_are_cut_by_what_the_one_before_weighed",),
        unsimulated="not simulated: totals are exact however batches are cut",
    ),
    mutant(
        "ranges are read without comparing leader epochs",
        (
            "protocol/planning.py",
            "        read = as_range(planned, known[planned.tp].last_epoch)\n",
            "        read = as_range(planned, 0)\n",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_was_truncated_and_written_anew_stops",),
        schedules=200,
    ),
    mutant(
        "a compacted input is read like any other",
        (
            "protocol/inputs.py",
            "        if found[topic].compacted and not flow.allow_compacted:",
            "        if found[topic].compacted and not (flow.allow_compacted or flow.stages):",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_compacted_input_stops_unless_allowed",),
        unsimulated="not simulated: no input is compacted there",
    ),
    mutant(
        "what was read while a topic was created again counts",
        (
            "protocol/processing.py",
            "            same_inputs.check_same_id(planned, now.get(planned.topic), files)\n",
            "",
        ),
        tests=(
            "tests/protocol/test_inputs.py::test_an_input_created_again_while_a_batch_reads_it_stops_before_the_seal",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a republisher begins in new partitions of a known topic where `start` says",
        (
            "protocol/committed.py",
            "if tp[0] in known}",
            "if not tp}",
        ),
        tests=(
            "tests/protocol/test_inputs.py::test_new_partitions_of_a_known_topic_are_read_from_0_whatever_start_says",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a republisher that was rewound to the middle of a partition takes what is before it for missing",
        (
            "protocol/republish.py",
            "marks = PartitionMarks(topic, topic_id, partition, entered_in_middle=offset > 0)",
            "marks = PartitionMarks(topic, topic_id, partition)",
        ),
        tests=(
            "tests/protocol/test_republish_metadata.py::test_a_republisher_that_was_rewound_to_the_middle_has_seen_nothing_of_what_is_before_it",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what was read of a topic is committed for the one that was created in its place",
        (
            "protocol/inputs.py",
            "info.topic_id.hex() == ids[tp[0]] and ",
            "",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_offsets_of_a_topic_are_not_committed_for_the_one_that_was_created_in_its_place",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
)
