"""A flow with outputs goes on with the mirror of a broker that was killed under load, again and again.

```
python -m tests.reliability run failovers --failovers 10
```

    first:   raw -standard-> words -notesN-> lettersN
    MirrorMaker 2:           first.words     first.lettersN
    second:                  first.words -notesN-> first.lettersN

Two real brokers, and a flow of its own for each time. What it holds is compared with what a naive reader finds in the first topic.
What it has published is compared with what a reader of the other cluster counts, by lanes of its own reckoning.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from google.protobuf.wrappers_pb2 import StringValue

import sqe_chain
from sqe_chain import read, wrap
from sqe_chain.errors import ChainError, ConfigurationError, GapError, ServiceStopped, Unavailable
from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.flow import Flow
from sqe_chain.operations.failover import FailedOver, Failover
from sqe_chain.plans.events import Event, Observer, Sealed
from sqe_chain.plans.retrying import Retry
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Log, Message, Range
from sqe_chain.runtime.connecting import Deployment, EngineChoice, open_log
from sqe_chain.runtime.launching import prepare
from sqe_chain.runtime.running import RunningService
from tests.lab.figures import report
from tests.support.beside import beside
from tests.support.mirror_maker import MirrorMaker
from tests.support.mirrored import INPUT, PARTITIONS, published_totals, read_by_lanes, republished_words
from tests.support.ports import own_port
from tests.support.typed_results import payloads_of
from tests.support.word_flows import word

LETTERS: Final = "abcdefgh"
PATIENCE_S: Final = 240.0
_NAMED: Final = re.compile(r"[Ll]ane ([0-9a-f]{16}): (\w+)\[")
_MOST_TRIES: Final = 8
ENGINES: Final[Sequence[Mapping[str, Any]]] = (
    {"engine": "inprocess"},
    {"engine": "inprocess", "workers": 2},
    {"engine": "spark"},
)
"""What goes on in the other cluster; an unfinished batch is finished by it, too."""


def records_of(log: Log, topic: str) -> list[Message]:
    """All records of a topic, partition after partition."""
    info = log.describe([topic])[topic]
    bounds = log.bounds([(topic, number) for number in range(PARTITIONS)])
    return [
        message
        for (_, partition), bound in bounds.items()
        for block in log.read(Range(topic, info.topic_id, partition, bound.begin, bound.stable_end))
        for message in block
    ]


def words_in(log: Log, topic: str) -> Counter[str]:
    """What a reader counts that knows each record by its id."""
    by_id = dict[bytes, str]()
    for message in records_of(log, topic):
        envelope = read(message.value())
        (payload,) = payloads_of(StringValue, envelope)
        by_id[envelope.event_id] = payload.value
    return Counter(by_id.values())


class KillOnceSealed(Observer):
    """Kills a broker between the seal of a batch and its outputs, so that its plan stays unfinished.

    Args:
        kill: kills it; called once.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill, self.armed, self.done = kill, threading.Event(), threading.Event()

    def event(self, event: Event) -> None:
        if isinstance(event, Sealed) and self.armed.is_set() and not self.done.is_set():
            self._kill()
            self.done.set()


