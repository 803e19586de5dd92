"""Metrics of a service for Prometheus, and its health, on one port: few connections at a time, none of them for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.events import Filtered, TableFlushed
from sqe_chain.protocol.events import (
    CLAIM,
    COMMIT,
    PERSIST,
    PROCESS,
    PUBLISH,
    RECOVER,
    SEAL,
    CaughtUp,
    Claimed,
    Committed,
    Event,
    Observer,
    Persisted,
    Recovered,
    Sealed,
    Standby,
    Stopped,
    Waiting,
    When,
)

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

LOOPBACK: Final = "127.0.0.1"
MOST: Final = 16
"""Connections at a time; the oldest is closed for one more."""
PATIENCE_S: Final = 5.0
"""For how long one may last, whatever it sends."""
STEPS: Final = {
    CLAIM: "claim",
    RECOVER: "recover",
    PROCESS: "process",
    SEAL: "seal",
    PUBLISH: "publish",
    PERSIST: "persist",
    COMMIT: "commit",
}
"""The numbered steps by name."""
_LATENCY_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
_BATCH_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)


STUCK_MS = 15 * 60_000
"""A loop that has neither waited nor made progress for this long is stuck. One step of a batch may take minutes."""

Answer = tuple[bool, str]
"""Yes or no, and a sentence for people."""


@dataclass(slots=True)
class Health(Observer):
    """Knows from its events whether a service is alive and ready.

    Args:
        quiet_ms: returns for how long the loop has made no progress; 0 while it waits (`ServiceClock.quiet_ms`).
    """

    quiet_ms: Callable[[], int]
    _ready: bool = False
    _doing: str = "starting"

    def live(self) -> Answer:
        """Whether the loop makes progress, or waits: as a standby, or for a broker or store that is unavailable."""
        quiet_ms = self.quiet_ms()
        if quiet_ms < STUCK_MS:
            return True, "the service is making progress"
        return False, f"no progress for {quiet_ms // 1_000} s, last event: {self._doing}"

    def ready(self) -> Answer:
        """Whether the flow is claimed and recovered, and this run works on it; a standby is not ready."""
        return self._ready, "at work" if self._ready else self._doing

    def event(self, event: Event) -> None:
        """Note what the service does."""
        self._doing = event.name
        if isinstance(event, Recovered):
            self._ready = True
        elif isinstance(event, Standby | Stopped):
            self._ready = False


class Metrics(Observer):
    """Counts what a service does, for Prometheus.

    Args:
        flow: label of every metric.
        registry: where they are registered.
        now_s: returns seconds since 1970.
    """

    def __init__(
        self, flow: str, registry: CollectorRegistry, now_s: Callable[[], float] = time.time
    ) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"sqe_chain_{name}", text, ["flow"], registry=registry).labels(flow)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"sqe_chain_{name}", text, ["flow"], registry=registry).labels(flow)

        self._records = counter("records", "Messages read")
        self._replays = counter("replays", "Messages read that were replays and ignored")
        self._excluded = counter("excluded", "Messages left out by the poison policy")
        self._outputs = counter("outputs", "Messages published")
        names = ["flow", "stage", "reason"]
        text = "Messages that filters dropped, or forwarded with a reason"
        self._filtered = Counter("sqe_chain_filtered", text, names, registry=registry)
        self._flow = flow
        self._known: set[str] = set()
        self._batches = counter("batches", "Batches committed")
        self._rows = counter("store_rows", "States written")
        self._waits = counter("waits", "Waits for a broker or store that was unavailable")

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            names = ["flow", *labels]
            return Histogram(f"sqe_chain_{name}", text, names, registry=registry, buckets=buckets)

        self._seconds: Histogram = histogram("batch_seconds", "Time of a batch", _BATCH_SECONDS).labels(flow)
        self._steps = histogram("step_seconds", "Time of one step of a batch", _BATCH_SECONDS, "step")
        self._latency: Histogram = histogram(
            "end_to_end_seconds",
            "From the time of the newest record of a batch, which republishers keep, until the batch is committed",
            _LATENCY_SECONDS,
        ).labels(flow)
        self._began_s: dict[int, float] = {}
        self._lag = gauge("lag", "Offsets that the last batch left for the next one")
        self._lags = Gauge(
            "sqe_chain_partition_lag",
            "Of sqe_chain_lag, the offsets of one input partition",
            ["flow", "topic", "partition"],
            registry=registry,
        )
        self._flushed = Gauge(
            "sqe_chain_flushed_offset",
            "Offset of an input partition up to which all rows are in a table",
            ["flow", "table", "topic", "partition"],
            registry=registry,
        )
        self._held = Gauge("sqe_chain_held", "Records that wait for event time", ["flow"], registry=registry)
        self._watermark = Gauge(
            "sqe_chain_watermark_timestamp_seconds",
            "Up to where event time is known in the input partition that holds others back",
            ["flow", "topic", "partition"],
            registry=registry,
        )
        self._now_s = now_s
        self._event_time_ms: int | None = None
        self._event_lag = gauge(
            "event_time_lag_seconds",
            "Now minus the time of the newest record processed, by Kafka's timestamp of the last record read in each "
            "partition; grows while no records arrive",
        )
        self._event_lag.set_function(self._event_lag_s)
        # It has no value before the first plan: a flow without stages has none, and 0 is the number of a plan.
        self._plan = Gauge("sqe_chain_plan", "Number of the last plan", ["flow"], registry=registry)
        self._epoch = gauge("epoch", "Epoch of the claim")
        self._persisted = gauge("last_persist_timestamp_seconds", "When states were last written")

    def step(self, number: int, when: When) -> None:
        if when == "before":
            self._began_s[number] = self._now_s()
        elif (began_s := self._began_s.pop(number, None)) is not None:
            self._steps.labels(self._flow, STEPS[number]).observe(max(0.0, self._now_s() - began_s))

    def event(self, event: Event) -> None:
        """Count."""
        match event:
            case Committed():
                self._count_batch(event)
            case Filtered():
                self._count_filtered(event)
            case Persisted():
                self._rows.inc(event.rows)
                self._persisted.set_to_current_time()
            case TableFlushed():
                self._set_flushed(event)
            case Sealed() | Recovered():
                if event.plan is not None:  # a flow without stages has no plans
                    self._plan.labels(self._flow).set(event.plan)
            case Claimed():
                self._epoch.set(event.epoch)
            case Waiting():
                self._waits.inc()
            case CaughtUp():
                self._lag.set(0)
                self._set_lags(dict.fromkeys(self._known, 0))

    def _count_batch(self, event: Committed) -> None:
        self._records.inc(event.inputs)
        self._replays.inc(event.replays)
        self._excluded.inc(event.excluded)
        self._outputs.inc(event.outputs)
        self._batches.inc()
        self._seconds.observe(event.batch_ms / 1_000)
        self._lag.set(event.lag)
        self._set_lags(event.lag_by_partition)
        if event.held is not None:  # a flow in which nothing goes by event time has no such value
            self._set_held(event)
        if event.event_time_ms > 0:
            self._latency.observe(max(0.0, self._now_s() - event.event_time_ms / 1_000))
            self._event_time_ms = max(event.event_time_ms, self._event_time_ms or 0)

    def _count_filtered(self, event: Filtered) -> None:
        for name, count in event.counts.items():
            stage, _, reason = name.rpartition("/")
            self._filtered.labels(self._flow, stage, reason).inc(count)

    def _set_flushed(self, event: TableFlushed) -> None:
        for name, offset in event.offsets.items():
            topic, _, partition = name.rpartition("/")
            self._flushed.labels(self._flow, event.table, topic, partition).set(offset)

    def _set_held(self, event: Committed) -> None:
        self._held.labels(self._flow).set(event.held or 0)
        self._watermark.clear()
        if event.holder is not None and event.watermark_ms is not None:
            topic, _, partition = event.holder.rpartition("/")
            self._watermark.labels(self._flow, topic, partition).set(event.watermark_ms / 1_000)

    def _set_lags(self, lags: Mapping[str, int]) -> None:
        """Set lags by "topic/partition"; partitions that are no longer among them are removed."""
        for name in self._known - lags.keys():
            topic, _, partition = name.rpartition("/")
            self._lags.remove(self._flow, topic, partition)
        for name, lag in lags.items():
            topic, _, partition = name.rpartition("/")
            self._lags.labels(self._flow, topic, partition).set(lag)
        self._known = set(lags)

    def _event_lag_s(self) -> float:
        known_ms = self._event_time_ms
        return float("nan") if known_ms is None else self._now_s() - known_ms / 1_000


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 - the parent's
        self._open: dict[socket.socket, float] = {}  # since when each is there
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the parent's
        while len(self._open) >= MOST:
            self._end(next(iter(self._open), None))
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called by the loop, twice a second."""
        for request, since_s in list(self._open.items()):
            if time.monotonic() - since_s > PATIENCE_S:
                self._end(request)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the parent's
        self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for request in list(self._open):
            self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the parent's
        """Nothing: whoever asked is gone."""

    def _end(self, request: socket.socket | None) -> None:
        """Wake the thread of a connection, which ends then."""
        if request is not None and self._open.pop(request, None) is not None:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the parent's
        """Nothing: requests are not logged."""


