"""Goal: panel, lines and metrics show the events of the service. Method: events in, text out."""

from __future__ import annotations

import io
import json
import logging
import math
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from sqe_chain.cli.panel import LivePanel, panel
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.plans.events import (
    PUBLISH,
    CaughtUp,
    Claimed,
    Committed,
    Event,
    Notice,
    Observer,
    Persisted,
    Published,
    Recovered,
    Sealed,
    Standby,
    Stopped,
    Waiting,
)
from sqe_chain.plans.results import StartResult
from sqe_chain.runtime import serving
from sqe_chain.runtime.lines import Lines
from sqe_chain.runtime.metrics import Metrics
from sqe_chain.runtime.observers import Observers, forward_warnings
from sqe_chain.runtime.serving import MOST, STUCK_MS, Health, serve
from sqe_chain.runtime.statistics import Statistics
from tests.support.ports import own_port

COMMITTED = Committed(
    plan=8,
    inputs=5000,
    replays=40,
    excluded=1,
    excluded_errors={"ValueError": 1},
    excluded_sample=({"input": "t[0]@7", "error": "ValueError", "text": "odd"},),
    outputs=12,
    lag=77,
    lag_by_partition={"t/0": 77},
    event_time_ms=-1,
    batch_ms=321,
)
BATCH: tuple[Event, ...] = (
    Claimed(4, "ab", 7),
    Recovered(3, 7, (7,)),
    Sealed(8, "cd"),
    Published(plan=8, outputs=12),
    Persisted(8, 2, 3),
    Persisted(8, 1, 30),
    COMMITTED,
)


def emit_batches(*observers: Observer) -> None:
    for event in BATCH:
        for observer in observers:
            observer.event(event)


def shown(statistics: Statistics) -> str:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=False)
    console.print(panel(statistics, "totals", "localhost:9092"))
    return text.getvalue()


def test_the_panel_shows_every_number() -> None:
    now = [1_000.0]
    statistics = Statistics(lambda: now[0])
    emit_batches(statistics)
    now[0] = 1_005.0
    text = shown(statistics)
    for part in (
        *("totals", "localhost:9092", "input rate", "1,000/s", "lag", "77", "batch time", "321 ms"),
        *("replays ignored", "40", "last persist", "5 s ago", "store writes", "33", "8, 4", "skipped"),
    ):
        assert part in text


def test_the_rate_is_the_mean_of_the_last_seconds_only() -> None:
    now = [0.0]
    statistics = Statistics(lambda: now[0])
    statistics.event(Recovered(1, 0, ()))
    for second in range(1, 31):
        now[0] = float(second)
        statistics.event(replace(COMMITTED, inputs=100 if second < 20 else 300))
    assert statistics.rate() == pytest.approx(330)  # 11 batches of the last 10 seconds, both ends included
    now[0] = 100.0
    assert statistics.rate() == 0


def test_the_panel_shows_what_a_service_waits_for_until_it_is_back() -> None:
    statistics = Statistics(lambda: 0.0)
    statistics.event(Waiting("commit", "Kafka does not answer [now]", 100))
    text = shown(statistics)
    assert "waiting to commit" in text
    assert "Kafka does not answer [now]" in text
    statistics.event(CaughtUp(8))
    assert "Kafka" not in shown(statistics)


def test_a_republisher_shows_no_plan() -> None:
    statistics = Statistics(lambda: 0.0)
    statistics.step(PUBLISH, "before")
    text = shown(statistics)
    assert "plan, epoch" not in text
    assert "publishing" in text


def test_the_live_panel_keeps_what_is_worth_reading_above_it() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True)
    statistics = Statistics(lambda: 0.0)
    with LivePanel(console, statistics, "totals", "localhost:9092") as live:
        emit_batches(statistics, live)
        live.event(Notice("[red]not markup[/red]"))
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
    for number, event in enumerate(BATCH, 1):
        lines.event(event)
        assert len(written) == number
        found = json.loads(written[-1])
        assert found["event"] == event.name
        assert found["flow"] == "totals"
        assert {key: found[key] for key in event.fields()} == event.fields()


def test_text_lines_show_every_field() -> None:
    stream = io.StringIO()
    emit_batches(Lines("totals", as_json=False, stream=stream))
    assert "persisted  plan=8  level=2  rows=3" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == len(BATCH)


