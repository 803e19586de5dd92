"""Goal: panel, lines and metrics show what the service told. Method: events in, text out."""

from __future__ import annotations

import io
import json
import logging
import socket
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from sqe_chain.cli.metrics import Metrics, serving
from sqe_chain.cli.panel import LivePanel, panel
from sqe_chain.cli.statistics import SLOW_S, Statistics
from sqe_chain.cli.telling import Hearers, Lines, logging_to
from sqe_chain.dev.server import free_port
from sqe_chain.errors import ConfigurationError
from sqe_chain.protocol.surroundings import PERSIST, PROCESS, PUBLISH, Observer

BATCH = (
    ("claimed", {"epoch": 4, "run_id": "ab"}),
    ("recovered", {"plan": 7, "redone": [7]}),
    ("sealed", {"plan": 8, "id": "cd"}),
    ("published", {"plan": 8, "outputs": 12}),
    ("persisted", {"plan": 8, "level": 2, "rows": 3}),
    ("persisted", {"plan": 8, "level": 1, "rows": 30}),
    (
        "committed",
        {"plan": 8, "inputs": 5000, "replays": 40, "excluded": 1, "outputs": 12, "lag": 77, "batch_ms": 321},
    ),
)


def tell(*observers: Observer) -> None:
    for name, fields in BATCH:
        for observer in observers:
            observer.event(name, fields)


def shown(statistics: Statistics) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(panel(statistics, "totals", "localhost:9092"))
    return console.file.getvalue()  # type: ignore[attr-defined] # the StringIO above


def test_a_step_that_waits_for_servers_is_called_slow_once() -> None:
    now = [1_000.0]
    statistics = Statistics(lambda: now[0])
    statistics.step(PROCESS, "before")
    now[0] += 60
    assert not statistics.grown_slow()  # user code may take its time
    statistics.step(PUBLISH, "before")
    now[0] += SLOW_S - 1
    assert not statistics.grown_slow()
    now[0] += 1
    assert statistics.grown_slow() == "publishing"
    assert not statistics.grown_slow()
    statistics.step(PERSIST, "before")
    statistics.step(PERSIST, "after")
    now[0] += 60
    assert not statistics.grown_slow()


def test_the_panel_shows_every_number() -> None:
    now = [1_000.0]
    statistics = Statistics(lambda: now[0])
    tell(statistics)
    now[0] = 1_005.0
    text = shown(statistics)
    for part in (
        *("totals", "localhost:9092", "input rate", "1,000/s", "lag", "77", "batch time", "321 ms"),
        *("replays ignored", "40", "last persist", "5 s ago", "store writes", "33", "8, 4", "left out"),
    ):
        assert part in text


def test_the_rate_is_the_mean_of_the_last_seconds_only() -> None:
    now = [0.0]
    statistics = Statistics(lambda: now[0])
    statistics.event("recovered", {"plan": 0})
    for second in range(1, 31):
        now[0] = float(second)
        statistics.event("committed", {"inputs": 100 if second < 20 else 300})
    assert statistics.rate() == pytest.approx(330)  # 11 batches of the last 10 seconds, both ends included
    now[0] = 100.0
    assert statistics.rate() == 0


def test_what_is_waited_for_stands_in_the_panel_until_it_is_back() -> None:
    statistics = Statistics(lambda: 0.0)
    statistics.event("waiting", {"what": "commit", "reason": "Kafka does not answer [now]", "wait_ms": 100})
    text = shown(statistics)
    assert "waiting to commit" in text
    assert "Kafka does not answer [now]" in text
    statistics.event("caught_up", {})
    assert "Kafka" not in shown(statistics)


def test_a_republisher_shows_no_plan() -> None:
    statistics = Statistics(lambda: 0.0)
    statistics.step(PUBLISH, "before")
    text = shown(statistics)
    assert "plan, epoch" not in text
    assert "publishing" in text


def test_an_open_plan_is_known() -> None:
    statistics = Statistics(lambda: 0.0)
    statistics.event("sealed", {"plan": 3})
    assert statistics.open_plan == 3
    statistics.event("committed", {"plan": 3})
    assert statistics.open_plan is None


def test_the_live_panel_keeps_what_is_worth_reading_above_it() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True)
    statistics = Statistics(lambda: 0.0)
    with LivePanel(console, statistics, "totals", "localhost:9092") as live:
        tell(statistics, live)
        live.event("notice", {"text": "[red]not markup[/red]"})
    text = stream.getvalue()
    assert "redone=[7]" in text
    assert "[red]not markup[/red]" in text
    assert "sealed" not in text


def test_json_lines_are_whole_and_written_at_once() -> None:
    written: list[str] = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            written[:] = self.getvalue().splitlines()

    lines = Lines("totals", as_json=True, stream=Pipe())
    for number, (name, fields) in enumerate(BATCH, 1):
        lines.event(name, fields)
        assert len(written) == number
        found = json.loads(written[-1])
        assert found["event"] == name
        assert found["flow"] == "totals"
        assert {key: found[key] for key in fields} == fields


def test_text_lines_show_every_field() -> None:
    stream = io.StringIO()
    tell(Lines("totals", as_json=False, stream=stream))
    assert "persisted  plan=8  level=2  rows=3" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == len(BATCH)


def test_caught_up_is_said_once() -> None:
    stream = io.StringIO()
    hearers = Hearers(Lines("totals", as_json=True, stream=stream))
    for name in ("caught_up", "caught_up", "committed", "caught_up"):
        hearers.event(name, {})
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["caught_up", "committed", "caught_up"]


def test_warnings_of_libraries_are_told_too() -> None:
    stream = io.StringIO()
    with logging_to(Lines("totals", as_json=True, stream=stream)):
        logging.getLogger("some.library").warning("beware of %s", "this")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["text"], found["logger"]) == ("notice", "beware of this", "some.library")


def test_metrics_count_and_answer() -> None:
    registry = CollectorRegistry()
    tell(Metrics("totals", registry))
    port = free_port()
    with serving(port, registry), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    label = '{flow="totals"}'
    for line in (
        f"sqe_chain_records_total{label} 5000.0",
        f"sqe_chain_replays_total{label} 40.0",
        f"sqe_chain_outputs_total{label} 12.0",
        f"sqe_chain_store_rows_total{label} 33.0",
        f"sqe_chain_lag{label} 77.0",
        f"sqe_chain_plan{label} 8.0",
        f"sqe_chain_epoch{label} 4.0",
        f"sqe_chain_batch_seconds_sum{label} 0.321",
    ):
        assert line in text
    assert text == generate_latest(registry).decode()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))  # noqa: S104 - as the server would
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"--metrics-port {port}"),
            serving(port, CollectorRegistry()),
        ):
            pytest.fail("it listens")
