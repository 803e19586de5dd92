"""What a system under storm is, and what one run of it is called."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka.admin
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from benchmarks.storm.oracle import Totals
from benchmarks.storm.watching import PARTITIONS, wait
from sqe_chain.ext.dev.jars import Report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one system.

    Attributes:
        name: of the run; no other has it.
        kafka: bootstrap servers.
        redis: URL of a durable Redis.
        postgres: URL of a durable PostgreSQL; empty if no system of the storm needs one.
        directory: for states and programs, empty at the beginning.
    """

    name: str
    kafka: str
    redis: str
    postgres: str
    directory: Path

    @property
    def reports(self) -> str:
        """Topic of the producer."""
        return f"{self.name}.reports"

    @property
    def items(self) -> str:
        """Topic of the republisher."""
        return f"{self.name}.items"

    @property
    def totals(self) -> str:
        """Topic of the consumer."""
        return f"{self.name}.totals"

    @property
    def republisher(self) -> str:
        """Group of the republisher."""
        return f"{self.name}.republisher"

    @property
    def consumer(self) -> str:
        """Group of the consumer."""
        return f"{self.name}.consumer"

    def positions(self) -> dict[int, int]:
        """Up to where the republisher has committed, by partition; empty while the broker does not answer."""
        asking = Consumer({"bootstrap.servers": self.kafka, "group.id": self.republisher, "log_level": 0})
        places = [TopicPartition(self.reports, partition) for partition in range(PARTITIONS)]
        try:
            return {place.partition: max(0, place.offset) for place in asking.committed(places, timeout=5)}
        except KafkaException:
            return {}
        finally:
            asking.close()


class Stuck(Exception):
    """A storm did not get to its end, or a fault could not strike as drawn: there is no verdict. The text names where."""


class System(ABC):
    """A system under storm.

    Attributes:
        name: on the command line.
        title: in the table.
        sentence: why its results are what they are, without a judgement.
        setup: how it is set up.
        versions: of what it consists of.
        beside: whether its documentation lets a second one run beside it, as after a failed health check.
        aims: whether it kills itself when it is asked to, between its store and its commit.
        ours: whether it is sqe-chain.
        postgres: whether it needs PostgreSQL.
        topic: whether it publishes totals for readers outside; else its database shows them.
        ordered: whether it processes the messages of a partition in their order.
    """

    name: str
    title: str
    sentence: str
    setup: str
    versions: str = ""
    beside: bool = True
    aims: bool = False
    ours: bool = False
    postgres: bool = False
    topic: bool = True
    ordered: bool = True

    def install(self, report: Report) -> None:
        """Get what it needs; by default nothing.

        Raises:
            Missing: that is not possible here.
        """
        del report

    def prepare(self, job: Job) -> None:
        """Make what a run needs before its first start; by default nothing."""
        del job

    @abstractmethod
    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """The command of the consumer; `instance` counts machines: a new one has an empty disk."""

    def republisher(self, job: Job) -> Sequence[str]:
        """The command of the republisher: by default the one that is the same for all."""
        program = str(HERE / "republisher.py")
        return [sys.executable, program, job.kafka, job.republisher, job.reports, job.items]

    @property
    def own_republisher(self) -> bool:
        """Whether the republisher is this system, too."""
        return type(self).republisher is not System.republisher

    def rewind(self, job: Job, back: int) -> None:
        """Put the republisher, which has been stopped, back: by default the offsets of its group."""
        move_group(job, {partition: max(0, at - back) for partition, at in positions_of(job).items()})

    def stored(self, job: Job) -> Totals | None:
        """The totals in its database; None if its store is inside, and its topic shows what it has."""
        del job
        return None


def positions_of(job: Job) -> dict[int, int]:
    """Where the republisher is; waits while the broker does not answer.

    Raises:
        Stuck: it did not answer in time.
    """
    found: dict[int, int] = {}

    def ask() -> bool:
        found.update(job.positions())
        return bool(found)

    if not wait(ask, _PATIENCE_S):
        raise Stuck(f"the broker did not report the offsets of {job.republisher}")
    return found


def move_group(job: Job, offsets: Mapping[int, int]) -> None:
    """What `kafka-consumer-groups --reset-offsets` does: it works once no member is left.

    Raises:
        Stuck: members stayed.
    """
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": job.kafka, "log_level": 0})
    places = [TopicPartition(job.reports, partition, offset) for partition, offset in offsets.items()]

    def alter() -> bool:
        with suppress(KafkaException):
            asked = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(job.republisher, places)]
            )
            moved = [place for future in asked.values() for place in future.result().topic_partitions]
            return not any(place.error for place in moved)
        return False

    if not wait(alter, _PATIENCE_S, every_s=0.5):
        raise Stuck(f"the offsets of {job.republisher} could not be moved")


def run_there(command: Sequence[str], job: Job) -> subprocess.CompletedProcess[str]:
    """Run a command of a system to its end, in the directory of a run.

    Raises:
        Stuck: it failed.
    """
    done = subprocess.run(
        command, cwd=job.directory, env=environment(job), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Stuck(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr[-2_000:]}")
    return done


def environment(job: Job) -> dict[str, str]:
    """What all processes of a run have in their environment."""
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{job.directory}",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(job.directory),
        "SPARK_LOCAL_DIRS": str(job.directory),
    }
