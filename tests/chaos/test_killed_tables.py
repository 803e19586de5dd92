"""Services whose states are tables in PostgreSQL (`view="NAME"`), killed again and again: `SELECT` is right at every moment.

While services run and die, one statement reads states, headers and rows: rows are what the states are, none is missing and none too
many. When all is processed, rows are what an independent fold of the input gives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from google.protobuf.message import Message

from services._proto.fastening_pb2 import LineTotal, RobotTotal
from tests.chaos.test_kills import FRESH, REDONE, SPARK, feed_twice
from tests.support.service_processes import ROOT, ServiceProcess
from tests.support.suites import some
from tests.support.totals_deployment import TotalsDeployment
from tests.support.waiting import PATIENCE_S

TABLES: dict[str, tuple[str, type[Message]]] = {
    "per-robot": ("robots", RobotTotal),
    "per-line": ("lines", LineTotal),
}
ENGINES: dict[str, tuple[Sequence[str], str]] = {
    "inprocess": ((), "inprocess"),
    "workers": (("--workers", "2"), "inprocess"),
    "spark": (SPARK, "spark"),
}


class TableDeployment(TotalsDeployment):
    """The same services, whose states are shown by tables."""

    def __init__(self, kafka: str, store: str, directory: Path) -> None:
        super().__init__(kafka, store, directory)
        self.tables = self.name.replace("-", "_")
        self.environment = {"CHAOS_TABLES": self.tables}
        flow = ("--flow", "tests.support.chaos_flows:totals")
        environment = {"PYTHONPATH": str(ROOT), "CHAOS_PREFIX": self.name, **self.environment}
        made = ServiceProcess(("store", "init", store, *flow), directory / "tables.log", environment)
        assert made.wait() == 0, made.text

    def check_while_running(self, flow: str = "totals") -> None:
        super().check_while_running(flow)
        self.check_tables()

    def check_tables(self) -> int:
        """Compare rows with states and headers, all of one moment; returns how many rows there are."""
        count = 0
        with contextlib.closing(psycopg.connect(self.store, autocommit=True)) as session:
            for stage, (table, kind) in TABLES.items():
                fields = [field.name for field in kind.DESCRIPTOR.fields]
                found = session.execute(
                    self._compared(table, fields), {"flow": f"{self.name}-totals", "stage": stage}
                )
                missing = dict[int, int]()
                for part, states, key, state, shown_key, error, *shown in found:
                    assert None not in (part, key, shown_key), (
                        f"{stage}: a header, state or row is alone: {key!r}, {shown_key!r}"
                    )
                    message = kind.FromString(state)
                    held = [getattr(message, field) for field in fields]
                    assert (shown_key, error, shown) == (key.decode(), None, held), (stage, key)
                    missing[part] = missing.get(part, int(states)) - 1
                    count += 1
                assert not any(missing.values()), f"{stage}: cells whose header counts more rows: {missing}"
        return count

    def _compared(self, table: str, fields: Sequence[str]) -> str:
        columns = ", ".join(f"v.{field}" for field in fields)
        return (
            f"SELECT h.part, h.states, s.key, s.state, v.key, v.sqe_error, {columns}"  # noqa: S608 - of this test
            " FROM (SELECT * FROM sqe_chain.sqe_states WHERE flow = %(flow)s AND stage = %(stage)s) AS s"
            f" FULL JOIN sqe_chain.{self.tables}_{table}_rows AS v"
            " ON v.sqe_flow = s.flow AND v.sqe_part = s.part AND v.sqe_place = s.key"
            " FULL JOIN (SELECT * FROM sqe_chain.sqe_headers WHERE flow = %(flow)s AND stage = %(stage)s AND states > 0) AS h"
            " ON h.part = s.part"
        )

    def check_sums(self) -> None:
        """What the views show is what the input gives."""
        for table, expected in (("robots", self.expected.per_robot()), ("lines", self.expected.per_line())):
            with contextlib.closing(psycopg.connect(self.store, autocommit=True)) as session:
                found = session.execute(
                    f"SELECT key, events, fastened, torque_mnm FROM sqe_chain.{self.tables}_{table}"  # noqa: S608
                ).fetchall()
            assert {key: tuple(map(int, values)) for key, *values in found} == expected
            assert len(found) == len(expected)


@contextlib.contextmanager
def watched(deployment: TableDeployment) -> Iterator[list[int]]:
    """Compare rows and states all the time; gives how many rows each comparison saw."""
    seen, faults, stop = list[int](), list[BaseException](), threading.Event()

    def watch() -> None:
        try:
            while not stop.is_set():
                seen.append(deployment.check_tables())
        except BaseException as error:  # noqa: BLE001 - of another thread
            faults.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert faults == []


@pytest.mark.timeout(2400)
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "rounds"),
    [("workers", 4), ("inprocess", 3), pytest.param("spark", 1, marks=pytest.mark.release)],
)
def test_tables_are_the_states_whenever_a_service_dies(
    kafka: str, postgres_url: str, tmp_path: Path, engine: str, rounds: int
) -> None:
    """By its own hand after each event, of new batches and of one that is redone; and from outside, at any moment after an event."""
    more, named = ENGINES[engine]
    deployment = TableDeployment(kafka, postgres_url, tmp_path)
    with contextlib.closing(deployment), watched(deployment) as seen:
        for _ in some("rounds of kills with tables", range(rounds), 5):
            for at in some("kills with tables", FRESH, 3):
                feed_twice(deployment)
                deployment.run_until_killed("totals", *more, at=at, engine=named)
            feed_twice(deployment)
            for at in REDONE:
                deployment.run_until_killed("totals", *more, at=at, engine=named)
            for event in ("sealed", "persisted"):
                feed_twice(deployment)
                deployment.start("totals", *more, engine=named).kill_after(event)
        deployment.run_once("standard")
        deployment.run_once("totals", *more, engine=named)
        deployment.check()
        deployment.check_sums()
        assert len(set(seen)) > 1, "rows were never compared while they grew"
