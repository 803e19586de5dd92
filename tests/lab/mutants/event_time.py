"""Event time: what waits for it, what it lets pass, and which windows it closes."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import body, drop, replace
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "what a writer states elsewhere is believed of a partition that is not read to its end",
        ("KnownTimes.at", replace("if writer not in before.writers:", "if True:")),
        ("KnownTimes.at", replace("times_after.unsure = True", "times_after.hear(writer, stated)")),
        killed_by="test_event_time_worlds::test_small_worlds_give_what_their_facts_give",
    ),
    mutant(
        "a writer is idle though its republishers are behind",
        ("IdleWriters._is_behind", replace("bool(commits)", "False")),
        killed_by="test_event_time_worlds::test_small_worlds_give_what_their_facts_give",
    ),
    mutant(
        "a silent writer is taken to be as far as all others are now",
        ("IdleWriters.find", replace("passed_ms - idle_ms", "passed_ms")),
        killed_by="test_event_time_worlds::test_small_worlds_give_what_their_facts_give",
    ),
    mutant(
        "a republisher states what it knows after the batch",
        (
            "UnplannedTimes.begin",
            replace(
                "self._idle.find(known, offsets, bounds, clock_ms, self._seen)",
                "self._idle.find(known, stops, bounds, clock_ms, self._seen)",
            ),
        ),
        killed_by="test_event_time_worlds::test_small_worlds_give_what_their_facts_give",
    ),
    mutant(
        "a batch takes all that is at the frontier, of whatever partition",
        (
            "Frontier.limit_ms",
            replace("self.at_ms if (topic, partition) <= self[1:] else self.at_ms - 1", "self.at_ms"),
        ),
        killed_by="test_event_time_worlds::test_small_worlds_give_what_their_facts_give",
    ),
    mutant(
        "what comes on a lane after one that waits is taken before it",
        ("Gate.take", replace("before_ms is None", "True")),
        killed_by="test_gate::test_what_comes_after_one_that_waits_waits_with_it",
    ),
    mutant(
        "a group commits what waits",
        (
            "waiting_offsets",
            replace(
                "{tp: times.waiting.offset for tp, times in times.items() if times.waiting is not None}", "{}"
            ),
        ),
        killed_by="test_held::test_the_group_has_committed_no_more_than_what_was_taken",
    ),
    mutant(
        "a rebuild takes in silence what had not been taken",
        (
            "_take_known",
            replace(
                "min(frontier, limit) if frontier and limit else known.frontier",
                "min(frontier, limit) if frontier and limit else frontier",
            ),
        ),
        killed_by="test_event_time_order::test_live_is_a_naive_fold",
    ),
    mutant(
        "a plan does not say how far it took inputs",
        ("event_time_after", replace("frontier_after(last, decision)", "before.frontier")),
        killed_by="test_plans_after_plans::test_a_plan_keeps_what_its_redo_needs_to_know",
    ),
    mutant(
        "a late input waits for the frontier to move on",
        ("Gate.__post_init__", replace("self.before.at_ms - 1", "self.before.at_ms")),
        killed_by="test_static_tables::test_the_last_version_holds_at_all_times",
    ),
    mutant(
        "a change of a table may be as late as it likes",
        (
            "TableJoin.accept",
            replace(
                "self._lateness(record, self._history_ms)",
                "None if self._is_second(record) else self._lateness(record, self._history_ms)",
            ),
        ),
        killed_by="test_joining::test_a_change_that_is_too_late_is_dropped_wherever_batches_end",
    ),
    mutant(
        "a time from a clock that ran ahead moves event time at once",
        ("believe_times", drop("if count < guard.confirmations:")),
        killed_by="task/test_event_times::test_a_wrong_clock_moves_nothing_until_others_agree_or_the_clock_has_come_there",
    ),
    mutant(
        "the first time of a lane is believed, however far ahead of the clock it is",
        (
            "believe_times",
            replace(
                "guard is not None and (now_ms is None or at_ms - now_ms > guard.max_jump_ms)",
                "guard is not None and now_ms is not None and at_ms - now_ms > guard.max_jump_ms",
            ),
        ),
        killed_by="test_wrong_clocks_in_plans::test_live_and_rebuilt_a_wrong_clock_closes_no_window",
    ),
    mutant(
        "a plan does not say which times are not believed yet",
        ("_writer_record", drop("if writer.ahead[0]:")),
        killed_by="test_wrong_clocks_in_plans::test_confirmations_count_from_batch_to_batch",
    ),
    mutant(
        "a time after a long pause in the past waits as one ahead of the clock",
        ("believe_times", replace("clock_ms is None or at_ms > clock_ms + allowed_ms", "True")),
        killed_by="task/test_event_times::test_of_a_lane_in_order_the_latest_time_is_believed_once_others_confirm_it",
    ),
    mutant(
        "a service does not report what its stages drop",
        ("Dropping._notice", body("return")),
        killed_by="test_dropped::test_a_service_reports_at_once_and_then_once_a_minute_stage_reason_and_number",
    ),
    mutant(
        "one record too few confirms a jump",
        ("StreamTime.observe", replace("guard.confirmations", "guard.confirmations - 1")),
        killed_by="test_stream_time::test_after_a_long_silence_stream_time_follows_those_who_agree",
    ),
    mutant(
        "a heartbeat moves stream time back",
        ("StreamTime.advance", replace("to_ms > self.now_ms", "to_ms != self.now_ms")),
        killed_by="test_stream_time::test_from_outside_it_is_moved_forward_only_and_past_the_guard",
    ),
    mutant(
        "the partition that is ahead decides how far event time has come",
        (
            "frontier_of",
            replace("min(known)", "max(known)"),
        ),
        killed_by="task/test_event_times::test_the_frontier_is_the_watermark_of_the_partition_that_is_behind",
    ),
    mutant(
        "a writer is idle in a partition that is not read to its end",
        ("IdleWriters.find", drop("if offset < bounds[tp].stable_end:")),
        killed_by="test_idle::test_a_partition_that_is_not_read_to_its_end_proves_nothing",
    ),
    mutant(
        "only the first republisher has to have passed on what there was",
        ("IdleWriters._passed", replace("known.hops[1:]", "()")),
        killed_by="test_idle::test_it_is_waited_for_while_any_republisher_is_behind_in_any_partition",
    ),
    mutant(
        "a window that closes now takes one more record",
        (
            "FixedWindower.places",
            replace("span.end_ms > ended_ms", "span.end_ms >= ended_ms"),
        ),
        killed_by="test_windows::test_a_tumbling_window_closes_with_the_record_that_passes_its_end_and_lateness",
    ),
    mutant(
        "a record is folded before what it closes is closed",
        ("KeyedStage._moved", drop("self._do_due()")),
        killed_by="test_windows::test_a_tumbling_window_closes_with_the_record_that_passes_its_end_and_lateness",
    ),
    mutant(
        "a session may be joined when it closes",
        (
            "SessionWindower.places",
            replace("self.closes_ms(span) > now_ms", "self.closes_ms(span) >= now_ms"),
        ),
        killed_by="test_windows::test_a_session_is_prolonged_and_joined_and_closes_behind_gap_and_lateness",
    ),
    mutant(
        "sessions are merged into the state of the earlier one itself",
        (
            "WindowFold.folded",
            replace("codec.copy(held[0].state)", "held[0].state"),
        ),
        killed_by="test_windows::test_a_record_that_fails_between_two_sessions_changes_neither",
    ),
    mutant(
        "a fold changes what a merge has taken of the later session",
        ("WindowFold._merged", replace("self._codec.copy(state)", "state")),
        killed_by="test_windows::test_a_record_that_fails_between_two_sessions_changes_neither_though_merge_took_parts",
    ),
    mutant(
        "what expires at another moment than it is listed for is forgotten",
        ("ExpiringRows._remind", replace("end_ms != item.listed_ms", "False")),
        killed_by=(
            "test_windows::test_with_less_lateness_windows_of_before_are_emitted_all_the_same[sessions]",
            "test_joining::test_with_another_lateness_values_of_before_are_joined_with_none_all_the_same[less]",
        ),
    ),
    mutant(
        "windows that were listed for later stay open at the end of the input",
        ("WindowedAggregate.close_all", drop("for row in rows:")),
        killed_by="test_windows::test_with_less_lateness_all_windows_of_before_close_at_the_end_of_the_input[sessions]",
    ),
    mutant(
        "a run moves stream time past a window that closes before it is listed",
        (
            "WindowedAggregate._use",
            drop("if any(self._windower.closes_ms(window.span) < limit_ms for window in windows):"),
        ),
        killed_by="test_windows::test_with_less_lateness_windows_of_before_are_emitted_all_the_same[tumbling in runs]",
    ),
    mutant(
        "a window that was extended is not listed again",
        ("WindowedAggregate._close", drop("self._timetable.remind(row, at_ms)")),
        killed_by="test_windows::test_a_prolonged_session_closes_behind_those_that_end_before_it",
    ),
    mutant(
        "timers of one moment are counted as without end though records come in between",
        ("TimedAggregate.accept", drop("key.reached_ms, key.back = (None, 0)")),
        killed_by="test_timers::test_with_each_record_of_its_key_a_timer_may_go_back_again",
    ),
    mutant(
        "a result of a window or timer that fails is charged to the input that moved event time",
        ("Level._fail", replace("origin.cause is not None", "False")),
        killed_by="test_due_failures::test_a_result_that_fails_stops_the_service_and_no_input_is_skipped[tumbling-map-skip]",
    ),
    mutant(
        "a shuffle forgets what has caused its units",
        ("ShuffledInputs.run", replace("any(units.causes)", "False")),
        killed_by="test_due_failures::test_a_result_that_fails_stops_the_service_and_no_input_is_skipped[timer-next stage-skip]",
    ),
    mutant(
        "an input's own output that is too large is not charged to it beside a timer's",
        ("Gatherer.refusal", replace("return error", "return None")),
        killed_by="test_due_failures::test_what_an_input_gives_itself_is_charged_to_it_though_a_timer_gives_more_under_it[size-0]",
    ),
    mutant(
        "duplicates exactly an interval apart are forwarded",
        (
            "Deduplicate.accept",
            replace(
                "abs(sighting.timestamp_ms - record.timestamp_ms) <= self._interval_ms",
                "abs(sighting.timestamp_ms - record.timestamp_ms) < self._interval_ms",
            ),
        ),
        killed_by="test_deduplicate::test_the_kip_s_timelines",
    ),
    mutant(
        "an older epoch begins again",
        ("StaleSequences._decide", replace("epoch < seen.epoch", "epoch < seen.epoch - 1")),
        killed_by="test_sequences::test_a_producers_epoch_is_its_own",
    ),
    mutant(
        "a sibling may come again on its lane",
        (
            "SqeReplays._take_sibling",
            replace("record.spot.position <= passed.position", "record.spot.position < passed.position"),
        ),
        killed_by="test_replays::test_siblings_of_one_source_offset_pass_once_each",
    ),
    mutant(
        "roots of topics that were created again are one",
        ("RootReplays._find", replace("self._exact or mark.topic_id == topic_id", "True")),
        killed_by="test_root_replays::test_a_root_created_again_starts_fresh_but_not_for_kuka",
        schedules=300,
    ),
    mutant(
        "a record far ahead is not read again with what comes after it on its lane",
        ("may_be_due", replace("ahead and planned.start < planned.stop", "False")),
        killed_by="test_wrong_clocks_at_batch_ends::test_each_other_record_is_in_its_own_window",
    ),
    mutant(
        "a change of a static table comes after values whose time has passed",
        (
            "SourcePartition._gate_of",
            replace("None if self.node.static else taking.before", "taking.before"),
        ),
        killed_by="test_static_tables::test_a_change_that_is_read_with_a_value_comes_before_it_whatever_its_time",
    ),
    mutant(
        "a record that is refused takes with it what it has made due",
        (
            "KeyedStage._moved",
            replace("self._do_due()", "if self._refuse(record, believed=believed) is None: self._do_due()"),
        ),
        killed_by="test_refused_records::test_what_a_dropped_record_makes_due_is_given",
    ),
)
