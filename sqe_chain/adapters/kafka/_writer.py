"""Publishes records: idempotent, in order, acknowledged by all in-sync replicas.

A request holds records of one partition, and its answer takes a round trip. So the partitions that one broker leads are dealt to several
producers. Each has one request in flight for each broker; so each partition has one, and its records cannot change places.
"""

from __future__ import annotations

import atexit
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sqe_chain.adapters.kafka._admin import admin
from sqe_chain.adapters.kafka._clients import KafkaClient, Pool, error_for
from sqe_chain.adapters.kafka._settings import WRITER, WRITER_TUNING, KafkaSettings
from sqe_chain.errors import ChainError, ConfigurationError, OutputTooLarge, Unavailable
from sqe_chain.ports import Output, TopicInfo, Writer
from sqe_chain.ports.accepting import stamps

BATCH_OVERHEAD = 61
"""Bytes of a record batch before its first record."""

NOTHING: Mapping[str, str] = MappingProxyType({})
_LARGEST = 1_000_000_000  # librdkafka's bounds of message.max.bytes
_SMALLEST = 1_000
SENDERS = 5
"""How many producers share the partitions of a broker, at most: as many requests are in flight as by Kafka's defaults."""

_ALONE = 2
"""This number of partitions of a broker needs no further producer, for each costs threads, connections and smaller requests."""

_SLICE_S = 0.1
_SHORTEST_SLICE_S = 0.001  # the driver counts whole milliseconds
_OF_ELAPSED = 8
_ROOM_S = 0.01
_KBYTES = 16_384
_LAST_REPORTS_S = 5.0
_PURGED = {"_PURGE_INFLIGHT", "_PURGE_QUEUE"}
"""Reports of records that this module has dropped itself: they name no reason."""
_DROPPED = -1


def largest_record_bytes(max_message_bytes: int) -> int:
    """Size limit for one record of a topic with this `max.message.bytes`, as librdkafka counts sizes.

    It counts key, value, headers with their lengths, and 36 bytes for the other fields.
    """
    return min(max_message_bytes - BATCH_OVERHEAD, _LARGEST)