@pytest.mark.parametrize("as_json", [False, True])
def test_people_read_the_reason_of_an_outage_once_and_machines_each_time(*, as_json: bool) -> None:
    stream = io.StringIO()
    lines = Lines("totals", as_json=as_json, stream=stream)
    for reason in ("no broker", "no broker", "no store", "no broker"):
        lines.event(Waiting("commit", reason, 100))
    reported = [
        next(one for one in ("no broker", "no store", "the same") if one in line)
        for line in stream.getvalue().splitlines()
    ]
    again = "no broker" if as_json else "the same"
    assert reported == ["no broker", again, "no store", "no broker"]


def test_caught_up_is_reported_once() -> None:
    stream = io.StringIO()
    observers = Observers(Lines("totals", as_json=True, stream=stream))
    for event in (CaughtUp(8), CaughtUp(8), COMMITTED, CaughtUp(8)):
        observers.event(event)
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["caught_up", "committed", "caught_up"]


def test_warnings_of_libraries_are_shown_too() -> None:
    stream = io.StringIO()
    with forward_warnings(Lines("totals", as_json=True, stream=stream)):
        logging.getLogger("some.library").warning("beware of %s", "this")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["text"], found["logger"]) == ("notice", "beware of this", "some.library")


def test_metrics_count_and_answer() -> None:
    registry = CollectorRegistry()
    emit_batches(Metrics("totals", registry).statistics)
    port = own_port()
    with (
        serve(port, registry, Health(lambda: 0)),
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer,
    ):
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


def test_a_service_without_stages_has_no_number_of_a_plan() -> None:
    """Nor does it begin with one: 0 is the number of a plan, and alerts compare it."""
    registry = CollectorRegistry()
    metrics = Metrics("f", registry).statistics
    assert numbers(registry, "sqe_chain_plan") == {}
    metrics.event(Recovered.of(StartResult(partitions=3)))
    metrics.event(replace(COMMITTED, plan=None))
    assert numbers(registry, "sqe_chain_plan") == {}
    metrics.event(Recovered.of(StartResult(partitions=3, plan=7, redone=())))
    assert numbers(registry, "sqe_chain_plan") == {'flow="f"': 7}


def committed(lags: dict[str, int], event_time_ms: int = -1) -> Committed:
    return replace(COMMITTED, lag=sum(lags.values()), lag_by_partition=lags, event_time_ms=event_time_ms)


