"""Memtables, chunks and their index, reading, and the offsets of readers."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a chunk of other content is skipped",
        (
            "ext/tables/chunk.py",
            ") and (self.crc32, self.content_hash) == (other.crc32, other.content_hash)",
            ")",
        ),
        tests=("tests/unit/tables/test_chunk.py::test_another_chunk_is_not",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "a chunk with other keys is skipped",
        (
            "ext/tables/chunk.py",
            "            (self.name, self.start_key, self.end_key, self.rows)\n            == (other.name, other.start_key, other.end_key, other.rows)",
            "            (self.name, self.rows)\n            == (other.name, other.rows)",
        ),
        tests=("tests/unit/tables/test_chunk.py::test_another_chunk_is_not",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "chunks at the smallest id of a flush are not looked at",
        ("ext/tables/chunk.py", "if one >= minimum]", "if one > minimum]"),
        tests=("tests/unit/tables/test_chunk.py::test_the_same_chunk_is_skipped",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "chunks before the smallest id of a flush are looked at",
        (
            "ext/tables/chunk.py",
            "        if replaces or own < minimum or any(",
            "        if replaces or any(",
        ),
        ("ext/tables/chunk.py", "if one >= minimum]", "]"),
        tests=("tests/unit/tables/test_chunk.py::test_chunks_before_the_minimum_are_not_looked_at",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "the last chunk of a compacted range is skipped",
        (
            "ext/tables/chunk.py",
            "any(first <= own <= last for first, last in ranges)",
            "any(first <= own < last for first, last in ranges)",
        ),
        tests=("tests/unit/tables/test_chunk.py::test_over_a_compacted_range_nothing_is_skipped",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "ids of chunks go by text",
        ("ext/tables/chunk.py", "{number:012d}-{plan_id[:16]}", "{number}-{plan_id[:16]}"),
        tests=("tests/unit/tables/test_chunk.py::test_ids_go_in_the_order_of_plans",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "the last piece of a large column is lost",
        (
            "ext/tables/chunk_table.py",
            "range(0, len(blob.data), PIECE_BYTES)",
            "range(0, max(1, len(blob.data) - PIECE_BYTES + 1), PIECE_BYTES)",
        ),
        tests=("tests/unit/tables/test_chunk_table.py::test_no_row_of_the_database_is_large",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "of compactions of a state partition a vacuum believes the first one",
        ("ext/tables/chunk_table.py", "below = max((name for", "below = min((name for"),
        tests=("tests/unit/tables/test_chunk_table.py::test_a_reader_that_a_vacuum_overtakes_reads_again",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "a vacuum deletes the set that a compaction has made",
        ("ext/tables/chunk_table.py", "if row.chunk_set < below]", "if row.chunk_set <= below]"),
        tests=(
            "tests/contract/test_table_storage.py::test_a_vacuum_deletes_what_a_compaction_has_replaced[chunks]",
        ),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "a vacuum deletes before it says so",
        (
            "ext/tables/chunk_table.py",
            "            done = head.vacuumed is not None and head.vacuumed >= below\n",
            "            self._drop(part, below)\n            done = head.vacuumed is not None and head.vacuumed >= below\n",
        ),
        tests=(
            "tests/contract/test_table_storage.py::test_a_vacuum_deletes_what_a_compaction_has_replaced[chunks]",
        ),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "a compaction keeps the first of rows with the same keys",
        (
            "ext/tables/memtable.py",
            "    keep = pa.chunked_array([*differs.chunks, pa.array([True])])",
            "    keep = pa.chunked_array([pa.array([True]), *differs.chunks])",
        ),
        tests=(
            "tests/unit/tables/test_memtable.py::test_the_last_row_of_each_key_is_kept_in_the_order_of_keys",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows with the same row key in different partitions replace each other",
        (
            "ext/tables/memtable.py",
            "    for name in schema.keys:\n        one = pc.not_equal",
            "    for name in schema.keys[-1:]:\n        one = pc.not_equal",
        ),
        tests=(
            "tests/unit/tables/test_memtable.py::test_rows_are_sorted_by_keys_of_every_type_and_the_later_one_of_two_comes_last",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows are ordered by the first key alone",
        (
            "ext/tables/memtable.py",
            "    for name in reversed(keys):\n        cells",
            "    for name in keys[:1]:\n        cells",
        ),
        tests=(
            "tests/unit/tables/test_memtable.py::test_the_last_row_of_each_key_is_kept_in_the_order_of_keys",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows of a memtable have the same number in each flush",
        (
            "ext/tables/memtable.py",
            "pc.add(order.cast(pa.int64(), safe=False), first_sequence)",
            "order.cast(pa.int64(), safe=False)",
        ),
        tests=(
            "tests/unit/tables/test_memtable.py::test_rows_are_sorted_by_keys_of_every_type_and_the_later_one_of_two_comes_last",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "rows that wait as objects are not in a memtable's state",
        (
            "ext/tables/memtable.py",
            '        """All of it as bytes; see `load`."""\n        self._settle()\n',
            '        """All of it as bytes; see `load`."""\n',
        ),
        tests=("tests/unit/tables/test_memtable.py::test_its_state_can_be_loaded",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a memtable that was emptied remembers its offsets",
        (
            "ext/tables/memtable.py",
            "        self._blocks, self._pending, self._settled = [], [], 0\n        self.min_offset = self.max_offset = None",
            "        self._blocks, self._pending, self._settled = [], [], 0",
        ),
        tests=("tests/unit/tables/test_memtable.py::test_clear_forgets_everything",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a read leaves out the largest value that is wanted",
        (
            "ext/tables/pruning.py",
            "        found = pc.and_(found, pc.less_equal(cells",
            "        found = pc.and_(found, pc.less(cells",
        ),
        tests=("tests/unit/tables/test_reading.py::test_a_partition_key_and_a_range_of_row_keys",),
        unsimulated="not simulated: tables are read as a whole there",
    ),
    mutant(
        "a read leaves out files that end where it begins",
        ("ext/tables/pruning.py", "(low is None or most >= low)", "(low is None or most > low)"),
        tests=("tests/unit/tables/test_reading.py::test_row_groups_are_left_out",),
        unsimulated="not simulated: tables are read as a whole there",
    ),
)
