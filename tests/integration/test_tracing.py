"""Goal: spans and traces of services reach a collector, and survive kills. Method: real Kafka, OTLP over HTTP, processes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sqe_chain import read
from sqe_chain.chain import event_id
from sqe_chain.ports import Message, Range
from tests.support.otlp_collector import Collector, attributes, collector
from tests.support.service_processes import Deployment
from tests.support.waiting import PATIENCE_S

SHOPS = ("a", "b", "c")
SALES = 60


@pytest.fixture
def spans() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def deployment(kafka: str, tmp_path: Path) -> Iterator[Deployment]:
    store = f"sqlite://{tmp_path}/states.db"
    topics = {"raw": 1, "sales": 2, "totals": 1}
    made = Deployment("tests.support.traced_flows", kafka, store, tmp_path, topics)
    yield made
    made.close()


def trace_of(number: int) -> tuple[bytes, bytes]:
    """The ids of the span of a sale: of its trace, and its own."""
    return number.to_bytes(16), number.to_bytes(8)


def sell(deployment: Deployment) -> None:
    """Sales. Two in three have a trace."""
    producer = Producer({"bootstrap.servers": deployment.kafka, "acks": "all"})
    for number in range(1, SALES + 1):
        trace, span = trace_of(number)
        headers: dict[str, str | bytes | None] = {}
        if number % 3:
            headers["traceparent"] = f"00-{trace.hex()}-{span.hex()}-01"
        value = json.dumps({"shop": SHOPS[number % len(SHOPS)], "amount": 1, "number": number}).encode()
        producer.produce(deployment.topic("raw"), value, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def records(deployment: Deployment, name: str) -> list[Message]:
    topic = deployment.topic(name)
    info = deployment.log.describe([topic])[topic]
    bounds = deployment.log.bounds([(topic, partition) for partition in range(info.partitions)])
    return [
        message
        for (_, partition), bound in bounds.items()
        for block in deployment.log.read(
            Range(topic, info.topic_id, partition, bound.begin, bound.stable_end)
        )
        for message in block
    ]


def identity_of(message: Message) -> bytes:
    found = read(message.value())
    return event_id(found.lane, found.position)


@pytest.mark.parametrize("engine", ["workers", "spark"])
@pytest.mark.few(1)
def test_a_trace_leads_through_a_republisher_and_an_aggregate(
    deployment: Deployment, spans: Collector, engine: str
) -> None:
    deployment.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint}
    sell(deployment)
    relay = deployment.run_once("relay", "--telemetry")
    if engine == "spark":
        run = deployment.run_once("totals", "--telemetry", "--master", "local[2]", engine="spark")
    else:
        run = deployment.run_once("totals", "--telemetry", "--workers", "2")
    assert not spans.refused
    name = f"{deployment.name}-totals"
    (passed,) = [batch for batch in spans.named(f"{deployment.name}-relay", "batch") if batch.links]
    assert {link.trace_id for link in passed.links} <= {trace_of(number)[0] for number in range(SALES + 1)}
    assert len(passed.links) == 32
    assert attributes(passed.attributes)["sqe_chain.links.dropped"] == SALES * 2 // 3 - 32
    created = {span.trace_id: span for span in spans.named(name, "create")}
    found = {}
    for message in records(deployment, "totals"):
        headers = dict(message.headers() or ())
        if not headers:
            assert message.key() == SHOPS[0].encode(), "its sales were not traced"
            continue
        span = created[identity_of(message)]
        assert headers["traceparent"] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01".encode()
        shop = (message.key() or b"").decode()
        found[shop] = {(link.trace_id, link.span_id) for link in span.links} - {
            (one.trace_id, one.span_id) for one in spans.named(name, "publish")
        }
    assert found == {
        shop: {trace_of(number) for number in range(1, SALES + 1) if number % 3 and SHOPS[number % 3] == shop}
        for shop in SHOPS[1:]
    }
    exported = {(span.trace_id.hex(), span.span_id.hex()) for _, span in spans.spans}
    for service in (relay, run):
        logged = {(line["trace_id"], line["span_id"]) for line in service.lines() if "span_id" in line}
        assert len(logged) > 2
        assert all("span_id" in line for line in service.all("committed"))
        assert logged <= exported


@pytest.mark.parametrize("event", ["sealed", "published+outputs"])
def test_a_batch_that_is_killed_and_redone_publishes_the_same_headers(
    deployment: Deployment, spans: Collector, event: str
) -> None:
    deployment.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint}
    sell(deployment)
    deployment.run_once("relay", "--telemetry")
    deployment.run_until_killed(
        "totals", "--telemetry", at="sealed,published+outputs" if "+" in event else event
    )
    run = deployment.run_once("totals", "--telemetry")
    made: dict[bytes, set[tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]]] = {}
    published = records(deployment, "totals")
    for message in published:
        made.setdefault(identity_of(message), set()).add((message.value(), tuple(message.headers() or ())))
    assert len(made) == len(SHOPS)
    assert len(published) == len(SHOPS) * (2 if "+" in event else 1), run.text
    assert [len(versions) for versions in made.values()] == [1] * len(SHOPS)
    name = f"{deployment.name}-totals"
    (recover,) = [
        span for span in spans.named(name, "recover") if attributes(span.attributes)["sqe_chain.plans.redone"]
    ]
    steps = [span.name for span in spans.named(name, "") if span.parent_span_id == recover.span_id]
    assert [step.partition(" ")[0] for step in steps] == ["publish", "persist", "commit"]
    assert {span.trace_id for span in spans.named(name, "create")} <= made.keys()
    assert len(spans.named(name, "create")) == 2, "the redo exports what the killed run could not"


def test_a_collector_that_is_away_costs_nothing_but_spans(deployment: Deployment) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        deployment.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }
        sell(deployment)
        deployment.run_once("relay", "--telemetry")
        run = deployment.run_once("totals", "--telemetry")
    assert sum(line["inputs"] for line in run.all("committed")) == SALES
    notices = [line for line in run.all("notice") if "opentelemetry" in (line.get("logger") or "")]
    assert len(notices) <= 1, "one notice for an outage"
