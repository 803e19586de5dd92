"""Overwrites: what is staged, decided, and replaced by one commit."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "what an overwrite that was given up has staged counts for the next one",
        (
            "ext/tables/overwriting.py",
            "        return cls(*told) if told is not None and told[0] == since else cls(since)",
            "        return cls(*told) if told is not None else cls(since)",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_it_begins_again_without_a_file_that_is_gone",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite of partitions leaves the old rows",
        ("ext/tables/overwriting.py", "        if chunk.name.partition_key not in keys:", "        if True:"),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_after_partitions_were_replaced_all_files_count_as_loaded",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "staged files that are gone are not missed when an overwrite is decided",
        (
            "ext/tables/sink.py",
            '            if absent:\n                raise TableInconsistent(\n                    f"{self.storage}: plan {replacement.number} has decided',
            '            if False:\n                raise TableInconsistent(\n                    f"{self.storage}: plan {replacement.number} has decided',
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_staged_files_that_are_deleted_after_it_was_decided_stop_it",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite stays the last thing done though rows were read since",
        (
            "protocol/overwrite.py",
            '        if self.step == "given_up" or reads:',
            '        if self.step == "given_up":',
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_the_same_command_again_replaces_nothing_and_after_another_load_it_does",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "rows that are read after an overwrite was decided are staged",
        (
            "protocol/overwrite.py",
            '        return self.step in ("begun", "staged")',
            '        return self.step in ("begun", "staged", "decided")',
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_the_same_command_again_replaces_nothing_and_after_another_load_it_does",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "rows of the plan that follows the beginning of an overwrite go into the table",
        (
            "protocol/overwrite.py",
            '        return self.step in ("begun", "staged")',
            '        return self.step == "staged"',
        ),
        tests=("tests/protocol/test_overwrites_that_stop.py::test_the_first_load_of_a_table_may_be_one",),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite that begins again forgets what was loaded before it",
        (
            "protocol/overwriting.py",
            "        before = running.before if running is not None else _kept(last)",
            "        before = _kept(last)",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_one_that_began_twice_and_is_given_up_leaves_what_was_loaded_before_the_first",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "after an overwrite that was given up files count as read",
        (
            "protocol/overwriting.py",
            "                ranges=before.ranges,\n                marks=before.marks,\n                files=before.files,\n                finished=before.finished,",
            "                ranges=before.ranges,\n                marks=before.marks,\n                files=before.files,\n                finished=last.finished,",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_what_was_half_loaded_before_goes_on_after_it_was_given_up",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite goes on with another option",
        (
            "protocol/overwriting.py",
            "        if running.mode != self.env.settings.overwrite:",
            "        if False:",
        ),
        tests=("tests/protocol/test_overwrites_that_stop.py::test_it_begins_again_with_another_option",),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite goes on without a file that is gone",
        (
            "protocol/overwriting.py",
            "        if missing:\n            one = min(missing)",
            "        if False:\n            one = min(missing)",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_it_begins_again_without_a_file_that_is_gone",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite of no rows empties the table",
        ("protocol/overwriting.py", "        if not given:\n", "        if False:\n"),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_no_files_or_none_with_rows_leave_the_table_as_it_is",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "a file that is half read may be left out of an overwrite of partitions",
        (
            "protocol/overwriting.py",
            "            if 0 < one.stop < rows and one.topic not in infos:",
            "            if False:",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_what_was_half_loaded_is_replaced_with_the_rest",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "a load goes on beside an overwrite that is under way",
        (
            "protocol/overwriting.py",
            "        if running is not None:\n            raise OverwriteUnderWay",
            "        if False:\n            raise OverwriteUnderWay",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_another_load_of_the_flow_is_refused_until_it_is_finished",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "the same overwrite again replaces everything again",
        (
            "protocol/overwriting.py",
            "        if not self.env.settings.again and _is_done(last, mode, given):",
            "        if False:",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_the_same_command_again_replaces_nothing_and_after_another_load_it_does",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "an overwrite with some of the last one's contents is done already",
        (
            "protocol/overwriting.py",
            "    return finished_topics(known.contents) == given",
            "    return finished_topics(known.contents) >= given",
        ),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_some_of_what_the_last_one_has_read_is_another_overwrite",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
    mutant(
        "staged files that are gone are noticed after the decision only",
        ("protocol/overwriting.py", "        self._check_staged(last)\n", ""),
        tests=(
            "tests/protocol/test_overwrites_that_stop.py::test_staged_files_that_another_program_has_deleted_are_read_again",
        ),
        unsimulated="not simulated: nothing is overwritten there",
    ),
)
