"""Goal: the audit of tables finds a row that is missing, doubled, never reported, or has a wrong cell, and nothing else.

Method: tables of a few hundred rows in memory, with one mistake each; and the service in a rehearsal, crashed, into real tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from services import naive, simulate
from services.demo.kills import Kills
from services.demo_ingest.tables import TablesOutcome, wanted_sums
from services.expected import expected
from services.fastening import standard
from services.naive import Naive
from services.reports import reports
from services.rows import rows_flow
from services.table_audit import TableAudit, audit_table, compare, expected_rows, main
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.storage import TableChange
from sqe_chain.testing import Rehearsal

REPORTS = 300
TRUTH = expected_rows(reports(7, REPORTS))


def changed(column: str, row: int, value: object) -> Any:
    cells = TRUTH[column].to_pylist()
    cells[row] = value
    return TRUTH.set_column(TRUTH.column_names.index(column), column, pa.array(cells, TRUTH[column].type))


def test_right_rows_in_any_order_are_right() -> None:
    found = compare("t", TRUTH.take(pa.array(reversed(range(TRUTH.num_rows)))), TRUTH)

    assert found == TableAudit("t", rows=TRUTH.num_rows)


@pytest.mark.parametrize(
    ("given", "missing", "doubled", "wrong", "finding"),
    [
        (lambda: TRUTH.slice(1), 1, 0, 0, "missing: "),
        (lambda: pa.concat_tables([TRUTH, TRUTH.slice(5, 2)]), 0, 2, 0, "more than once: "),
        (
            lambda: pa.concat_tables([TRUTH, TRUTH.slice(5, 1), TRUTH.slice(5, 1)]),
            0,
            2,
            0,
            "more than once: ",
        ),
        (
            lambda: pa.concat_tables([TRUTH, changed("report", 3, 999_999).slice(3, 1)]),
            0,
            1,
            0,
            "never reported: ",
        ),
        (lambda: changed("report", 3, 999_999), 1, 1, 0, "never reported: "),
        (lambda: changed("torque_mnm", 9, 1), 0, 0, 1, "wrong cell: "),
        (lambda: changed("line", 9, None), 0, 0, 1, "wrong cell: "),
        (lambda: TRUTH.slice(0, 0), TRUTH.num_rows, 0, 0, "missing: "),
    ],
)
def test_each_mistake_is_found(
    given: Callable[[], Any], missing: int, doubled: int, wrong: int, finding: str
) -> None:
    found = compare("t", given(), TRUTH)

    assert (found.missing, found.doubled, found.wrong) == (missing, doubled, wrong)
    assert any(one.startswith(finding) for one in found.findings)


@pytest.fixture
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A table that the service has filled, crashed between the table's commit and the header, from a republisher that crashed."""
    log = MemoryLog(request.node.nodeid)
    log.create_topic(simulate.TOPIC, simulate.PARTITIONS)
    simulate.produce(log.writer(), reports(7, REPORTS), simulate.Leash(), messages=REPORTS)
    republisher = Rehearsal(standard, partitions={simulate.TOPIC: simulate.PARTITIONS}, log=log)
    republisher.crash(step=7, when="before")
    republisher.run_until_caught_up()
    service = Rehearsal(rows_flow([str(tmp_path)]), partitions={naive.TOPIC: 4}, log=log)
    service.crash_at_call(5, "after", of="table", writes=True)
    service.run_until_caught_up()
    assert (republisher.crashes, service.crashes) == (1, 1)
    assert len(list(naive.values(log, naive.TOPIC))) == 2 * expected(reports(7, REPORTS)).messages
    return f"{tmp_path}/fastenings"


def test_what_the_service_writes_is_right(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = audit_table(filled, TRUTH)

    assert not found.findings
    assert (found.rows, found.off) == (TRUTH.num_rows, 0)
    assert found.chunks > 100
    assert main(["--table", filled, "--messages", str(REPORTS)]) == 0
    assert main(["--table", filled, "--messages", str(REPORTS + 1)]) == 1
    assert "missing: " in capsys.readouterr().out
    assert main(["--table", f"{filled}-2", "--messages", "1"]) > 0


def test_a_file_that_is_named_twice_is_found(filled: str) -> None:
    directory = TableDirectory(filled)
    snapshot = directory.snapshot()
    assert snapshot is not None
    file = snapshot.files()[0]
    copy = Path(filled, file.path).with_name("copy.parquet")
    copy.write_bytes(Path(filled, file.path).read_bytes())
    again = replace(file, path=f"{Path(file.path).parent}/copy.parquet")
    directory.commit_markers(snapshot, {}, TableChange("a mistake", added=[again]))

    found = compare(filled, DeltaTable(filled).to_pyarrow_dataset(), TRUTH)
    assert (found.missing, found.doubled, found.wrong) == (0, file.rows, 0)


def test_the_outcome_names_deviations_and_what_proves_nothing() -> None:
    truth = expected(reports(7, REPORTS))
    standardize, rows = Kills("standardize", 0, 0, Random(1)), Kills("rows", 0, 0, Random(1))
    plain = Naive(truth.messages * 2, truth.events * 2, truth.events, 1, 1, "robot-0001", 1)
    table = TableAudit("t", rows=truth.events, chunks=9)
    other = replace(table, table="cassandra://h/k/t", chunks=8)
    sums = {one.table: wanted_sums(truth) for one in (table, other)}
    right = TablesOutcome(
        truth=truth,
        tables=[table, other],
        spark=sums,
        records=truth.messages * 2,
        reported_replays=5,
        naive=plain,
        kills=[standardize, rows],
    )

    assert right.failures == []
    assert right.lines == [
        f"Delta Lake: {truth.events} rows, 9 chunks, 0 missing, 0 doubled",
        f"Cassandra: {truth.events} rows, 8 chunks, 0 missing, 0 doubled",
    ]
    assert right.last_line == f"exact: {2 * truth.events} rows, 17 chunks, 0 kills, 0 missing, 0 doubled"
    for number, one in enumerate(right.tables):
        doubled = replace(one, doubled=3, findings=["more than once: x"])
        tables = [doubled if place == number else table for place, table in enumerate(right.tables)]
        off = replace(right, tables=tables)
        assert (
            off.last_line == f"not exact: {2 * truth.events} rows, 17 chunks, 0 kills, 0 missing, 3 doubled"
        )
        wrong = sums | {one.table: wanted_sums(truth) | {"line-0": (1, 2, 3, 4, 5)}}
        assert (
            f"{one.table}: Spark finds (1, 2, 3, 4, 5) for line-0" in replace(right, spark=wrong).failures[0]
        )
    assert "proves nothing" in replace(right, records=truth.messages, reported_replays=0).failures[0]