@contextmanager
def serve(port: int, registry: CollectorRegistry, health: Health, host: str = LOOPBACK) -> Iterator[None]:
    """Answer ``GET /metrics``, ``/live`` and ``/ready`` while in the context.

    ``/live`` and ``/ready`` answer 200 for yes and 503 for no, with a sentence. Any other path is 404: a probe with a typo fails.

    Args:
        port: TCP port.
        registry: the metrics.
        health: of the service.
        host: address to listen on; by default this machine's programs alone can ask.

    Raises:
        ConfigurationError: the port is taken, or this machine does not have the address.
    """
    numbers = make_wsgi_app(registry)
    questions = {"/live": health.live, "/ready": health.ready}

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            found: Iterable[bytes] = numbers(environ, start_response)
            return found
        question = questions.get(path)
        if question is None:
            status, text = "404 Not Found", "there are /metrics, /live and /ready"
        else:
            well, text = question()
            status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    try:
        server = make_server(host, port, answer, _Server6 if ":" in host else _Server, handler_class=_Silent)
    except OSError as error:
        raise ConfigurationError(
            f"--metrics-port {port}: cannot listen on it at {host} ({error.strerror}). Expected a free port, and an address of this machine. "
            "If another process has the port, give another one; else check --metrics-host"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="sqe-chain-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
