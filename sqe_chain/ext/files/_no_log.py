"""The log of flows that read files and publish nothing: it has no topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Bounds, Commit, Message, Range, TopicInfo, TopicPartition, Writer


class NoLog:
    """A log without topics; see `sqe_chain.ports.Log`. What needs one is a `ConfigurationError`."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """None."""
        del topics
        return {}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """None."""
        del topics
        return {}

    def create_topic(self, topic: str, partitions: int) -> None:
        """Refused."""
        raise _needed(f"topic {topic!r} with {partitions} partitions")

    def delete_topic(self, topic: str) -> None:
        """There is none."""

    def delete_group(self, group: str) -> None:
        """There is none."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Refused, but for nothing."""
        for topic, _ in partitions:
            raise _needed(f"topic {topic!r}")
        return {}

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """Refused."""
        raise _needed(f"topic {read_range.topic!r}")

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        """Refused, but for nothing."""
        for one in ranges:
            raise _needed(f"topic {one.topic!r}")
        return []

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """None."""
        del group, partitions
        return {}

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """There is nobody to tell."""

    def writer(self) -> Writer:
        """Refused."""
        raise _needed("what is to be published")

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Refused, but for nothing."""
        del timestamp_ms
        for topic, _ in partitions:
            raise _needed(f"topic {topic!r}")
        return {}


def _needed(what: str) -> ConfigurationError:
    return ConfigurationError(f"{what} needs Kafka: give --kafka HOST:PORT")
