"""Marks, consistency checks and lanes, the shuffle's order, and the bytes that all of them are read from."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import argument, before, drop, replace
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "envelopes that a changed republisher adds are accepted",
        (
            "PartitionMarks.accept",
            replace(
                "siblings and last_of(head.chain) != mark.of",
                "siblings and position <= mark.position and (last_of(head.chain) != mark.of)",
            ),
        ),
        killed_by="test_marks::test_a_republisher_that_changed_its_mind_stops_replay_or_not",
    ),
    mutant(
        "a lane has any number of excuses where its partition was entered in the middle",
        ("PartitionMarks._check_gap", replace("not (mark and mark.excused)", "True")),
        killed_by="test_marks::test_having_entered_in_the_middle_excuses_one_hole_on_a_lane_and_no_second_one",
    ),
    mutant(
        "excuses that were used are not kept",
        (
            "PartitionMarks.to_json",
            replace(
                "[f'{lane:016x}' for lane, mark in sorted(self._marks.items()) if mark.excused]",
                "[][:] and [f'{lane:016x}' for lane, mark in sorted(self._marks.items()) if mark.excused]",
            ),
        ),
        killed_by="test_marks::test_an_excuse_that_was_used_is_remembered_in_what_is_stored",
    ),
    mutant(
        "the first message of a lane is not asked for its predecessor",
        ("PartitionMarks._accept_first", drop("if head.previous:")),
        killed_by="test_marks::test_an_unknown_lane_that_has_a_history_stops_unless_entered_in_the_middle",
        schedules=200,
    ),
    mutant(
        "the last root that was counted may come back through a new topic",
        (
            "PartitionMarks._accept_first",
            replace(
                "position[:ROOT_LENGTH] <= counted.position[:ROOT_LENGTH]",
                "position[:ROOT_LENGTH] < counted.position[:ROOT_LENGTH]",
            ),
        ),
        killed_by="test_marks::test_a_topic_in_between_created_again_stops_when_it_brings_counted_roots",
        schedules=200,
    ),
    mutant(
        "of several lanes of a path the one that is behind counts",
        (
            "PartitionMarks._accept_first",
            replace(
                "max(self._path_marks().get(path, ()), key=lambda mark: mark.position, default=None)",
                "min(self._path_marks().get(path, ()), key=lambda mark: mark.position, default=None)",
            ),
        ),
        killed_by="test_marks::test_of_several_lanes_of_a_path_the_highest_position_counts",
    ),
    mutant(
        "a lane that goes on after a new topic begins where it is met",
        (
            "PartitionMarks._accept_again",
            replace(
                "self._add(head.lane, counted.position, counted.of, offset, chain)",
                "self._add(head.lane, position, of, offset, chain)",
            ),
        ),
        killed_by="test_marks::test_counted_roots_through_a_topic_created_again_are_skipped_on_demand",
        schedules=500,
    ),
    mutant(
        "a mark keeps the `of` of its lane's first message",
        ("PartitionMarks.accept", replace("mark.head = head", "mark.head = mark.head or head")),
        killed_by="test_marks::test_a_mark_may_be_asked_for_its_of_after_many_messages",
        schedules=200,
    ),
    mutant(
        "a run of messages keeps the `of` of the message before it",
        ("_accept_envelopes", drop("mark.head = block.head(last)")),
        killed_by="test_blocks::test_all_ways_give_the_same",
    ),
    mutant(
        "a run of messages may repeat a position",
        ("_accept_envelopes", replace("positions > before", "positions >= before")),
        killed_by="test_blocks::test_all_ways_see_one_strange_message_wherever_a_block_ends",
    ),
    mutant(
        "in a run of messages the first of a lane is not compared with the siblings before it",
        ("_witnesses_agree", replace("[mark.of for mark in marks]", "of[firsts]")),
        killed_by="test_blocks::test_all_ways_see_one_strange_message_wherever_a_block_ends",
    ),
    mutant(
        "a record that cannot be read excuses no gap",
        (
            "PartitionMarks._check_gap",
            replace("(mark.offset if mark else -1) < self.undecodable_offset", "False"),
        ),
        killed_by="test_marks::test_an_unknown_lane_that_has_a_history_stops_unless_entered_in_the_middle",
        schedules=200,
    ),
    mutant(
        "a record that cannot be read excuses gaps for ever",
        (
            "PartitionMarks._check_gap",
            replace(
                "(mark.offset if mark else -1) < self.undecodable_offset", "self.undecodable_offset >= 0"
            ),
        ),
        killed_by="test_marks::test_an_undecodable_record_excuses_a_hole_until_the_lane_is_beyond_it",
        schedules=200,
    ),
    mutant(
        "a replay moves the mark's offset",
        ("PartitionMarks.accept", before("return False", "mark.offset = offset")),
        killed_by="test_marks::test_a_replay_after_an_undecodable_record_does_not_use_up_what_that_excuses",
        schedules=300,
    ),
    mutant(
        "raw messages ignore their leader epoch",
        (
            "PartitionMarks.accept_raw",
            replace("root_position(leader_epoch, offset)", "root_position(0, offset)"),
        ),
        killed_by="test_marks::test_messages_wrapped_at_the_origin_and_raw_ones_are_their_own_roots",
        schedules=200,
    ),
    mutant(
        "a lane that goes on after a new topic has one excuse more",
        (
            "PartitionMarks._accept_again",
            replace(
                "self._add(head.lane, position, of, offset, chain).excused = excused",
                "self._add(head.lane, position, of, offset, chain)",
            ),
        ),
        killed_by="test_marks::test_a_hole_before_a_lane_that_goes_on_after_a_new_topic_uses_up_its_excuse",
    ),
    mutant(
        "positions of another length are compared as they are",
        ("PartitionMarks.accept", replace("if head.lane or position:", "return position > mark.position")),
        ("PartitionMarks.accept", drop("return self.accept_raw(offset, leader_epoch)")),
        killed_by="test_marks::test_messages_wrapped_at_the_origin_and_raw_ones_are_their_own_roots",
        schedules=200,
    ),
    mutant(
        "a previous position that equals the mark is a gap",
        ("PartitionMarks.accept", replace("previous > mark.position", "previous >= mark.position")),
        killed_by="test_marks::test_a_writer_in_good_order_passes",
        schedules=200,
    ),
    mutant(
        "a copy of marks shares its lanes",
        ("PartitionMarks.copy", replace("mark.settled()", "mark")),
        killed_by="test_marks::test_a_copy_moves_on_its_own_and_keeps_the_settings",
        schedules=200,
    ),
    mutant(
        "marks that are loaded forget what they could not read",
        ("PartitionMarks.from_json", argument("undecodable_offset", "")),
        killed_by="test_marks::test_marks_survive_json_exactly",
        schedules=200,
    ),
    mutant(
        "the number of siblings is not compared where a lane goes on",
        (
            "PartitionMarks._accept_again",
            drop("if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:"),
        ),
        killed_by="test_marks::test_a_republisher_that_changed_its_mind_stops_on_the_new_lane_too",
    ),
    mutant(
        "a message that is met in the middle counts as met at the beginning",
        ("ReplayFilter._marks_of", argument("entered_in_middle", "offset > 1")),
        killed_by="test_filter::test_a_partition_first_met_behind_its_start_was_entered_in_the_middle",
    ),
    mutant(
        "marks of a topic that was created again are loaded",
        ("ReplayFilter.load", replace("now != marks.topic_id", "now == b''")),
        killed_by="test_filter::test_marks_of_a_topic_created_again_are_refused",
    ),
    mutant(
        "the partition that a message is read from does not belong to its lane",
        ("read_lane", replace("_UINT32.pack(partition)", "_UINT32.pack(0)")),
        killed_by="test_chain::test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane",
        schedules=100,
    ),
    mutant(
        "a topic that is created again goes on with its lanes",
        (
            "read_lane",
            replace(
                "b64(lane.to_bytes(8, 'little'), topic.encode(), topic_id, _UINT32.pack(partition))",
                "b64(lane.to_bytes(8, 'little'), topic.encode(), bytes(16), _UINT32.pack(partition))",
            ),
        ),
        killed_by="test_chain::test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane",
        schedules=200,
    ),
    mutant(
        "the id of a topic in between belongs to the path",
        ("path_hash", replace("b'' if index else link.topic_id", "link.topic_id")),
        killed_by="test_chain::test_a_path_forgets_topic_ids_except_the_root_s",
        schedules=500,
    ),
    mutant(
        "the id of the root's topic does not belong to the path",
        ("path_hash", replace("b'' if index else link.topic_id", "b''")),
        killed_by="test_chain::test_a_path_forgets_topic_ids_except_the_root_s",
        schedules=200,
    ),
    mutant(
        "the position of a first message is not checked against its chain",
        (
            "check_consistent",
            replace("chain.position() != head.position", "len(chain.position()) != len(head.position)"),
        ),
        killed_by="test_envelope::test_a_chain_out_of_bounds_or_against_lane_and_position_is_found_by_the_strict_check",
    ),
    mutant(
        "an output writes one lane for all state partitions",
        ("Target.lane", argument("shard", "self._shard and 0")),
        killed_by="test_lanes::test_emissions_beside_changes_into_one_topic",
        schedules=100,
    ),
    mutant(
        "a replay that is passed on moves back what was written last",
        ("template:frames", replace("own > before", "own != before")),
        killed_by="test_run_outputs::test_a_run_gives_the_records_of_its_inputs",
    ),
    mutant(
        "what inputs that fail wrote last is not forgotten",
        ("outputs:_restore", drop("lane.offset, lane.previous = offset, previous")),
        killed_by="test_run_outputs::test_a_run_gives_the_records_of_its_inputs",
        schedules=1500,
    ),
    mutant(
        "units that are packed apart are not brought into order",
        ("ShuffledUnits.joined", replace("any(map(gt, order, order[1:]))", "False")),
        killed_by="test_order_of_units::test_a_packer_brings_units_into_order_that_come_in_another_one",
    ),
    mutant(
        "what is held of blobs that overlap is given twice",
        ("merged", replace("held.only(slice(final))", "held")),
        killed_by="test_spark_rows::test_units_of_many_tasks_come_in_the_order_of_tuples",
    ),
    mutant(
        "in one process units come in the order in which they were made",
        ("reading:_tasks", replace("in_order(given)", "given")),
        killed_by="test_order_of_units::test_one_process_does_the_same",
    ),
    mutant(
        "units go by the path before the offset",
        (
            "Shuffle.blocks",
            replace("inputs.offsets(numbers)", "[one >> 1 for one in inputs.offsets(numbers)]"),
        ),
        killed_by="test_lanes::test_emissions_beside_changes_into_one_topic",
        schedules=100,
    ),
    mutant(
        "units of the next stage are folded with those of the one before",
        ("run_level", replace("block.place[1]", "flow.levels[level - 1][0].index")),
        killed_by="test_carried::test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given",
        schedules=100,
    ),
    mutant(
        "units of an input that failed before the stage are folded",
        (
            "SourcePartition._work_through",
            replace("[unit for unit in units if unit[4] not in records.failures]", "list(units)"),
        ),
        killed_by="test_poison::test_an_input_that_fails_anywhere_is_skipped_everywhere",
        schedules=200,
    ),
    mutant(
        "outputs of an input that come after the others of it are published",
        ("Target.take", replace("offset <= lane.offset", "offset < lane.offset")),
        killed_by="test_one_position::test_outputs_that_are_gathered_apart_are_not_published",
    ),
    mutant(
        "the position before may have another length",
        ("head:check_values", replace("previous and len(previous) != len(position)", "False")),
        killed_by="test_envelope::test_what_contradicts_itself_is_refused_wherever_it_is_read",
    ),
    mutant(
        "a field that is there twice goes unnoticed",
        ("open_head", drop("if head.crc32 or head.ByteSize() != len(body):")),
        killed_by="test_envelope::test_what_contradicts_itself_is_refused_wherever_it_is_read",
    ),
    mutant(
        "an ordinal of a link may equal its number of siblings",
        ("check_link", replace("link.of - 1", "link.of")),
        killed_by="test_chain::test_beyond_a_bound_the_error_names_the_field",
    ),
    mutant(
        "columns take a lane without a position for ordinary",
        ("Columns._agree", replace("(self.lane != 0) == republished", "(self.lane != 0) >= republished")),
        killed_by="test_one_rule::test_what_is_ordinary_is_sound_and_has_what_protobuf_finds",
    ),
    mutant(
        "a chain of 33 links is accepted",
        ("Chain.__post_init__", replace("len(self.links) > MAX_LINKS", "len(self.links) > MAX_LINKS + 1")),
        killed_by="test_chain::test_a_chain_of_33_links_is_refused_and_one_of_32_is_not",
    ),
    mutant(
        "a run takes positions of several lengths for those of one",
        (
            "run_frames",
            replace(
                "(run.inputs.chain_sizes[run.indexes] << 16) + (run.inputs.position_sizes[run.indexes] << 8)",
                "run.inputs.chain_sizes[run.indexes] << 16",
            ),
        ),
        killed_by="test_run_outputs::test_one_run_holds_chains_of_one_size_and_positions_of_several",
    ),
    mutant(
        "envelopes of two shapes on one slot do not name each other",
        (
            "_of_shapes",
            replace("len(each) < len(parts) or len(set(slots)) < len(slots)", "len(each) < len(parts)"),
        ),
        killed_by="test_run_outputs::test_a_run_gives_the_records_of_its_inputs",
    ),
)
