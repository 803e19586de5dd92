"""Where everybody stands in Kafka: ends of the topics, and what the services have committed."""

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
    """One service and its input, summed over all partitions.

    Attributes:
        end: messages in the input topic.
        done: messages of them that the service has committed.
    """

    end: int
    done: int

    @property
    def lag(self) -> int:
        """Messages still to do."""
        return self.end - self.done


def topic_end(log: Log, topic: str) -> int:
    """Messages in a topic that nothing was ever deleted from."""
    return patiently(lambda: _end(log, [topic]))


def standing(log: Log, flow: Flow) -> Standing:
    """Where a service stands. Commits are asked for first, so the lag is never too small."""
    topics = flow.input_topics()

    def ask() -> Standing:
        done = sum(commit.offset for commit in log.committed(flow.name, _partitions(log, topics)).values())
        return Standing(_end(log, topics), done)

    return patiently(ask)


def patiently(ask: Callable[[], Answer], patience_s: float = PATIENCE_S) -> Answer:
    """Ask again while the broker is busy with itself, as it is when a group is new.

    Raises:
        Unavailable: it is still busy after `patience_s` seconds.
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
