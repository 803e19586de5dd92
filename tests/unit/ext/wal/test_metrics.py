"""Goal: what monitoring sees of a write-ahead log is what it holds. Method: on a broker in memory, which may be away."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sqe_chain.ext.wal import DurableProducer
from sqe_chain.ext.wal.background import Ages
from sqe_chain.ext.wal.metrics import ProducerMetrics
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.wal_faults import TOPIC, new_broker


class Watched:
    """A producer with a registry of its own."""

    def __init__(self, producer: DurableProducer) -> None:
        self.registry = CollectorRegistry()
        ProducerMetrics(producer, self.registry)
        self._labels = {"log": producer.status.log_id, "topic": TOPIC}

    def __getitem__(self, name: str) -> float:
        found = self.registry.get_sample_value(f"sqe_chain_wal_{name}", self._labels)
        assert found is not None, name
        return found


def test_counts_go_on_after_a_restart_and_what_waits_has_an_age(tmp_path: Path) -> None:
    broker = new_broker("wal-metrics")
    with DurableProducer(tmp_path, TOPIC, partitions=2, kafka=broker) as producer:
        watched = Watched(producer)
        producer.append_many([])
        for number in range(5):
            producer.append(b"%d" % number)
        producer.flush(timeout_s=PATIENCE_S)
        assert (watched["appended_total"], watched["published_total"], watched["waiting"]) == (5, 5, 0)
        assert (watched["oldest_waiting_seconds"], watched["failing"]) == (0, 0)
        broker.set_down(down=True)
        producer.append(b"waits")
        eventually(lambda: watched["failing"] == 1, "publishing fails")
        assert (watched["appended_total"], watched["published_total"], watched["waiting"]) == (6, 5, 1)
        assert watched["oldest_waiting_seconds"] > 0
        assert 0 < watched["used_bytes"] <= watched["max_bytes"]
        producer.close(timeout_s=0)
    with DurableProducer(tmp_path, TOPIC, partitions=2, kafka=broker) as again:
        watched = Watched(again)
        assert (watched["appended_total"], watched["waiting"]) == (6, 1)
        assert watched["oldest_waiting_seconds"] > 0
        broker.set_down(down=False)
        again.flush(timeout_s=PATIENCE_S)
        assert (watched["published_total"], watched["waiting"], watched["oldest_waiting_seconds"]) == (
            6,
            0,
            0,
        )
        assert b"sqe_chain_wal_appended_total" in generate_latest(watched.registry)


def test_one_producer_is_registered_once(tmp_path: Path) -> None:
    with DurableProducer(tmp_path, TOPIC, partitions=2, kafka=new_broker("wal-metrics-twice")) as producer:
        watched = Watched(producer)
        with DurableProducer(tmp_path / "b", TOPIC, partitions=2, kafka=new_broker("wal-metrics-b")) as other:
            ProducerMetrics(other, watched.registry)  # two logs of one process, distinguished by their labels
            assert (
                watched.registry.get_sample_value(
                    "sqe_chain_wal_waiting", {"log": other.status.log_id, "topic": TOPIC}
                )
                == 0
            )


@pytest.mark.parametrize("groups", [1, 511, 512, 513, 5_000])
def test_ages_take_little_memory_and_never_make_a_record_younger(groups: int) -> None:
    ages = Ages()
    for number in range(groups):
        ages.appended(end=number + 1, now_s=float(number))
    now_s = float(groups)
    for position in range(0, groups, 97):
        assert ages.oldest_s(position, now_s) >= now_s - position
    assert ages.oldest_s(groups, now_s) == 0
