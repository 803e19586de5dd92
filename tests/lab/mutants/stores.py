"""Stores of states, tables and files, and the write-ahead log."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import argument, before, drop, replace, text
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "memory compares epochs alone when a home record is set",
        (
            "MemoryStore._set_home",
            replace(
                "stored.home == before", "(stored.home and stored.home.epoch) == (before and before.epoch)"
            ),
        ),
        killed_by="test_state_store::TestMemory::test_a_home_that_differs_in_any_field_is_not_replaced[run_id]",
    ),
    mutant(
        "memory compares no run ids of headers",
        (
            "MemoryStore._write",
            replace(
                "stored.header != before",
                "stored.header != before and (not stored.header or not before or stored.header.plan_id != before.plan_id or (stored.header.cursor != before.cursor))",
            ),
        ),
        killed_by="test_state_store::TestMemory::test_a_header_that_differs_in_any_field_refuses_rows[None-run_id]",
        schedules=200,
    ),
    mutant(
        "memory writes rows before it compares",
        (
            "MemoryStore._write",
            before(
                "if stored.header != before:",
                "if stored.header != before:\n    stored.states.update(((key, state) for key, state in rows if state is not None))",
            ),
        ),
        killed_by="test_state_store::TestMemory::test_a_header_that_differs_in_any_field_refuses_rows[None-run_id]",
        schedules=200,
    ),
    mutant(
        "memory drops the oldest plan that is to be kept",
        ("MemoryStore._set_home", replace("number < drop_below", "number <= drop_below")),
        killed_by="test_state_store::TestMemory::test_plans_are_dropped_by_number_and_not_by_text",
        schedules=200,
    ),
    mutant(
        "memory replaces locations by equally old ones",
        ("MemoryStore._set_locations", replace("current.age < after.age", "current.age <= after.age")),
        killed_by="test_state_store::TestMemory::test_locations_never_go_back",
    ),
    mutant(
        "SQLite compares before it has the write lock",
        (
            "SqliteFile.transaction",
            replace("'BEGIN IMMEDIATE' if write else 'BEGIN'", "'BEGIN' if write else 'BEGIN'"),
        ),
        killed_by="test_state_store::TestSqlite::test_competitors_never_win_together",
    ),
    mutant(
        "SQLite acknowledges what is not on disk",
        (
            "_prepare",
            replace(
                "connection.execute('PRAGMA synchronous = FULL')",
                "connection.execute('PRAGMA synchronous = NORMAL')",
            ),
        ),
        killed_by="test_sqlite_store::test_its_settings_survive_a_power_failure",
    ),
    mutant(
        "SQLite writes states of a header that has changed",
        (
            "SqliteStore._write",
            replace(
                "current != before",
                "current != before and (current is None or before is None or current.epoch != before.epoch)",
            ),
        ),
        killed_by="test_state_store::TestSqlite::test_a_header_that_differs_in_any_field_refuses_rows[None-run_id]",
    ),
    mutant(
        "SQLite drops the oldest plan that is to be kept",
        ("SqliteStore._set_home", text("AND number <", "AND number <=")),
        killed_by="test_state_store::TestSqlite::test_plans_are_dropped_by_number_and_not_by_text",
    ),
    mutant(
        "SQLite sets the heartbeat back with the home record",
        (
            "SqliteStore._set_home",
            replace("(flow, beat, *home_values(after))", "(flow, 0, *home_values(after))"),
        ),
        killed_by="test_state_store::TestSqlite::test_a_new_claim_keeps_the_heartbeat_counter",
    ),
    mutant(
        "Redis reads the header before the states alone",
        (
            "RedisStore.read",
            replace(
                "(with_losses if before == after else before, states, with_losses)",
                "(with_losses if before == after else before, states, before)",
            ),
        ),
        killed_by="test_redis_store::test_a_write_between_two_round_trips_of_a_read_is_seen",
        servers=True,
    ),
    mutant(
        "Redis replaces the header before the rows",
        (
            "scripts:_ROWS",
            text("local count = said", "replace(KEYS[1], 7)\nlocal count = said"),
        ),
        killed_by="test_redis_store::test_keys_of_another_program_are_not_overwritten",
        servers=True,
    ),
    mutant(
        "Redis compares all fields of a record but the last",
        (
            "scripts:_record",
            text("record, first)\n  for i = 1, #fields do", "record, first)\n  for i = 1, #fields - 1 do"),
        ),
        killed_by="test_state_store::TestRedis::test_a_header_that_differs_in_any_field_refuses_rows[None-cursor]",
        servers=True,
    ),
    mutant(
        "Redis drops the oldest plan that is to be kept",
        ("SET_HOME", text(" if number <", " if number <=")),
        killed_by="test_state_store::TestRedis::test_plans_are_dropped_by_number_and_not_by_text",
        servers=True,
    ),
    mutant(
        "Redis sets a home before it compares",
        (
            "SET_HOME",
            text(
                "-- The home is replaced last: it is the only record that a retry compares, so it must not be ahead of the plans.\nlocal current = read_record(KEYS[1]",
                "local current = read_record(KEYS[1])\nreplace(KEYS[1], 6",
            ),
        ),
        killed_by="test_state_store::TestRedis::test_a_home_that_differs_in_any_field_is_not_replaced[run_id]",
        servers=True,
    ),
    mutant(
        "Cassandra believes that a write without an answer was done",
        ("CassandraStore._replace", replace("current = read()", "return after")),
        ("CassandraStore._replace", drop("if current == before != after:", "return current")),
        killed_by="test_cassandra_store::test_a_lost_request_was_not_done_and_may_be_sent_again",
        servers=True,
    ),
    mutant(
        "Cassandra takes a write without an answer for one that was not done",
        ("CassandraStore._replace", replace("current = read()", "raise")),
        ("CassandraStore._replace", drop("if current == before != after:", "return current")),
        killed_by="test_cassandra_store::test_a_lost_answer_is_resolved_by_a_serial_read",
        servers=True,
    ),
    mutant(
        "Cassandra reads headers at quorum",
        ("CassandraStore._headers", argument("serial", "")),
        killed_by="test_cassandra_store::test_what_decides_is_read_and_written_at_serial_consistency",
        servers=True,
    ),
    mutant(
        "Cassandra reads the header once",
        (
            "CassandraStore.read",
            replace(
                "(first, [states.get(key) for key in keys], self._header(cell))",
                "(first, [states.get(key) for key in keys], first)",
            ),
        ),
        killed_by="test_cassandra_store::test_a_write_between_the_reads_of_a_header_is_seen",
        servers=True,
    ),
    mutant(
        "Cassandra drops the oldest plan that is to be kept",
        (
            "Statements.__init__",
            replace(
                "f'DELETE FROM {flows} WHERE {_FLOW} AND plan_number < ?'",
                "f'DELETE FROM {flows} WHERE {_FLOW} AND plan_number <= ?'",
            ),
        ),
        killed_by="test_state_store::TestCassandra::test_plans_are_dropped_by_number_and_not_by_text",
        servers=True,
    ),
    mutant(
        "the header of a table's state partition is written before its rows",
        (
            "flush",
            replace(
                "added, remembered = sink.flush(given)",
                "persist(store, transition, plan_id, stage, part, [], before)\nadded, remembered = sink.flush(given)\ndel remembered",
            ),
        ),
        ("flush", drop("persist(store, transition, plan_id, stage, part, [(FLUSHED, remembered)], before)")),
        killed_by="protocol/ext/tables/test_tables::test_two_crashes_in_a_row",
        schedules=500,
    ),
    mutant(
        "a redo does not ask the table whether it has the rows of the plan",
        ("TableSink._flush", replace("head.number is not None and head.number >= flush.number", "False")),
        (
            "TableSink._check_number",
            replace("expected is not None and (number is None or number < expected)", "False"),
        ),
        killed_by="test_sink::test_a_flush_is_added_once",
        schedules=500,
    ),
    mutant(
        "a run that claims a flow does not shut older runs out of its table",
        (
            "TableSink._claim",
            replace(
                "{part: replace(head, epoch=claim.epoch, run=mine) for part, head in heads.items()}", "heads"
            ),
        ),
        ("TableSink._check_owner", replace("head.epoch < flush.epoch", "False")),
        killed_by="test_sink::test_an_older_run_adds_nothing",
        schedules=500,
    ),
    mutant(
        "a table that went back in time is written on",
        (
            "TableSink._check_number",
            replace("expected is not None and (number is None or number < expected)", "False"),
        ),
        killed_by="test_sink::test_a_table_that_went_back_in_time_stops",
        schedules=500,
    ),
    mutant(
        "of two compactions at once both succeed",
        (
            "ParquetStorage.commit",
            drop("markers |= _other_files(snapshot, sorted({file.part for file in change.removed}))"),
        ),
        killed_by="test_table_storage::test_of_two_compactions_at_once_one_begins_again[delta]",
        schedules=1500,
    ),
    mutant(
        "an overwrite stays the last thing done though rows were read since",
        (
            "Overwrite.carried",
            replace("any((planned.start < planned.stop for planned in plan.ranges))", "False"),
        ),
        killed_by="test_overwrites_that_stop::test_the_same_command_again_replaces_nothing_and_after_another_load_it_does",
    ),
    mutant(
        "rows that are read after an overwrite was decided are staged",
        ("Overwrite.under_way", replace("('begun', 'staged')", "('begun', 'staged', 'decided')")),
        killed_by="test_overwrites_that_stop::test_the_same_command_again_replaces_nothing_and_after_another_load_it_does",
    ),
    mutant(
        "a chunk of other content is skipped",
        (
            "ChunkInfo.says_the_same",
            replace("(self.crc32, self.content_hash) == (other.crc32, other.content_hash)", "True"),
        ),
        killed_by="test_chunk_vectors::test_vectors",
    ),
    mutant(
        "a vacuum deletes before it says so",
        (
            "ChunkTable._vacuum",
            before(
                "expected = {'compactions': head.compactions, 'vacuumed': head.vacuumed}",
                "self.rows.drop(part, [row.partition_key for row in self.rows.index(part)], below)",
            ),
        ),
        killed_by="test_table_storage::test_a_vacuum_deletes_what_a_compaction_has_replaced[chunks]",
    ),
    mutant(
        "a file that was written to while it was looked at is taken as it is",
        ("FirstLook.finish", replace("after != self._before or self._size != after[2]", "False")),
        killed_by="files/test_files::test_a_file_that_is_written_to_while_it_is_looked_at_is_refused",
    ),
    mutant(
        "of contents that are read the last one is forgotten",
        ("_hashes", replace("len(text)", "len(text) - HASH_DIGITS")),
        killed_by="protocol/ext/files/test_files::test_each_row_counts_once_and_a_second_load_adds_nothing",
    ),
    mutant(
        "what a kill left in memory is published without being synced",
        ("_find_ends", drop("files.sync(segments[-1].name)")),
        killed_by="wal/test_crashes::test_what_a_kill_left_in_memory_is_durable_before_anything_is_built_on_it",
    ),
    mutant(
        "one record that is missing between segments is not missed",
        ("_losses", replace("segment.base > expected", "segment.base > expected + 1")),
        killed_by="test_strange_files::test_a_single_record_that_is_missing_between_two_segments_is_missed",
    ),
    mutant(
        "a group is acknowledged before it is synced",
        ("Tail.append", drop("self._files.sync(segment.name)")),
        killed_by="wal/test_crashes::test_a_crash_at_every_call",
    ),
    mutant(
        "a wrong checksum at the head of a group is a torn tail",
        (
            "_judge",
            replace("damaged(files, segment, at, 'the head of a group has a wrong checksum')", "TornTail"),
        ),
        killed_by="wal/test_log::test_a_changed_bit_anywhere_is_an_error_and_nothing_is_skipped",
    ),
    mutant(
        "what was published is not saved before segments are deleted",
        ("WriteAheadLog.trim", drop("self.save()")),
        killed_by="wal/test_log::test_a_full_log_raises_and_has_room_again_after_publishing",
    ),
)
