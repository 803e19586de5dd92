"""Goal: a bug in a republisher is corrected on real servers by five commands. Method: a chain of three services, plain sums as an oracle."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner, Result

from sqe_chain import run, states
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.cli.commands import application

MODULE = """
from sqe_chain import Flow

REVISION, FACTOR = 1, 100


def converted(value):
    return value * FACTOR


def fold(total, value):
    total["sum"] = total.get("sum", 0) + value


def deploy(revision, factor):
    global FACTOR, clean
    FACTOR = factor
    clean = Flow("NAME-clean")
    clean.source("NAME.raw", int, raw=True).map(converted).to(
        "NAME.good", key=str, partitions=2, revision=revision
    )


keyed = Flow("NAME-keyed")
keyed.source("NAME.good", int).to("NAME.keyed", key=lambda value: str(value % 7), partitions=2)
totals = Flow("NAME-totals", state_partitions=2)
totals.source("NAME.keyed", int).aggregate("total", key=lambda value: "all", state=dict, fold=fold)
deploy(1, 100)
"""
COUNT, HOUR_MS = 40, 3_600_000


@pytest.fixture
def chain(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, str]]:
    """The module of the flows, and the name that all of them begin with; raw has a record for each minute before now."""
    name = f"correct-{uuid4().hex[:8]}"
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(MODULE.replace("NAME", name), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    log = KafkaLog(kafka)
    for topic in ("raw", "good", "keyed"):
        log.create_topic(f"{name}.{topic}", 2)
    yield __import__(module), name
    del sys.modules[module]


def feed(kafka: str, topic: str, numbers: range, began_ms: int) -> None:
    writer = KafkaLog(kafka).writer()
    writer.connect([topic])
    writer.write([(topic, n % 2, None, str(n).encode(), None, began_ms + n * 60_000) for n in numbers])
    writer.flush()
    writer.close()


def headers_of(kafka: str, topic: str) -> list[str]:
    """What a plain consumer sees of revisions: a header of each record, or nothing."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid4().hex, "enable.auto.commit": False})
    found: list[str] = []
    for partition in (0, 1):
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition))
        consumer.assign([TopicPartition(topic, partition, 0)])
        while high:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            headers = cast("list[tuple[str, bytes]]", message.headers() or [])
            found.append(b"".join(value for header, value in headers if header == "sqe-revision").decode())
            if message.offset() == high - 1:
                break
    consumer.close()
    return found


def test_a_bug_in_a_republisher_is_corrected_from_a_time_on(
    chain: tuple[ModuleType, str], kafka: str, tmp_path: Path
) -> None:
    flows, name = chain
    store = f"sqlite://{tmp_path / 'states.db'}"

    def call(command: str, flow: str, *arguments: str) -> Result:
        target = f"{flows.__name__}:{flow}"
        return CliRunner(env={"COLUMNS": "200"}).invoke(
            application(command), [command, target, *arguments, "--kafka", kafka]
        )

    def run_all() -> None:
        for flow in (flows.clean, flows.keyed):
            run(flow, kafka=kafka, engine="inprocess", once=True, log="json")
        run(
            flows.totals,
            kafka=kafka,
            store=store,
            engine="inprocess",
            once=True,
            log="json",
            allow_weak_durability=True,
        )

    def total() -> int:
        with states(flows.totals, "total", store) as stored:
            value: int = stored["all"]["sum"]
        return value

    began_ms = int(time.time() * 1_000) - HOUR_MS
    feed(kafka, f"{name}.raw", range(COUNT), began_ms)
    run_all()
    assert total() == sum(100 * number for number in range(COUNT))
    # The code was wrong from the 20th minute on.
    flows.deploy(2, 1)
    moment = str(began_ms + 20 * 60_000)
    looked = call("correct", "clean", "--from", moment, "--dry-run", "--json")
    assert looked.exit_code == 0, looked.stderr
    shown = json.loads(looked.stdout)
    assert shown["since"] == {f"{name}.raw[0]": 10, f"{name}.raw[1]": 10}
    assert (shown["revision"], shown["continues_from"], shown["dry_run"]) == (2, shown["since"], True)
    done = call("correct", "clean", "--from", moment)
    assert done.exit_code == 0, done.stderr
    assert f"revision 2 of {name}-clean/{name}.good begins at" in done.stderr
    again = call("correct", "clean", "--from", moment)
    assert again.exit_code == 2
    feed(kafka, f"{name}.raw", range(COUNT, COUNT + 2), began_ms)
    run_all()
    assert headers_of(kafka, f"{name}.good").count(f"{name}-clean/{name}.good@2") == COUNT - 20 + 2
    assert headers_of(kafka, f"{name}.keyed").count(f"{name}-clean/{name}.good@2") == COUNT - 20 + 2
    # The reader follows the first revision until its operator takes up the second one.
    assert total() == sum(100 * number for number in range(COUNT))
    rebuilt = call("rebuild", "totals", "--store", store, "--allow-weak-durability")
    assert rebuilt.exit_code == 0, rebuilt.stderr
    run_all()
    want = sum(100 * number for number in range(20)) + sum(range(20, COUNT + 2))
    assert total() == want
