"""Goal: commands that decide about the same failed records at once, and are killed, let each count once or never.

Method: real Kafka, commands in processes. A flow without stages, and one with, skips half of its inputs, and its code is fixed. Releases
and a discard begin together, and one is killed. A reader counts what was published.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
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
COUNTING = (
    SCRIPT.replace('-clean", poison="dead_letter"', '-clean", poison="dead_letter", state_partitions=2')
    + """

def append(found: dict, word: dict) -> None:
    found.setdefault("texts", []).append(word["text"])


words.aggregate("words", key=lambda word: word["key"], state=dict, fold=append)
"""
)
COUNT = 3_000


def append_text(found: dict[str, list[str]], word: dict[str, str]) -> None:
    found.setdefault("texts", []).append(word["text"])


def key_of(word: dict[str, str]) -> str:
    return word["key"]


def test_of_commands_at_once_the_first_decides_and_each_record_counts_once_or_never(
    kafka: str, tmp_path: Path
) -> None:
    name = f"failed-{uuid4().hex[:8]}"
    commands = _Commands(kafka, tmp_path, name, SCRIPT, ())
    log = commands.log
    commands.skip_half()
    decided = f"{name}-clean.dead-letters", 0
    end = log.bounds([decided])[decided].stable_end
    doomed = commands.begin("failed", "release")
    others = [
        commands.begin("failed", "release", "--key", "k1"),
        commands.begin("failed", "discard", "--key", "k1", "--yes"),
        commands.begin("failed", "release"),
    ]
    assert wait_until(
        lambda: log.bounds([decided])[decided].stable_end > end or doomed.poll() is not None, PATIENCE_S
    )
    doomed.kill()
    commands.finish(doomed, killed=True)
    for command in others:
        commands.finish(command)
    expected = commands.release_the_rest()
    reader = Flow(f"{name}-reads", state_partitions=2)
    reader.source(f"{name}.good", dict).aggregate("words", key=key_of, state=dict, fold=append_text)
    store = f"sqlite:///{tmp_path}/reads.db"
    run(reader, kafka=kafka, store=store, engine="inprocess", log=None, create_topics=0, once=True)
    with states(reader, "words", store) as found:
        counted = Counter(int(text) for state in found.to_dict().values() for text in state["texts"])
    assert counted == Counter(expected)


def test_of_a_flow_with_stages_one_command_waits_for_the_other_and_a_killed_one_is_finished(
    kafka: str, tmp_path: Path
) -> None:
    """Its inputs have no envelopes. What it publishes is counted by a second flow; both counts are the same."""
    name = f"failed-{uuid4().hex[:8]}"
    store = f"sqlite:///{tmp_path}/counts.db"
    commands = _Commands(kafka, tmp_path, name, COUNTING, ("--store", store))
    log = commands.log
    commands.skip_half()
    passed = [(f"{name}.good", partition) for partition in range(2)]

    def published() -> int:
        return sum(bounds.stable_end for bounds in log.bounds(passed).values())

    before = published()
    doomed = commands.begin("failed", "release")
    assert wait_until(lambda: published() > before or doomed.poll() is not None, PATIENCE_S)
    doomed.kill()
    commands.finish(doomed, killed=True)
    others = [
        commands.begin("failed", "discard", "--key", "k1", "--yes"),
        commands.begin("failed", "release"),
        commands.begin("failed", "release", "--key", "k3"),
    ]
    for command in others:
        commands.finish(command)
    expected = commands.release_the_rest()
    commands.finish(commands.begin(*SERVICE))
    listed = commands.finish(commands.begin("state", "words", "--json"))
    states_found = [json.loads(line) for line in listed.splitlines() if line.startswith("{")]
    counted = Counter(int(text) for found in states_found for text in found["state"]["texts"])
    assert counted == Counter(expected)
    reader = Flow(f"{name}-reads", state_partitions=2)
    reader.source(f"{name}.good", dict).aggregate("words", key=key_of, state=dict, fold=append_text)
    reads = f"sqlite:///{tmp_path}/reads.db"
    run(reader, kafka=kafka, store=reads, engine="inprocess", log=None, create_topics=0, once=True)
    with states(reader, "words", reads) as found:
        assert Counter(int(text) for state in found.to_dict().values() for text in state["texts"]) == counted


SERVICE = ("run", "--once", "--create-topics", "0", "--max-excluded", "1000000")


@dataclass
class _Commands:
    """Commands about a flow in a script, each in a process of its own."""

    kafka: str
    folder: Path
    name: str
    script: str
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        (self.folder / "cleaning.py").write_text(self.script, encoding="utf-8")
        self.log = KafkaLog(self.kafka)

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """Begin a command: its words before the first option, the flow, and its other words."""
        words = next((at for at, word in enumerate(command) if word[0] == "-"), len(command))
        words = 1 if command[0] == "state" else words
        environment = {
            **os.environ, "NAME": self.name, "SQE_CHAIN_KAFKA": self.kafka, "SQE_CHAIN_ENGINE": "inprocess",
        }  # fmt: skip
        line = [*command[:words], "cleaning:flow", *command[words:], *self.options]
        return subprocess.Popen(
            [sys.executable, "-m", "sqe_chain.cli", *line],
            cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], *, killed: bool = False) -> str:
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert killed or process.returncode == 0, text
        return text

    def skip_half(self) -> None:
        """Run the service over records and let it skip every second one; then the code is fixed."""
        self.log.create_topic(f"{self.name}.raw", 2)
        producer = Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True, "max.in.flight": 1})
        for number in range(COUNT):
            word = json.dumps({"key": f"k{number % 4}", "text": str(number)})
            producer.produce(f"{self.name}.raw", word, key=f"k{number % 4}", partition=number % 2)
        assert producer.flush(60) == 0
        self.finish(self.begin(*SERVICE))
        (self.folder / "fixed").touch()

    def release_the_rest(self) -> list[int]:
        """Release what is still open; gives what must count by what the list shows then."""
        self.finish(self.begin("failed", "release"))
        listed = self.finish(self.begin("failed", "list", "--json", "--state", "all"))
        records = [json.loads(line) for line in listed.splitlines() if line.startswith("{")]
        status = {record["read_at"]: record["state"] for record in records}
        assert Counter(status.values()).keys() <= {"released", "discarded"}
        assert len(status) == COUNT // 2
        return [
            number
            for number in range(COUNT)
            if status.get(f"{self.name}.raw[{number % 2}]@{number // 2}", "released") == "released"
        ]
