"""Goal: every log keeps the contract that is shipped for all of them: memory and a real Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Producer

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import OutputRefused, OutputTooLarge
from sqe_chain.ports import Log, Output
from sqe_chain.testing.contracts import LogContract
from tests.support.waiting import PATIENCE_S, eventually

driver: Any = confluent_kafka.admin
BY_KAFKAS_NAMES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cleanup.policy": ("compacted", lambda value: value == "compact"),
    "message.timestamp.type": ("append_time", lambda value: value == "LogAppendTime"),
    "message.timestamp.before.max.ms": ("before_max_ms", int),
    "message.timestamp.after.max.ms": ("after_max_ms", int),
    "max.message.bytes": ("max_message_bytes", int),
    "retention.ms": ("retention_ms", int),
}


class TestMemory(LogContract):
    @pytest.fixture
    def log(self) -> Iterator[Log]:
        memory = MemoryLog(uuid.uuid4().hex)
        yield memory
        memory.clear()

    def configure(self, log: Log, topic: str, settings: Mapping[str, str]) -> None:
        assert isinstance(log, MemoryLog)
        given: dict[str, Any] = {}
        for setting, value in settings.items():
            name, parse = BY_KAFKAS_NAMES[setting]
            given[name] = parse(value)
        log.configure(topic, **given)

    def refused(self, log: Log, record: Output) -> str:
        assert isinstance(log, MemoryLog)
        topic, partition, key, value, _, timestamp_ms = record
        try:
            log.append(topic, partition, value, key, None, timestamp_ms)
        except (OutputRefused, OutputTooLarge) as error:
            return str(error)
        return ""


class TestKafka(LogContract):
    @pytest.fixture
    def log(self, kafka: str) -> Iterator[Log]:
        log = KafkaLog(kafka, timeout_s=20)
        yield log
        log.close()

    def configure(self, log: Log, topic: str, settings: Mapping[str, str]) -> None:
        assert isinstance(log, KafkaLog)
        asker = driver.AdminClient({"bootstrap.servers": log._settings.bootstrap})
        change = driver.AlterConfigOpType.SET
        entries = [
            driver.ConfigEntry(name, value, incremental_operation=change) for name, value in settings.items()
        ]
        resource = driver.ConfigResource(driver.ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        asker.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        eventually(
            lambda: settings.items() <= read_config(asker, topic).items(), "the settings are in effect"
        )

    def refused(self, log: Log, record: Output) -> str:
        assert isinstance(log, KafkaLog)
        topic, partition, key, value, _, timestamp_ms = record
        errors: list[object] = []
        producer = Producer({"bootstrap.servers": log._settings.bootstrap, "message.max.bytes": 1_000_000})
        producer.produce(
            topic,
            value,
            key,
            partition,
            timestamp=timestamp_ms,
            on_delivery=lambda error, _: errors.append(error),
        )
        assert producer.flush(20) == 0
        return str(errors[0] or "")


def read_config(asker: Any, topic: str) -> dict[str, str]:
    resource = driver.ConfigResource(driver.ConfigResource.Type.TOPIC, topic)
    return {
        name: entry.value
        for name, entry in asker.describe_configs([resource])[resource].result(PATIENCE_S).items()
    }
