"""Goal: readers get the latest row of each key, while flushes and compactions go on, and read no more than they have to.

Method: a table on disk, filled flush by flush; what DuckDB, Polars and pyarrow find is compared with a dict.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest
from deltalake import DeltaTable

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.ext.tables import TableSchema
from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.files import files_of
from sqe_chain.ext.tables.memtable import Memtable
from sqe_chain.ext.tables.reading import Table, open_table
from sqe_chain.ext.tables.sink import TableSink
from sqe_chain.flow import Flow
from sqe_chain.ports import Flush, SinkClaim
from sqe_chain.testing import Rehearsal

PARTS = 4

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


class Row(msgspec.Struct):
    robot: str
    at: dt.datetime
    bar: float
    flag: bool = True


class Written:
    """A table, and what it must hold."""

    def __init__(self, at: Path) -> None:
        self.address = str(at / "t")
        schema = TableSchema.of(Row, partition_key="robot", row_key="at")
        self.sink = TableSink(TableDirectory(self.address), schema, "t")
        self.sink.claim(SinkClaim("f", "t", 1, "run", {}, dict.fromkeys(range(PARTS))))
        self.known: dict[int, bytes | None] = {}
        self.expected: dict[tuple[str, dt.datetime], float] = {}
        self.number = 0

    def flush(self, rows: list[Row]) -> None:
        self.number += 1
        memtables = [Memtable(self.sink.schema, table="t") for _ in range(PARTS)]
        for row in rows:
            memtables[partition_of(row.robot.encode(), PARTS)].ingest(row)
            self.expected[row.robot, row.at] = row.bar
        for part, memtable in enumerate(memtables):
            files = files_of(memtable.flush(self.number * ROWS_OF_A_PLAN))
            if files:
                content = [(bytes([index]), file.packed()) for index, file in enumerate(files)]
                known = self.known.get(part)
                flush = Flush("f", "t", part, 1, "run", self.number, f"{self.number:032x}", content, known)
                _, self.known[part] = self.sink.flush(flush)

    @property
    def table(self) -> Table:
        return open_table(self.address)

    def check(self) -> None:
        assert as_dict(self.table.read()) == self.expected


def as_dict(rows: Any) -> dict[tuple[str, dt.datetime], float]:
    found = {(row["robot"], row["at"]): row["bar"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def filled(at: Path, flushes: int = 6, seed: int = 3) -> Written:
    found, random = Written(at), Random(seed)
    for number in range(flushes):
        minutes = [random.randrange(number * 20, number * 20 + 40) for _ in range(60)]
        found.flush(
            [
                Row(f"r{random.randrange(9)}", START + dt.timedelta(minutes=minute), random.random())
                for minute in minutes
            ]
        )
    return found


def test_row_groups_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqe_chain.ext.tables.files.ROW_GROUP", 10)
    found = filled(tmp_path, flushes=1)
    scan = found.table.scan("r4")
    assert scan.row_groups < scan.row_groups + scan.row_groups_left_out
    assert scan.rows_read <= 20 < len(found.expected)
    assert as_dict(scan.rows) == {key: bar for key, bar in found.expected.items() if key[0] == "r4"}


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    table = filled(tmp_path, 1).table
    wrongs: list[dict[str, Any]] = [
        {"columns": ["nothing"]},
        {"where": {"nothing": (1, 2)}},
        {"partition_key": ("a", "b")},
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            table.read(**wrong)
    with pytest.raises(ConfigurationError, match="there is no table"):
        open_table(str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="retain_hours"):
        table.vacuum(retain_hours=0)


def test_a_table_is_opened_by_a_text_or_a_path(tmp_path: Path) -> None:
    found = filled(tmp_path, 1)
    rows = found.table.read()
    for address in (Path(found.address), f"file://{found.address}"):
        assert open_table(address).read().equals(rows)
    for wrong in (None, b"tables/readings", "", 7):
        with pytest.raises(ConfigurationError, match="a directory or an address, as text or a path"):
            open_table(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="give it as text"):
        open_table(Path("cassandra://localhost/sqe_chain/readings"))


CHARACTERS = [chr(code) for code in (*range(1, 47), *range(48, 128))]  # of names of files


def in_a_folder(name: str, at: Path) -> Flow:
    flow = Flow("f", state_partitions=1)
    flow.source("in", Row, codec="json", raw=True).ingest(
        "t", partition_key="robot", row_key="at", at=at / name
    )
    return flow


@pytest.mark.parametrize(
    "name", ["a%20b", "a%2Fb", "100%25", "%00", *(f"a{one}b" for one in "[]^|\\\t\n\x7f"), "\udcff"]
)
@pytest.mark.parametrize("relative", [False, True])
def test_a_path_that_delta_lake_takes_for_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, relative: bool
) -> None:
    """Else rows go into one directory, and the table's log is looked for in another."""
    at = tmp_path
    if relative and name != "\udcff":  # which this file system may refuse
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        name, at = "tables", Path()
    with pytest.raises(FlowError, match="which a path of Delta Lake cannot have"):
        in_a_folder(name, at)
    with pytest.raises(ConfigurationError, match="which a path of Delta Lake cannot have"):
        open_table(at / name / "t")
    monkeypatch.setenv("SQE_CHAIN_TABLES", str(tmp_path / "a%20b"))
    with pytest.raises(FlowError, match="which a path of Delta Lake cannot have"):
        Flow("f", state_partitions=1).source("in", Row, codec="json", raw=True).ingest(
            "t", partition_key="robot", row_key="at"
        )


def test_a_path_of_all_other_characters_is_where_the_table_lies(tmp_path: Path) -> None:
    name = "".join(one for one in CHARACTERS if one.isprintable() and one not in "[]^|\\") + "ü 中 %zz"
    service = Rehearsal(in_a_folder(name, tmp_path))
    service.feed("in", Row("r", START, 1.0))
    service.run_until_caught_up()
    assert open_table(tmp_path / name / "t").read().num_rows == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "t" / "_delta_log").is_dir()


def test_duckdb_polars_and_pyarrow_find_the_same(tmp_path: Path) -> None:
    found = filled(tmp_path)
    delta = DeltaTable(found.address)
    t = delta.to_pyarrow_dataset()
    assert t.count_rows() > len(found.expected), "with rows that were replaced"
    rows = duckdb.execute(found.table.latest_sql("t")).fetchall()
    assert {(robot, at.astimezone(dt.UTC)): bar for robot, at, bar, _ in rows} == found.expected
    lazy = pl.scan_delta(found.address).sort("_sqe_sequence").unique(["robot", "at"], keep="last")
    assert {(row["robot"], row["at"]): row["bar"] for row in lazy.collect().to_dicts()} == found.expected
    del t


def test_a_reader_of_an_older_version_goes_on_while_files_are_merged(tmp_path: Path) -> None:
    found = filled(tmp_path)
    before = DeltaTable(found.address)
    count = before.to_pyarrow_dataset().count_rows()
    found.table.compact()
    assert before.to_pyarrow_dataset().count_rows() == count
