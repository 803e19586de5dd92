"""Marks and witnesses: whether a message is new, and whether something is missing before it."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "envelopes that a changed republisher adds are accepted",
        (
            "envelope/marks.py",
            "        if siblings and last_of(head.chain) != mark.of:",
            "        if siblings and position <= mark.position and last_of(head.chain) != mark.of:",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_a_republisher_that_changed_its_mind_stops_replay_or_not",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a lane has any number of excuses where its partition was entered in the middle",
        (
            "envelope/marks.py",
            "        if self.entered_in_middle and not (mark and mark.excused):",
            "        if self.entered_in_middle:",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_having_entered_in_the_middle_excuses_one_hole_on_a_lane_and_no_second_one",
        ),
        unsimulated="not simulated: no message of a lane is missing there",
    ),
    mutant(
        "excuses that were used are not kept",
        ("envelope/marks.py", "        if excused := [", "        if excused := [][:] and ["),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_excuse_that_was_used_is_remembered_in_what_is_stored",
        ),
        unsimulated="not simulated: no message of a lane is missing there",
    ),
    mutant(
        "the first message of a lane is not asked for its predecessor",
        (
            "envelope/marks.py",
            "        if head.previous:\n            self._check_gap(None, head, offset)\n        self._add(head.lane, position, of, offset, chain)\n",
            "        self._add(head.lane, position, of, offset, chain)\n",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_unknown_lane_that_has_a_history_stops_unless_entered_in_the_middle",
        ),
        schedules=200,
    ),
    mutant(
        "the last root that was counted may come back through a new topic",
        (
            "envelope/marks.py",
            "            if position[:ROOT_LENGTH] <= counted.position[:ROOT_LENGTH]:",
            "            if position[:ROOT_LENGTH] < counted.position[:ROOT_LENGTH]:",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_a_topic_in_between_created_again_stops_when_it_brings_counted_roots",
        ),
        schedules=200,
    ),
    mutant(
        "of several lanes of a path the one that is behind counts",
        (
            "envelope/marks.py",
            "        counted = max(self._path_marks()",
            "        counted = min(self._path_marks()",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_of_several_lanes_of_a_path_the_highest_position_counts",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a lane that is met later does not count for its path",
        (
            "envelope/marks.py",
            "        self._path_marks().setdefault(mark.path, []).append(mark)\n",
            "        self._path_marks()\n",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_a_topic_in_between_created_again_stops_when_it_brings_counted_roots",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a lane that goes on after a new topic begins where it is met",
        (
            "envelope/marks.py",
            "            self._add(head.lane, counted.position, counted.of, offset, chain)\n",
            "            self._add(head.lane, position, of, offset, chain)\n",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_counted_roots_through_a_topic_created_again_are_skipped_on_demand",
        ),
        schedules=500,
    ),
    mutant(
        "a mark keeps the `of` of its lane's first message",
        (
            "envelope/marks.py",
            "        mark.head = head  # instead of",
            "        mark.head = mark.head or head  # instead of",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_mark_may_be_asked_for_its_of_after_many_messages",),
        schedules=200,
    ),
    mutant(
        "a run of messages keeps the `of` of the message before it",
        ("envelope/runs.py", "        mark.head = block.head(last)\n", ""),
        tests=("tests/unit/segment/test_blocks.py::test_all_ways_give_the_same",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a run of messages may repeat a position",
        (
            "envelope/runs.py",
            "    if not (positions > before).all():",
            "    if not (positions >= before).all():",
        ),
        tests=(
            "tests/unit/segment/test_blocks.py::test_all_ways_see_one_strange_message_wherever_a_block_ends",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "in a run of messages the first of a lane is not compared with the siblings before it",
        (
            "envelope/runs.py",
            "    of_before[firsts] = [mark.of for mark in marks]\n",
            "    of_before[firsts] = of[firsts]\n",
        ),
        tests=(
            "tests/unit/segment/test_blocks.py::test_all_ways_see_one_strange_message_wherever_a_block_ends",
        ),
        unsimulated="not simulated: republishers keep their code there until a plan is finished",
    ),
    mutant(
        "a run of messages may say that something is missing before it",
        (
            "envelope/runs.py",
            '    if ((stated > 0) & (columns.rows(columns.previous[order], size, "S") > before)).any():\n        return False\n',
            "",
        ),
        tests=(
            "tests/unit/segment/test_blocks.py::test_all_ways_see_one_strange_message_wherever_a_block_ends",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a record that cannot be read excuses no gap",
        (
            "envelope/marks.py",
            "        if self.compacted or (mark.offset if mark else -1) < self.undecodable_offset:",
            "        if self.compacted:",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_unknown_lane_that_has_a_history_stops_unless_entered_in_the_middle",
        ),
        schedules=200,
    ),
    mutant(
        "a record that cannot be read excuses gaps for ever",
        (
            "envelope/marks.py",
            "        if self.compacted or (mark.offset if mark else -1) < self.undecodable_offset:",
            "        if self.compacted or self.undecodable_offset >= 0:",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_undecodable_record_excuses_a_hole_until_the_lane_is_beyond_it",
        ),
        schedules=200,
    ),
    mutant(
        "one lane more than allowed is accepted",
        (
            "envelope/marks.py",
            "        if len(self._marks) >= self.max_lanes:",
            "        if len(self._marks) > self.max_lanes:",
        ),
        tests=("tests/unit/replays/test_marks.py::test_too_many_lanes_stop_and_known_ones_go_on",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "a replay moves the mark's offset",
        (
            "envelope/marks.py",
            "        if position <= mark.position:\n            return False\n        previous",
            "        if position <= mark.position:\n            mark.offset = offset\n            return False\n        previous",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_a_replay_after_an_undecodable_record_does_not_use_up_what_that_excuses",
        ),
        schedules=300,
    ),
    mutant(
        "raw messages ignore their leader epoch",
        (
            "envelope/marks.py",
            "        position = root_position(leader_epoch, offset)\n        mark = self._marks.get(0)",
            "        position = root_position(0, offset)\n        mark = self._marks.get(0)",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_messages_wrapped_at_the_origin_and_raw_ones_are_their_own_roots",
        ),
        schedules=200,
    ),
    mutant(
        "a filter without a flow takes every partition as read from its beginning",
        (
            "envelope/replay_filter.py",
            "                entered_in_middle=offset > 0,",
            "                entered_in_middle=False,",
        ),
        tests=(
            "tests/unit/replays/test_filter.py::test_a_partition_first_met_behind_its_start_was_entered_in_the_middle",
        ),
        unsimulated="not simulated: a flow reads there",
    ),
    mutant(
        "a lane that goes on after a new topic has one excuse more",
        (
            "envelope/marks.py",
            "self._add(head.lane, position, of, offset, chain).excused = excused",
            "self._add(head.lane, position, of, offset, chain)",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_a_hole_before_a_lane_that_goes_on_after_a_new_topic_uses_up_its_excuse",
        ),
        unsimulated="not found by 1,500 schedules",
    ),
)
