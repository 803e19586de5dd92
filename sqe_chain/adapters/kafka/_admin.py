"""Asks brokers about topics and offsets; creates and deletes topics."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._clients import KafkaClient, Pool, error_for
from sqe_chain.adapters.kafka._settings import MEMBER, KafkaSettings
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ports import NO_LIMIT, Bounds, TopicInfo, TopicPartition

driver: Any = confluent_kafka.admin  # its stubs lack half of what is used here

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

_NONE = -1
"""The offset of a time after the last record."""

_ATTEMPTS = 3
"""A request may go to a broker that has just died, and the driver does not send it to another one."""

_CONFIRMATIONS = 3
_CONFIRMATION_S = 0.02
"""A new topic counts as known after this many answers in a row, and the time between them."""

_CONFIG_S = 1.0
"""How old the settings of a topic may be: reading them costs more than everything else that a small batch asks."""

_SLICE_S = 0.1
"""How often a wait checks what the client's threads report."""

_UNKNOWN_TOPIC = {"UNKNOWN_TOPIC_OR_PART"}
_NOT_ALLOWED = {"CLUSTER_AUTHORIZATION_FAILED"}
_UNKNOWN = {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"}
"""Errors that the driver raises itself, from its cached metadata: partitions may have been added since."""


class _StaleMetadata(ConfigurationError):
    """The client's cached metadata lacks a partition; a new client may find it."""


class _Config(NamedTuple):
    """Settings of a topic, its id, and when they were read."""

    read_s: float
    topic_id: bytes
    entries: Mapping[str, str]


class Admin(KafkaClient):
    """The admin client of one process."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._known: dict[str, _Config] = {}
        self._cluster: str | None = None  # a client stays with its cluster
        self._attempt_s = settings.timeout_s / _ATTEMPTS
        super().__init__(settings, driver.AdminClient, settings.client({}, {}))

    def close(self) -> None:
        """Nothing to close: the driver closes its client with the last reference."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        names = sorted(set(topics))
        return self._retry(lambda: self._describe_now(names))

    def _describe_now(self, names: list[str]) -> dict[str, TopicInfo]:
        if not names:
            return {}
        known = {name: self._known[name] for name in names if name in self._known}
        oldest_s = time.monotonic() - _CONFIG_S
        if len(known) < len(names) or min(config.read_s for config in known.values()) < oldest_s:
            return self._read_whole(names)
        topics = self._descriptions(names)
        if any(known[name].topic_id != self.topic_id(topic) for name, topic in topics.items()):
            return self._read_whole(names)
        return {name: self._info(topic, known[name].entries) for name, topic in topics.items()}

    def _read_whole(self, names: list[str]) -> dict[str, TopicInfo]:
        read_s = time.monotonic()
        settings = self._configs(names)  # both requests are under way at the same time
        infos = {}
        for name, topic in self._descriptions(names).items():
            topic_id = self.topic_id(
                topic
            )  # before the settings: brokers without ids may not report these either
            doing = f"Reading the configuration of topic {name}"
            config = self._result_unless(_UNKNOWN_TOPIC, settings[name], doing)
            if config is None:  # created or deleted in between
                raise _StaleMetadata(
                    f"Kafka at {self._settings.bootstrap} does not know {', '.join(names)} everywhere yet."
                )
            entries = {entry: setting.value for entry, setting in config.items() if setting.value is not None}
            self._known[name] = _Config(read_s, topic_id, entries)
            infos[name] = self._info(topic, entries)
        return infos

    def _info(self, topic: Any, config: Mapping[str, str]) -> TopicInfo:  # noqa: ANN401 - the driver's TopicDescription
        replicas = [len(part.replicas) for part in topic.partitions]
        return replace(
            topic_info(topic.name, self.topic_id(topic), replicas, config), cluster=self._cluster_id()
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        names = sorted(set(topics))
        described = self._retry(lambda: self._descriptions(names))
        return {name: self.topic_id(topic) for name, topic in described.items()}

    def leaders(self, topic: str) -> list[int]:
        """Which broker leads each partition, by their numbers; -1: none now. Empty when there is no such topic."""
        description = self._retry(lambda: self._descriptions([topic])).get(topic)
        return (
            [-1 if part.leader is None else part.leader.id for part in description.partitions]
            if description
            else []
        )

    def topic_id(self, topic: Any) -> bytes:  # noqa: ANN401 - the driver's TopicDescription
        """The 16 bytes of a topic's UUID."""
        halves = (topic.topic_id.get_most_significant_bits(), topic.topic_id.get_least_significant_bits())
        if halves == (0, 0):
            raise ConfigurationError(
                f"Kafka at {self._settings.bootstrap} gives no topic id for {topic.name}: a topic deleted and created again would look "
                "like the old one. Expected Apache Kafka from 2.8 on, or Redpanda from 25.3 on. No setting helps on Azure Event Hubs: "
                "copy its topics to such brokers, for example with MirrorMaker 2."
            )
        return b"".join(half.to_bytes(8, "big", signed=True) for half in halves)

    def _descriptions(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        answers = self._send(
            lambda: self.driver.describe_topics(TopicCollection(names), request_timeout=self._attempt_s),
            "Describing topics",
        )
        topics = {
            name: self._result_unless(_UNKNOWN_TOPIC, answer, f"Describing topic {name}")
            for name, answer in answers.items()
        }
        return {name: topic for name, topic in topics.items() if topic is not None}

    def _configs(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [driver.ConfigResource(driver.ConfigResource.Type.TOPIC, name) for name in names]
        answers = self._send(
            lambda: self.driver.describe_configs(resources, request_timeout=self._attempt_s),
            "Reading topic configurations",
        )
        return {resource.name: answer for resource, answer in answers.items()}

    def _describe_cluster(self) -> Any:  # noqa: ANN401 - the driver's DescribeClusterResult
        doing = "Describing the cluster"
        ask = partial(self.driver.describe_cluster, request_timeout=self._attempt_s)
        return self._result_unless(frozenset(), self._send(lambda: {"": ask()}, doing)[""], doing)

    def _cluster_id(self) -> str:
        if self._cluster is None:
            self._cluster = getattr(self._describe_cluster(), "cluster_id", None) or ""
        return self._cluster

    def commits_kept_ms(self) -> int:
        """For how long a broker keeps commits; -1: it does not report that to this user."""
        doing = "Reading the configuration of a broker"
        cluster = self._describe_cluster()
        if cluster is None or not cluster.nodes:
            return -1
        broker = driver.ConfigResource(driver.ConfigResource.Type.BROKER, str(cluster.nodes[0].id))
        answers = self._send(
            lambda: self.driver.describe_configs([broker], request_timeout=self._attempt_s), doing
        )
        entries = self._result_unless(_NOT_ALLOWED, answers[broker], doing) or {}
        entry = entries.get("offsets.retention.minutes")
        return int(entry.value) * 60_000 if entry is not None and str(entry.value).isdecimal() else -1

    def create_topic(self, topic: str, partitions: int, *, kept: bool, compacted: bool) -> None:
        config = {"cleanup.policy": "compact"} if compacted else {}
        if kept:
            config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        new = driver.NewTopic(topic, num_partitions=partitions, config=config)
        self._change(self.driver.create_topics, new, topic, f"Creating topic {topic}", "TOPIC_ALREADY_EXISTS")
        deadline = time.monotonic() + self._settings.timeout_s
        confirmed = 0
        # Brokers learn of a new topic one after another, and any of them may answer: one "yes" is not enough.
        while confirmed < _CONFIRMATIONS:
            confirmed = confirmed + 1 if self._has_leaders(topic) else 0
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Topic {topic} was created, but has no leaders after {self._settings.timeout_s:g} s."
                )
            time.sleep(_CONFIRMATION_S)

    def delete_topic(self, topic: str) -> None:
        # Some brokers may still report the topic for a moment.
        self._change(self.driver.delete_topics, topic, topic, f"Deleting topic {topic}", *_UNKNOWN_TOPIC)

    def delete_group(self, group: str) -> None:
        doing = f"Deleting group {group}"
        self._change(self.driver.delete_consumer_groups, group, group, doing, "GROUP_ID_NOT_FOUND")

    def _change(
        self, request: Callable[..., dict[str, Future[Any]]], what: object, name: str, doing: str, *done: str
    ) -> None:
        """Create or delete something; the codes `done` mean that it was done before."""
        answers = self._send(lambda: request([what], request_timeout=self._settings.timeout_s), doing)
        self._result_unless(frozenset(done), answers[name], doing)

    def allowed(self, topics: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Topic -> what the user may do there; see `KafkaLog.allowed`."""
        names = sorted(set(topics))
        if not names:
            return {}
        described = self._send(
            lambda: self.driver.describe_topics(
                TopicCollection(names), include_authorized_operations=True, request_timeout=self._attempt_s
            ),
            "Asking for rights",
        )
        known = {
            name: self._result_unless(_UNKNOWN_TOPIC, answer, f"Asking for rights on topic {name}")
            for name, answer in described.items()
        }
        return {name: _operations(topic) for name, topic in known.items() if topic is not None}

    def allowed_in_group(self, group: str) -> frozenset[str] | None:
        """What the user may do with a group; see `KafkaLog.allowed_in_group`."""
        described = self._group(group)
        return frozenset() if described is None else _operations(described)

    def members(self, group: str) -> list[str]:
        """Who has joined a group; see `KafkaLog.members`."""
        described = self._group(group)
        joined = [] if described is None else described.members
        return sorted(
            f"{member.client_id} at {member.host.lstrip('/')}"
            for member in joined
            if member.group_instance_id != MEMBER["group.instance.id"]
        )

    def _group(self, group: str) -> Any:  # noqa: ANN401 - the driver's ConsumerGroupDescription
        """The description of a group, also of one that is not there; None: the user may not see it.

        A late answer to a group request ends the process (see `_group`). So ask for commits first, which shows that the
        coordinator answers.
        """
        answers = self._send(
            lambda: self.driver.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=self._settings.timeout_s
            ),
            f"Describing group {group}",
        )
        return self._result_unless(
            {"GROUP_AUTHORIZATION_FAILED"}, answers[group], f"Describing group {group}"
        )

    def _has_leaders(self, topic: str) -> bool:
        description = self._descriptions([topic]).get(topic)
        return description is not None and all(
            part.leader is not None and part.leader.id >= 0 for part in description.partitions
        )

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        asked = list(partitions)
        if not asked:
            return {}
        begins, ends = self._retry(
            lambda: self._offsets_now(asked, driver.OffsetSpec.earliest(), driver.OffsetSpec.latest())
        )
        # Two requests, perhaps to two leaders: their answers need not agree.
        return {
            partition: Bounds(begin=begins[partition], stable_end=max(begins[partition], ends[partition]))
            for partition in asked
        }

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        asked = list(partitions)
        offsets = self._offsets(asked, driver.OffsetSpec.for_timestamp(timestamp_ms))
        without = [partition for partition in asked if offsets[partition] < 0]  # no record that late: the end
        return {**offsets, **self._offsets(without, driver.OffsetSpec.latest())}

    def _offsets(self, partitions: Sequence[TopicPartition], which: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - the driver's OffsetSpec
        return self._retry(lambda: self._offsets_now(partitions, which))[0] if partitions else {}

    def _offsets_now(
        self,
        partitions: Sequence[TopicPartition],
        *which: Any,  # noqa: ANN401 - the driver's OffsetSpec
    ) -> list[dict[TopicPartition, int]]:
        """The offsets of each kind; all requests are under way at the same time."""
        asked = [DriverPartition(topic, partition) for topic, partition in partitions]

        def ask(spec: Any) -> dict[DriverPartition, Future[Any]]:  # noqa: ANN401 - the driver's OffsetSpec
            answers: dict[DriverPartition, Future[Any]] = self.driver.list_offsets(
                dict.fromkeys(asked, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._attempt_s,
            )
            return answers

        sent = [self._send(partial(ask, spec), "Asking for offsets") for spec in which]
        return [self._offsets_of(answers) for answers in sent]

    def _offsets_of(self, answers: Mapping[DriverPartition, Future[Any]]) -> dict[TopicPartition, int]:
        offsets = {}
        for partition, answer in answers.items():
            doing = f"Asking for the ends of {partition.topic}[{partition.partition}]"
            result = self._result_unless(frozenset(), answer, doing)
            # librdkafka reports a request that timed out as a success with offset -1001.
            if result is None or result.offset < _NONE:
                raise self.no_answer(doing)
            offsets[partition.topic, partition.partition] = int(result.offset)
        return offsets

    def _retry(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer or the time is up, each time with a new client."""
        deadline = time.monotonic() + self._settings.timeout_s - self._attempt_s / 2
        while True:  # until the deadline
            try:
                return ask()
            except (Unavailable, _StaleMetadata) as error:
                if time.monotonic() > deadline:
                    if isinstance(error, _StaleMetadata):
                        raise ConfigurationError(str(error)) from None
                    raise
            # A client does not refresh its metadata for such requests: which partitions there are, who leads
            # them, which brokers are alive (librdkafka 2.16). Only a new client asks again.
            time.sleep(_SLICE_S)
            self._connect(driver.AdminClient, self._settings.client({}, {}))

    def _send(
        self, ask: Callable[[], dict[_Key, Future[_Answer]]], doing: str
    ) -> dict[_Key, Future[_Answer]]:
        try:
            return ask()
        except KafkaException as error:
            raise error_for(error, doing, self._settings) from None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(self._settings.scrub(f"{doing}: {error}.")) from None

    def _result_unless(self, codes: AbstractSet[str], answer: Future[_Answer], doing: str) -> _Answer | None:
        """The result of a request; None if it failed with one of these error codes."""
        deadline = (
            time.monotonic() + self._settings.timeout_s + 1
        )  # the driver's own timeout should come first
        while True:  # until the deadline
            try:
                return answer.result(_SLICE_S)
            except FutureTimeout:
                self._serve(0, "Asking")
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise self.no_answer(doing) from None
            except KafkaException as error:
                self._serve(0, "Asking")
                if error.args[0].name() in codes:
                    return None
                self._faults.raise_refusal()
                if error.args[0].name() in {"_TIMED_OUT", "_TRANSPORT", "_TIMED_OUT_QUEUE"}:
                    raise self.no_answer(doing) from None
                refused = error_for(error, doing, self._settings)
                raise (
                    _StaleMetadata(str(refused)) if error.args[0].name() in _UNKNOWN else refused
                ) from None


def _operations(described: Any) -> frozenset[str] | None:  # noqa: ANN401 - a description by the driver
    """The names of the operations that a description lists; None: the broker does not report them."""
    operations = described.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)


POOL: Pool[Admin] = Pool()


def admin(settings: KafkaSettings) -> Admin:
    """The admin client of this process."""
    client = POOL.take(settings, lambda: Admin(settings))
    POOL.give_back(settings, client)  # one for all threads: the driver's admin client is thread-safe
    return client


atexit.register(POOL.close)


_MAX_MESSAGE_BYTES = TopicInfo("", b"", 0).max_message_bytes
"""Kafka's own default."""


def topic_info(
    name: str, topic_id: bytes, replicas: list[int], config: Mapping[str, str | None]
) -> TopicInfo:
    """What is known of a topic.

    Args:
        name: its name.
        topic_id: its UUID.
        replicas: how many replicas each partition has.
        config: its settings; the broker has not given those that are missing, None or empty.

    Raises:
        ConfigurationError: a setting that should be a number is none.
    """

    def number(setting: str, untold: int) -> int:
        text = config.get(setting)
        if not text:
            return untold
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(
                f"Topic {name}: the broker gives {setting}={text}. Expected a whole number."
            ) from None

    # Brokers before 3.6 have one limit for both directions; 3.x uses it where the newer one is not set.
    either = number("message.timestamp.difference.max.ms", NO_LIMIT)
    before_ms = number("message.timestamp.before.max.ms", NO_LIMIT)
    after_ms = number("message.timestamp.after.max.ms", NO_LIMIT)
    policy = config.get("cleanup.policy") or "delete"
    return TopicInfo(
        name=name,
        topic_id=topic_id,
        partitions=len(replicas),
        compacted="compact" in policy,
        max_message_bytes=min(
            number("max.message.bytes", _MAX_MESSAGE_BYTES), number("segment.bytes", NO_LIMIT)
        ),
        replicas=min(replicas, default=0),
        min_insync_replicas=number("min.insync.replicas", 0),
        before_max_ms=either if before_ms == NO_LIMIT else before_ms,
        after_max_ms=either if after_ms == NO_LIMIT else after_ms,
        append_time=config.get("message.timestamp.type") == "LogAppendTime",
        write_caching=config.get("write.caching") == "true",
        retention_ms=number("retention.ms", -1) if "delete" in policy else -1,
        retention_bytes=number("retention.bytes", -1) if "delete" in policy else -1,
    )
