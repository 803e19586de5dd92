"""How far the services are: ends of their topics in Kafka, and their commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sqe_chain.errors import Unavailable
from sqe_chain.flow import Flow
from sqe_chain.ports import Log, TopicPartition

PATIENCE_S = 30.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of one service in its input, summed over all partitions."""

    end: int
    done: int

    @property
    def lag(self) -> int:
        """Messages that are not committed yet."""
        return self.end - self.done


def topic_end(log: Log, topic: str) -> int:
    """Messages in a topic from which nothing was ever deleted."""
    return retry(lambda: _end(log, [topic]))


def standing(log: Log, flow: Flow) -> Standing:
    """The progress of a service. Commits are read first, so the lag is never too small."""
    topics = flow.compile().input_topics

    def ask() -> Standing:
        done = sum(commit.offset for commit in log.committed(flow.name, _partitions(log, topics)).values())
        return Standing(_end(log, topics), done)

    return retry(ask)


def retry(ask: Callable[[], Answer], patience_s: float = PATIENCE_S) -> Answer:
    """Ask until the broker answers: it may be busy, for example with creating a group's coordinator.

    Raises:
        Unavailable: there is no answer after `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def _end(log: Log, topics: Iterable[str]) -> int:
    return sum(bounds.stable_end for bounds in log.bounds(_partitions(log, topics)).values())


def _partitions(log: Log, topics: Iterable[str]) -> list[TopicPartition]:
    found = log.describe(topics)
    return [(name, number) for name, info in found.items() for number in range(info.partitions)]
