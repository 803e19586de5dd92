"""Stream time, its guard, and how far event time has come."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a record exactly as far ahead as it may be is not believed",
        (
            "stages/stream_time.py",
            "timestamp_ms - known_ms > guard.max_jump_ms\n",
            "timestamp_ms - known_ms >= guard.max_jump_ms\n",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_a_jump_within_the_guard_is_believed_and_one_beyond_is_not",
        ),
        unsimulated="not simulated: no record is exactly a day ahead there",
    ),
    mutant(
        "one record too few confirms a jump",
        (
            "stages/stream_time.py",
            "            if self._ahead < guard.confirmations:",
            "            if self._ahead < guard.confirmations - 1:",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_after_a_long_silence_stream_time_follows_those_who_agree",
        ),
        unsimulated="not simulated: no wrong clocks agree with each other there",
    ),
    mutant(
        "a jump that is confirmed goes to the record that confirmed it",
        (
            "stages/stream_time.py",
            "            timestamp_ms = self._ahead_highest_ms  # confirmed: the whole run is believed, its latest included\n",
            "",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_after_a_long_silence_stream_time_follows_those_who_agree",
        ),
        unsimulated="not simulated: no wrong clocks agree with each other there",
    ),
    mutant(
        "a record that is believed does not end a run of those that are not",
        (
            "stages/stream_time.py",
            "        if self._ahead:\n            self._begin_run(0, 0)\n        if now_ms is None",
            "        if now_ms is None",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_wrong_clocks_that_do_not_agree_or_are_contradicted_are_never_believed",
        ),
        unsimulated="not simulated: no wrong clocks agree with each other there",
    ),
    mutant(
        "a heartbeat moves stream time back",
        (
            "stages/stream_time.py",
            "        if self.now_ms is None or to_ms > self.now_ms:\n            self._begin_run(0, 0)\n            self._move(to_ms)",
            "        if self.now_ms is None or to_ms != self.now_ms:\n            self._begin_run(0, 0)\n            self._move(to_ms)",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_from_outside_it_is_moved_forward_only_and_past_the_guard",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "records far from each other confirm a jump",
        (
            "stages/stream_time.py",
            "        if self._ahead and highest_ms - lowest_ms <= max_jump_ms:",
            "        if self._ahead:",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_those_who_agree_lie_within_the_guard_of_each_other",
        ),
        unsimulated="not simulated: no wrong clocks agree with each other there",
    ),
    mutant(
        "a run of jumps is forgotten between two batches",
        ("stages/stream_time.py", "        clock.ahead = self._ahead\n", "        clock.ahead = 0\n"),
        tests=("tests/unit/stages/test_stream_time.py::test_the_first_of_all_is_compared_with_the_clock",),
        unsimulated="not simulated: no wrong clocks agree with each other there",
    ),
    mutant(
        "the partition that is ahead decides how far event time has come",
        (
            "task/event_times.py",
            "    return min(Frontier(one.watermark_ms, *one[:2]) for one in waited_for",
            "    return max(Frontier(one.watermark_ms, *one[:2]) for one in waited_for",
        ),
        tests=(
            "tests/unit/segment/test_event_times.py::test_the_frontier_is_the_watermark_of_the_partition_that_is_behind",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a partition of which nothing is known is not waited for",
        (
            "task/event_times.py",
            "    if any(one.watermark_ms is None for one in waited_for):\n        return None\n",
            "    if all(one.watermark_ms is None for one in waited_for):\n        return None\n",
        ),
        tests=(
            "tests/unit/segment/test_event_times.py::test_the_frontier_is_the_watermark_of_the_partition_that_is_behind",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a writer is idle a millisecond too late",
        ("protocol/idle.py", "clock_ms - silent_ms >= idle_ms)", "clock_ms - silent_ms > idle_ms)"),
        tests=("tests/protocol/test_idle.py::test_it_is_let_go_when_it_has_been_silent_for_long_enough",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a writer is idle in a partition that is not read to its end",
        (
            "protocol/idle.py",
            "            if offset < bounds[tp].stable_end:\n                continue\n",
            "",
        ),
        tests=("tests/protocol/test_idle.py::test_a_partition_that_is_not_read_to_its_end_says_nothing",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what was passed on for an earlier silence counts for a new one",
        (
            "protocol/idle.py",
            "        if known is None or known.since_ms != since_ms:",
            "        if known is None:",
        ),
        tests=(
            "tests/protocol/test_idle.py::test_who_was_heard_of_again_has_to_be_silent_once_more_and_is_asked_anew",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "only the first republisher has to have passed on what there was",
        (
            "protocol/idle.py",
            "            known.hops, known.ends = known.hops[1:], {}",
            "            known.hops, known.ends = (), {}",
        ),
        tests=(
            "tests/protocol/test_idle.py::test_it_is_waited_for_while_any_republisher_is_behind_in_any_partition",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a republisher has passed on one partition's records, so it has all",
        (
            "protocol/idle.py",
            "        return bool(commits) and any(",
            "        return bool(commits) and all(",
        ),
        tests=(
            "tests/protocol/test_idle.py::test_it_is_waited_for_while_any_republisher_is_behind_in_any_partition",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a republisher without a commit is waited for",
        ("protocol/idle.py", "        return bool(commits) and any(", "        return any("),
        tests=("tests/protocol/test_idle.py::test_a_republisher_without_any_commit_does_not_exist_any_more",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what came while republishers were asked is not looked for",
        ("protocol/idle.py", "        return self._still_at_end(found, offsets)", "        return found"),
        tests=("tests/protocol/test_idle.py::test_what_was_passed_on_last_may_have_arrived_meanwhile",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "ends of the topics in between are looked at again each time",
        (
            "protocol/idle.py",
            "                known.ends = known.ends or {",
            "                known.ends = {",
        ),
        tests=(
            "tests/protocol/test_idle.py::test_only_what_was_there_when_it_fell_silent_has_to_be_passed_on",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a writer has been silent since the partition that is named last has heard of it",
        (
            "protocol/event_times.py",
            "heard_ms = max(one.heard_ms, before.heard_ms)",
            "heard_ms = one.heard_ms",
        ),
        tests=(
            "tests/protocol/test_idle.py::test_a_writer_has_been_silent_since_it_was_heard_of_in_any_partition",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what is announced counts as another writer's",
        ("task/source_times.py", '.split("/")[:2])', '.split("/")[:3])'),
        tests=("tests/unit/segment/test_event_times.py::test_what_is_announced_is_of_the_same_writer",),
        unsimulated="not simulated: nothing is announced there",
    ),
    mutant(
        "a record too far ahead is forgotten if stream time reaches it at the last moment",
        (
            "stages/stream_time.py",
            "        if before_ms is None or to_ms < self._next_ms:",
            "        if before_ms is None or to_ms <= self._next_ms:",
        ),
        tests=(
            "tests/unit/stages/test_deduplicate.py::TestGuard::test_it_is_remembered_by_its_own_time_if_stream_time_reaches_that_at_the_last_moment",
        ),
        unsimulated="not simulated: the interval is 30 days there, and no two event times are that far apart",
    ),
    mutant(
        "of a writer that is met by what timers gave no way is known",
        ("task/source_times.py", "read == hops or not self.times.knows(name)", "read == hops"),
        tests=(
            "tests/unit/segment/test_event_times.py::test_of_a_writer_that_is_met_by_what_timers_gave_the_rest_of_the_way_is_known",
        ),
        unsimulated="not found by 1,500 schedules",
    ),
    mutant(
        "of too many records that are too far ahead the first are held",
        (
            "stages/stream_time.py",
            "Held(row, timestamp_ms, now_ms)][-MAX_HELD:]",
            "Held(row, timestamp_ms, now_ms)][:MAX_HELD]",
        ),
        tests=(
            "tests/unit/stages/test_stream_time.py::test_of_too_many_that_are_too_far_ahead_the_latest_are_held",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
)