class Deployed:
    """Two brokers, a store, and services in this process.

    Args:
        directory: for all files.
        declare: the flow.

    Attributes:
        done: what the last failover has done.
    """

    def __init__(self, directory: Path, declare: Callable[[], Flow]) -> None:
        self.declare, self.store = declare, f"sqlite:///{directory}/states.db"
        self.first, self.second = (self._broker(directory / name) for name in ("first", "second"))
        self._numbers = count()
        self.done: FailedOver | None = None
        log = open_log(self.first.bootstrap)
        log.create_topic("raw", 2)
        log.create_topic(INPUT, PARTITIONS)

    @staticmethod
    def _broker(directory: Path) -> KafkaServer:
        directory.mkdir()
        server = KafkaServer(directory, own_port(), fast_boot=True)
        server.start()
        return server

    def stop(self) -> None:
        """Stop both brokers."""
        self.first.stop()
        self.second.stop()

    @contextmanager
    def load(self) -> Iterator[None]:
        """Publish words to the first cluster, as fast as it takes them."""
        done = threading.Event()

        def feed() -> None:
            writer = open_log(self.first.bootstrap).writer()
            while not done.is_set():
                number = next(self._numbers)
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

        with beside(feed, done):
            yield

    def counted(self) -> Counter[str]:
        """What the flow holds."""
        if not Path(self.store.removeprefix("sqlite:///")).exists():
            return Counter()
        try:
            with sqe_chain.states(self.declare(), "letters", store=self.store) as states:
                return Counter(text for state in dict(states).values() for text in state.value.split())
        except (ConfigurationError, Unavailable):  # it has not run yet, or is about to write
            return Counter()

    def is_mirrored(self, topic: str = INPUT) -> bool:
        """Whether the second cluster has the topic."""
        return f"first.{topic}" in open_log(self.second.bootstrap).describe([f"first.{topic}"])

    def fed(self) -> Counter[str]:
        """All that was published to the flow, as the first topic of all has it."""
        retry = Retry(lambda _what, _reason, wait_ms: threading.Event().wait(wait_ms / 1_000), 1_000)
        return retry.call("read", lambda: words_in(open_log(self.first.bootstrap), "raw"))

    def kill_first_under_load(self) -> None:
        """Run the flow in the first cluster, and kill the broker while words come in."""
        wanted = sum(self.fed().values()) + 200
        running = sqe_chain.running(
            self.declare(), kafka=self.first.bootstrap, store=self.store, engine="inprocess"
        )
        with suppress(Unavailable), running, self.load():  # it cannot commit any more
            reached = wait_until(lambda: sum(self.counted().values()) > wanted, PATIENCE_S)
            self.first.kill()
        assert reached
        assert not self.first.running

    def kill_first_once_sealed(self, *, mirrored: bool) -> None:
        """The same, between the seal of a batch and its outputs.

        Args:
            mirrored: wait until the mirror has what the batch has read.
        """

        def kill() -> None:
            if mirrored:
                newest = {
                    message.partition(): message.value()
                    for message in records_of(open_log(self.first.bootstrap), INPUT)
                }
                wait_until(lambda: {*newest.values()} <= self._mirrored_values(), PATIENCE_S)
            self.first.kill()

        wanted, killer = sum(self.fed().values()) + 200, KillOnceSealed(kill)
        deployment = Deployment(self.first.bootstrap, None, {"": self.store}, EngineChoice("inprocess"))
        service = RunningService(
            self.declare().compile(), Settings(allow_weak_durability=True), deployment, [killer]
        )
        try:
            with self.load():
                reached = wait_until(lambda: sum(self.counted().values()) > wanted, PATIENCE_S)
                killer.armed.set()
                reached = killer.done.wait(PATIENCE_S) and reached
        finally:
            with suppress(Unavailable):  # the plan stays unfinished
                service.stop()
        assert reached

    def _mirrored_values(self) -> set[bytes | None]:
        """The values of all inputs that the mirror has."""
        # It has some of them twice, so the number of records shows nothing.
        return {message.value() for message in records_of(open_log(self.second.bootstrap), f"first.{INPUT}")}

    def fail_over(self, to: KafkaServer, *names: tuple[str, str]) -> dict[str, str]:
        """Fail over; where the mirror lacks records, their loss is accepted. Returns the lanes that were named, with their topics."""
        flow, accepted = self.declare().compile(), dict[str, str]()
        deployment = Deployment(to.bootstrap, None, {"": self.store}, EngineChoice("inprocess"), once=True)
        with prepare(flow, Settings(allow_weak_durability=True), deployment, fails_over=True) as prepared:
            for _ in range(_MOST_TRIES):  # an error names some lanes at a time
                try:
                    self.done = Failover(prepared.env, dict(names), accepted=accepted.keys()).run()
                except GapError as error:
                    accepted |= dict(_NAMED.findall(str(error)))
                else:
                    return accepted
        raise AssertionError(f"lanes are missing again and again: {accepted}")

    def run_until_counted(self, broker: KafkaServer, engine: Mapping[str, Any] = ENGINES[0]) -> None:
        """Run the flow in a cluster until it has counted all that was published in the first one.

        Args:
            broker: of the cluster.
            engine: of `ENGINES`.
        """
        expected = self.fed()
        with sqe_chain.running(self.declare(), kafka=broker.bootstrap, store=self.store, **engine) as service:
            wait_until(lambda: not service.alive or self.counted() == expected, PATIENCE_S)
        assert self.counted() == expected


