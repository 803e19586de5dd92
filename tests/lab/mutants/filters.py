"""Filters: duplicates, replays, sequences."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "duplicates exactly an interval apart are forwarded",
        (
            "stages/deduplicate.py",
            "            if abs(sighting.timestamp_ms - record.timestamp_ms) <= self._interval_ms:",
            "            if abs(sighting.timestamp_ms - record.timestamp_ms) < self._interval_ms:",
        ),
        tests=("tests/unit/stages/test_deduplicate.py::test_the_kip_s_timelines",),
        unsimulated="not simulated: the interval is 30 days there, and no two event times are that far apart",
    ),
    mutant(
        "only duplicates after the first one are dropped",
        (
            "stages/deduplicate.py",
            "            if abs(sighting.timestamp_ms - record.timestamp_ms) <= self._interval_ms:",
            "            if 0 <= record.timestamp_ms - sighting.timestamp_ms <= self._interval_ms:",
        ),
        tests=("tests/unit/stages/test_deduplicate.py::test_the_kip_s_timelines",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a record exactly an interval before stream time is late",
        (
            "stages/deduplicate.py",
            "        late = record.timestamp_ms < now_ms - self._interval_ms\n",
            "        late = record.timestamp_ms <= now_ms - self._interval_ms\n",
        ),
        tests=("tests/unit/stages/test_deduplicate.py::test_the_kip_s_timelines",),
        unsimulated="not simulated: the interval is 30 days there, and no two event times are that far apart",
    ),
    mutant(
        "a record is forgotten a millisecond too soon",
        (
            "stages/deduplicate.py",
            "sighting.noted_ms) + interval_ms + 1\n",
            "sighting.noted_ms) + interval_ms\n",
        ),
        tests=("tests/unit/stages/test_deduplicate.py::test_the_kip_s_timelines",),
        unsimulated="not simulated: the interval is 30 days there, and no two event times are that far apart",
    ),
    mutant(
        "a dropped duplicate extends the interval",
        (
            "stages/deduplicate.py",
            "                return FORWARD if self._is_same(record, sighting) else self._duplicate(record, sighting)",
            "                sighting.timestamp_ms = max(sighting.timestamp_ms, record.timestamp_ms)\n                return FORWARD if self._is_same(record, sighting) else self._duplicate(record, sighting)",
        ),
        tests=("tests/unit/stages/test_deduplicate.py::test_the_kip_s_timelines",),
        unsimulated="not simulated: the interval is 30 days there, and no two event times are that far apart",
    ),
    mutant(
        "the record that was forwarded is a duplicate of itself",
        (
            "stages/deduplicate.py",
            "        return record.spot != NOWHERE and record.spot == sighting.spot\n",
            "        return False\n",
        ),
        tests=(
            "tests/unit/stages/test_deduplicate.py::test_a_duplicate_names_its_original_and_the_original_goes_on_again",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "an element without a position is the same as any other",
        (
            "stages/deduplicate.py",
            "        return record.spot != NOWHERE and record.spot == sighting.spot\n",
            "        return record.spot == sighting.spot\n",
        ),
        tests=("tests/unit/stages/test_deduplicate.py::test_stream_time_can_be_moved_from_outside",),
        unsimulated="not simulated: every element of a filter has a position there",
    ),
    mutant(
        "an older epoch begins again",
        (
            "stages/sequences.py",
            "        if epoch < seen.epoch:\n            return _dropped(",
            "        if epoch < seen.epoch - 1:\n            return _dropped(",
        ),
        tests=("tests/unit/stages/test_sequences.py::test_a_producers_epoch_is_its_own",),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
    mutant(
        "a gap of one number is not reported",
        (
            "stages/sequences.py",
            "if missing and self._gaps else FORWARD",
            "if missing > 1 and self._gaps else FORWARD",
        ),
        tests=(
            "tests/unit/stages/test_sequences.py::test_a_hole_is_reported_with_its_size_and_the_record_goes_on",
        ),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
    mutant(
        "the lowest number of the window is not remembered",
        (
            "stages/sequences.py",
            "        if below >= self._window or self._window == 1:",
            "        if below >= self._window - 1 or self._window == 1:",
        ),
        tests=("tests/unit/stages/test_sequences.py::test_a_window_lets_late_first_arrivals_go_on_once",),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
    mutant(
        "a number that came late into the window may come again",
        (
            "stages/sequences.py",
            "        seen.bits |= 1 << below\n        return FORWARD",
            "        return FORWARD",
        ),
        tests=("tests/unit/stages/test_sequences.py::test_a_window_lets_late_first_arrivals_go_on_once",),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
    mutant(
        "a larger window forwards what a smaller one has not remembered",
        (
            "stages/sequences.py",
            "            bits |= (1 << self._window) - (1 << known)\n",
            "            pass\n",
        ),
        tests=(
            "tests/unit/stages/test_sequences.py::test_a_window_changed_between_runs_lets_nothing_go_on_twice",
        ),
        unsimulated="not simulated: settings stay as they are there",
    ),
    mutant(
        "a jump beyond the window keeps its numbers",
        (
            "stages/sequences.py",
            "        self.bits = 1 if ahead >= window else (",
            "        self.bits = self.bits | 1 if ahead >= window else (",
        ),
        tests=("tests/unit/stages/test_sequences.py::test_a_window_lets_late_first_arrivals_go_on_once",),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
    mutant(
        "siblings on another lane are replays",
        (
            "stages/replays.py",
            "        remember(mark.passed.add(), record)\n        return True\n",
            "        return False\n",
        ),
        tests=("tests/unit/stages/test_replays.py::test_siblings_may_come_on_several_lanes",),
        unsimulated="not simulated: SQE's record keys are not there",
    ),
    mutant(
        "a sibling may come again on its lane",
        (
            "stages/replays.py",
            "                if record.spot.position <= passed.position:",
            "                if record.spot.position < passed.position:",
        ),
        tests=("tests/unit/stages/test_replays.py::test_siblings_of_one_source_offset_pass_once_each",),
        unsimulated="not simulated: SQE's record keys are not there",
    ),
    mutant(
        "a mark expires by the record before the last",
        (
            "stages/replays.py",
            "            marks[source].accepted_ms = now_ms\n",
            "            marks[source].accepted_ms = marks[source].accepted_ms or now_ms\n",
        ),
        tests=("tests/unit/stages/test_replays.py::test_a_mark_is_as_old_as_the_last_record_that_passed",),
        unsimulated="not simulated: SQE's record keys are not there",
    ),
    mutant(
        "a mark is purged when it is exactly as old as it may be",
        (
            "stages/replays.py",
            "        return now_ms - accepted_ms > self._expiry_ms\n",
            "        return now_ms - accepted_ms >= self._expiry_ms\n",
        ),
        tests=("tests/unit/stages/test_replays.py::test_a_mark_expires_when_it_is_strictly_older",),
        unsimulated="not simulated: SQE's record keys are not there",
    ),
    mutant(
        "roots of topics that were created again are one",
        (
            "stages/root_replays.py",
            "            if same and (self._exact or mark.topic_id == topic_id):",
            "            if same:",
        ),
        tests=(
            "tests/unit/stages/test_root_replays.py::test_a_root_created_again_starts_fresh_but_not_for_kuka",
        ),
        schedules=300,
    ),
    mutant(
        "one message more on the way makes another root position",
        (
            "stages/root_replays.py",
            "    while len(position) > ROOT_LENGTH and position.endswith(_ZERO):\n        position = position[:-ORDINAL_LENGTH]\n",
            "    if len(position) > ROOT_LENGTH and position.endswith(_ZERO):\n        position = position[:-ORDINAL_LENGTH]\n",
        ),
        tests=(
            "tests/unit/stages/test_root_replays.py::test_a_one_to_one_republisher_more_or_less_changes_nothing",
        ),
        unsimulated="not simulated: nobody adds or removes a republisher there",
    ),
    mutant(
        "an equal root position is forwarded",
        (
            "stages/root_replays.py",
            "        elif position <= mark.position and not is_sibling",
            "        elif position < mark.position and not is_sibling",
        ),
        tests=(
            "tests/unit/stages/test_root_replays.py::test_earlier_and_equal_positions_of_a_key_are_replays",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "the window of a distinct record begins after its first millisecond",
        (
            "stages/distinct.py",
            "if first.span.start_ms <= timestamp_ms < first.span.end_ms]",
            "if first.span.start_ms < timestamp_ms < first.span.end_ms]",
        ),
        tests=(
            "tests/unit/stages/test_distinct.py::test_verdicts_are_those_of_the_definition_in_batches_torn_anywhere",
        ),
        unsimulated="not simulated: there is one window of ten years there",
    ),
    mutant(
        "of joined sessions the later one's first record counts",
        ("stages/distinct.py", "        first = found[0].spot\n", "        first = found[-1].spot\n"),
        tests=(
            "tests/unit/stages/test_distinct.py::test_of_joined_sessions_the_one_that_began_the_earliest_counts",
        ),
        unsimulated="not simulated: windows are tumbling there",
    ),
    mutant(
        "of a scope that is read again the highest number counts as the last one that passed",
        ("stages/sequences.py", "bits=bits, last=mark.last, passed", "bits=bits, last=mark.highest, passed"),
        tests=(
            "tests/unit/stages/test_sequences.py::test_siblings_of_a_late_first_arrival_go_on_in_a_later_batch_too",
        ),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
    mutant(
        "a producer's name may go on in the name of the scope",
        ("stages/sequences.py", "    return bytes((len(encoded),)) + encoded\n", "    return encoded\n"),
        tests=("tests/unit/stages/test_sequences.py::test_names_of_producers_and_scopes_are_not_mixed_up",),
        unsimulated="not simulated: numbers rise one by one there, without epochs or a window",
    ),
)