def numbers(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Value of each series of a metric."""
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith(name + "{")]
    return {line.partition("{")[2].partition("}")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_lag_is_shown_by_partition_and_removed_partitions_are_no_longer_shown() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("f", registry).statistics
    metrics.event(committed({"a.b/0": 5, "a.b/1": 0, "old/0": 9}))
    metrics.event(committed({"a.b/0": 7, "a.b/1": 2}))
    name = "sqe_chain_partition_lag"
    place = 'flow="f",partition="{}",topic="a.b"'
    assert numbers(registry, name) == {place.format(0): 7, place.format(1): 2}
    metrics.event(CaughtUp(8))
    assert numbers(registry, name) == {place.format(0): 0, place.format(1): 0}


def test_event_time_lag_follows_the_clock_and_never_goes_back() -> None:
    registry, now_s = CollectorRegistry(), [1_000.0]
    metrics = Metrics("f", registry, lambda: now_s[0]).statistics

    def lag() -> float:
        (value,) = numbers(registry, "sqe_chain_event_time_lag_seconds").values()
        return value

    assert math.isnan(lag())
    metrics.event(committed({}, -1))
    assert math.isnan(lag())
    metrics.event(committed({}, 970_000))
    assert lag() == 30
    metrics.event(committed({}, 960_000))
    now_s[0] += 12
    assert lag() == 42


def asked(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_live_and_ready_answer_beside_the_metrics() -> None:
    quiet_ms = [0]
    health, port = Health(lambda: quiet_ms[0]), own_port()
    with serve(port, CollectorRegistry(), health):
        assert asked(port, "/live")[0] == 200
        assert asked(port, "/ready") == asked(port, "/available") == (503, "starting\n")
        health.event(Standby(3, "{}"))
        assert asked(port, "/ready") == (503, "standby\n")
        assert asked(port, "/available") == (200, "standby\n")
        health.event(Claimed(4, "ab", 7))
        assert asked(port, "/available") == (503, "claimed\n")
        assert asked(port, "/ready") == (503, "claimed\n")
        for event in (Recovered(3, 7, ()), Waiting("commit", "no broker", 100), Notice("news"), COMMITTED):
            health.event(event)
            assert asked(port, "/ready") == asked(port, "/available") == (200, "at work\n")
        quiet_ms[0] = STUCK_MS
        assert asked(port, "/live") == (503, "no progress for 900 s, last event: committed\n")
        assert asked(port, "/ready")[0] == 200
        quiet_ms[0] = STUCK_MS - 1
        assert asked(port, "/live")[0] == 200
        assert asked(port, "/metrics")[0] == 200
        health.event(Stopped("SIGTERM"))
        assert asked(port, "/ready")[0] == asked(port, "/available")[0] == 503


def test_lines_for_people_omit_what_is_for_machines() -> None:
    for as_json in (False, True):
        stream = io.StringIO()
        Lines("f", as_json=as_json, stream=stream).event(committed({"t/0": 3}, 5))
        assert ("lag_by_partition" in stream.getvalue()) == as_json
        assert "lag=3" in stream.getvalue() or as_json


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))  # noqa: S104 - as the server would
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"--metrics-port {port}"),
            serve(port, CollectorRegistry(), Health(lambda: 0)),
        ):
            pytest.fail("it listens")


def test_what_waits_for_event_time_is_shown_with_who_holds_it_back() -> None:
    registry, statistics = CollectorRegistry(), Statistics(lambda: 0.0)
    metrics = Metrics("f", registry).statistics
    for observer in (metrics, statistics):
        observer.event(COMMITTED)
    assert numbers(registry, "sqe_chain_held") == {}
    for observer in (metrics, statistics):
        observer.event(replace(COMMITTED, held=1_234, holder="a.b/1", watermark_ms=5_000))
    assert numbers(registry, "sqe_chain_held") == {'flow="f"': 1_234}
    behind = numbers(registry, "sqe_chain_watermark_timestamp_seconds")
    assert behind == {'flow="f",partition="1",topic="a.b"': 5}
    shown = io.StringIO()
    Console(file=shown, width=120).print(panel(statistics, "f", "kafka"))
    assert "1,234" in shown.getvalue()
    assert "a.b/1" in shown.getvalue()
    metrics.event(replace(COMMITTED, held=0))
    assert numbers(registry, "sqe_chain_held") == {'flow="f"': 0}
    assert numbers(registry, "sqe_chain_watermark_timestamp_seconds") == {}


def test_other_paths_are_not_there() -> None:
    port = own_port()
    with serve(port, CollectorRegistry(), Health(lambda: STUCK_MS)):
        assert asked(port, "/metrics?name=x")[0] == 200
        for path in (
            "/",
            "/livez",
            "/live/",
            "/readyz",
            "/metrics/",
            "/nothing",
            "/%2e%2e/metrics",
        ):
            assert asked(port, path)[0] == 404, path


def test_a_silent_client_makes_room_for_others() -> None:
    port, before = own_port(), threading.active_count()
    with serve(port, CollectorRegistry(), Health(lambda: 0)), ExitStack() as opened:
        silent = []
        for number in range(3 * MOST):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            one.sendall((b"GET /metrics HTTP/1.1\r\n", b"")[number % 2])
            silent.append(one)
        assert asked(port, "/live")[0] == 200
        for one in silent[:MOST]:
            assert one.recv(1) == b"", "closed by the server"
        assert wait_until(lambda: threading.active_count() <= before + MOST + 1, 30)


def test_nobody_stays_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE_S", 0.01)
    port = own_port()
    with (
        serve(port, CollectorRegistry(), Health(lambda: 0)),
        socket.create_connection(("127.0.0.1", port), timeout=30) as slow,
    ):
        slow.sendall(b"GET /live HT")
        assert slow.recv(1) == b""


def test_it_listens_on_this_machine_alone_unless_a_host_is_given() -> None:
    port = own_port()
    health = Health(lambda: 0)
    for host, others in ((None, False), ("0.0.0.0", True)):  # noqa: S104 - that is it
        with serve(port, CollectorRegistry(), health, *((host,) if host else ())):
            assert asked(port, "/live")[0] == 200
            with suppress(OSError), socket.create_connection(("127.0.0.2", port), timeout=30):
                assert others
    with (
        pytest.raises(ConfigurationError, match=r"at 203\.0\.113\.1 .*check --metrics-host"),
        serve(port, CollectorRegistry(), health, "203.0.113.1"),
    ):
        pytest.fail("it listens")
