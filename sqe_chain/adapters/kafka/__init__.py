"""Kafka, through confluent-kafka (librdkafka). No other package imports the driver.

`_settings` lists the properties that exactness depends on. `_reader` has the hot loop of reading, `_writer` that of
publishing, `_transactions` publishes in transactions. `_admin` asks about topics and offsets, `_group` and `_member` commit, `_clients` maps error codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from sqe_chain.adapters.kafka import _group, _member, _reader, _transactions, _writer
from sqe_chain.adapters.kafka._admin import POOL as ADMINS
from sqe_chain.adapters.kafka._admin import Admin, admin
from sqe_chain.adapters.kafka._settings import KafkaSettings, load_config, settings
from sqe_chain.ports import (
    Bounds,
    Commit,
    Log,
    Membership,
    Message,
    Range,
    TopicInfo,
    TopicPartition,
    TransactionalWriter,
    Writer,
)

__all__ = ["KafkaLog", "load_config"]


class KafkaLog(Log):
    """A Kafka cluster; see `sqe_chain.ports.Log` for what its methods guarantee.

    It is only an address: it can be pickled, compares by its settings, and opens clients on first use, once per process.
    The pickle contains the configuration with its secrets; `repr` and errors never do.

    Args:
        bootstrap: `host:port` of one or more brokers, separated by commas.
        config: further librdkafka properties, mostly for SASL and TLS; `load_config` reads them from a file.
            Properties that exactness depends on are refused.
        timeout_s: how long a broker may be silent before `Unavailable` is raised.
        flush_s: how long a flush may take, or the client's buffer stay full, before `Unavailable` is raised.

    Raises:
        ConfigurationError: a property is refused, or no broker is given.
    """

    __slots__ = ("_settings",)

    def __init__(
        self,
        bootstrap: str,
        config: Mapping[str, str] = MappingProxyType({}),
        *,
        timeout_s: float = 10.0,
        flush_s: float = 60.0,
    ) -> None:
        self._settings: KafkaSettings = settings(bootstrap, config, timeout_s, flush_s)

    def __repr__(self) -> str:
        return f"KafkaLog({self._settings.bootstrap!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaLog) and other._settings == self._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def _admin(self) -> Admin:
        return admin(self._settings)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        return self._admin.describe(topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        return self._admin.topic_ids(topics)

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        self._admin.create_topic(topic, partitions, kept=kept, compacted=compacted)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topic(topic)

    def delete_group(self, group: str) -> None:
        self._admin.delete_group(group)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return self._admin.bounds(partitions)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        return self._admin.offsets_at(partitions, timestamp_ms)

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        return _reader.read(self._settings, read_range)

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        return _reader.read_all(self._settings, ranges)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        asked = list(partitions)
        if not asked:
            return {}
        with _group.group_of(self._settings, group) as client:
            return client.committed(asked)

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        if commits:
            with _group.group_of(self._settings, group) as client:
                client.commit(commits)

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        return _member.join(self._settings, group, topics)

    def commits_kept_ms(self) -> int:
        """For how long the broker keeps what a group without members has committed; -1: without limit, or unknown."""
        return self._admin.commits_kept_ms()

    def allowed(self, topics: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Topic -> what this login may do there, by Kafka's names of operations; None: the broker does not report it.

        Nothing is tried: the broker is asked. One without ACLs reports all operations.

        Args:
            topics: names; those that do not exist are missing in the answer.

        Raises:
            Unavailable, ConfigurationError: as all calls of a `Log`; also where the login may not see one of them.
        """
        return self._admin.allowed(topics)

    def allowed_in_group(self, group: str) -> frozenset[str] | None:
        """The same of a group, empty where the login may not see it; read its commits before (`committed`).

        Raises:
            Unavailable, ConfigurationError: as all calls of a `Log`.
        """
        return self._admin.allowed_in_group(group)

    def members(self, group: str) -> list[str]:
        """Client and host of each other program that has joined a group; read its commits before (`committed`).

        A run of the flow joins it, too, if the flow has no stages: that is not meant.

        Raises:
            Unavailable, ConfigurationError: as all calls of a `Log`.
        """
        return self._admin.members(group)

    def writer(self) -> Writer:
        return _writer.KafkaWriter(self._settings)

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> TransactionalWriter:
        return _transactions.KafkaTransactionalWriter(self._settings, transactional_id, topics)

    def close(self) -> None:
        """Close this process's idle clients of this cluster; a later call opens them again."""
        _reader.POOL.close(lambda key: key == self._settings)
        for pool in (_writer.POOL, _group.POOL):
            pool.close(lambda key: isinstance(key, tuple) and key[0] == self._settings)
        ADMINS.close(lambda key: key == self._settings)
