"""Bugs of tables, of their commits and compactions, and of files as an origin."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "the header of a table's state partition is written before its rows",
        (
            "task/flushing.py",
            "        added, remembered = sink.flush(given)\n",
            (
                "        persist(store, transition, plan_id, stage, part, [], before)\n"
                "        added, remembered = sink.flush(given)\n"
            ),
        ),
        (
            "task/flushing.py",
            "        persist(store, transition, plan_id, stage, part, [(FLUSHED, remembered)], before)\n",
            "        del remembered\n",
        ),
        tests=("tests/protocol/test_tables.py::test_two_crashes_in_a_row",),
        schedules=500,
    ),
    mutant(
        "a redo does not ask the table whether it has the rows of the plan",
        (
            "ext/tables/sink.py",
            "            if head.number is not None and head.number >= flush.number:\n",
            "            if False:\n",
        ),
        (
            "ext/tables/sink.py",
            "        if expected is not None and (number is None or number < expected):\n",
            "        if False:\n",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_flush_is_added_once",),
        schedules=500,
    ),
    mutant(
        "rows are committed to a newer version of the table than the one that was looked at",
        (
            "ext/tables/sink.py",
            "                self.storage.commit(\n                    snapshot,\n",
            "                self.storage.commit(\n                    self._opened(flush),\n",
        ),
        tests=("tests/protocol/test_tables.py::test_a_zombie_at_every_call_of_the_table_adds_nothing",),
        schedules=500,
    ),
    mutant(
        "a run that claims a flow does not shut older runs out of its table",
        (
            "ext/tables/sink.py",
            "            claimed = {part: replace(head, epoch=claim.epoch, run=mine) for part, head in heads.items()}\n",
            "            claimed = heads\n",
        ),
        ("ext/tables/sink.py", "        if epoch < flush.epoch:\n", "        if False:\n"),
        tests=("tests/unit/tables/test_sink.py::test_an_older_run_adds_nothing",),
        schedules=500,
    ),
    mutant(
        "a table that went back in time is written on",
        (
            "ext/tables/sink.py",
            "        if expected is not None and (number is None or number < expected):\n",
            "        if False:\n",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_table_that_went_back_in_time_stops",),
        schedules=500,
    ),
    mutant(
        "a compaction brings back a row that a later one has replaced",
        (
            "ext/tables/compacting.py",
            '    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "ascending")])\n',
            '    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "descending")])\n',
        ),
        tests=("tests/unit/tables/test_reading.py::test_compaction_merges_files_and_keeps_the_latest_rows",),
        schedules=500,
    ),
    mutant(
        "of two compactions at once both succeed",
        (
            "ext/tables/parquet_storage.py",
            "        markers = _other_files(snapshot, [part])\n",
            "        markers: dict[str, int] = {}\n",
        ),
        tests=(
            "tests/contract/test_table_storage.py::test_of_two_compactions_at_once_one_begins_again[delta]",
        ),
        schedules=1500,
    ),
    mutant(
        "what a flow without stages published last is not published again after a crash",
        (
            "protocol/recover.py",
            "        return [] if published else [last.number]\n",
            "        return [] if published or last.files else [last.number]\n",
        ),
        tests=("tests/protocol/test_files.py::test_rows_are_published_exactly_after_a_crash_at_every_call",),
        schedules=3000,
    ),
    mutant(
        "rows of inputs on trial stay in the memtable",
        (
            "ext/tables/stage.py",
            "                self._add(self._trial, run.chosen([index]))\n",
            "                self._add(self._memtable, run.chosen([index]))\n",
        ),
        tests=("tests/protocol/test_table_input.py::test_an_input_counts_as_a_whole_or_not_at_all",),
        schedules=500,
    ),
    mutant(
        "a run of the same epoch and another name adds rows",
        (
            "ext/tables/sink.py",
            "        if epoch > flush.epoch or (epoch == flush.epoch and head.run != word(flush.run_id)):",
            "        if epoch > flush.epoch:",
        ),
        tests=("tests/unit/tables/test_sink.py::test_another_run_of_the_same_epoch_adds_nothing",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a run of the same epoch and another name claims a table",
        (
            "ext/tables/sink.py",
            "                if head.epoch > claim.epoch or (head.epoch == claim.epoch and head.run != mine):",
            "                if head.epoch > claim.epoch:",
        ),
        tests=("tests/unit/tables/test_sink.py::test_an_older_run_adds_nothing",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "an older run claims a table",
        (
            "ext/tables/sink.py",
            "                if head.epoch > claim.epoch or (head.epoch == claim.epoch and head.run != mine):",
            "                if head.epoch == claim.epoch and head.run != mine:",
        ),
        tests=("tests/unit/tables/test_sink.py::test_an_older_run_adds_nothing",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows of another plan of the same number count as those of the plan",
        (
            "ext/tables/sink.py",
            "        if head.number == flush.number and head.plan != word(flush.plan_id):",
            "        if False:",
        ),
        tests=("tests/unit/tables/test_sink.py::test_another_plan_of_the_same_number_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "the version of a commit is remembered in place of the one that was looked at",
        (
            "ext/tables/sink.py",
            "            return sum(file.rows for file in files), _known(snapshot, flush.number)",
            "            return sum(file.rows for file in files), _known(self._opened(flush), flush.number)",
        ),
        tests=(
            "tests/unit/tables/test_sink.py::test_what_a_flush_has_looked_at_is_kept_not_what_it_has_made",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a table that was deleted and created again is written on",
        ("ext/tables/sink.py", '        if told["table"] != snapshot.table_id:', "        if False:"),
        tests=("tests/unit/tables/test_sink.py::test_a_table_that_went_back_in_time_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows that the store does not know of are of this history",
        (
            "ext/tables/sink.py",
            "        if plan_id is None or head.plan != word(plan_id):",
            "        if False:",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_store_that_went_back_in_time_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows of a plan of another history with the same number are of this one",
        (
            "ext/tables/sink.py",
            "        if plan_id is None or head.plan != word(plan_id):",
            "        if plan_id is None:",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_store_that_went_back_in_time_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a commit of another program is no matter",
        (
            "ext/tables/sink.py",
            "        if commit is not None:\n            raise TableAltered",
            "        if False:\n            raise TableAltered",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_table_that_another_program_has_written_to_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a file of another program is no matter",
        (
            "ext/tables/sink.py",
            "            if path is not None:\n                raise TableAltered",
            "            if False:\n                raise TableAltered",
        ),
        tests=(
            "tests/unit/tables/test_sink.py::test_rows_of_another_program_are_noticed_by_a_process_that_knows_no_version",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "another program's commit right after the last one that was looked at is not noticed",
        (
            "ext/tables/sink.py",
            "        commit = snapshot.foreign_commit(looked)",
            "        commit = snapshot.foreign_commit(looked + 1)",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_table_that_another_program_has_written_to_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a file that is there is written again",
        ("ext/tables/sink.py", "            if missing or written is None:", "            if True:"),
        tests=("tests/protocol/test_table_redo.py::test_a_redo_writes_no_file_again_and_names_it_the_same",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "chunks that are missing in a file are not written",
        (
            "ext/tables/sink.py",
            "            if missing or written is None:",
            "            if written is None:",
        ),
        tests=("tests/protocol/test_table_redo.py::test_a_redo_writes_the_chunks_that_are_missing",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
)
