"""Marks that are moved one by one or for a whole run, copied, stored and loaded; and the filter that has them."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "positions of another length are compared as they are",
        (
            "envelope/marks.py",
            "            if head.lane or position:\n                raise self._wrong_length(mark, head, offset)\n            return self.accept_raw(offset, leader_epoch)\n",
            "            return position > mark.position\n",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_messages_wrapped_at_the_origin_and_raw_ones_are_their_own_roots",
        ),
        schedules=200,
    ),
    mutant(
        "a previous position that equals the mark is a gap",
        (
            "envelope/marks.py",
            "        if previous > mark.position:\n",
            "        if previous >= mark.position:\n",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_writer_in_good_order_passes",),
        schedules=200,
    ),
    mutant(
        "a raw message at the mark is new",
        (
            "envelope/marks.py",
            "        if position <= mark.position:\n            return False\n        mark.position = position\n        mark.offset = offset\n        return True\n\n    def has",
            "        if position < mark.position:\n            return False\n        mark.position = position\n        mark.offset = offset\n        return True\n\n    def has",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_messages_wrapped_at_the_origin_and_raw_ones_are_their_own_roots",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a record that cannot be read moves back what is known of one further on",
        (
            "envelope/marks.py",
            "        self.undecodable_offset = max(self.undecodable_offset, offset)",
            "        self.undecodable_offset = offset",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_undecodable_record_excuses_a_hole_until_the_lane_is_beyond_it",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a copy of marks shares its roots",
        (
            "envelope/marks.py",
            "        found._roots = self._roots.copy()",
            "        found._roots = self._roots",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_copy_moves_on_its_own_and_keeps_the_settings",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a copy of marks shares its lanes",
        (
            "envelope/marks.py",
            "{lane: mark.settled() for lane, mark in sorted(self._marks.items())}",
            "{lane: mark for lane, mark in sorted(self._marks.items())}",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_copy_moves_on_its_own_and_keeps_the_settings",),
        schedules=200,
    ),
    mutant(
        "lanes of a copy stay in the order in which they were met",
        (
            "envelope/marks.py",
            "{lane: mark.settled() for lane, mark in sorted(self._marks.items())}",
            "{lane: mark.settled() for lane, mark in self._marks.items()}",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_copy_travels_and_is_kept_without_envelopes",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "of a root that was created several times only the last id is known",
        (
            "envelope/marks.py",
            "            self._roots[topic, partition] = (*known, topic_id)",
            "            self._roots[topic, partition] = (topic_id,)",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_root_created_again_starts_over_loudly",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "marks that are loaded forget what they could not read",
        ("envelope/marks.py", '            undecodable_offset=record["undecodable_offset"],\n', ""),
        tests=("tests/unit/replays/test_marks.py::test_marks_survive_json_exactly",),
        schedules=200,
    ),
    mutant(
        "marks that are loaded forget that they began in the middle",
        ("envelope/marks.py", '            entered_in_middle=record["entered_in_middle"],\n', ""),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_excuse_that_was_used_is_remembered_in_what_is_stored",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a root as far as the one counted through the old topic is new",
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
        "what a lane that goes on counts begins at its own position",
        (
            "envelope/marks.py",
            "            self._add(head.lane, counted.position, counted.of, offset, chain)\n            return False",
            "            self._add(head.lane, position, of, offset, chain)\n            return False",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_counted_roots_through_a_topic_created_again_are_skipped_on_demand",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "the number of siblings is not compared where a lane goes on",
        (
            "envelope/marks.py",
            "        if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:\n            raise self._changed(counted, head, offset)\n",
            "",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_a_republisher_that_changed_its_mind_stops_on_the_new_lane_too",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a record that cannot be read excuses the gap of a lane that is at it",
        (
            "envelope/marks.py",
            "(mark.offset if mark else -1) < self.undecodable_offset",
            "(mark.offset if mark else -1) <= self.undecodable_offset",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_an_unknown_lane_that_has_a_history_stops_unless_entered_in_the_middle",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a gap that is excused twice is",
        (
            "envelope/marks.py",
            "        if self.entered_in_middle and not (mark and mark.excused):",
            "        if self.entered_in_middle:",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_having_entered_in_the_middle_excuses_one_hole_on_a_lane_and_no_second_one",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a mark that was asked for its siblings keeps them",
        (
            "envelope/mark.py",
            "            self._of = last_of(self.head.chain) if self.head.chain else 0\n",
            "            self._of = self._of or (last_of(self.head.chain) if self.head.chain else 0)\n",
        ),
        tests=("tests/unit/replays/test_marks.py::test_a_mark_may_be_asked_for_its_of_after_many_messages",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a copy of a mark forgets its excuse",
        ("envelope/mark.py", "        found.excused = self.excused\n", ""),
        tests=("tests/unit/replays/test_marks.py::test_an_excuse_that_was_used_is_remembered_in_a_copy",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a message that is met in the middle counts as met at the beginning",
        (
            "envelope/replay_filter.py",
            "                entered_in_middle=offset > 0,",
            "                entered_in_middle=offset > 1,",
        ),
        tests=(
            "tests/unit/replays/test_filter.py::test_a_partition_first_met_behind_its_start_was_entered_in_the_middle",
        ),
        unsimulated="not simulated: a filter without a flow",
    ),
    mutant(
        "a filter takes an envelope in a raw topic for a raw message",
        (
            "envelope/replay_filter.py",
            "        if is_enveloped(value) or chain_header(headers) is not None:",
            "        if is_enveloped(value):",
        ),
        tests=("tests/unit/replays/test_filter.py::test_a_chain_in_headers_counts_as_one_in_the_value",),
        unsimulated="not simulated: a filter without a flow",
    ),
    mutant(
        "marks of a topic that was created again are loaded",
        (
            "envelope/replay_filter.py",
            "                if now != marks.topic_id:",
            "                if now == b'':",
        ),
        tests=("tests/unit/replays/test_filter.py::test_marks_of_a_topic_created_again_are_refused",),
        unsimulated="not simulated: a filter without a flow",
    ),
    mutant(
        "a filter that was loaded forgets which topics are compacted",
        ("envelope/replay_filter.py", '                    compacted=record["topic"] in compacted,\n', ""),
        tests=("tests/unit/replays/test_filter.py::test_a_compacted_topic_may_have_holes",),
        unsimulated="not simulated: a filter without a flow",
    ),
    mutant(
        "notices are told again and again",
        ("envelope/replay_filter.py", "            marks.notices.clear()\n", ""),
        tests=("tests/unit/replays/test_filter.py::test_notices_are_told_once",),
        unsimulated="not simulated: a filter without a flow",
    ),
)
