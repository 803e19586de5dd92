"""The consumer of docs/plain-consumers.md counts once, whatever happens between two of its calls: pauses, copies, rebalances.

Its client is replaced by one over a broker in memory; transactions and groups of real brokers are in
tests/integration/test_docs_commands.py.
"""

from __future__ import annotations

import contextlib
import runpy
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.adapters import kafka
from sqe_chain.testing import Rehearsal
from tests.support import docs_examples
from tests.support.docs_examples import ROOT

_connect = sqlite3.connect

TOPIC, PARTITIONS, TAKEN = "robot.screws", 2, 3
Between = Callable[["Client"], None]


class Died(Exception):
    """A copy ends between two calls."""


class End:
    """What the client gives at the end of a partition."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)

    def partition(self) -> int:
        return self._partition


class Client:
    """A consumer of a group; what happens while it waits is up to the test.

    Args:
        records: of each partition.
        between: called in each `consume`, after messages were fetched and before they are given.
    """

    def __init__(self, records: Sequence[Sequence[Any]], between: Between) -> None:
        self.records, self.between = records, between
        self.at: dict[int, int] = {}
        self.calls = 0

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        assert topics == [TOPIC]
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost

    def assign(self, places: list[TopicPartition]) -> None:
        self.at = {place.partition: place.offset for place in places}

    def give(self, *partitions: int) -> None:
        """Assign partitions, as an eager group does: all of them."""
        self.on_assign(self, [TopicPartition(TOPIC, part) for part in partitions])

    def take(self, how: str) -> None:
        """Revoke all partitions, or report that they were lost."""
        getattr(self, how)(self, [TopicPartition(TOPIC, part) for part in self.at])
        self.at = {}

    def consume(self, _: int, timeout: float) -> list[Any]:
        assert timeout
        self.calls += 1
        if self.calls == 1:
            self.give(*range(PARTITIONS))
        fetched: list[Any] = []
        for part, offset in self.at.items():
            found = self.records[part][offset : offset + TAKEN]
            self.at[part] += len(found)
            fetched += found or [End(part)]
        self.between(self)
        return fetched

    def close(self) -> None:
        self.take("on_revoke")


@pytest.fixture(scope="module")
def records() -> list[list[Any]]:
    """The output of a republisher that has published everything twice."""
    flow = Flow("screws-clean")
    flow.source("robot.raw", Int64Value).to(TOPIC, partitions=PARTITIONS)
    upstream = Rehearsal(flow)
    for number in range(12):
        upstream.feed("robot.raw", Int64Value(value=number), key=f"robot-{number % 4}")
    upstream.crash(step=7)
    upstream.run_until_caught_up()
    found: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    for record in upstream.log.records(TOPIC):
        found[record.partition()].append(record)
    assert [len(part) for part in found] == [18, 6]
    Copies.ids = {TOPIC: upstream.log.describe([TOPIC])[TOPIC].topic_id}
    return found


class Copies:
    """Runs copies of the documented program, one within another."""

    ids: dict[str, bytes]

    def __init__(self, records: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self._records = records

        class Log:
            def __init__(self, bootstrap: str) -> None:
                del bootstrap

            def topic_ids(self, topics: list[str]) -> dict[str, bytes]:
                return {topic: Copies.ids[topic] for topic in topics}

        patch.setattr(kafka, "KafkaLog", Log)
        patch.setattr(sys, "argv", ["count.py", "nowhere"])

    def run(self, between: Between = lambda _: None) -> int:
        """Run one until it ends or dies; how often it has asked for messages."""
        client = Client(self._records, between)
        # A process that ends closes what it has opened; nothing else does where a copy dies.
        with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as opened:
            patched.setattr(confluent_kafka, "Consumer", lambda _: client)
            patched.setattr(
                sqlite3,
                "connect",
                lambda *args, **options: opened.enter_context(contextlib.closing(_connect(*args, **options))),
            )
            with contextlib.suppress(Died):
                runpy.run_path("count.py")
        return client.calls


@pytest.fixture
def copies(records: list[list[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Copies:
    docs_examples.write_files(ROOT / "docs" / "plain-consumers.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    return Copies(records, monkeypatch)


def at_call(number: int, do: Callable[[Client], object]) -> Between:
    return lambda client: do(client) if client.calls == number else None  # type: ignore[return-value]


def die(_: Client) -> None:
    raise Died


def check_sums() -> None:
    with contextlib.closing(_connect("sums.db")) as database:
        found = dict(database.execute("SELECT robot, screws FROM sums"))
    assert found == {f"robot-{robot}": 12 + 3 * robot for robot in range(4)}


CALLS = 7
"""How often one copy asks: for 18 messages, 3 at a time, and for the end."""


def test_replays_are_counted_once(copies: Copies) -> None:
    assert copies.run() == CALLS
    assert copies.run() == 1
    check_sums()


@pytest.mark.parametrize("ends", [2, 4, CALLS + 1])
@pytest.mark.parametrize("paused", range(1, CALLS + 1))
def test_a_copy_that_was_paused_adds_nothing_twice(copies: Copies, paused: int, ends: int) -> None:
    """Another one starts meanwhile, and goes to the end or some of the way."""
    copies.run(at_call(paused, lambda _: copies.run(at_call(ends, die))))
    check_sums()


@pytest.mark.parametrize("how", ["on_revoke", "on_lost"])
@pytest.mark.parametrize("called", range(1, CALLS + 1))
def test_partitions_that_come_back_are_read_from_where_others_were(
    copies: Copies, called: int, how: str
) -> None:
    """What the client had fetched before the rebalance is given after it."""

    def change_hands(client: Client) -> None:
        client.take(how)
        copies.run(at_call(3, die))
        client.give(*range(PARTITIONS))

    copies.run(at_call(called, change_hands))
    check_sums()


def test_each_partition_changes_hands_for_itself(copies: Copies) -> None:
    def keep_one(client: Client) -> None:
        client.take("on_revoke")
        copies.run(at_call(3, die))
        client.give(1)

    copies.run(at_call(2, keep_one))
    copies.run()
    check_sums()
