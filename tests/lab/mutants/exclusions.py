"""Inputs that are left out, dead letters, and the brake."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "what was left out before the first stage goes into no plan",
        (
            "protocol/processing.py",
            "        exclusions = (*suspects.known.values(), *report.excluded)\n",
            "        exclusions = (*suspects.known.values(),)\n",
        ),
        tests=("tests/protocol/test_poison.py::test_an_input_that_fails_anywhere_is_left_out_of_everything",),
        schedules=100,
    ),
    mutant(
        "an attempt is the last one though a suspect was let go",
        (
            "protocol/processing.py",
            "        return not fresh and not innocent\n",
            "        return not fresh\n",
        ),
        tests=("tests/protocol/test_blame.py::test_a_bad_input_takes_no_good_one_with_it",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "an input that was left out does not move its mark",
        (
            "task/deciding.py",
            "        head = None\n        if node.raw or (value",
            "        head = None\n        if offset in self._skipped and not self._trial and not node.raw:\n            records.failures[number] = self._skipped[offset]\n            return 0\n        if node.raw or (value",
        ),
        tests=("tests/protocol/test_poison.py::test_dead_letters_come_once_for_each_input_through_crashes",),
        schedules=1500,
    ),
    mutant(
        "the brake forgets what earlier batches left out",
        (
            "task/brake.py",
            "        excluded, inputs = self.excluded + len(exclusions), self.inputs + inputs\n",
            "        excluded = len(exclusions)\n",
        ),
        tests=("tests/protocol/test_brake.py::test_small_batches_are_no_way_around_it",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "the brake holds when either limit is exceeded",
        (
            "task/brake.py",
            "excluded <= self.count or excluded <= self.share * inputs",
            "excluded <= self.count and excluded <= self.share * inputs",
        ),
        tests=("tests/protocol/test_brake.py::test_small_batches_are_no_way_around_it",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "the brake counts replays as inputs",
        (
            "protocol/processing.py",
            "read = sum(end.records - end.replays for end in report.ends)",
            "read = sum(end.records for end in report.ends)",
        ),
        tests=("tests/protocol/test_brake.py::test_replays_do_not_hide_how_much_of_what_is_new_fails",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "a batch that leaves out as many inputs as a plan lists is made smaller",
        (
            "protocol/processing.py",
            "if len(exclusions) > max(MAX_EXCLUSIONS, len(batch.ranges)):",
            "if len(exclusions) >= max(MAX_EXCLUSIONS, len(batch.ranges)):",
        ),
        tests=(
            "tests/protocol/test_blame.py::test_a_batch_that_leaves_out_as_many_as_a_plan_lists_is_not_made_smaller",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "a record may be too large by its key",
        (
            "task/outputs.py",
            "            if len(value) + len(field) > room:\n",
            "            if len(value) > room:\n",
        ),
        tests=(
            "tests/protocol/test_outputs_refused.py::test_a_key_counts_towards_the_size_of_a_record_beside_the_envelope",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "a dead letter may be too large by what its batch adds",
        (
            "task/source_partition.py",
            "        if size > limit - RECORD_OVERHEAD:",
            "        if size > limit:",
        ),
        tests=(
            "tests/protocol/test_outputs_refused.py::test_a_dead_letter_has_room_for_the_header_of_its_batch",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "a key that is too long is asked about in the first block only",
        ("task/stage_part.py", "        self._own -= refused\n", ""),
        tests=("tests/protocol/test_store_limits.py::test_each_input_whose_key_is_too_long_is_poison",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "what a filter adds to a key in the name of its row is not counted",
        (
            "task/fitting.py",
            "        room = 0 if self.stage.stage_kind.states_by_key else _ROW_NAME\n",
            "        room = 0\n",
        ),
        tests=(
            "tests/protocol/test_store_limits.py::test_a_key_has_room_for_what_a_filter_adds_to_it_in_the_name_of_its_row",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "an envelope that cannot be read takes those before it along, in a block",
        (
            "task/deciding.py",
            "                self._take_run(records, block, since, number)\n                self._unreadable",
            "                self._unreadable",
        ),
        tests=(
            "tests/protocol/test_poison.py::test_an_envelope_on_a_lane_that_is_not_its_own_takes_none_with_it_that_came_before",
        ),
        unsimulated="not found by 1,500 schedules",
    ),
    mutant(
        "a decoder that raises StopIteration loses the rest of its block",
        (
            "task/source_partition.py",
            "return [decode(payload) for payload in records.payloads]",
            "return list(map(decode, records.payloads))",
        ),
        tests=(
            "tests/unit/flow/test_user_functions.py::test_what_a_function_raises_costs_its_own_input_alone",
        ),
        unsimulated="not simulated: decoders raise other errors there",
    ),
    mutant(
        "the state of a fold that is a generator is checked before it runs",
        (
            "stages/aggregate.py",
            "        if emissions is not None:\n            self._push(emissions, entry.state, key, path, origin)\n        if context",
            "        self._check_storable(key, entry)\n        if emissions is not None:\n            self._push(emissions, entry.state, key, path, origin)\n            return\n        if context",
        ),
        tests=(
            "tests/unit/flow/test_odd_codecs.py::test_a_generator_s_state_is_checked_when_it_has_run_to_its_end",
        ),
        unsimulated="not simulated: folds are no generators there",
    ),
    mutant(
        "another default of a field that stored states lack goes unnoticed",
        (
            "codecs/json_changes.py",
            "before.default != field.default:",
            "before.default is field.default:",
        ),
        tests=(
            "tests/unit/codecs/test_json_changes.py::test_a_struct_reads_what_each_other_wrote_as_it_was_or_is_refused",
        ),
        unsimulated="not simulated: types stay as they are there",
    ),
)
