"""Bugs of tables, of their commits and compactions, and of files as an origin."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "the header of a table's state partition is written before its rows",
        (
            "segment/flushing.py",
            "        added, remembered = sink.flush(given)\n",
            (
                "        persist(store, transition, plan_id, stage, part, [], before)\n"
                "        added, remembered = sink.flush(given)\n"
            ),
        ),
        (
            "segment/flushing.py",
            "        persist(store, transition, plan_id, stage, part, [(FLUSHED, remembered)], before)\n",
            "        del remembered\n",
        ),
        tests=("tests/protocol/test_tables.py::test_two_crashes_in_a_row",),
        schedules=500,
    ),
    mutant(
        "a redo does not ask the table whether it has the rows of the plan",
        (
            "tables/sink.py",
            "            if head.number is not None and head.number >= flush.number:\n",
            "            if False:\n",
        ),
        (
            "tables/sink.py",
            "        if expected is not None and (number is None or number < expected):\n",
            "        if False:\n",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_flush_is_added_once",),
        schedules=500,
    ),
    mutant(
        "rows are committed to a newer version of the table than the one that was looked at",
        (
            "tables/sink.py",
            "                self.storage.commit(\n                    snapshot,\n",
            "                self.storage.commit(\n                    self._opened(flush),\n",
        ),
        tests=("tests/protocol/test_tables.py::test_a_zombie_at_every_call_of_the_table_adds_nothing",),
        schedules=500,
    ),
    mutant(
        "a run that claims a flow does not shut older runs out of its table",
        (
            "tables/sink.py",
            "            claimed = {part: replace(head, epoch=claim.epoch, run=mine) for part, head in heads.items()}\n",
            "            claimed = heads\n",
        ),
        ("tables/sink.py", "        if epoch < flush.epoch:\n", "        if False:\n"),
        tests=("tests/unit/tables/test_sink.py::test_an_older_run_adds_nothing",),
        schedules=500,
    ),
    mutant(
        "a table that went back in time is written on",
        (
            "tables/sink.py",
            "        if expected is not None and (number is None or number < expected):\n",
            "        if False:\n",
        ),
        tests=("tests/unit/tables/test_sink.py::test_a_table_that_went_back_in_time_stops",),
        schedules=500,
    ),
    mutant(
        "a compaction brings back a row that a later one has replaced",
        (
            "tables/compacting.py",
            '    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "ascending")])\n',
            '    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "descending")])\n',
        ),
        tests=("tests/unit/tables/test_reading.py::test_compaction_merges_files_and_keeps_the_latest_rows",),
        schedules=500,
    ),
    mutant(
        "of two compactions at once both succeed",
        (
            "tables/parquet_storage.py",
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
            "stages/ingest.py",
            "                self._add(self._trial, run.chosen([index]))\n",
            "                self._add(self._memtable, run.chosen([index]))\n",
        ),
        tests=("tests/protocol/test_table_input.py::test_an_input_counts_as_a_whole_or_not_at_all",),
        schedules=500,
    ),
)
