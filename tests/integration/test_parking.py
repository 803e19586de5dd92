"""Goal: what a flow parks counts once after the fix, through kill -9. Method: real Kafka and Redis, service and command in processes.

A second flow reads what the first one publishes. Both must have every word of each key, in order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from sqe_chain import Flow, run, states
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import wait_until
from tests.support.waiting import PATIENCE_S

SCRIPT = """
import os
from pathlib import Path

from sqe_chain import Flow, run

NAME, KAFKA, STORE, ENGINE = (os.environ[name] for name in ("NAME", "KAFKA", "STORE", "ENGINE"))


def check(word: dict) -> dict:
    if word["text"] in Path("broken.txt").read_text().split():
        raise ValueError(word["text"])
    return word


def append(words: dict, word: dict) -> list:
    words.setdefault("texts", []).append(word["text"])
    return [word]


flow = Flow(f"{NAME}-words", poison="park", state_partitions=2)
words = flow.source(f"{NAME}.raw", dict, raw=True).map(check)
words.aggregate("words", key=lambda word: word["key"], state=dict, fold=append).to(
    f"{NAME}.counted", key=lambda word: word["key"], partitions=2
)

if __name__ == "__main__":
    more = {"engine": "spark"} if ENGINE == "spark" else {"engine": "inprocess", "workers": 2}
    run(flow, kafka=KAFKA, store=STORE, interval="20ms", create_topics=0, max_records=20, log="json", **more)
"""
KEYS = 6
COUNT = 240
BROKEN = ["w31", "w32", "w100"]
"""The keys are 1, 2 and 4: each third key goes on."""


def append_word(words: dict[str, list[str]], word: dict[str, str]) -> None:
    words.setdefault("texts", []).append(word["text"])


def key_of(word: dict[str, str]) -> str:
    return word["key"]


class Place:
    """A directory with the module, and processes there."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.path = path
        self.environment = {**os.environ, **variables}
        (path / "words.py").write_text(SCRIPT, encoding="utf-8")
        self.output = path / "log.jsonl"

    def break_code(self, *texts: str) -> None:
        (self.path / "broken.txt").write_text(" ".join(texts), encoding="utf-8")

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with self.output.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *command], cwd=self.path, env=self.environment, stdout=file, stderr=file
            )

    def kill_when(self, process: subprocess.Popen[bytes], seen: Callable[[str], bool]) -> None:
        assert wait_until(lambda: seen(self.text()) or process.poll() is not None, PATIENCE_S), self.text()
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("engine", ["workers", pytest.param("spark", marks=pytest.mark.release)])
def test_parked_records_count_once_and_in_order_through_kill_9(
    kafka: str, redis_url: str, tmp_path: Path, engine: str
) -> None:
    name = f"parks-{uuid4().hex[:8]}"
    place = Place(tmp_path, NAME=name, KAFKA=kafka, STORE=redis_url, ENGINE=engine)
    place.break_code(*BROKEN)
    log = KafkaLog(kafka)
    for topic in (f"{name}.raw", f"{name}.counted"):
        log.create_topic(topic, 2)
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    )
    for number in range(COUNT):
        word = {"key": f"k{number % KEYS}", "text": f"w{number}"}
        producer.produce(f"{name}.raw", json.dumps(word), key=word["key"], partition=number % 2)
    assert producer.flush(60) == 0

    place.kill_when(place.start("words.py"), lambda text: '"parked": 1' in text or "is parked" in text)
    place.kill_when(place.start("words.py"), lambda text: '"caught_up"' in text)
    command = ("-m", "sqe_chain.cli", "failed")
    servers = ("--kafka", kafka, "--store", redis_url)
    listed = subprocess.run(
        [sys.executable, *command, "list", "words:flow", "--json", *servers],
        cwd=tmp_path, env=place.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    records = [json.loads(line) for line in listed.stdout.splitlines()]
    assert len(records) == sum(len(range(first, COUNT, KEYS)) for first in (31, 32, 100))
    assert sorted(record["error"] for record in records if record["error"] != "Parked") == ["ValueError"] * 3

    place.break_code()
    engines = ("--engine", "spark") if engine == "spark" else ("--engine", "inprocess", "--workers", "2")
    release = (
        *command,
        "release",
        "words:flow",
        *servers,
        *engines,
        "--log-json",
        "--takeover",
    )
    place.kill_when(place.start(*release), lambda text: '"sealed"' in text)
    again = place.start(*release)
    assert again.wait(PATIENCE_S) == 0, place.text()
    assert "still to decide: 0" in place.text()
    place.kill_when(place.start("words.py"), lambda text: '"caught_up"' in text)

    expected = {f"k{key}": {"texts": [f"w{n}" for n in range(key, COUNT, KEYS)]} for key in range(KEYS)}
    reader = Flow(f"{name}-reads", state_partitions=2)
    reader.source(f"{name}.counted", dict).aggregate("words", key=key_of, state=dict, fold=append_word)
    where: dict[str, Any] = {"kafka": kafka, "store": redis_url, "engine": "inprocess", "log": None}
    run(reader, **where, create_topics=0, once=True)
    with states(reader, "words", redis_url) as found:
        assert found.to_dict() == expected
    own = Flow(f"{name}-words", state_partitions=2)
    own.source(f"{name}.raw", dict, raw=True).aggregate("words", key=key_of, state=dict, fold=append_word)
    with states(own, "words", redis_url) as found:
        assert found.to_dict() == expected
