"""Numbers of a service for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from sqe_chain.errors import ConfigurationError
from sqe_chain.protocol.surroundings import When

_BATCH_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)


class Metrics:
    """Implements `protocol.surroundings.Observer`.

    Args:
        flow: label of every number.
        registry: where they are registered.
    """

    def __init__(self, flow: str, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"sqe_chain_{name}", text, ["flow"], registry=registry).labels(flow)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"sqe_chain_{name}", text, ["flow"], registry=registry).labels(flow)

        self._counted = {
            "inputs": counter("records", "Messages read"),
            "replays": counter("replays", "Messages read that were replays and ignored"),
            "excluded": counter("excluded", "Messages left out by the poison policy"),
            "outputs": counter("outputs", "Messages published"),
        }
        names = ["flow", "stage", "reason"]
        text = "Messages that filters dropped, or spoke about"
        self._filtered = Counter("sqe_chain_filtered", text, names, registry=registry)
        self._flow = flow
        self._batches = counter("batches", "Batches committed")
        self._rows = counter("store_rows", "States written")
        self._waits = counter("waits", "Waits for a broker or store that was away")
        self._seconds: Histogram = Histogram(
            "sqe_chain_batch_seconds", "Time of a batch", ["flow"], registry=registry, buckets=_BATCH_SECONDS
        ).labels(flow)
        self._lag = gauge("lag", "Offsets that the last batch left for the next one")
        self._plan = gauge("plan", "Number of the last plan")
        self._epoch = gauge("epoch", "Epoch of the claim")
        self._persisted = gauge("last_persist_timestamp_seconds", "When states were last written")

    def step(self, number: int, when: When) -> None:
        """Steps are not counted."""

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """Count."""
        if name == "committed":
            for field, counter in self._counted.items():
                counter.inc(_number(fields, field))
            self._batches.inc()
            self._seconds.observe(_number(fields, "batch_ms") / 1_000)
            self._lag.set(_number(fields, "lag"))
        elif name == "filtered":
            counts = fields.get("counts")
            for place, count in counts.items() if isinstance(counts, dict) else ():
                stage, _, reason = place.rpartition("/")
                self._filtered.labels(self._flow, stage, reason).inc(count)
        elif name == "persisted":
            self._rows.inc(_number(fields, "rows"))
            self._persisted.set_to_current_time()
        elif name in {"sealed", "recovered"}:
            self._plan.set(_number(fields, "plan"))
        elif name == "claimed":
            self._epoch.set(_number(fields, "epoch"))
        elif name == "waiting":
            self._waits.inc()
        elif name == "caught_up":
            self._lag.set(0)


def _number(fields: Mapping[str, object], name: str) -> int:
    found = fields.get(name, 0)
    return found if isinstance(found, int) else 0


@contextmanager
def serving(port: int, registry: CollectorRegistry) -> Iterator[None]:
    """Answer ``GET /metrics`` on all interfaces while in the context.

    Args:
        port: TCP port.
        registry: what is shown.

    Raises:
        ConfigurationError: the port is taken.
    """
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"--metrics-port {port}: cannot listen there ({error.strerror}); another process has the port, give another one"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
