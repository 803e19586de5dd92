"""Where everybody stands in Kafka: ends of the topics, and what the services have committed."""

from __future__ import annotations

from dataclasses import dataclass

from sqe_chain.flow import Flow
from sqe_chain.ports import Log


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
    partitions = [(topic, number) for number in range(log.describe([topic])[topic].partitions)]
    return sum(bounds.stable_end for bounds in log.bounds(partitions).values())


def standing(log: Log, flow: Flow) -> Standing:
    """Where a service stands. Commits are asked for first, so the lag is never too small."""
    topics = log.describe(flow.input_topics())
    partitions = [(name, number) for name, info in topics.items() for number in range(info.partitions)]
    done = sum(commit.offset for commit in log.committed(flow.name, partitions).values())
    return Standing(sum(bounds.stable_end for bounds in log.bounds(partitions).values()), done)
