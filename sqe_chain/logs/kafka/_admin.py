"""Questions to the broker: topics and ends of partitions."""

from __future__ import annotations

import atexit
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.logs.kafka._clients import Pool, made
from sqe_chain.logs.kafka._errors import mapped
from sqe_chain.ports import NO_LIMIT, Bounds, TopicInfo, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sqe_chain.logs.kafka._settings import Settings

driver: Any = confluent_kafka.admin  # its stubs lack half of what is used here

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

_NONE = -1
"""The offset of a time after the last record."""

_ATTEMPTS = 3
"""A question may go to a broker that has just died, and is not asked elsewhere by the driver."""

_SURE = 3
_SURE_S = 0.02
"""Answers in a row, and the time between them, after which a new topic counts as known."""

_SLICE_S = 0.1
"""How often a wait looks at what the client's threads report."""


_UNKNOWN = {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"}
"""What the driver answers itself from what it has heard so far: partitions may have been added since."""


class _Unheard(ConfigurationError):
    """The driver's client has not heard of a partition; a new one may have."""


class Admin:
    """The admin client of one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._attempt_s = settings.timeout_s / _ATTEMPTS
        self._renew()

    def _renew(self) -> None:
        self._driver, self._faults = made(driver.AdminClient, self._settings.client({}, {}), self._settings)

    def close(self) -> None:
        """Nothing to end: the driver's client ends with its last reference."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """See `Log.describe`."""
        names = sorted(set(topics))
        return self._patiently(lambda: self._described(names))

    def _described(self, names: list[str]) -> dict[str, TopicInfo]:
        found = self._descriptions(names)
        if not found:
            return {}
        configs = {
            name: self._settled(answer, f"Reading the configuration of topic {name}")
            for name, answer in self._configs(found).items()
        }
        return {name: self._info(about, configs[name]) for name, about in found.items()}

    def _info(self, about: Any, entries: Mapping[str, Any]) -> TopicInfo:  # noqa: ANN401 - the driver's TopicDescription
        """What a description and the topic's settings say together."""
        config = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        # Brokers before 3.6 have one limit for both directions; 3.x heeds it where the newer one is not set.
        either = int(config.get("message.timestamp.difference.max.ms", NO_LIMIT))
        before_ms = int(config.get("message.timestamp.before.max.ms", NO_LIMIT))
        after_ms = int(config.get("message.timestamp.after.max.ms", NO_LIMIT))
        return TopicInfo(
            name=about.name,
            topic_id=self.topic_id(about),
            partitions=len(about.partitions),
            compacted="compact" in config["cleanup.policy"],
            max_message_bytes=min(
                int(config["max.message.bytes"]), int(config.get("segment.bytes", NO_LIMIT))
            ),
            replicas=min((len(part.replicas) for part in about.partitions), default=0),
            min_insync_replicas=int(config["min.insync.replicas"]),
            before_max_ms=either if before_ms == NO_LIMIT else before_ms,
            after_max_ms=either if after_ms == NO_LIMIT else after_ms,
            append_time=config.get("message.timestamp.type") == "LogAppendTime",
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """The ids of those of these topics that exist; half the cost of `describe`."""
        names = sorted(set(topics))
        found = self._patiently(lambda: self._descriptions(names))
        return {name: self.topic_id(about) for name, about in found.items()}

    def topic_id(self, about: Any) -> bytes:  # noqa: ANN401 - the driver's TopicDescription
        """The 16 bytes of a topic's UUID."""
        halves = (about.topic_id.get_most_significant_bits(), about.topic_id.get_least_significant_bits())
        if halves == (0, 0):
            raise ConfigurationError(
                f"Kafka at {self._settings.bootstrap} gives no topic id for {about.name}: a topic deleted and "
                "created again could not be told from the old one. Use brokers of version 2.8 or later."
            )
        return b"".join(half.to_bytes(8, "big", signed=True) for half in halves)

    def _descriptions(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        answers = self._asked(
            lambda: self._driver.describe_topics(TopicCollection(names), request_timeout=self._attempt_s),
            "Describing topics",
        )
        found = {}
        for name, answer in answers.items():
            about = self._unless({"UNKNOWN_TOPIC_OR_PART"}, answer, f"Describing topic {name}")
            if about is not None:
                found[name] = about
        return found

    def _configs(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [driver.ConfigResource(driver.ConfigResource.Type.TOPIC, name) for name in names]
        answers = self._asked(
            lambda: self._driver.describe_configs(resources, request_timeout=self._attempt_s),
            "Reading topic configurations",
        )
        return {resource.name: answer for resource, answer in answers.items()}

    def create_topic(self, topic: str, partitions: int) -> None:
        """See `Log.create_topic`."""
        answers = self._asked(
            lambda: self._driver.create_topics(
                [driver.NewTopic(topic, num_partitions=partitions)], request_timeout=self._settings.timeout_s
            ),
            f"Creating topic {topic}",
        )
        self._unless({"TOPIC_ALREADY_EXISTS"}, answers[topic], f"Creating topic {topic}")
        deadline = time.monotonic() + self._settings.timeout_s
        known = 0
        while known < _SURE:  # brokers learn of a new topic one by one, and any of them may be asked
            known = known + 1 if self._has_leaders(topic) else 0
            if time.monotonic() > deadline:
                raise Unavailable(f"Topic {topic} was created, but has no leaders after {self._waited()}.")
            time.sleep(_SURE_S)

    def delete_topic(self, topic: str) -> None:
        """See `Log.delete_topic`. Brokers forget it one by one."""
        answers = self._asked(
            lambda: self._driver.delete_topics([topic], request_timeout=self._settings.timeout_s),
            f"Deleting topic {topic}",
        )
        self._unless({"UNKNOWN_TOPIC_OR_PART"}, answers[topic], f"Deleting topic {topic}")

    def delete_group(self, group: str) -> None:
        """See `Log.delete_group`."""
        answers = self._asked(
            lambda: self._driver.delete_consumer_groups([group], request_timeout=self._settings.timeout_s),
            f"Deleting group {group}",
        )
        self._unless({"GROUP_ID_NOT_FOUND"}, answers[group], f"Deleting group {group}")

    def _has_leaders(self, topic: str) -> bool:
        about = self._descriptions([topic]).get(topic)
        return about is not None and all(
            part.leader is not None and part.leader.id >= 0 for part in about.partitions
        )

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """See `Log.bounds`."""
        asked = list(partitions)
        begins = self._offsets(asked, driver.OffsetSpec.earliest())
        ends = self._offsets(asked, driver.OffsetSpec.latest())
        return {
            place: Bounds(begin=begins[place], stable_end=max(begins[place], ends[place])) for place in asked
        }

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Log.offsets_at`."""
        asked = list(partitions)
        found = self._offsets(asked, driver.OffsetSpec.for_timestamp(timestamp_ms))
        without = [place for place in asked if found[place] < 0]
        return {**found, **(self._offsets(without, driver.OffsetSpec.latest()) if without else {})}

    def _offsets(self, partitions: Sequence[TopicPartition], which: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - the driver's OffsetSpec
        if not partitions:
            return {}
        return self._patiently(lambda: self._offsets_now(partitions, which))

    def _offsets_now(
        self,
        partitions: Sequence[TopicPartition],
        which: Any,  # noqa: ANN401 - the driver's OffsetSpec
    ) -> dict[TopicPartition, int]:
        answers = self._asked(
            lambda: self._driver.list_offsets(
                {DriverPartition(topic, partition): which for topic, partition in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._attempt_s,
            ),
            "Asking for offsets",
        )
        found = {}
        for place, answer in answers.items():
            doing = f"Asking for the ends of {place.topic}[{place.partition}]"
            result = self._settled(answer, doing)
            # A request that timed out comes back as a success with an offset of -1001.
            if result.offset < _NONE:
                raise Unavailable(f"{doing}: {self._silence()}")
            found[place.topic, place.partition] = int(result.offset)
        return found

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask, and ask again with a new client if there was no good answer and there is time."""
        deadline = time.monotonic() + self._settings.timeout_s - self._attempt_s / 2
        while True:
            try:
                return ask()
            except (Unavailable, _Unheard) as error:
                if time.monotonic() > deadline:
                    if isinstance(error, _Unheard):
                        raise ConfigurationError(str(error)) from None
                    raise
            # The driver does not ask again who leads a partition since which epoch, whether a broker still
            # lives, nor which partitions were added (librdkafka 2.16): a new client does.
            time.sleep(_SLICE_S)
            self._renew()

    def _asked(
        self, ask: Callable[[], dict[_Key, Future[_Answer]]], doing: str
    ) -> dict[_Key, Future[_Answer]]:
        try:
            return ask()
        except KafkaException as error:
            raise mapped(error, doing, self._settings) from None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(self._settings.scrub(f"{doing}: {error}.")) from None

    def _settled(self, answer: Future[_Answer], doing: str) -> _Answer:
        result = self._unless(frozenset(), answer, doing)
        if result is None:
            raise Unavailable(f"{doing}: Kafka at {self._settings.bootstrap} gave an empty answer.")
        return result

    def _unless(self, codes: AbstractSet[str], answer: Future[_Answer], doing: str) -> _Answer | None:
        """The answer; None when it is one of these error codes."""
        deadline = time.monotonic() + self._settings.timeout_s + 1  # the driver's own comes first
        while True:
            try:
                result = answer.result(_SLICE_S)
            except FutureTimeout:
                self._serve()
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise Unavailable(f"{doing}: {self._silence()}") from None
            except KafkaException as error:
                self._serve()
                if error.args[0].name() in codes:
                    return None
                self._faults.raise_refusal()
                if error.args[0].name() in {"_TIMED_OUT", "_TRANSPORT", "_TIMED_OUT_QUEUE"}:
                    raise Unavailable(f"{doing}: {self._silence()}") from None
                refused = mapped(error, doing, self._settings)
                raise (_Unheard(str(refused)) if error.args[0].name() in _UNKNOWN else refused) from None
            else:
                return result

    def _serve(self) -> None:
        """Serve the reports and logs of the client's threads."""
        try:
            self._driver.poll(0)
        except KafkaException as error:
            raise mapped(error, "Asking", self._settings) from None

    def _waited(self) -> str:
        return f"{self._settings.timeout_s:g} s"

    def _silence(self) -> str:
        return (
            f"Kafka at {self._settings.bootstrap} did not answer within {self._waited()}."
            f"{self._faults.why()} Is it running, and reachable from here?"
        )


POOL: Pool[Admin] = Pool()


def admin(settings: Settings) -> Admin:
    """The admin client of this process."""
    client = POOL.take(settings, lambda: Admin(settings))
    POOL.give_back(settings, client)  # one for all threads: the driver's admin client is thread-safe
    return client


atexit.register(POOL.close)
