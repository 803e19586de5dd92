"""Memtables, chunks and their index, reading, and the offsets of readers."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a chunk of other content is skipped",
        (
            "tables/chunk.py",
            ") and (self.crc32, self.content_hash) == (other.crc32, other.content_hash)",
            ")",
        ),
        tests=("tests/unit/tables/test_chunk.py::test_another_chunk_is_not",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "a chunk with other keys is skipped",
        (
            "tables/chunk.py",
            "            (self.name, self.start_key, self.end_key, self.rows)\n            == (other.name, other.start_key, other.end_key, other.rows)",
            "            (self.name, self.rows)\n            == (other.name, other.rows)",
        ),
        tests=("tests/unit/tables/test_chunk.py::test_another_chunk_is_not",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "chunks at the smallest id of a flush are not looked at",
        ("tables/chunk.py", "if one >= minimum]", "if one > minimum]"),
        tests=("tests/unit/tables/test_chunk.py::test_the_same_chunk_is_skipped",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "chunks before the smallest id of a flush are looked at",
        ("tables/chunk.py", "        if replaces or own < minimum or any(", "        if replaces or any("),
        ("tables/chunk.py", "if one >= minimum]", "]"),
        tests=("tests/unit/tables/test_chunk.py::test_chunks_before_the_minimum_are_not_looked_at",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
    mutant(
        "the last chunk of a compacted range is skipped",
        (
            "tables/chunk.py",
            "any(first <= own <= last for first, last in ranges)",
            "any(first <= own < last for first, last in ranges)",
        ),
        tests=("tests/unit/tables/test_chunk.py::test_over_a_compacted_range_nothing_is_skipped",),
        unsimulated="not simulated: tables there keep files in memory, not in Cassandra or on a disk",
    ),
)
