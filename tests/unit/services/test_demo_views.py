"""What the demo sees in Kafka, and what it shows: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from services.demo import progress as shown
from services.demo.positions import Standing, retry, standing, topic_end
from services.demo.progress import DemoProgress, ServiceRow
from services.fastening import totals
from services.naive import values
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import Unavailable
from sqe_chain.ports import Commit

ROW = ServiceRow("totals", 2, "sealed", "1/5", "0/2", 1200, 34, 5)


@pytest.fixture
def log(request: pytest.FixtureRequest) -> MemoryLog:
    broker = MemoryLog(request.node.nodeid)  # a broker of its own
    broker.create_topic("robot.fastenings", 4)
    writer = broker.writer()
    writer.write([("robot.fastenings", number % 4, None, b"%d" % number, None, 1) for number in range(10)])
    writer.flush()
    return broker


def test_the_progress_of_a_service_is_what_its_group_has_committed(log: MemoryLog) -> None:
    assert standing(log, totals) == Standing(end=10, done=0)

    log.commit(totals.name, {("robot.fastenings", 0): Commit(3), ("robot.fastenings", 2): Commit(1)})

    assert standing(log, totals) == Standing(end=10, done=4)
    assert standing(log, totals).lag == 6
    assert topic_end(log, "robot.fastenings") == 10


def test_the_plain_consumer_reads_everything(log: MemoryLog) -> None:
    assert sorted(values(log, "robot.fastenings")) == [b"%d" % number for number in range(10)]


def test_a_busy_broker_is_asked_again_for_a_limited_time() -> None:
    answers: list[Any] = [Unavailable("busy"), Unavailable("busy"), 5]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    assert retry(ask) == 5
    answers.append(Unavailable("busy"))
    with pytest.raises(Unavailable):
        retry(ask, patience_s=0)


def test_without_a_terminal_there_are_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    with DemoProgress(Console(file=output, width=40)) as progress:
        progress.show([ROW])
        assert output.getvalue() == ""
        monkeypatch.setattr(shown, "PLAIN_EVERY_S", 0.0)
        progress._plain_due = 0
        progress.show([ROW, ROW._replace(service="standardize", open_plans="")])
        progress.note("kill [-9]")

    lines = output.getvalue().splitlines()
    assert lines[0].endswith(
        "totals #2 sealed, kills 1/5, open plans 0/2, lag 34; standardize #2 sealed, kills 1/5, lag 34"
    )
    assert lines[1].endswith("  kill [-9]")


def test_in_a_terminal_there_is_one_live_table_and_notes_stay() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, color_system=None)
    with DemoProgress(console) as progress:
        progress.show([ROW])
        progress.note("something happened")

    assert "something happened" in output.getvalue()
    assert "open plans" in output.getvalue()
    assert "1,200" in output.getvalue()
