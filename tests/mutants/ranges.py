"""Ranges, last stable offsets, and whether an input is what it was."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "one record lost to retention is no matter",
        ("protocol/inputs.py", "    if bound.begin > next_offset:", "    if bound.begin > next_offset + 1:"),
        tests=("tests/protocol/test_inputs.py::test_retention_that_passed_the_position_stops",),
        unsimulated="retention deletes nothing there",
    ),
    mutant(
        "a log that ends before what was read is no matter where nothing is new",
        (
            "protocol/inputs.py",
            "        for tp, offset in offsets.items():\n            check_bounds(tp, offset, bounds[tp])\n",
            "        for tp, offset in offsets.items():\n            if bounds[tp].stable_end != offset:\n                check_bounds(tp, min(offset, bounds[tp].stable_end), bounds[tp])\n",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_ends_before_what_was_read_stops",),
        unsimulated="no log is cut off there",
    ),
    mutant(
        "the last record is compared by leader epoch and time alone",
        (
            "protocol/inputs.py",
            "    if known.last_crc >= 0 and record_crc(found[0].key(), found[0].value()) != known.last_crc:\n        raise TruncatedInput(",
            "    if known.last_crc < -1:\n        raise TruncatedInput(",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_record_replaced_in_the_same_leader_epoch_stops",),
        unsimulated="no log is cut off and written again there",
    ),
    mutant(
        "the leader epoch of the last record is not compared",
        (
            "protocol/inputs.py",
            "    if (epoch, timestamp_ms) != (known.last_epoch, known.last_timestamp_ms):",
            "    if timestamp_ms != known.last_timestamp_ms:",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_was_truncated_and_written_anew_stops",),
        unsimulated="no log is cut off and written again there",
    ),
)
