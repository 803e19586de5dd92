"""Files as an origin: contents, rows, and which of them are read."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "of two files with the same content the last path counts",
        (
            "ext/files/_catalog.py",
            "                found.setdefault(rows.topic_id, rows)",
            "                found[rows.topic_id] = rows",
        ),
        tests=(
            "tests/unit/logs/test_files.py::test_files_are_topics_in_the_order_of_their_paths_beside_another_log",
        ),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a file is looked at once, whatever becomes of it",
        (
            "ext/files/_catalog.py",
            "        if known is not None and known[0] == stamp:",
            "        if known is not None:",
        ),
        tests=("tests/unit/logs/test_files.py::test_a_file_that_was_written_again_is_looked_at_again",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a file of the same size is the same file",
        ("ext/files/_content.py", "        if now[2:] != first[2:]:", "        if now[2:3] != first[2:3]:"),
        tests=(
            "tests/unit/logs/test_files.py::test_a_file_that_was_changed_is_noticed_at_the_next_read_and_at_the_end_of_one",
        ),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "what is read of a file is not compared with what was hashed",
        ("ext/files/_content.py", " or zlib.crc32(data) != self._content.checksums[number]:", ":"),
        tests=(
            "tests/unit/logs/test_files.py::test_what_is_read_is_what_was_hashed_whatever_the_time_of_the_last_change_says",
        ),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a file that was written to while it was looked at is taken as it is",
        (
            "ext/files/_content.py",
            "        if after != self._before or self._size != after[2]:",
            "        if False:",
        ),
        tests=(
            "tests/unit/logs/test_files.py::test_a_file_that_is_written_to_while_it_is_looked_at_is_refused",
        ),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "the last block of a file has no checksum",
        ("ext/files/_content.py", "        if self._in_block:\n            self._end_block()\n", ""),
        tests=("tests/unit/logs/test_files.py::test_rows_are_read_from_any_offset_on",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "row groups of Parquet are skipped by one row too many",
        (
            "ext/files/_parquet.py",
            "        group = bisect_right(self._begins, start) - 1",
            "        group = bisect_right(self._begins, start - 1) - 1",
        ),
        tests=("tests/unit/logs/test_files.py::test_rows_are_read_from_any_offset_on",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "rows of Parquet are skipped in each batch",
        (
            "ext/files/_parquet.py",
            "                skip = 0\n        except",
            "        except",
        ),
        tests=("tests/unit/logs/test_files.py::test_rows_are_read_from_any_offset_on",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a line of blanks is a row",
        ("ext/files/_text.py", "            if not line.isspace():", "            if line:"),
        tests=("tests/unit/logs/test_files.py::test_files_without_rows_have_none",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "the mark at the beginning of UTF-8 belongs to the first row",
        ("ext/files/_text.py", "        return len(stream.read(len(_BOM)))", "        return 0"),
        tests=("tests/unit/logs/test_files.py::test_csv_as_rfc_4180_says_and_more",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a row of CSV without its last fields gets null",
        (
            "ext/files/_text.py",
            "if len(fields) == count else fields)",
            "if len(fields) <= count else fields)",
        ),
        tests=(
            "tests/unit/logs/test_files.py::test_rows_with_another_number_of_fields_are_lists_and_harm_no_other",
        ),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a file that was read to its end enters again",
        (
            "protocol/file_inputs.py",
            "    known = last.files.keys() | finished_topics(last.finished) if",
            "    known = last.files.keys() | set() if",
        ),
        tests=("tests/protocol/test_files.py::test_each_row_counts_once_and_a_second_load_adds_nothing",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "of contents that are read the last one is forgotten",
        (
            "protocol/file_inputs.py",
            "for at in range(0, len(text), HASH_DIGITS))",
            "for at in range(0, len(text) - HASH_DIGITS, HASH_DIGITS))",
        ),
        tests=("tests/protocol/test_files.py::test_each_row_counts_once_and_a_second_load_adds_nothing",),
        unsimulated="not simulated: flows there read no files",
    ),
    mutant(
        "a file that is half read may be gone",
        (
            "protocol/file_inputs.py",
            "if one.topic in last.files and one.stop == 0}",
            "if one.topic in last.files}",
        ),
        tests=(
            "tests/protocol/test_files.py::test_another_declaration_of_csv_is_noticed_before_anything_is_read_with_it",
        ),
        unsimulated="not simulated: flows there read no files",
    ),
)
