"""Writes to three brokers that are killed, and by connections that are cut, while flushes are under way; then reads what is there.

By hand, for as many trials as wanted; more requests in flight show what the writer must not do:

    python -m tests.support.interrupted_flushes --trials 50 --kills 1
    python -m tests.support.interrupted_flushes --trials 50 --new-topics --in-flight 5
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer
from confluent_kafka import Consumer, TopicPartition

from benchmarks.cluster import BROKERS, Cluster
from sqe_chain.adapters.kafka import KafkaLog, _settings
from sqe_chain.errors import Unavailable
from tests.support.beside import beside
from tests.support.waiting import PATIENCE_S

PARTITIONS: Final = 12
RECORDS: Final = 400
"""Of one partition in one batch."""

_REQUEST: Final = 20
_SMALL_REQUESTS: Final = {"batch.num.messages": str(_REQUEST), "linger.ms": "0"}
"""So that a partition has many requests to wait for."""

_ROUND_TRIP_S: Final = 0.004


@contextmanager
def producers_with(settings: Mapping[str, str]) -> Iterator[None]:
    """Let the writer's producers have other settings than those that keep the order."""
    kept = dict(_settings.WRITER)
    _settings.WRITER.update(settings)
    try:
        yield
    finally:
        _settings.WRITER.update(kept)


@dataclass(slots=True)
class Interrupted:
    """One topic, written batch by batch as services do: what is not acknowledged is written again, from the batch's beginning.

    Args:
        cluster: where.
        topic: it exists.
        flush_s: as of `KafkaLog`, for the first attempt at a batch; each later one has as much more.

    Attributes:
        attempts: at each batch.
        cuts: how often connections were cut while a flush was under way.
        kills: how often a broker was.
    """

    cluster: Cluster
    topic: str
    flush_s: float = 40.0
    attempts: list[int] = field(default_factory=list)
    cuts: int = 0
    kills: int = 0
    _flushing: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        """Write the next batch."""
        first = len(self.attempts) * RECORDS
        outputs = [
            (self.topic, partition, None, b"%d" % number, None, 0)
            for number in range(first, first + RECORDS)
            for partition in range(PARTITIONS)
        ]
        self.attempts.append(0)
        acknowledged = False
        while not acknowledged:
            self.attempts[-1] += 1
            flush_s = self.flush_s * self.attempts[-1]
            log = KafkaLog(self.cluster.bootstrap, _SMALL_REQUESTS, flush_s=flush_s)
            writer = log.writer()
            try:
                self._flushing.set()
                writer.write(outputs)
                writer.flush()
                acknowledged = True
            except Unavailable:
                continue
            finally:
                self._flushing.clear()
                writer.close()
                log.close()

    @contextmanager
    def cutting(self, seed: int) -> Iterator[None]:
        """Cut the connections to one broker after another, but only while a flush is under way."""
        rng, done = random.Random(seed), threading.Event()

        def cut() -> None:
            while not done.is_set():
                if (
                    self._flushing.wait(0.1)
                    and not done.wait(rng.uniform(0.002, 0.3))
                    and self._flushing.is_set()
                ):
                    self.cluster.wire.cut(rng.choice(self.cluster.brokers).port)
                    self.cuts += 1

        with beside(cut, done):
            yield

    @contextmanager
    def killing(self, number: int, after_s: float) -> Iterator[None]:
        """Kill a broker after a part of a flush, and start it when the block ends."""
        done = threading.Event()

        def kill() -> None:
            if self._flushing.wait(PATIENCE_S) and not done.wait(after_s):
                self.cluster.brokers[number].kill()
                self.kills += self._flushing.is_set()

        with beside(kill, done):
            yield
        self.cluster.brokers[number].start()

    def check(self) -> None:
        """Read all partitions; assert that `faults_of` finds nothing in any."""
        self.cluster.wire.delay(0)
        for partition, numbers in enumerate(numbers_in(self.cluster.bootstrap, self.topic)):
            assert not (faults := faults_of(numbers, self.attempts)), (
                f"{self.topic}[{partition}]: {faults[:5]}"
            )


def faults_of(numbers: Sequence[int], attempts: Sequence[int]) -> list[str]:
    """What is wrong with a partition, by the order in which its numbers lie there.

    A reader that skips what it has had must get each number once, in order, without a hole. And no record lies there more often than
    it was written.
    """
    faults, upto = [], -1
    for number in numbers:
        if number > upto + 1:
            faults.append(f"{number} comes after {upto}")
        upto = max(upto, number)
    if upto + 1 != len(attempts) * RECORDS:
        faults.append(f"{upto} is the last")
    found = Counter(numbers)
    faults += [f"{number} is missing" for number in range(len(attempts) * RECORDS) if not found[number]]
    most = {number: attempts[number // RECORDS] for number in found if number // RECORDS < len(attempts)}
    return faults + [
        f"{number} is there {times} times" for number, times in found.items() if times > most.get(number, 0)
    ]


def numbers_in(bootstrap: str, topic: str) -> list[list[int]]:
    """What is in each partition, read by a plain consumer."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    )
    places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(place, timeout=PATIENCE_S)[1] for place in places]
    numbers = [list[int]() for _ in places]
    consumer.assign(places)
    deadline = time.monotonic() + PATIENCE_S
    while any(len(found) < end for found, end in zip(numbers, ends, strict=True)):
        assert time.monotonic() < deadline
        for message in consumer.consume(10_000, 0.1):
            assert message.error() is None
            numbers[message.partition() or 0].append(int(message.value() or b""))
    consumer.close()
    return numbers


def _trial(cluster: Cluster, seed: int, kills: int, *, new_topics: bool) -> Interrupted:
    rng = random.Random(seed)
    cluster.wire.delay(_ROUND_TRIP_S / 2)
    topic = f"trial-{seed}-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, PARTITIONS)
    trial = Interrupted(cluster, topic, flush_s=rng.choice((1.0, 40.0)))
    if not new_topics:
        trial.write()
    with trial.cutting(seed):
        trial.write()
    for _ in range(kills):
        with trial.killing(rng.randrange(BROKERS), rng.uniform(0.01, 0.5)), trial.cutting(seed):
            trial.write()
    trial.write()
    return trial


def main(
    trials: Annotated[int, typer.Option(help="How many.")] = 20,
    kills: Annotated[int, typer.Option(help="Brokers to kill in each.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first one.")] = 1,
    in_flight: Annotated[int, typer.Option(help="Requests of one producer.")] = 1,
    new_topics: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool, typer.Option("--new-topics", help="Interrupt the first records, too.")
    ] = False,
) -> None:
    """Interrupt flushes, and print what was found."""
    wrong = 0
    with Cluster() as cluster, producers_with({"max.in.flight.requests.per.connection": str(in_flight)}):
        for number in range(seed, seed + trials):
            trial, fault = _trial(cluster, number, kills, new_topics=new_topics), "right"
            try:
                trial.check()
            except AssertionError as error:
                wrong, fault = wrong + 1, str(error)
            again = sum(trial.attempts) - len(trial.attempts)
            typer.echo(
                f"seed {number}: {trial.cuts} cuts, {trial.kills} kills, {again} attempts again: {fault}"
            )
    typer.echo(f"{trials} trials, {wrong} wrong")


if __name__ == "__main__":
    typer.run(main)
