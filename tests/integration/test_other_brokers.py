"""Brokers of other vendors: flows run without what these lack, or are refused with advice that is true for them.

None of them runs here: a proxy before Kafka removes requests, versions and settings from its answers.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import KafkaServer
from tests.support.editing_proxy import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    EditingProxy,
    Shape,
)
from tests.support.engine_runs import INPUT_PARTITIONS, Names, Run, feed, in_process, unshuffled
from tests.support.ports import own_port

EVENT_HUBS: Final = Shape({METADATA: 5, 0: 7, 1: 6, DESCRIBE_CONFIGS: None, 60: None, 68: None, 75: None})
"""As published in oliveigah/klife#13 and Azure/azure-event-hubs-for-kafka#69."""
OLD: Final = Shape({METADATA: 9, 1: 12})
"""Kafka 2.7, and Redpanda before 25.3."""
REDPANDA: Final = Shape(
    {68: None, 74: None, 75: None},
    frozenset(
        {
            "cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.type", "retention.bytes",
            "retention.ms", "segment.bytes", "segment.ms", "default.replication.factor", "num.partitions",
        }
    ),
)  # fmt: skip
"""It reports neither the limits of timestamps nor how long commits are kept."""
NO_EPOCHS: Final = Shape({OFFSET_FOR_LEADER_EPOCH: None})
NO_SETTINGS: Final = Shape({}, frozenset())


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    """Of the broker, and of proxies before it: that is where the broker sends clients."""
    return own_port(), own_port()


@pytest.fixture(scope="module", autouse=True)
def _broker(ports: tuple[int, int]) -> Iterator[KafkaServer]:
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[1]}"}
    with KafkaServer(port=ports[0], fast_boot=True, properties=advertised) as server:
        yield server


@contextmanager
def looking_like(shape: Shape, ports: tuple[int, int]) -> Iterator[tuple[KafkaLog, EditingProxy]]:
    with EditingProxy(ports[1], ports[0], shape) as proxy:
        log = KafkaLog(f"127.0.0.1:{ports[1]}")
        yield log, proxy
        log.close()
    assert proxy.edited[API_VERSIONS]


@pytest.mark.parametrize(
    "shape", [REDPANDA, NO_EPOCHS, NO_SETTINGS], ids=["redpanda", "no epochs", "no settings"]
)
def test_flows_run_without_what_a_broker_lacks(shape: Shape, ports: tuple[int, int], tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/s.db")
    prefix = f"f-{uuid.uuid4().hex[:8]}"
    names = Names(prefix, (f"{prefix}.one", f"{prefix}.two"))
    with looking_like(shape, ports) as (log, proxy):
        for topic in names.inputs:
            log.create_topic(topic, INPUT_PARTITIONS)
        feed(log, names.inputs, 0, 40)
        Run(unshuffled(names), log, store, in_process).until_caught_up()
        feed(log, names.inputs, 51, 40)
        run = Run(unshuffled(names), log, store, in_process)  # goes on where the first one ended
        run.until_caught_up()
        sums = Counter[bytes]()
        for number in (*range(40), *range(51, 91)):
            sums[b"k%d" % (number % 7)] += number
        states = {key: state for rows in run.states().values() for key, state in rows.items()}
        assert {key: Int64Value.FromString(state).value for key, state in states.items()} == sums
        assert sum(record[0] == ".a" for record in run.published()) == 80
        assert shape.reported is None or proxy.edited[DESCRIBE_CONFIGS]


@pytest.mark.parametrize("shape", [EVENT_HUBS, OLD], ids=["event hubs", "old"])
def test_a_broker_without_topic_ids_is_refused_with_advice(shape: Shape, ports: tuple[int, int]) -> None:
    with looking_like(Shape(), ports) as (log, _):
        topic = f"t-{uuid.uuid4().hex[:8]}"
        log.create_topic(topic, 1)
    with looking_like(shape, ports) as (log, _):
        for ask in (log.describe, log.topic_ids):
            with pytest.raises(
                ConfigurationError, match=r"no topic id.*Redpanda from 25\.3.*Event Hubs.*copy its topics"
            ):
                ask([topic])
