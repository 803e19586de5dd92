"""Inputs and outputs of several payloads: each counts as a whole."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "units of an input that failed before the stage are folded",
        (
            "task/source_partition.py",
            "            units[:] = [unit for unit in units if unit[4] not in records.failures]\n",
            "            units[:] = list(units)\n",
        ),
        tests=("tests/protocol/test_poison.py::test_an_input_that_fails_anywhere_is_left_out_of_everything",),
        schedules=200,
    ),
    mutant(
        "a payload that says 'deleted' is an empty one",
        (
            "envelope/message.py",
            "        payloads[index] = None\n",
            '        payloads[index] = payloads[index] or b""\n',
        ),
        tests=("tests/unit/envelope/test_envelope.py::test_what_is_deleted_may_be_said_number_by_number",),
        unsimulated="not simulated: nothing is deleted in collections there",
    ),
    mutant(
        "the last payload of a collection cannot be deleted",
        (
            "envelope/head.py",
            "        if index >= len(payloads) or payloads[index]:",
            "        if index >= len(payloads) - 1 or payloads[index]:",
        ),
        tests=("tests/unit/envelope/test_envelope.py::test_what_is_deleted_may_be_said_number_by_number",),
        unsimulated="not simulated: nothing is deleted in collections there",
    ),
    mutant(
        "units of one input that waited are taken for several inputs",
        (
            "flow/context.py",
            "        return other is not None and self.offset == other.offset and self.tp == other.tp\n",
            "        return self is other\n",
        ),
        tests=("tests/protocol/test_one_position.py::test_values_of_one_input_never_share_a_position",),
        schedules=200,
    ),
    mutant(
        "outputs of an input that come after the others of it are published",
        ("task/target.py", "        if before >= offset:\n", "        if before > offset:\n"),
        tests=(
            "tests/protocol/test_one_position.py::test_outputs_that_are_gathered_apart_are_not_published",
        ),
        unsimulated="not simulated: none come",
    ),
    mutant(
        "what an input gives with and without batches goes out apart",
        ("task/reached.py", "    return outputs > 1 or", "    return outputs > 2 or"),
        tests=(
            "tests/protocol/test_map_batches.py::test_a_line_that_one_output_refuses_goes_to_no_other_one_with_or_without_batches",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
)