class Sender(KafkaClient):
    """One producer, for topics that take records of at most `largest` bytes. `own` are further fixed properties."""

    def __init__(self, settings: KafkaSettings, largest: int, own: Mapping[str, str] = NOTHING) -> None:
        self.largest = largest
        self._failed: ChainError | None = None
        self._weight = 0
        # With this limit produce() refuses a record larger than its topic accepts before anything is sent. Batches stay
        # below the topic's limit: librdkafka does not split a batch that was refused.
        fixed = {**WRITER, "message.max.bytes": str(largest), **own}
        room = {"queue.buffering.max.kbytes": str(max(_KBYTES, 2 * largest // 1024))}
        reports = {"on_delivery": self._on_delivery, "delivery.report.only.error": True}
        super().__init__(settings, Producer, {**settings.client(fixed, {**WRITER_TUNING, **room}), **reports})

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        failed = error_for(error, f"Writing {message.topic()}[{message.partition()}]", self._settings)
        weight = _weight(error, failed)
        if self._failed is None or weight > self._weight:
            self._failed, self._weight = failed, weight

    def fetch_metadata(self, topic: str) -> None:
        """Connect, and ask who leads the topic's partitions."""
        try:
            self.driver.list_topics(topic, timeout=self._settings.timeout_s)
        except KafkaException as error:
            raise error_for(error, f"Looking for the leaders of {topic}", self._settings) from None
        self.serve(0)

    def serve(self, wait_s: float) -> None:
        """Serve delivery reports for at most this time; raise the error they report."""
        self._call(self.driver.poll, wait_s)
        self._raise()

    def flush(self, wait_s: float) -> bool:
        """Wait for at most this time until everything is acknowledged; returns whether it is."""
        left = self._call(self.driver.flush, wait_s)
        self._raise()
        return not left

    def explain(self, error: KafkaException) -> ChainError:
        """Why the producer failed durably, as it does when a record is refused: later delivery reports name the reason."""
        with suppress(KafkaException):
            self.driver.purge()
        deadline = time.monotonic() + _LAST_REPORTS_S
        while len(self.driver) and time.monotonic() < deadline:
            with suppress(KafkaException):
                self.driver.poll(_ROOM_S)
        if self._failed is None or self._weight == _DROPPED:
            return error_for(error, "Writing", self._settings)
        return self._failed

    def _call(self, serve: Callable[[float], int], wait_s: float) -> int:
        """Call the driver's poll or flush; they raise when the producer has failed durably."""
        try:
            return serve(wait_s)
        except KafkaException as error:
            raise self.explain(error) from None

    def _raise(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._faults.raise_refusal()

    def time_out_error(self, what: str) -> Unavailable:
        """The error after waiting too long."""
        return Unavailable(
            f"Writing to Kafka at {self._settings.bootstrap}: {what} within {self._settings.flush_s:g} s."
            f"{self._faults.why()} Are the brokers up, and enough replicas in sync (min.insync.replicas)?"
        )

    def close(self) -> None:
        """Close the producer; records that are not acknowledged are dropped."""
        with suppress(KafkaException):
            self.driver.purge()
            self.driver.flush(0)


def _weight(error: KafkaError, failed: ChainError) -> int:
    """Rank of a report; the highest is raised: permanent before transient errors, and first the record to blame."""
    if error.name() in _PURGED:
        return _DROPPED
    if isinstance(failed, Unavailable):
        return 0
    return 1 if error.name() == "_INVALID_DIFFERENT_RECORD" else 2


POOL: Pool[Sender] = Pool()


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """What a writer knows of a topic.

    Attributes:
        info: its settings.
        leaders: the broker that led each partition when this was read; it decides only how partitions are dealt.
    """

    info: TopicInfo
    leaders: Sequence[int]


_TOPICS: dict[tuple[KafkaSettings, str], OutputTopic] = {}
atexit.register(POOL.close)


@dataclass(slots=True)
class _Senders:
    """The producers for topics with one limit of sizes, and how many partitions of each broker were dealt to them."""

    made: list[Sender] = field(default_factory=list)
    dealt: Counter[int] = field(default_factory=Counter)

    def deal(self, leaders: Sequence[int], make: Callable[[], Sender]) -> list[Sender]:
        """A producer for each partition; none waits much longer than others for the answers of one broker."""
        own = list[Sender]()
        for leader in leaders:
            dealt = self.dealt[leader]
            number = dealt // _ALONE if dealt < _ALONE * SENDERS else dealt % SENDERS
            self.dealt[leader] += 1
            if number == len(self.made):
                self.made.append(make())
            own.append(self.made[number])
        return own


class KafkaWriter(Writer):
    """Writes to Kafka, with several producers for each of the topics' limits of sizes.

    A partition keeps its producer as long as the writer is open.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._senders: defaultdict[int, _Senders] = defaultdict(_Senders)
        self._by_topic: dict[str, list[Sender]] = {}
        self._infos: dict[str, TopicInfo] = {}
        self._failed = False
        self._flushed = True

    def connect(self, topics: Sequence[str]) -> None:
        with self._note_failure():
            for topic in topics:
                self._senders_of(topic)  # all connect at the same time
            for topic in topics:
                for sender in dict.fromkeys(self._by_topic[topic]):
                    sender.fetch_metadata(topic)

    def write(self, outputs: Sequence[Output]) -> None:
        self._flushed = False
        with self._note_failure():
            if outputs:
                self._produce(outputs)
            for sender in self._all():
                sender.serve(0)

    def _all(self) -> list[Sender]:
        return [sender for senders in self._senders.values() for sender in senders.made]

    def _produce(self, outputs: Sequence[Output]) -> None:
        current = outputs[0][0]
        ready = {current: self._ready(current)}
        produce, number, earliest, latest = ready[current]
        for topic, partition, key, value, headers, timestamp_ms in outputs:
            if topic != current:
                current = topic
                produce, number, earliest, latest = ready.get(topic) or ready.setdefault(
                    topic, self._ready(topic)
                )
            # A timestamp of 0 means the time of sending.
            stamp = timestamp_ms if earliest <= timestamp_ms <= latest else 0
            try:  # positional, because that is faster: callback and on_delivery come before the time
                produce[partition % number](topic, value, key, partition, None, None, stamp, headers)
            except BufferError:
                self._wait_for_room((topic, value, key, partition, None, None, stamp, headers))
            except KafkaException as error:
                raise self._error_of_record(error, topic, partition, key, value) from None

    def _ready(self, topic: str) -> tuple[list[Callable[..., None]], int, int, int]:
        """The `produce` methods for a topic's partitions, their number, and the first and last timestamp that a record keeps."""
        produce = [sender.driver.produce for sender in self._senders_of(topic)]
        return produce, len(produce), *stamps(self._infos[topic], time.time_ns() // 1_000_000)

    def flush(self) -> None:
        begun = time.monotonic()
        with self._note_failure():
            left, wait_s = self._all(), _SHORTEST_SLICE_S
            while left := [sender for sender in left if not sender.flush(wait_s)]:
                elapsed_s = time.monotonic() - begun
                if elapsed_s > self._settings.flush_s:
                    number = sum(len(sender.driver) for sender in left)
                    raise left[0].time_out_error(f"{number} records were not acknowledged")
                # The driver does not notice that the last record was acknowledged until the slice is over.
                wait_s = min(_SLICE_S, max(_SHORTEST_SLICE_S, elapsed_s / _OF_ELAPSED / len(left)))
        self._flushed = True

    def close(self) -> None:
        for limit, senders in self._senders.items():
            for sender in senders.made:
                if not self._failed and self._flushed:
                    POOL.give_back((self._settings, limit), sender)
                else:
                    sender.close()
        self._senders.clear()
        self._by_topic.clear()

    @contextmanager
    def _note_failure(self) -> Iterator[None]:
        try:
            yield
        except OutputTooLarge:
            raise
        except ChainError:
            self._failed = True
            for topic in self._by_topic:
                _TOPICS.pop((self._settings, topic), None)  # its settings may have changed
            raise

    def _senders_of(self, topic: str) -> list[Sender]:
        """The producers of a topic's partitions, which stay the same: records of two producers could change places."""
        if topic in self._by_topic:
            return self._by_topic[topic]
        known = self._look_up(topic)
        limit = self._limit_of(topic)
        self._by_topic[topic] = self._senders[limit].deal(
            known.leaders,
            lambda: POOL.take((self._settings, limit), lambda: Sender(self._settings, limit)),
        )
        return self._by_topic[topic]

    def _look_up(self, topic: str) -> OutputTopic:
        """Settings and leaders of a topic, kept as long as nothing fails."""
        known = _TOPICS.get((self._settings, topic))
        if known is None:
            asker = admin(self._settings)
            described, leaders = asker.describe([topic]).get(topic), asker.leaders(topic)
            if described is None or not leaders:
                raise ConfigurationError(
                    f"Output topic {topic} does not exist on Kafka at {self._settings.bootstrap}. Create it first."
                )
            known = _TOPICS[self._settings, topic] = OutputTopic(described, leaders)
        self._infos[topic] = known.info
        return known

    def _limit_of(self, topic: str) -> int:
        """Bytes of a record that a topic takes, which was looked up."""
        limit = largest_record_bytes(self._infos[topic].max_message_bytes)
        if limit < _SMALLEST:
            raise ConfigurationError(
                f"Topic {topic}: max.message.bytes is too small; at least 1,061 is needed."
            )
        return limit

    def _sender(self, topic: str, partition: int) -> Sender:
        senders = self._by_topic[topic]
        return senders[partition % len(senders)]  # of a topic that has grown, too

    def _wait_for_room(self, record: tuple[Any, ...]) -> None:
        """Send a record when the client's full buffer has room again."""
        sender = self._sender(record[0], record[3])
        deadline = time.monotonic() + self._settings.flush_s
        while True:  # until the deadline
            sender.serve(_ROOM_S)
            try:
                sender.driver.produce(*record)
            except BufferError:
                if time.monotonic() > deadline:
                    raise sender.time_out_error("the client's buffer stayed full") from None
            except KafkaException as error:
                topic, value, key, partition = record[:4]
                raise self._error_of_record(error, topic, partition, key, value) from None
            else:
                return

    def _error_of_record(
        self, error: KafkaException, topic: str, partition: int, key: bytes | None, value: bytes | None
    ) -> ChainError:
        if error.args[0].name() != "MSG_SIZE_TOO_LARGE":
            sender = self._sender(topic, partition)
            fatal = error.args[0].fatal() or error.args[0].name() == "_FATAL"
            return (
                sender.explain(error)
                if fatal
                else error_for(error, f"Writing {topic}[{partition}]", self._settings)
            )
        _TOPICS.pop((self._settings, topic), None)  # the limit may be raised before the next attempt
        return OutputTooLarge(
            f"An output for {topic}[{partition}], key {key and key[:60]!r}, has {len(key or b'') + len(value or b''):,} bytes of key and "
            f"value; its topic takes records of {self._by_topic[topic][0].largest:,} with headers and overhead. Raise the topic's "
            "max.message.bytes, or make smaller outputs."
        )
