"""Goal: commands that decide about the same failed records at once, and are killed, let each count once or never.

Method: real Kafka, commands in processes. A republisher skips half of its inputs; the code is fixed; releases and a discard begin
together, and one is killed. A reader counts what was published.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer

from sqe_chain import Flow, run, states
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import wait_until
from tests.support.waiting import PATIENCE_S

SCRIPT = """
import os
from pathlib import Path

from sqe_chain import Flow


def check(word: dict) -> dict:
    if int(word["text"]) % 2 and not Path("fixed").exists():
        raise ValueError(word["text"])
    return word


flow = Flow(f"{os.environ['NAME']}-clean", poison="dead_letter")
words = flow.source(f"{os.environ['NAME']}.raw", dict, raw=True).map(check)
words.to(f"{os.environ['NAME']}.good", key=lambda word: word["key"], partitions=2)
"""
COUNT = 3_000


def append_text(found: dict[str, list[str]], word: dict[str, str]) -> None:
    found.setdefault("texts", []).append(word["text"])


def key_of(word: dict[str, str]) -> str:
    return word["key"]


def test_of_commands_at_once_the_first_decides_and_each_record_counts_once_or_never(
    kafka: str, tmp_path: Path
) -> None:
    name = f"failed-{uuid4().hex[:8]}"
    (tmp_path / "cleaning.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "NAME": name, "SQE_CHAIN_KAFKA": kafka, "SQE_CHAIN_ENGINE": "inprocess"}

    def begin(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sqe_chain.cli", *command],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def finish(process: subprocess.Popen[str], *, killed: bool = False) -> str:
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert killed or process.returncode == 0, text
        return text

    log = KafkaLog(kafka)
    log.create_topic(f"{name}.raw", 2)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight": 1})
    for number in range(COUNT):
        word = json.dumps({"key": f"k{number % 4}", "text": str(number)})
        producer.produce(f"{name}.raw", word, key=f"k{number % 4}", partition=number % 2)
    assert producer.flush(60) == 0
    service = ("run", "cleaning:flow", "--once", "--create-topics", "0", "--max-excluded-share", "1")
    finish(begin(*service))

    (tmp_path / "fixed").touch()
    decided = f"{name}-clean.dead-letters", 0
    end = log.bounds([decided])[decided].stable_end
    doomed = begin("failed", "release", "cleaning:flow")
    others = [
        begin("failed", "release", "cleaning:flow", "--key", "k1"),
        begin("failed", "discard", "cleaning:flow", "--key", "k1", "--yes"),
        begin("failed", "release", "cleaning:flow"),
    ]
    assert wait_until(
        lambda: log.bounds([decided])[decided].stable_end > end or doomed.poll() is not None, PATIENCE_S
    )
    doomed.kill()
    finish(doomed, killed=True)
    for command in others:
        finish(command)
    finish(begin("failed", "release", "cleaning:flow"))

    listed = finish(begin("failed", "list", "cleaning:flow", "--json", "--state", "all"))
    records = [json.loads(line) for line in listed.splitlines() if line.startswith("{")]
    status = {record["read_at"]: record["state"] for record in records}
    assert Counter(status.values()).keys() <= {"released", "discarded"}
    reader = Flow(f"{name}-reads", state_partitions=2)
    reader.source(f"{name}.good", dict).aggregate("words", key=key_of, state=dict, fold=append_text)
    store = f"sqlite:///{tmp_path}/reads.db"
    run(reader, kafka=kafka, store=store, engine="inprocess", log=None, create_topics=0, once=True)
    with states(reader, "words", store) as found:
        counted = Counter(int(text) for state in found.to_dict().values() for text in state["texts"])
    expected = [
        number
        for number in range(COUNT)
        if status.get(f"{name}.raw[{number % 2}]@{number // 2}", "released") == "released"
    ]
    assert len(status) == COUNT // 2
    assert counted == Counter(expected)
