"""Defects that this project has had, brought back into today's code."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import argument, before, drop, replace, unguard
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a value that its codec refuses leaves its key behind, and all later values go under the keys of others",
        (
            "columns",
            replace(
                "f'values{n}({value}); keys{n}({key}); paths{n}({path}); inputs{n}(i)'",
                "f'keys{n}({key}); values{n}({value}); paths{n}({path}); inputs{n}(i)'",
            ),
        ),
        killed_by="protocol/task/test_poison::test_a_value_that_its_codec_refuses_leaves_the_others_with_their_own_keys",
    ),
    mutant(
        "a redo without a shuffle forgets keys that belong to another state partition",
        ("Level.fold", before("self._report.mispartitioned += work.take(run)", "if work.done:\n    return")),
        killed_by="test_redo_without_shuffle::test_a_key_that_lies_elsewhere_is_not_forgotten_when_its_neighbour_is_done",
        schedules=1000,
    ),
    mutant(
        "`rebuild --resume` goes on with an attempt that was retired or cleared",
        ("Attempt.open", replace("Rebuilding.of(self.plan).attempt >= 0", "True")),
        ("Attempts.close", replace("if attempt is not None and attempt.open:", "del attempt")),
        (
            "Attempts.delete",
            drop(
                "if attempt.open:",
                "self._set_home(attempt.name, home, replace(home, number=-1, plan_id=''), None, plan.number + 1)",
            ),
        ),
        ("Rebuild._to_resume", replace("known.attempt != spec.attempt", "False")),
        (
            "Rebuild._to_resume",
            replace(
                "(known.silent_until, known.unfinished) != (spec.silent_until, spec.unfinished)",
                "known.silent_until != spec.silent_until",
            ),
        ),
        killed_by="test_crash_sweep::test_killed_after_each_write",
        schedules=500,
    ),
    mutant(
        "a store that does not answer, or another run's claim, counts as poison in filters and windows",
        ("RecordWork._POISON", replace("(UserCodeError, PoisonError, EnvelopeError)", "(Exception,)")),
        killed_by="protocol/test_outages::test_a_store_that_does_not_answer_is_waited_for_at_every_read",
        schedules=1500,
    ),
    mutant(
        "windows ask a heartbeat function again, with another key in its context",
        (
            "OperatorWriter._into_stage",
            replace(
                "self._unit(node, 'beat', nothing, \"''\", f'{at.path} + number(part)')",
                "self._unit(node, 'beat', f'passing({n}, {at.value})[1]({at.value})', f'passing({n}, {at.value})[0]', f'{at.path} + number(part)')",
            ),
        ),
        (
            "RecordWork.apply",
            replace(
                "if record is None:",
                "beats = RecordFunctions('', self._task.now_ms).of(self._kind.heartbeat)\nif record is None or (beats is not None and beats(record)):\n    self._beat(unit)\nelse:\n    self._process(record, unit)",
            ),
        ),
        killed_by="test_heartbeats::test_a_heartbeat_is_folded_nowhere_and_closes_windows",
        schedules=500,
    ),
    mutant(
        "an attempt without a shuffle ends the service with what user code raises on mis-partitioned keys",
        ("Processor.attempt", unguard("if not job.in_place:")),
        killed_by="test_blame::test_a_fold_that_fails_only_because_a_key_lies_elsewhere_does_not_count",
        schedules=1500,
    ),
    mutant(
        "operators after `changes()` end the service for states that an attempt only tried",
        (
            "Level._push_changes",
            replace(
                "self._break(stage, 'the operators after changes()', error)",
                "raise PoisonError(str(error)) from error",
            ),
        ),
        killed_by="test_poison::test_an_output_of_changes_that_is_too_large_stops",
        schedules=1000,
    ),
    mutant(
        "a record without a key goes to a compacted topic: refused after the seal",
        ("Gatherer._of_one", replace("target.needs_key", "False")),
        killed_by="test_outputs_refused::test_an_output_without_a_key_for_a_compacted_topic_is_poison",
        schedules=500,
    ),
    mutant(
        "an event time far ahead becomes the record's time: refused after the seal",
        (
            "MemoryWriter.write",
            replace("timestamp_ms if first <= timestamp_ms <= last else now_ms", "max(timestamp_ms, 0)"),
        ),
        killed_by="test_outputs_refused::test_an_event_far_ahead_is_published_with_its_time_and_a_kafka_time_that_is_accepted",
        schedules=500,
    ),
    mutant(
        "event times near the ends of 64 bits end a service with filters or windows",
        ("check_timestamp", replace("not -1 <= timestamp_ms <= MAX_TIMESTAMP_MS", "False")),
        killed_by="test_envelope::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        schedules=500,
    ),
    mutant(
        "a third attempt at a batch that fails ends the service",
        ("Candidates.judge", replace("fresh and len(self.known) < ONE_BY_ONE", "False")),
        (
            "Processor.run",
            replace(
                "attempt += 1",
                "attempt += 1\nif attempt > 3:\n    raise PoisonError('user code failed in 3 attempts')",
            ),
        ),
        killed_by="test_blame::test_a_poison_message_may_be_repeated_as_often_as_it_likes",
        schedules=1000,
    ),
    mutant(
        "a view that cannot be shown fails after the seal",
        (
            "View._shown",
            before(
                "try:\n    return self.show(row, content)\nexcept Exception as error:\n    raise_outage(error, f'the view of row {row!r}')\n    reason = {'error': f'this state cannot be shown: {type(error).__name__}: {text_of(error)}'}\n    return json.dumps(reason, ensure_ascii=False) if self.kind == 'json' else reason",
                "return self.show(row, content)",
            ),
        ),
        killed_by="test_states::test_a_state_that_cannot_be_shown_is_shown_as_the_reason",
        schedules=1000,
    ),
    mutant(
        "a commit for partitions that a new topic does not have is repeated without end",
        ("inputs:commit", replace("infos = log.describe(ids)", "raise")),
        killed_by="test_recreated_raw_input::test_it_may_have_other_partitions_and_every_service_reports_it",
        schedules=1000,
    ),
    mutant(
        "after a rebuild, a batch that was published in part is cut otherwise",
        (
            "find_progress",
            replace("behind.unfinished if base is last else _unfinished_after(base, last)", "None"),
        ),
        killed_by="test_rebuild_published_in_part::test_a_batch_published_in_part_is_finished_as_it_was_cut",
        schedules=500,
    ),
    mutant(
        "two runs of a republisher publish in turns, and a reader that enters there stops",
        ("PartitionMarks._check_gap", replace("not (mark and mark.excused)", "mark is None")),
        ("_progress_at", replace("decode_marks(meta.get('marks'))", "None")),
        killed_by="test_marks::test_having_entered_in_the_middle_excuses_one_hole_on_a_lane_and_no_second_one",
        schedules=1000,
    ),
    mutant(
        "malformed envelopes are accepted on a known lane and refused elsewhere",
        ("open_head", drop("if head.crc32 or head.ByteSize() != len(body):")),
        ("check_head", replace("check_values(head)", "check_timestamp(head.timestamp_ms)")),
        ("Columns.__init__", drop("ordinary &= self._agree(self.chain_size, id_size)")),
        killed_by="test_envelope::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        schedules=500,
    ),
    mutant(
        "sound inputs are skipped for what a failing one did before it failed",
        ("Candidates.judge", drop("cleared = self.known.keys() - outcomes.keys() - self._cleared")),
        ("Candidates.judge", replace("fresh and len(self.known) < ONE_BY_ONE", "False")),
        (
            "Processor.run",
            replace(
                "self.attempt(batch, batch.decision.sealed or (), candidates=known)",
                "self.attempt(batch, (*(batch.decision.sealed or ()), *left_out))",
            ),
        ),
        killed_by="test_blame::test_a_bad_input_takes_no_good_one_with_it",
        schedules=1500,
    ),
    mutant(
        "after a topic in between was created again, siblings that were not counted yet are skipped",
        (
            "PartitionMarks._accept_again",
            replace(
                "if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:",
                "highest = counted.position[:ROOT_LENGTH]",
            ),
        ),
        (
            "PartitionMarks._accept_again",
            replace("position <= counted.position", "position[:ROOT_LENGTH] <= highest"),
        ),
        (
            "PartitionMarks._accept_again",
            replace(
                "self._add(head.lane, counted.position, counted.of, offset, chain)",
                "self._add(head.lane, highest.ljust(len(position), b'\\xff'), 0, offset, chain)",
            ),
        ),
        killed_by="test_marks::test_what_was_not_counted_of_the_highest_root_is_not_skipped",
        schedules=2500,
    ),
    mutant(
        "a position out of bounds is accepted and silences its lane",
        (
            "head:check_values",
            replace(
                "position[_OFFSET_SIGN] >= _SIGN_BIT or position[:ROOT_LENGTH] > _LAST_ROOT or ordinal >= of",
                "ordinal >= of",
            ),
        ),
        (
            "Columns._agree",
            replace("(epoch <= _LAST_EPOCH) & (offset < 1 << 63)", "(epoch >= 0) & (offset >= 0)"),
        ),
        killed_by="test_envelope::test_a_position_out_of_bounds_is_refused_although_no_chain_is_walked",
        schedules=2000,
    ),
    mutant(
        "stages after one shuffle share what was carried for another one of them",
        (
            "Shuffle._way",
            replace(
                "self._ways.setdefault(stage, (carried_need(self._flow, node), own, {}, part_of))",
                "self._ways.setdefault(-1, (carried_need(self._flow, node), own, {}, part_of))",
            ),
        ),
        killed_by="test_carried::test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given",
        schedules=500,
    ),
    mutant(
        "a topic that was created again before the flow has read on is folded in place of the one that was counted",
        (
            "find_progress",
            replace("recreated_since(last, infos) | {*last.layout.gone}", "frozenset(last.layout.gone)"),
        ),
        killed_by="test_recreated_raw_input::test_what_was_counted_of_the_old_topic_cannot_be_folded_again",
        schedules=2000,
    ),
    mutant(
        "a flow that was folded again is silent up to the old offsets in a topic that was created again",
        ("Rebuilding.carried", argument("silent_until", "self.silent_until")),
        killed_by="test_recreated_raw_input::test_after_a_rebuild_a_topic_created_again_is_counted_and_published",
    ),
    mutant(
        "a rebuild that another run has overtaken closes and deletes what that one has made the flow's states",
        (
            "Attempts.close",
            replace("self._find(name) if name != self.env.flow.name else None", "self._find(name)"),
        ),
        ("Attempts._find", drop("check_claim(self.env, self.mine)")),
        killed_by="test_call_sweep::test_paused_at_each_call",
        schedules=6000,
    ),
    mutant(
        "of the ways of a writer only those are asked that the first partition has met",
        ("KnownTimes.__post_init__", replace("with_route(before.hops, known.hops)", "before.hops")),
        killed_by="test_ways_of_a_writer::test_each_partition_learns_all_ways_by_which_a_writer_came_to_the_topic",
    ),
    mutant(
        "a partition that has met a writer hears of no other ways of it",
        ("EventTimes.hear", drop("writer.hops = with_route(writer.hops, stated.hops)")),
        killed_by="test_ways_of_a_writer::test_each_partition_learns_all_ways_by_which_a_writer_came_to_the_topic",
    ),
    mutant(
        "a rebuild that is resumed to an earlier end does not know what receivers have",
        ("Rebuild._to_resume", replace("ahead.items() - known.published_until.items()", "False")),
        killed_by="test_rebuild::test_an_attempt_that_is_resumed_to_an_earlier_point_knows_what_receivers_have",
    ),
)
