"""Windows, sessions, and the timetable by which they close."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a window that closes now takes one more record",
        (
            "stages/windows.py",
            "if self._closes(span) > now_ms]\n        for span",
            "if self._closes(span) >= now_ms]\n        for span",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_tumbling_window_closes_with_the_record_that_passes_its_end_and_lateness",
        ),
        unsimulated="not simulated: windows wait a day for late records there",
    ),
    mutant(
        "a record is folded before what it closes is closed",
        (
            "stages/windows.py",
            "        # Before the fold: a record that moves stream time must not get into a window that it closes.\n        self._close_due()\n",
            "        # Before the fold: a record that moves stream time must not get into a window that it closes.\n",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_tumbling_window_closes_with_the_record_that_passes_its_end_and_lateness",
        ),
        unsimulated="not simulated: windows wait a day for late records there",
    ),
    mutant(
        "a session may be joined when it closes",
        (
            "stages/windows.py",
            "        if self._closes(span) <= now_ms:\n            return False\n        state: State",
            "        if self._closes(span) < now_ms:\n            return False\n        state: State",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_session_is_prolonged_and_joined_and_closes_behind_gap_and_lateness",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "sessions a gap apart are two",
        (
            "stages/windowing.py",
            "one.span.start_ms - gap_ms <= timestamp_ms <= one.span.end_ms + gap_ms)",
            "one.span.start_ms - gap_ms <= timestamp_ms < one.span.end_ms + gap_ms)",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_session_is_prolonged_and_joined_and_closes_behind_gap_and_lateness",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "a session closes a millisecond too soon",
        (
            "stages/windowing.py",
            "        return span.end_ms + windowing.gap_ms + grace_ms + 1\n",
            "        return span.end_ms + windowing.gap_ms + grace_ms\n",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_session_is_prolonged_and_joined_and_closes_behind_gap_and_lateness",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "a later session is merged in place of the earlier one",
        (
            "stages/windows.py",
            "self._merge(state, window.state))\n",
            "self._merge(window.state, state))\n",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_session_is_prolonged_and_joined_and_closes_behind_gap_and_lateness",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "a record that fails in one window is in those before it",
        (
            "stages/windows.py",
            "        changed = codec.new() if state is None else codec.copy(state)\n        check_nothing",
            "        changed = codec.new() if state is None else state\n        check_nothing",
        ),
        tests=("tests/unit/stages/test_windows.py::test_a_fold_that_fails_leaves_no_window_half_changed",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a hopping window begins one step too late",
        (
            "stages/windowing.py",
            "        count = (self.size_ms - 1 - since_ms) // self.advance_ms + 1\n",
            "        count = max(1, (self.size_ms - 1 - since_ms) // self.advance_ms)\n",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_record_lies_in_several_hopping_windows_and_in_those_that_are_still_open",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "an offset moves windows back",
        (
            "stages/windowing.py",
            "        start_ms = timestamp_ms - (timestamp_ms - self.offset_ms) % self.size_ms\n",
            "        start_ms = timestamp_ms - (timestamp_ms + self.offset_ms) % self.size_ms\n",
        ),
        tests=("tests/unit/stages/test_windowing.py::test_an_offset_moves_all_windows",),
        unsimulated="not simulated: windows begin at multiples of their size there",
    ),
    mutant(
        "a window that was extended is not listed again",
        (
            "stages/windows.py",
            "                window.reminded_ms = at_ms\n                self._timetable.remind(row, at_ms)\n",
            "                window.reminded_ms = at_ms\n",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_prolonged_session_closes_behind_those_that_end_before_it",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "windows that close together are given in the order of arrival",
        (
            "stages/timetable.py",
            "                heapify(rows)\n                self._taken_ms = due_ms\n",
            "                self._taken_ms = due_ms\n",
        ),
        tests=("tests/unit/stages/test_windows.py::test_results_come_by_moment_then_key_then_beginning",),
        unsimulated="not simulated: windows that close together are read in no order there",
    ),
    mutant(
        "of a bucket only the earliest listing counts",
        (
            "stages/timetable.py",
            "            bucket.earliest_due_ms = min(bucket.earliest_due_ms, listed_ms)\n",
            "            bucket.earliest_due_ms = max(bucket.earliest_due_ms, listed_ms)\n",
        ),
        tests=(
            "tests/unit/stages/test_timetable.py::test_a_bucket_is_opened_for_the_earliest_whichever_batch_listed_it",
        ),
        unsimulated="not simulated: windows wait a day for late records there",
    ),
    mutant(
        "a window retained is read for ever",
        (
            "stages/windows.py",
            "        expired = [row for row in sorted(self._due) if row.startswith(RETAINED)]\n",
            "        expired: list[bytes] = []\n",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_closed_windows_can_be_read_for_as_long_as_they_are_retained",
        ),
        unsimulated="not simulated: no closed window is kept there",
    ),
    mutant(
        "a window that an earlier attempt wrote is folded again",
        (
            "stages/windows.py",
            "        if self._table.settled(row):  # an earlier attempt wrote it: to fold again would count twice\n            return FORWARD\n",
            "",
        ),
        tests=("tests/unit/stages/test_windows.py::test_a_window_that_was_written_is_not_folded_again",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "at the end of the input windows stay open that stream time has opened further on",
        (
            "stages/windows.py",
            "latest_ms = event_ms if now_ms is None else max(now_ms, event_ms)",
            "latest_ms = event_ms",
        ),
        tests=(
            "tests/unit/stages/test_windows.py::test_the_end_of_the_input_closes_what_stream_time_has_opened_beyond_the_event_time_given",
        ),
        unsimulated="not found by 1,500 schedules",
    ),
    mutant(
        "what was extended is not listed again when a batch ends at its old moment",
        ("stages/expiring_rows.py", "item.listed_ms <= now_ms:", "item.listed_ms < now_ms:"),
        tests=(
            "tests/unit/stages/test_windows.py::test_a_session_extended_before_a_batch_ends_at_its_old_moment_closes_at_its_new_one",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "a timer is not listed again when a batch ends at the moment of the one before",
        ("stages/timers.py", "listed_ms <= now_ms):", "listed_ms < now_ms):"),
        tests=(
            "tests/unit/stages/test_timers.py::test_a_timer_that_goes_on_fires_also_where_batches_end_at_its_very_moments",
        ),
        unsimulated="not simulated: no timers are there",
    ),
    mutant(
        "timers of one moment are counted as without end though records come in between",
        ("stages/timers.py", "        key.reached_ms, key.back = None, 0\n", ""),
        tests=(
            "tests/unit/stages/test_timers.py::test_with_each_record_of_its_key_a_timer_may_go_back_anew",
        ),
        unsimulated="not simulated: no timers are there",
    ),
    mutant(
        "a deletion is forgotten while a change before it may still come",
        (
            "stages/table_join.py",
            "        if valid and kept[0].value is None:",
            "        if kept and kept[0].value is None:",
        ),
        tests=(
            "tests/unit/stages/test_joining.py::test_a_deletion_is_kept_for_as_long_as_a_change_before_it_may_come",
        ),
        unsimulated="not simulated: no joins are there",
    ),
    mutant(
        "of several values that find one partner all but the first are told alone as well",
        (
            "stages/joining.py",
            "        for one in found:\n            one.alone = None\n",
            "        for one in found[:1]:\n            one.alone = None\n",
        ),
        tests=(
            "tests/unit/stages/test_joining.py::test_a_partner_of_several_values_leaves_none_of_them_alone",
        ),
        unsimulated="not simulated: no joins are there",
    ),
)
