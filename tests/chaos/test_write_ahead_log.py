"""Goal: what a write-ahead log acknowledged counts once in a flow. Method: its process is killed, with real files and a real Kafka."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from sqe_chain import run, states
from sqe_chain.adapters.kafka import KafkaLog
from tests.support.service_processes import KILLED, ROOT
from tests.support.suites import some
from tests.support.waiting import PATIENCE_S
from tests.support.wal_flow import listing
from tests.support.wal_writer import KEYS, PARTITIONS

LIVES = 15


def drawn(draw: random.Random) -> str:
    """Where a life ends: while it opens the log, while it appends, or while it publishes."""
    at = ("files", 8), ("files", 1_000), ("broker", 2), ("broker", 12), ("broker", 60)
    kind, most = draw.choice(at)
    return f"{kind}:{draw.randint(1, most)}"


def live(directory: Path, kafka: str, topic: str, first: int, at: str) -> tuple[int, list[int]]:
    """One life of the writer: its exit status, and the records that were acknowledged to it."""
    arguments = [str(directory), kafka, topic, str(first), at]
    command = [sys.executable, "-m", "tests.support.wal_writer", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    whole = done.stdout.rpartition(b"\n")[0]  # the last line may have been cut off by the kill
    return done.returncode, [int(line) for line in whole.splitlines()]


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_drawn_calls_lose_nothing_and_double_nothing(kafka: str, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    topic = f"wal-{uuid4().hex[:8]}"
    log = KafkaLog(kafka)
    log.create_topic(topic, PARTITIONS)
    acknowledged: list[int] = []
    lives = some("lives of a log", range(LIVES), 3)
    for number in lives:
        at = drawn(draw)
        status, printed = live(tmp_path / "log", kafka, topic, number * 1_000_000, at)
        assert status == KILLED, at
        acknowledged += printed
    status, printed = live(tmp_path / "log", kafka, topic, LIVES * 1_000_000, "end:0")
    assert status == 0
    acknowledged += printed

    store = f"sqlite://{tmp_path}/states.db"
    flow = listing(topic, key_of_number=KEYS)
    run(flow, kafka=kafka, store=store, engine="inprocess", once=True)
    with states(flow, "numbers", store) as found:
        lists = {key: state.numbers for key, state in found.to_dict().items()}
    counted = [one for numbers in lists.values() for one in numbers]
    assert len(acknowledged) > len(lives)
    assert set(acknowledged) <= set(counted), f"lost: {sorted(set(acknowledged) - set(counted))}"
    assert len(counted) == len(set(counted)), "something was counted twice"
    assert all(numbers == sorted(numbers) for numbers in lists.values()), "the order of a key has changed"
    bounds = log.bounds([(topic, partition) for partition in range(PARTITIONS)])
    published = sum(bound.stable_end for bound in bounds.values())
    assert published > len(counted), "nothing was published twice, so the test proves nothing"
