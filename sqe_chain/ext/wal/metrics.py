"""Metrics of a write-ahead log for Prometheus, read when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from sqe_chain.ext.wal.producer import DurableProducer

_LABELS = ["log", "topic"]


class ProducerMetrics(Collector):
    """Metrics of one producer; each has the labels `log` (id of the log, hexadecimal) and `topic`.

    Counters count since the log was created, whatever restarts there are.

        >>> from prometheus_client import CollectorRegistry
        >>> from sqe_chain.adapters.memory import MemoryLog
        >>> from sqe_chain.ext.wal import MemoryFiles
        >>> broker, registry = MemoryLog("metrics-example"), CollectorRegistry()
        >>> broker.create_topic("robot.raw", 1)
        >>> with DurableProducer(MemoryFiles(), "robot.raw", partitions=1, kafka=broker) as producer:
        ...     metrics = ProducerMetrics(producer, registry)
        ...     _ = producer.append(b"3 screws")
        ...     labels = {"log": producer.status.log_id, "topic": "robot.raw"}
        ...     registry.get_sample_value("sqe_chain_wal_appended_total", labels)
        1

    Args:
        producer: whose log it is.
        registry: where it registers itself; by default the one that every Prometheus client serves.
    """

    def __init__(self, producer: DurableProducer, registry: CollectorRegistry = REGISTRY) -> None:
        self._producer = producer
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        status, topic = self._producer.status, self._producer.log.topic
        labels = [status.log_id, topic]
        counters = {
            "appended": ("Records that are durable in the log, since it was created", status.end),
            "published": ("Of these, records that Kafka has acknowledged", status.published),
        }
        gauges = {
            "waiting": ("Records that wait for Kafka", status.waiting),
            "used_bytes": ("Bytes of all segments of the log", status.used_bytes),
            "max_bytes": ("Their limit; beyond it nothing is taken", status.max_bytes),
            "oldest_waiting_seconds": (
                "How long the oldest record that waits for Kafka has waited; after a restart since the log was opened",
                status.oldest_s,
            ),
            "failing": ("1 while publishing fails, else 0", int(status.error is not None)),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"sqe_chain_wal_{name}", text, labels=_LABELS)
            counter.add_metric(labels, value)
            yield counter
        for name, (text, number) in gauges.items():
            gauge = GaugeMetricFamily(f"sqe_chain_wal_{name}", text, labels=_LABELS)
            gauge.add_metric(labels, number)
            yield gauge

    def describe(self) -> list[Metric]:
        """Nothing: names are known without a look at the log, but a registry that asks for them may not scrape."""
        return []