@dataclass
class Failovers:
    """Failovers one after the other, each of a new flow.

    Attributes:
        deployed: brokers and store.
        mirror: what copies inputs and outputs.
        found: what has happened -> how often.
    """

    deployed: Deployed
    mirror: MirrorMaker
    found: Counter[str] = field(default_factory=Counter)

    def run(self, times: int) -> list[str]:
        """Fail over one time after the other; returns what was wrong."""
        return [text for number in range(times) for text in self._once(number)]

    def _once(self, number: int) -> Iterator[str]:
        deployed, output = self.deployed, f"letters{number}"
        deployed.declare = partial(published_totals, f"notes{number}", output)
        open_log(deployed.first.bootstrap).create_topic(output, PARTITIONS)
        assert wait_until(lambda: deployed.is_mirrored() and deployed.is_mirrored(output), PATIENCE_S)
        lanes = self._kill_and_fail_over(number, output)
        finished_there = deployed.done is not None and deployed.done.unfinished is not None
        reader = self._reader(deployed.second, f"first.{output}")
        deployed.first.start()
        self.mirror.restart()
        engine = ENGINES[number % len(ENGINES)]
        deployed.run_until_counted(deployed.second, engine)
        held, read_there = set(reader), self._reader(deployed.second, f"first.{output}")
        lost = set(self._reader(deployed.first, output)) - held
        self.found.update(
            {"failovers": 1, "words": len(set(read_there)), "outputs missing at first": len(lost)}
        )
        named = sum(topic == output for topic in lanes.values())
        self.found["plans finished there"] += finished_there
        self.found.update({"stopped for inputs": len(lanes) > named, "stopped for outputs": named > 0})
        where = f"failover {number}, {engine}: a reader there"
        if len(set(read_there)) < len(read_there):
            yield f"{where} counts {len(read_there) - len(set(read_there))} words twice"
        if by_number(read_there) != read_there:
            yield f"{where} counts words out of order"
        # What an unfinished plan has published in part is published there again.
        if (named and not lost) or (lost and not named and not finished_there):
            yield f"{where} lacks {len(lost)} words at the failover, and {named} lanes of outputs were named"
        unexpected = (set(deployed.fed()) ^ set(read_there)) - (lost if named else set())
        if unexpected:
            yield f"{where} has others than {sorted(unexpected)[:5]}"

    def _kill_and_fail_over(self, number: int, output: str) -> dict[str, str]:
        """Kill the broker until it does not die in the middle of a batch whose inputs only it has."""
        deployed = self.deployed
        for tried in range(_MOST_TRIES):
            kind = number // len(ENGINES) % 3
            if kind:
                deployed.kill_first_once_sealed(mirrored=kind == 1 or tried > 0)
            else:
                deployed.kill_first_under_load()
            self.mirror.kill()  # so that what the mirror has stays as it is
            try:
                return deployed.fail_over(
                    deployed.second, (INPUT, f"first.{INPUT}"), (output, f"first.{output}")
                )
            except ServiceStopped as error:
                assert "is unfinished" in str(error)  # noqa: PT017 - the kind has no type of its own
                self.found["refused, and started there"] += 1
                deployed.first.start()
                self.mirror.restart()
        raise AssertionError("each kill leaves an unfinished plan")

    @staticmethod
    def _reader(broker: KafkaServer, topic: str) -> list[str]:
        """Words by their first character, as a reader counts them by lanes."""
        by_letter = read_by_lanes(records_of(open_log(broker.bootstrap), topic))
        return [text for letter in LETTERS for text in by_letter.get(letter, ())]


def by_number(words: list[str]) -> list[str]:
    """Words by their first character, in the order in which they were published."""
    return sorted(words, key=lambda text: (text[0], int(text[1:])))


@contextmanager
def failovers(directory: Path) -> Iterator[Failovers]:
    """Two brokers, a republisher in the first, and MirrorMaker 2 between them, until the end of the block."""
    deployed = Deployed(directory, published_totals)
    try:
        topics = f"{INPUT}|letters.*"
        with (
            MirrorMaker(deployed.first.bootstrap, deployed.second.bootstrap, topics, directory) as mirror,
            sqe_chain.running(republished_words(), kafka=deployed.first.bootstrap, engine="inprocess"),
        ):
            yield Failovers(deployed, mirror)
    finally:
        deployed.stop()


def main(arguments: list[str] | None = None) -> int:
    """Fail over some times, print figures, and 1 as exit status if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.failovers", description=__doc__)
    parser.add_argument("--failovers", type=int, default=2, help="how many (default 2)")
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="failovers-") as directory,
        failovers(Path(directory)) as made,
    ):
        wrong = made.run(options.failovers)
    figures = {
        "tool": "failovers",
        "counts": dict(made.found),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return report(figures, wrong, options.json)


if __name__ == "__main__":
    sys.exit(main())
