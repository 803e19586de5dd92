"""Goal: what is no row of a table goes to the poison policy by its name, whole, and nothing half written becomes visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sqe_chain.errors import TableAltered
from sqe_chain.ext.tables.reading import open_table
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.table_flows import Reading, TablePipeline, table_flow


class Batch(msgspec.Struct):
    readings: list[Reading]


def test_an_input_counts_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """One input gives rows to several state partitions, and one row of it is too large."""
    flow = Flow("batches", state_partitions=3, poison="skip")
    readings = flow.source("raw", Batch, codec="json", raw=True).flat_map(lambda batch: batch.readings)
    readings.ingest(
        "readings",
        partition_key="robot",
        row_key="at_ms",
        payload=Reading,
        at=str(tmp_path),
        max_row_bytes=100,
    )
    service = Rehearsal(flow)
    good = [Reading(f"r{number}", 1) for number in range(6)]
    service.feed("raw", Batch(good))
    service.feed("raw", Batch([Reading(f"r{number}", 2) for number in range(6)] + [Reading("x" * 200, 2)]))
    service.feed("raw", Batch([Reading("r1", 3)]))
    service.run_until_caught_up()
    rows = open_table(str(tmp_path / "readings")).read()
    assert sorted(zip(rows["robot"].to_pylist(), rows["at_ms"].to_pylist(), strict=True)) == sorted(
        [(one.robot, 1) for one in good] + [("r1", 3)]
    )


def test_a_table_after_an_aggregate(tmp_path: Path) -> None:
    """Two levels: the table is persisted first, and a crash between the two loses nothing."""

    class Total(msgspec.Struct):
        robot: str = ""
        at_ms: int = 0
        bar: float = 0.0

    def add(total: Any, one: Reading) -> list[Reading]:
        total.robot, total.bar, total.at_ms = one.robot, total.bar + one.bar, one.at_ms
        return [Reading(one.robot, one.at_ms, total.bar)]

    def flow_of(at: Path) -> Flow:
        flow = Flow("totals", state_partitions=2)
        source = flow.source("readings.raw", Reading, codec="json", raw=True)
        totals = source.aggregate("totals", key=lambda one: one.robot or "", state=Total, fold=add)
        totals.ingest("readings", partition_key="robot", row_key="at_ms", payload=Reading, at=str(at))
        return flow

    for call in range(0, 60, 3):
        at = tmp_path / str(call)
        service = Rehearsal(flow_of(at), partitions={"readings.raw": 2})
        expected: dict[tuple[str, int], float] = {}
        sums: dict[str, float] = {}
        for number in range(12):
            robot = f"r{number % 4}"
            sums[robot] = sums.get(robot, 0.0) + number
            expected[robot, number] = sums[robot]
            service.feed("readings.raw", Reading(robot, number, float(number)), key=robot)
            if number == 6:
                service.run_until_caught_up()
                service.crash_at_call(call, "after")
        service.run_until_caught_up()
        rows = open_table(str(at / "readings")).read().to_pylist()
        assert {(row["robot"], row["at_ms"]): row["bar"] for row in rows} == expected


def test_a_table_that_is_altered_while_the_service_runs_stops_it(tmp_path: Path) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415 - another program

    pipeline = TablePipeline(tmp_path)
    pipeline.feed()
    pipeline.service.run_until_caught_up()
    DeltaTable(str(tmp_path / "readings")).delete("at_ms = 1")
    pipeline.feed()
    with pytest.raises(TableAltered, match="DELETE by delta-rs"):
        pipeline.service.run_until_caught_up()


def test_a_declaration_that_cannot_be_is_refused(tmp_path: Path) -> None:
    from sqe_chain.errors import FlowError  # noqa: PLC0415 - only here

    with pytest.raises(
        FlowError, match=r"test_table_input.py:.*key column 'nothing'|table_flows.py:.*key column 'nothing'"
    ):
        table_flow(tmp_path, row_key="nothing")
    flow = Flow("unknown")
    mapped = flow.source("raw", Reading, codec="json", raw=True).map(lambda one: {"a": one.at_ms, "b": 1})
    with pytest.raises(FlowError, match="Give columns="):
        mapped.ingest("t", partition_key="a", row_key="b", at=str(tmp_path))
    mapped.ingest("t", partition_key="a", row_key="b", columns={"a": "int64", "b": "int64"}, at=str(tmp_path))
    service = Rehearsal(flow)
    service.feed("raw", Reading("r", 7))
    service.run_until_caught_up()
    assert open_table(str(tmp_path / "t")).read().to_pylist() == [{"a": 7, "b": 1}]
