"""Asks brokers about topics and offsets; creates and deletes topics."""

from __future__ import annotations

import atexit
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._clients import Pool, connect
from sqe_chain.adapters.kafka._errors import mapped
from sqe_chain.adapters.kafka._topics import topic_info
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ports import Bounds, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sqe_chain.adapters.kafka._settings import Settings
    from sqe_chain.ports import TopicInfo

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

_UNKNOWN = {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"}
"""Errors that the driver raises itself, from its cached metadata: partitions may have been added since."""


class _StaleMetadata(ConfigurationError):
    """The client's cached metadata lacks a partition; a new client may find it."""


class _Config(NamedTuple):
    """Settings of a topic, when they were read and of which topic."""

    read_s: float
    topic_id: bytes
    entries: Mapping[str, str]


class Admin:
    """The admin client of one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, _Config] = {}
        self._attempt_s = settings.timeout_s / _ATTEMPTS
        self._renew()

    def _renew(self) -> None:
        self._driver, self._faults = connect(
            driver.AdminClient, self._settings.client({}, {}), self._settings
        )

    def close(self) -> None:
        """Nothing to close: the driver closes its client with the last reference."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        names = sorted(set(topics))
        return self._retry(lambda: self._describe_now(names))

    def _describe_now(self, names: list[str]) -> dict[str, TopicInfo]:
        if not names:
            return {}
        known = {name: self._known[name] for name in names if name in self._known}
        if (
            len(known) < len(names)
            or min(one.read_s for one in known.values()) < time.monotonic() - _CONFIG_S
        ):
            return self._read_whole(names)
        found = self._descriptions(names)
        if any(known[name].topic_id != self.topic_id(about) for name, about in found.items()):
            return self._read_whole(names)
        return {name: self._info(about, known[name].entries) for name, about in found.items()}

    def _read_whole(self, names: list[str]) -> dict[str, TopicInfo]:
        """Read descriptions and settings of topics."""
        read_s = time.monotonic()
        settings = self._configs(names)  # both requests are under way at the same time
        found = self._descriptions(names)
        infos = {}
        for name, about in found.items():
            doing = f"Reading the configuration of topic {name}"
            config = self._result_unless(_UNKNOWN_TOPIC, settings[name], doing)
            if config is None:  # created or deleted in between
                raise _StaleMetadata(
                    f"Kafka at {self._settings.bootstrap} does not know {', '.join(names)} everywhere yet."
                )
            entries = {entry: one.value for entry, one in config.items() if one.value is not None}
            self._known[name] = _Config(read_s, self.topic_id(about), entries)
            infos[name] = self._info(about, entries)
        return infos

    def _info(self, about: Any, config: Mapping[str, str]) -> TopicInfo:  # noqa: ANN401 - the driver's TopicDescription
        """A `TopicInfo` from a description and the topic's settings."""
        replicas = [len(part.replicas) for part in about.partitions]
        return topic_info(about.name, self.topic_id(about), replicas, config)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        names = sorted(set(topics))
        found = self._retry(lambda: self._descriptions(names))
        return {name: self.topic_id(about) for name, about in found.items()}

    def topic_id(self, about: Any) -> bytes:  # noqa: ANN401 - the driver's TopicDescription
        """The 16 bytes of a topic's UUID."""
        halves = (about.topic_id.get_most_significant_bits(), about.topic_id.get_least_significant_bits())
        if halves == (0, 0):
            raise ConfigurationError(
                f"Kafka at {self._settings.bootstrap} gives no topic id for {about.name}: a topic deleted and "
                "created again would look like the old one. Use brokers of version 2.8 or later."
            )
        return b"".join(half.to_bytes(8, "big", signed=True) for half in halves)

    def _descriptions(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        answers = self._send(
            lambda: self._driver.describe_topics(TopicCollection(names), request_timeout=self._attempt_s),
            "Describing topics",
        )
        found = {}
        for name, answer in answers.items():
            about = self._result_unless(_UNKNOWN_TOPIC, answer, f"Describing topic {name}")
            if about is not None:
                found[name] = about
        return found

    def _configs(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [driver.ConfigResource(driver.ConfigResource.Type.TOPIC, name) for name in names]
        answers = self._send(
            lambda: self._driver.describe_configs(resources, request_timeout=self._attempt_s),
            "Reading topic configurations",
        )
        return {resource.name: answer for resource, answer in answers.items()}

    def create_topic(self, topic: str, partitions: int) -> None:
        answers = self._send(
            lambda: self._driver.create_topics(
                [driver.NewTopic(topic, num_partitions=partitions)], request_timeout=self._settings.timeout_s
            ),
            f"Creating topic {topic}",
        )
        self._result_unless({"TOPIC_ALREADY_EXISTS"}, answers[topic], f"Creating topic {topic}")
        deadline = time.monotonic() + self._settings.timeout_s
        confirmed = 0
        # Brokers learn of a new topic one after another, and any of them may answer: one "yes" is not enough.
        while confirmed < _CONFIRMATIONS:
            confirmed = confirmed + 1 if self._has_leaders(topic) else 0
            if time.monotonic() > deadline:
                raise Unavailable(f"Topic {topic} was created, but has no leaders after {self._timeout()}.")
            time.sleep(_CONFIRMATION_S)

    def delete_topic(self, topic: str) -> None:
        # Some brokers may still report the topic for a moment
        answers = self._send(
            lambda: self._driver.delete_topics([topic], request_timeout=self._settings.timeout_s),
            f"Deleting topic {topic}",
        )
        self._result_unless(_UNKNOWN_TOPIC, answers[topic], f"Deleting topic {topic}")

    def delete_group(self, group: str) -> None:
        answers = self._send(
            lambda: self._driver.delete_consumer_groups([group], request_timeout=self._settings.timeout_s),
            f"Deleting group {group}",
        )
        self._result_unless({"GROUP_ID_NOT_FOUND"}, answers[group], f"Deleting group {group}")

    def _has_leaders(self, topic: str) -> bool:
        about = self._descriptions([topic]).get(topic)
        return about is not None and all(
            part.leader is not None and part.leader.id >= 0 for part in about.partitions
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
        found = self._offsets(asked, driver.OffsetSpec.for_timestamp(timestamp_ms))
        without = [partition for partition in asked if found[partition] < 0]  # no record that late: the end
        return {**found, **(self._offsets(without, driver.OffsetSpec.latest()) if without else {})}

    def _offsets(self, partitions: Sequence[TopicPartition], which: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - the driver's OffsetSpec
        if not partitions:
            return {}
        return self._retry(lambda: self._offsets_now(partitions, which))[0]

    def _offsets_now(
        self,
        partitions: Sequence[TopicPartition],
        *which: Any,  # noqa: ANN401 - the driver's OffsetSpec
    ) -> list[dict[TopicPartition, int]]:
        """The offsets of each kind; all requests are under way at the same time."""
        asked = [DriverPartition(topic, partition) for topic, partition in partitions]

        def ask(spec: Any) -> dict[DriverPartition, Future[Any]]:  # noqa: ANN401 - the driver's OffsetSpec
            answers: dict[DriverPartition, Future[Any]] = self._driver.list_offsets(
                dict.fromkeys(asked, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._attempt_s,
            )
            return answers

        sent = [self._send(partial(ask, spec), "Asking for offsets") for spec in which]
        return [self._offsets_of(answers) for answers in sent]

    def _offsets_of(self, answers: Mapping[DriverPartition, Future[Any]]) -> dict[TopicPartition, int]:
        found = {}
        for partition, answer in answers.items():
            doing = f"Asking for the ends of {partition.topic}[{partition.partition}]"
            result = self._result(answer, doing)
            # librdkafka reports a request that timed out as a success with offset -1001.
            if result.offset < _NONE:
                raise Unavailable(f"{doing}: {self._no_answer()}")
            found[partition.topic, partition.partition] = int(result.offset)
        return found

    def _retry(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer or the time is up, each time with a new client."""
        deadline = time.monotonic() + self._settings.timeout_s - self._attempt_s / 2
        while True:
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
            self._renew()

    def _send(
        self, ask: Callable[[], dict[_Key, Future[_Answer]]], doing: str
    ) -> dict[_Key, Future[_Answer]]:
        try:
            return ask()
        except KafkaException as error:
            raise mapped(error, doing, self._settings) from None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(self._settings.scrub(f"{doing}: {error}.")) from None

    def _result(self, answer: Future[_Answer], doing: str) -> _Answer:
        result = self._result_unless(frozenset(), answer, doing)
        if result is None:
            raise Unavailable(f"{doing}: Kafka at {self._settings.bootstrap} gave an empty answer.")
        return result

    def _result_unless(self, codes: AbstractSet[str], answer: Future[_Answer], doing: str) -> _Answer | None:
        """The result of a request; None if it failed with one of these error codes."""
        deadline = (
            time.monotonic() + self._settings.timeout_s + 1
        )  # the driver's own timeout should come first
        while True:
            try:
                result = answer.result(_SLICE_S)
            except FutureTimeout:
                self._serve()
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise Unavailable(f"{doing}: {self._no_answer()}") from None
            except KafkaException as error:
                self._serve()
                if error.args[0].name() in codes:
                    return None
                self._faults.raise_refusal()
                if error.args[0].name() in {"_TIMED_OUT", "_TRANSPORT", "_TIMED_OUT_QUEUE"}:
                    raise Unavailable(f"{doing}: {self._no_answer()}") from None
                refused = mapped(error, doing, self._settings)
                raise (
                    _StaleMetadata(str(refused)) if error.args[0].name() in _UNKNOWN else refused
                ) from None
            else:
                return result

    def _serve(self) -> None:
        """Serve the reports and logs of the client's threads."""
        try:
            self._driver.poll(0)
        except KafkaException as error:
            raise mapped(error, "Asking", self._settings) from None

    def _timeout(self) -> str:
        return f"{self._settings.timeout_s:g} s"

    def _no_answer(self) -> str:
        return (
            f"Kafka at {self._settings.bootstrap} did not answer within {self._timeout()}."
            f"{self._faults.why()} Is it running, and reachable from here?"
        )


POOL: Pool[Admin] = Pool()


def admin(settings: Settings) -> Admin:
    """The admin client of this process."""
    client = POOL.take(settings, lambda: Admin(settings))
    POOL.give_back(settings, client)  # one for all threads: the driver's admin client is thread-safe
    return client


atexit.register(POOL.close)
