"""The figures of a service as metrics of Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sqe_chain.plans.events import STEPS
from sqe_chain.runtime.statistics import Statistics, Times

_COUNTERS: Final = {
    "records": ("inputs", "Messages read"),
    "replays": ("replays", "Messages read that were replays and ignored"),
    "excluded": ("excluded", "Messages skipped by the poison policy"),
    "superseded": (
        "superseded",
        "Messages ignored because a newer revision of an output upstream counts for their roots",
    ),
    "newer": ("newer", "Messages ignored because they are of revisions that the flow does not follow"),
    "outputs": ("outputs", "Messages published"),
    "batches": ("batches", "Batches committed"),
    "store_rows": ("rows", "States written"),
    "waits": ("waits", "Waits for a broker or store that was unavailable"),
}
"""Name of a metric -> the figure, and the help."""
_GAUGES: Final = {
    "lag": ("lag", "Offsets that the last batch left for the next one"),
    "parked": ("parked", "Records that are parked"),
    "held": ("held", "Records that wait for event time"),
    "event_time_lag_seconds": (
        "event_time_lag_s",
        "Now minus the newest Kafka timestamp of the last records read in each partition; grows while no records arrive",
    ),
    "plan": ("plan", "Number of the last plan"),
    "epoch": ("epoch", "Epoch of the claim"),
    "last_persist_timestamp_seconds": ("persisted_s", "When states were last written"),
}
"""The same of gauges; a figure that is None is absent."""
_SHADOW_OUTPUTS: Final = ("equal", "different", "missing", "added")
_SHADOW_EVERY_S: Final = 5.0
_SHADOW_WAIT_S: Final = 1.0
"""How long a scrape waits for the store."""


class ShadowReader:
    """Asks for the figures of a shadow in a thread of its own. A store that does not answer delays a scrape by a second, and no batch.

    Args:
        read: returns figure -> value; nothing without a shadow. It may raise anything: then nothing is known.
        every_s: how old an answer may be, in seconds.
    """

    def __init__(self, read: Callable[[], Mapping[str, int]], every_s: float = _SHADOW_EVERY_S) -> None:
        self._read, self._every_s = read, every_s
        self._lock = threading.Lock()  # two programs may scrape at once
        self._thread: threading.Thread | None = None
        self._since_s = 0.0
        self._figures: Mapping[str, int] = {}

    def figures(self) -> Mapping[str, int]:
        """The store's answer, which may be a few seconds old; empty while it does not answer."""
        with self._lock:
            if self._thread is None or self._is_old(self._thread):
                self._since_s = time.monotonic()
                self._thread = threading.Thread(target=self._ask, name="sqe-chain-shadow", daemon=True)
                self._thread.start()
            thread = self._thread
        thread.join(_SHADOW_WAIT_S)
        return {} if thread.is_alive() else self._figures

    def _is_old(self, thread: threading.Thread) -> bool:
        return not thread.is_alive() and time.monotonic() - self._since_s >= self._every_s

    def _ask(self) -> None:
        try:
            self._figures = self._read()
        except Exception:  # noqa: BLE001 - whatever a store raises; the service gets the same, and reports it
            self._figures = {}


class Metrics(Collector):
    """Shows statistics to Prometheus.

    Args:
        flow: the flow's name.
        registry: is asked for them.
        now_s: returns seconds since 1970.
        shadow: returns the figures of the flow's shadow; see `ShadowReader`.
    """

    def __init__(
        self,
        flow: str,
        registry: CollectorRegistry,
        now_s: Callable[[], float] = time.time,
        shadow: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.statistics = Statistics(now_s)
        self._flow, self._shadow = flow, shadow
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        figures = (
            self.statistics
        )  # the service changes them meanwhile: what grows is copied, in one step of the interpreter
        for name, (figure, text) in _COUNTERS.items():
            yield self._figures(CounterMetricFamily, name, text, {(): getattr(figures, figure)})
        for name, (figure, text) in _GAUGES.items():
            value = getattr(figures, figure)
            yield self._figures(GaugeMetricFamily, name, text, {} if value is None else {(): value})
        text = "Messages that filters dropped, or forwarded with a reason"
        yield self._figures(CounterMetricFamily, "filtered", text, dict(figures.filtered), "stage", "reason")
        yield self._histogram("batch_seconds", "Time of a batch", {(): figures.batch_times})
        steps: dict[tuple[str, ...], Times] = {
            (STEPS[number].name,): times for number, times in dict(figures.step_times).items()
        }
        yield self._histogram("step_seconds", "Time of one step of a batch", steps, "step")
        text = "From the time of the newest record of a batch, which republishers keep, until the batch is committed"
        yield self._histogram("end_to_end_seconds", text, {(): figures.latency})
        yield self._figures(
            GaugeMetricFamily,
            "partition_lag",
            "Of sqe_chain_lag, the offsets of one input partition",
            {_topic_partition(tp): lag for tp, lag in figures.lag_by_partition.items()},
            *("topic", "partition"),
        )
        yield self._figures(
            GaugeMetricFamily,
            "flushed_offset",
            "Offset of an input partition up to which all rows are in a table",
            {(table, *_topic_partition(tp)): offset for (table, tp), offset in dict(figures.flushed).items()},
            *("table", "topic", "partition"),
        )
        watermark_ms = figures.watermark_ms if figures.holder else None
        yield self._figures(
            GaugeMetricFamily,
            "watermark_timestamp_seconds",
            "Up to where event time is known in the input partition that holds others back",
            {} if watermark_ms is None else {_topic_partition(figures.holder): watermark_ms / 1_000},
            *("topic", "partition"),
        )
        # A standby has no plan: the run that it waits for shows the shadow.
        yield from self._of_shadow({} if figures.plan is None else self._shadow())

    def _of_shadow(self, known: Mapping[str, int]) -> Iterator[Metric]:
        for name, text in (
            ("records_behind", "Offsets that the flow has counted, and its shadow has not"),
            ("plans_left", "Plans of the flow whose outputs its shadow is still to compare"),
        ):
            values: Mapping[tuple[str, ...], float] = {(): known[name]} if name in known else {}
            yield self._figures(GaugeMetricFamily, f"shadow_{name}", text, values)
        results: Mapping[tuple[str, ...], float] = {
            (result,): known[result] for result in _SHADOW_OUTPUTS if result in known
        }
        text = "Outputs of the flow that its shadow has compared with its own"
        yield self._figures(CounterMetricFamily, "shadow_outputs", text, results, "result")
        gaps: Mapping[tuple[str, ...], float] = {(): known["gaps"]} if "gaps" in known else {}
        text = "Times that the shadow could not compare some outputs"
        yield self._figures(CounterMetricFamily, "shadow_gaps", text, gaps)

    def _figures(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        values: Mapping[tuple[str, ...], float],
        *labels: str,
    ) -> Metric:
        metric = family(f"sqe_chain_{name}", text, labels=["flow", *labels])
        for texts, value in values.items():
            metric.add_metric([self._flow, *texts], value)
        return metric

    def _histogram(
        self, name: str, text: str, values: Mapping[tuple[str, ...], Times], *labels: str
    ) -> Metric:
        metric = HistogramMetricFamily(f"sqe_chain_{name}", text, labels=["flow", *labels])
        for texts, times in values.items():
            bounds = [*(str(float(bound)) for bound in times.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(times.counts), strict=True))
            metric.add_metric([self._flow, *texts], buckets, times.sum_s)
        return metric


def _topic_partition(name: str) -> tuple[str, str]:
    topic, _, partition = name.rpartition("/")
    return topic, partition
