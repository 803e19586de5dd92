"""Kill transactional services on a real broker, and read what they publish as a reader that knows nothing of positions.

    ```
    python -m tests.lab.transactional_kills --kills 200 --seed 1 --engine inprocess --flow staged
    python -m tests.lab.transactional_kills --kills 40 --engine workers      two worker processes; or spark
    python -m tests.lab.transactional_kills --kills 40 --connect             a Kafka Connect worker writes a file meanwhile
    ```

A service is started, and killed (SIGKILL) at a random moment, and so on. Some are stopped (SIGSTOP) instead, and woken while a later
one works: zombies. At the end a consumer of committed records reads everything.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.dev.process import wait_until
from tests.lab.figures import report
from tests.support.connect_worker import ConnectWorker
from tests.support.plain_readers import OUT_PARTITIONS, PARTITIONS, faults_in, inputs_from
from tests.support.service_processes import ROOT, SUPERSEDED, ServiceProcess
from tests.support.waiting import PATIENCE_S

ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "inprocess": ("--engine", "inprocess"),
    "workers": ("--engine", "inprocess", "--workers", "2"),
    "spark": ("--engine", "spark"),
}
_FED = 150
"""Inputs for each life of a service."""


@dataclass
class Trial:
    """One service over all its lives.

    Args:
        kafka: broker.
        store: URL; not SQLite, whose file a stopped process may have locked.
        directory: for logs.
        engine: of `ENGINES`.
        flow: of `tests.support.transactional_flows`.
        seed: of the moments of kills.
    """

    kafka: str
    store: str
    directory: Path
    engine: str
    flow: str
    seed: int
    found: Counter[str] = field(default_factory=Counter)
    lives: list[ServiceProcess] = field(default_factory=list)
    zombies: list[ServiceProcess] = field(default_factory=list)
    fed: int = 0

    def __post_init__(self) -> None:
        self.prefix, self.draw = f"tx-{uuid4().hex[:8]}", random.Random(self.seed)
        self.topics = [f"{self.prefix}.out"] + [f"{self.prefix}.counts"] * (self.flow == "staged")
        log = KafkaLog(self.kafka)
        log.create_topic(f"{self.prefix}.in", PARTITIONS)
        log.create_topic(f"{self.prefix}.out", OUT_PARTITIONS)
        self.producer = Producer(
            {"bootstrap.servers": self.kafka, "enable.idempotence": True, "max.in.flight": 1, "linger.ms": 1}
        )

    def run(self, kills: int) -> list[str]:
        """Kill that often, let it end, and read.

        Returns:
            What is there twice, out of order, or not at all.
        """
        for _ in range(kills):
            self._feed()
            life = self._start()
            if self.zombies and self.draw.random() < 0.6:
                self._wait_until_it_works(life)
                self._wake()
            if self.draw.random() < 0.25:
                self._wait_until_it_works(life)
                time.sleep(self.draw.uniform(0, 0.3))  # the moment must be random
                life.pause()
                self.zombies.append(life)
                self.found["stopped"] += 1
            else:
                if self.draw.random() < 0.8:  # the others die while they start
                    self._wait_until_it_works(life)
                time.sleep(self.draw.uniform(0, 0.4))
                life.kill()
                self.found["killed"] += 1
        self._wake()
        self._end()
        return self.read()

    def _start(self, *more: str) -> ServiceProcess:
        where = ("--kafka", self.kafka, "--store", self.store, "--log-json")
        arguments = ("run", f"tests.support.transactional_flows:{self.flow}", *where, "--interval", "50ms")
        log = self.directory / f"life-{len(self.lives)}.log"
        environment = {"PYTHONPATH": str(ROOT), "CHAOS_PREFIX": self.prefix}
        how = (*ENGINES[self.engine], "--takeover", "--create-topics", "0", *more)
        self.lives.append(ServiceProcess((*arguments, *how), log, environment))
        return self.lives[-1]

    def _feed(self) -> None:
        for partition, value, key in inputs_from(self.fed, _FED):
            self.producer.produce(f"{self.prefix}.in", value, key, partition)
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_S) == 0
        self.fed += _FED

    def _wait_until_it_works(self, life: ServiceProcess) -> None:
        """Until it has claimed: then it fences, recovers or publishes."""
        assert wait_until(lambda: bool(life.all("claimed")) or life.status() is not None, PATIENCE_S), (
            life.text
        )

    def _wake(self) -> None:
        for zombie in self.zombies:
            zombie.resume()
        for zombie in self.zombies:
            ended = wait_until(lambda zombie=zombie: zombie.status() is not None, 3)  # type: ignore[misc]
            self.found["superseded" if ended and zombie.status() == SUPERSEDED else "woken"] += 1
            zombie.close()  # one that had not claimed owns the flow now
        self.zombies.clear()

    def _end(self) -> None:
        """A life that reads everything, and ends by itself."""
        for _ in range(3):
            life = self._start("--once")
            status = life.wait()
            if status == 0:
                return
            assert status == SUPERSEDED, life.text
        raise AssertionError(self.lives[-1].text)

    def read(self) -> list[str]:
        """What a plain reader finds wrong."""
        seen = [list(committed_records(self.kafka, topic)) for topic in self.topics]
        self.found["events"] += sum(map(len, seen))
        return faults_in(seen[0], seen[1] if len(seen) > 1 else None, self.fed)

    def faults_of_sink(self, sink: ConnectWorker) -> list[str]:
        """What a sink has written twice, or not at all; the service is at rest."""
        wanted = Counter(value.decode() for _, value in committed_records(self.kafka, self.topics[0]))
        wait_until(lambda: len(sink.lines()) >= wanted.total(), PATIENCE_S)
        lines = Counter(sink.lines())
        self.found["lines"] = lines.total()
        return [
            f"line {line!r} is there {lines[line]} times"
            for line in {*lines, *wanted}
            if lines[line] != wanted[line]
        ]

    def close(self) -> None:
        """End what still runs."""
        for life in self.lives:
            life.close()


def committed_records(kafka: str, topic: str) -> Iterator[tuple[int, bytes]]:
    """Partition and value of all records of a topic, for a consumer that knows nothing but `isolation.level`."""
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka,
        "group.id": "plain",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    numbers = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    ended = set[int]()
    while len(ended) < len(numbers):
        for message in consumer.consume(1_000, 1.0):
            partition, value = message.partition(), message.value()
            assert partition is not None
            if message.error() is not None:
                ended.add(partition)
            else:
                yield partition, value or b""
    consumer.close()


def main(arguments: list[str] | None = None) -> int:
    """Run a trial, print what was found, and 1 as exit status if an event is not there once."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.transactional_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="how many (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of their moments")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="inprocess")
    parser.add_argument("--flow", choices=["staged", "republisher"], default="staged")
    parser.add_argument(
        "--connect", action="store_true", help="a Kafka Connect worker writes what is published into a file"
    )
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with ExitStack() as run:
        directory = Path(run.enter_context(tempfile.TemporaryDirectory(prefix="kills-")))
        server = run.enter_context(KafkaServer(fast_boot=True))
        trial = Trial(
            server.bootstrap,
            run.enter_context(RedisServer()).url,
            directory,
            options.engine,
            options.flow,
            options.seed,
        )
        run.callback(trial.close)
        sink = ConnectWorker(server.bootstrap, trial.topics[0], directory) if options.connect else None
        if sink is not None:
            run.enter_context(sink)
        wrong = trial.run(options.kills)
        if sink is not None:
            wrong += trial.faults_of_sink(sink)
    figures = {
        "tool": "transactions",
        "counts": {**trial.found, "inputs": trial.fed},
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "engine": options.engine,
        "flow": options.flow,
    }
    return report(figures, wrong, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
