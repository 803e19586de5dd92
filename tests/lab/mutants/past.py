"""Defects that this project has had, as text replacements that bring the old behaviour back into today's code."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a redo in place forgets keys that belong to another state partition",
        (
            "task/level.py",
            "        if stage != self._folding:\n",
            ("        if work.done:\n            return\n        if stage != self._folding:\n"),
        ),
        tests=(
            "tests/protocol/test_redo_in_place.py::test_a_key_that_lies_elsewhere_is_not_forgotten_when_its_neighbour_is_done",
        ),
        schedules=1000,
    ),
    mutant(
        "`rebuild --resume` goes on with an attempt that was retired or cleared",
        ("operations/attempts.py", "return self.plan.attempt >= 0", "return True"),
        (
            "operations/attempts.py",
            "            if attempt is not None and attempt.open:\n                self._close(attempt)\n",
            "            del attempt\n",
        ),
        (
            "operations/attempts.py",
            "        if attempt.open:\n            attempt = self._close(attempt)\n",
            "",
        ),
        (
            "operations/attempts.py",
            '        self._set_home(attempt.name, home, replace(home, number=-1, plan_id=""), None, plan.number + 1)\n',
            "",
        ),
        ("operations/rebuild.py", "if found.plan.attempt != spec.number:", "if False:"),
        (
            "operations/rebuild.py",
            "if (found.plan.silent_until, found.plan.unfinished) != (spec.silent_until, spec.unfinished):",
            "if found.plan.silent_until != spec.silent_until:",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_whatever_was_interrupted_where_nothing_but_the_states_is_ever_taken_for_them",
        ),
        schedules=500,
    ),
    mutant(
        "a store that does not answer, or another run's claim, counts as poison in filters and windows",
        (
            "stages/record_work.py",
            "_POISON: Final = (UserCodeError, PoisonError, EnvelopeError)",
            "_POISON: Final = (Exception,)",
        ),
        tests=(
            "tests/protocol/test_outages.py::test_a_store_that_does_not_answer_is_waited_for_at_every_read",
        ),
        schedules=1500,
    ),
    mutant(
        "windows ask a heartbeat function again, with another key in its context",
        (
            "task/operator_text.py",
            (
                """node, "beat", "b''" if n in self._shuffled else "None", "''", f"{at.path} + number(part)"\n"""
            ),
            (
                """node, "beat", f"passing({n}, {at.value})[1]({at.value})", f"passing({n}, {at.value})[0]","""
                """ f"{at.path} + number(part)"\n"""
            ),
        ),
        (
            "stages/record_work.py",
            "                if record is None:\n",
            (
                '                beats = RecordFunctions("", self._task.now_ms).of(self._kind.heartbeat)\n'
                "                if record is None or (beats is not None and beats(record)):\n"
            ),
        ),
        (
            "stages/window_kind.py",
            "CONTEXT if self.fold.takes_context else ENVELOPE",
            "CONTEXT if any(one.takes_context for one in self.functions) else ENVELOPE",
        ),
        tests=("tests/protocol/test_heartbeats.py::test_a_heartbeat_is_folded_nowhere_and_closes_windows",),
        schedules=500,
    ),
    mutant(
        "a trial in place ends the service with what user code raises on keys that lie elsewhere",
        (
            "protocol/processing.py",
            "                if not job.in_place:\n                    raise\n",
            "                raise\n",
        ),
        tests=(
            "tests/protocol/test_blame.py::test_a_fold_that_fails_only_because_a_key_lies_elsewhere_does_not_count",
        ),
        schedules=1500,
    ),
    mutant(
        "operators after `changes()` end the service for states that an attempt only tried",
        (
            "task/level.py",
            '            self._break(stage, "the operators after changes()", error)\n',
            "            raise PoisonError(str(error)) from error\n",
        ),
        tests=("tests/protocol/test_poison.py::test_an_output_of_changes_that_is_too_large_stops",),
        schedules=1000,
    ),
    mutant(
        "a record without a key goes to a compacted topic: refused after the seal",
        ("task/outputs.py", "if target.needs_key:", "if False:"),
        tests=(
            "tests/protocol/test_outputs_refused.py::test_an_output_without_a_key_for_a_compacted_topic_is_poison",
        ),
        schedules=500,
    ),
    mutant(
        "an event time far ahead becomes the record's time: refused after the seal",
        (
            "adapters/memory/_writer.py",
            "stamp = timestamp_ms if first <= timestamp_ms <= last else now_ms",
            "stamp = max(timestamp_ms, 0)",
        ),
        tests=(
            "tests/protocol/test_outputs_refused.py::test_an_event_far_ahead_is_published_with_its_time_and_a_kafka_time_that_is_accepted",
        ),
        schedules=500,
    ),
    mutant(
        "event times near the ends of 64 bits end a service with filters or windows",
        ("envelope/head.py", "    if not -1 <= timestamp_ms <= MAX_TIMESTAMP_MS:\n", "    if False:\n"),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        ),
        schedules=500,
    ),
    mutant(
        "a third attempt at a batch that fails ends the service",
        (
            "protocol/processing.py",
            "            attempt += 1\n",
            (
                "            attempt += 1\n"
                "            if attempt > 3:\n"
                '                raise PoisonError("user code failed in 3 attempts")\n'
            ),
        ),
        # At that time everything that failed was left out at once, without a trial.
        (
            "protocol/processing.py",
            "elif fresh and len(self.known) < ONE_BY_ONE:",
            "elif False:",
        ),
        tests=("tests/protocol/test_blame.py::test_a_poison_message_may_be_repeated_as_often_as_it_likes",),
        schedules=1000,
    ),
    mutant(
        "a view that cannot be shown fails after the seal",
        (
            "task/states.py",
            "        try:\n            return self.show(row, content)\n",
            "        return self.show(row, content)\n        try:\n            return self.show(row, content)\n",
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_a_state_that_cannot_be_shown_is_shown_as_the_reason",
        ),
        schedules=1000,
    ),
    mutant(
        "a commit for partitions that a new topic does not have is repeated for ever",
        ("protocol/inputs.py", "        infos = log.describe(ids)\n", "        raise\n"),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_it_may_have_other_partitions_and_everybody_is_told",
        ),
        schedules=1000,
    ),
    mutant(
        "after a rebuild, a batch that was published in part is cut otherwise",
        (
            "operations/progress.py",
            "rest = base.unfinished if base is last else unfinished",
            "rest = None",
        ),
        tests=(
            "tests/protocol/test_rebuild_published_in_part.py::test_a_batch_published_in_part_is_finished_as_it_was_cut",
        ),
        schedules=500,
    ),
    mutant(
        "two runs of a republisher publish in turns, and a reader that enters there stops",
        (
            "envelope/marks.py",
            "if self.entered_in_middle and not (mark and mark.excused):",
            "if self.entered_in_middle and mark is None:",
        ),
        (
            "protocol/committed.py",
            'marks = decode_marks(meta.get("marks"))',
            "marks = None",
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_having_entered_in_the_middle_excuses_one_hole_on_a_lane_and_no_second_one",
        ),
        schedules=1000,
    ),
    mutant(
        "malformed envelopes are accepted on a known lane and refused elsewhere",
        (
            "envelope/head.py",
            "    check_fields(head)\n    check_values(head)\n",
            "    check_fields(head)\n    check_timestamp(head.timestamp_ms)\n",
        ),
        (
            "envelope/head.py",
            (
                "    if head.crc32 or head.ByteSize() != len(body):  # it holds something that the parser has left out\n"
                "        check_once(value)\n"
            ),
            "",
        ),
        ("envelope/columns.py", "        ordinary &= self._agree(self.chain_size, id_size)\n", ""),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        ),
        schedules=500,
    ),
    mutant(
        "sound inputs are left out for what a failing one did before it failed",
        (
            "protocol/processing.py",
            "            innocent = self.known.keys() - found.keys() - self._acquitted\n",
            "            pass\n",
        ),
        ("protocol/processing.py", "elif fresh and len(self.known) < ONE_BY_ONE:", "elif False:"),
        (
            "protocol/processing.py",
            "report = self.attempt(batch, batch.exclusions, suspects=left_out)",
            "report = self.attempt(batch, (*batch.exclusions, *left_out))",
        ),
        tests=("tests/protocol/test_blame.py::test_a_bad_input_takes_no_good_one_with_it",),
        schedules=1500,
    ),
    mutant(
        "after a topic in between was created again, siblings that were not counted yet are skipped",
        (
            "envelope/marks.py",
            (
                "        if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:\n"
                "            raise self._changed(counted, head, offset)\n"
                "        if position <= counted.position:\n"
                "            self._add(head.lane, counted.position, counted.of, offset, chain)\n"
            ),
            (
                "        highest = counted.position[:ROOT_LENGTH]\n"
                "        if position[:ROOT_LENGTH] <= highest:\n"
                '            self._add(head.lane, highest.ljust(len(position), b"\\xff"), 0, offset, chain)\n'
            ),
        ),
        tests=(
            "tests/unit/replays/test_marks.py::test_what_was_not_counted_of_the_highest_root_is_not_skipped",
        ),
        schedules=2500,
    ),
    mutant(
        "a position out of bounds is accepted and silences its lane",
        (
            "envelope/head.py",
            "if position[_OFFSET_SIGN] >= _SIGN_BIT or position[:ROOT_LENGTH] > _LAST_ROOT or ordinal >= of:",
            "if ordinal >= of:",
        ),
        (
            "envelope/columns.py",
            "sound &= (epoch <= _LAST_EPOCH) & (offset < 1 << 63) & (ordinal < of)",
            "sound &= (epoch >= 0) & (offset >= 0) & (ordinal < of)",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_position_out_of_bounds_is_refused_although_no_chain_is_walked",
        ),
        schedules=2000,
    ),
    mutant(
        "stages after one shuffle share what was carried for another one of them",
        (
            "task/level.py",
            "        source = stage, topic, partition, offset\n",
            "        source = 0, topic, partition, offset\n",
        ),
        tests=(
            "tests/protocol/test_carried.py::test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given",
        ),
        schedules=500,
    ),
    mutant(
        "a topic that was created again before the flow has read on is folded in place of the one that was counted",
        (
            "operations/progress.py",
            "    recreated = recreated_since(last, infos) | {*last.layout.gone}\n",
            "    recreated = frozenset(last.layout.gone)\n",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_what_was_counted_of_the_old_topic_cannot_be_folded_again",
        ),
        schedules=2000,
    ),
    mutant(
        "a flow that was folded again is silent up to the old offsets in a topic that was created again",
        (
            "protocol/planning.py",
            "        silent_until=_without(last.silent_until, others),\n",
            "        silent_until=last.silent_until,\n",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_after_a_rebuild_a_topic_created_again_is_counted_and_published",
        ),
        unsimulated="rare: seed 1051412 shows it",
    ),
    mutant(
        "a rebuild that another run has overtaken closes and deletes what that one has made the flow's states",
        ("operations/attempts.py", "        check_claim(env, self.mine)  # else", "        pass  # else"),
        (
            "operations/attempts.py",
            "self._find(name) if name != self.env.flow.name else None",
            "self._find(name)",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_a_rebuild_that_another_run_overtakes_anywhere_changes_nothing",
        ),
        schedules=1000,
    ),
    mutant(
        "of the ways of a writer only those are asked that the first partition has met",
        ("protocol/event_times.py", "with_route(before.hops, one.hops)", "before.hops"),
        tests=("tests/protocol/test_ways_of_a_writer.py::test_what_comes_by_another_topic_is_waited_for",),
        unsimulated="not simulated: no republisher reads two topics there",
    ),
    mutant(
        "a partition that has met a writer hears of no other ways of it",
        ("task/event_times.py", "        writer.hops = with_route(writer.hops, found.hops)\n", ""),
        tests=("tests/protocol/test_ways_of_a_writer.py::test_what_comes_by_another_topic_is_waited_for",),
        unsimulated="not simulated: no republisher reads two topics there",
    ),
    mutant(
        "a rebuild that is resumed to an earlier end does not know what receivers have",
        ("operations/rebuild.py", "if ahead.items() - found.plan.published_until.items():", "if False:"),
        tests=(
            "tests/protocol/test_rebuild.py::test_an_attempt_that_is_resumed_to_an_earlier_point_knows_what_receivers_have",
        ),
        unsimulated="not simulated: rebuilds end where the flow stood there",
    ),
)
