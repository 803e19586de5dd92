"""Goal: a redo writes nothing again of what it finds, and calls everything as before.

Method: a crash between what a flush writes; then what the redo writes is counted, and compared with a run without a crash.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory_chunks import use_memory
from tests.support.table_flows import TablePipeline, begun_table


def test_a_redo_writes_no_file_again_and_names_it_the_same(tmp_path: Path) -> None:
    once, again = begun_table(tmp_path / "once", 2), begun_table(tmp_path / "again", 2)
    once.service.run_until_caught_up()
    writes = len(again.service.script.written)
    again.service.crash_at_call(
        3, "before", of="table", writes=True
    )  # the second commit: its file is written
    again.service.run_until_crash()
    again.service.run_until_caught_up()
    again.check()
    puts = [one for one in again.service.script.written[writes:] if one.endswith(": put")]
    assert len(puts) == 2, "one for each state partition: the redo has skipped them"
    names = [sorted(Path(file).name for file in found.table.files()) for found in (once, again)]
    contents = [sorted(Path(file).read_bytes() for file in found.table.files()) for found in (once, again)]
    assert [name.rpartition("-")[2] for name in names[0]] == [name.rpartition("-")[2] for name in names[1]]
    assert contents[0] == contents[1]


def test_a_redo_writes_the_chunks_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = use_memory(monkeypatch)
    monkeypatch.setattr(TablePipeline, "place", lambda at: f"cassandra://memory/{at.name}")
    once, again = begun_table(tmp_path / "once", 1), begun_table(tmp_path / "again", 1)
    before = len(once.table_writes())
    once.service.run_until_caught_up()
    writes = [one.rpartition(": ")[2] for one in once.table_writes()[before:]]
    chunks = writes.count("write_pieces")
    assert writes == [*["write_pieces"] * chunks, *["write_index"] * chunks, "compare_and_set"]
    assert chunks > 2
    for crash in range(2 * chunks):
        again = begun_table(tmp_path / f"again-{crash}", 1)
        again.service.crash_at_call(crash, "after", of="table", writes=True)
        again.service.run_until_crash()
        before = len(again.table_writes())
        again.service.run_until_caught_up()
        again.check()
        redone = [one.rpartition(": ")[2] for one in again.table_writes()[before:]]
        indexed = max(0, crash + 1 - chunks)
        assert redone.count("write_pieces") == chunks - indexed, "those that the index has are skipped"
    names = [
        {name for part in rows.named.values() for name in part}
        for address, rows in database.tables.items()
        if "once" in address or f"again-{crash}" in address
    ]
    assert [sorted(name[-16:] for name in one) for one in names] == [sorted(n[-16:] for n in names[0])] * 2
