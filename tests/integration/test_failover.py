"""Goal: a flow goes from a broker that was killed under load to its mirror and back, and counts each record once.

Method: two real brokers and MirrorMaker 2. What the flow holds is compared with what a naive reader finds in the first topic.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import sqe_chain
from sqe_chain import read, wrap
from sqe_chain.errors import ChainError, ConfigurationError, GapError, Unavailable
from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.operations.failover import Failover
from sqe_chain.plans.retrying import Retry
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Log, Range
from sqe_chain.runtime.connecting import Deployment, EngineChoice, open_log
from sqe_chain.runtime.launching import prepare
from tests.support.mirror_maker import MirrorMaker
from tests.support.mirrored import INPUT, PARTITIONS, republished_words, totals_of_words
from tests.support.ports import own_port
from tests.support.typed_results import payloads_of
from tests.support.word_flows import word

FAILOVERS = int(os.environ.get("SQE_CHAIN_FAILOVERS", "2"))
MIRRORED = f"first.{INPUT}"
LETTERS = "abcdefgh"
PATIENCE_S = 240.0


def words_in(log: Log, topic: str) -> Counter[str]:
    """What a reader counts that knows each record by its id."""
    info = log.describe([topic])[topic]
    by_id = dict[bytes, str]()
    for (_, partition), bounds in log.bounds([(topic, number) for number in range(PARTITIONS)]).items():
        for block in log.read(Range(topic, info.topic_id, partition, bounds.begin, bounds.stable_end)):
            for message in block:
                envelope = read(message.value())
                (payload,) = payloads_of(StringValue, envelope)
                by_id[envelope.event_id] = payload.value
    return Counter(by_id.values())


class Deployed:
    """Two brokers, a store, and services in this process."""

    def __init__(self, directory: Path) -> None:
        self.store = f"sqlite:///{directory}/states.db"
        self.first, self.second = (self._broker(directory / name) for name in ("first", "second"))
        self.numbers = iter(range(10**9))

    @staticmethod
    def _broker(directory: Path) -> KafkaServer:
        directory.mkdir()
        server = KafkaServer(directory, own_port(), fast_boot=True)
        server.start()
        return server

    @contextmanager
    def load(self) -> Iterator[None]:
        """Publish words to the first cluster, as fast as it takes them."""
        done = threading.Event()

        def feed() -> None:
            writer = open_log(self.first.bootstrap).writer()
            while not done.is_set():
                number = next(self.numbers)
                value = wrap(
                    word(f"{LETTERS[number % len(LETTERS)]}{number}"),
                    key=None,
                    timestamp_ms=1_700_000_000_000,
                )
                try:
                    writer.write([("raw", number % 2, None, value, None, 1_700_000_000_000)])
                    if number % 50 == 0:
                        writer.flush()
                        done.wait(0.05)
                except ChainError:
                    with suppress(ChainError):
                        writer.close()
                    writer = open_log(self.first.bootstrap).writer()
                    done.wait(0.5)
            with suppress(ChainError):
                writer.close()

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def counted(self) -> Counter[str]:
        """What the flow holds."""
        if not Path(self.store.removeprefix("sqlite:///")).exists():
            return Counter()
        try:
            with sqe_chain.states(totals_of_words(), "letters", store=self.store) as states:
                return Counter(text for state in dict(states).values() for text in state.value.split())
        except (ConfigurationError, Unavailable):  # it has not run yet, or is about to write
            return Counter()

    def is_mirrored(self) -> bool:
        """Whether the second cluster has the topic."""
        return MIRRORED in open_log(self.second.bootstrap).describe([MIRRORED])

    def kill_first_under_load(self) -> None:
        """Run the flow in the first cluster, and kill the broker while words come in."""
        wanted = sum(self.counted().values()) + 200
        running = sqe_chain.running(
            totals_of_words(), kafka=self.first.bootstrap, store=self.store, engine="inprocess"
        )
        with suppress(Unavailable), running, self.load():  # it cannot commit any more
            reached = wait_until(lambda: sum(self.counted().values()) > wanted, PATIENCE_S)
            self.first.kill()
        assert reached
        assert not self.first.running

    def fail_over(self, to: KafkaServer, *names: tuple[str, str]) -> list[str]:
        """Fail over; where the mirror lacks records, their loss is accepted. Returns the lanes that were named."""
        flow, accepted = totals_of_words().compile(), list[str]()
        deployment = Deployment(to.bootstrap, None, {"": self.store}, EngineChoice("inprocess"), once=True)
        with prepare(flow, Settings(allow_weak_durability=True), deployment, fails_over=True) as prepared:
            try:
                Failover(prepared.env, dict(names)).run()
            except GapError as error:
                accepted = re.findall(f"[0-9a-f]{{16}}(?=: {INPUT})", str(error))
                Failover(prepared.env, dict(names), accepted=accepted).run()
        return accepted

    def run_until_counted(self, broker: KafkaServer) -> None:
        """Run the flow in a cluster until it has counted all that was published in the first one."""
        retry = Retry(lambda _what, _reason, wait_ms: threading.Event().wait(wait_ms / 1_000), 1_000)
        expected = retry.call("read", lambda: words_in(open_log(self.first.bootstrap), "raw"))
        with sqe_chain.running(
            totals_of_words(), kafka=broker.bootstrap, store=self.store, engine="inprocess"
        ) as service:
            wait_until(lambda: not service.alive or self.counted() == expected, PATIENCE_S)
        assert self.counted() == expected


@pytest.mark.release
@pytest.mark.timeout(FAILOVERS * 600)
def test_brokers_killed_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployed, named = Deployed(tmp_path), 0
    log = open_log(deployed.first.bootstrap)
    log.create_topic("raw", 2)
    log.create_topic(INPUT, PARTITIONS)
    standard = sqe_chain.running(republished_words(), kafka=deployed.first.bootstrap, engine="inprocess")
    mirrored = MirrorMaker(deployed.first.bootstrap, deployed.second.bootstrap, INPUT, tmp_path)
    try:
        with mirrored as mirror, standard:
            assert wait_until(deployed.is_mirrored, PATIENCE_S)
            for number in range(FAILOVERS):
                deployed.kill_first_under_load()
                lanes = deployed.fail_over(deployed.second, (INPUT, MIRRORED))
                named += bool(lanes)
                mirror.kill()
                deployed.first.start()
                mirror.restart()
                deployed.run_until_counted(deployed.second)
                deployed.fail_over(deployed.first)
                deployed.run_until_counted(deployed.first)
                with capsys.disabled():
                    text = f"failover {number + 1}: {sum(deployed.counted().values())} words; the mirror lagged in {named}"
                    sys.stderr.write(text + "\n")
    finally:
        deployed.first.stop()
        deployed.second.stop()
