"""Publishes records: idempotent, in order, acknowledged by all in-sync replicas."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

_LARGEST = 1_000_000_000  # librdkafka's bounds of message.max.bytes
_SMALLEST = 1_000
_SLICE_S = 0.1
_ROOM_S = 0.01
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
    """One producer, for topics that take records of at most `largest` bytes."""

    def __init__(self, settings: KafkaSettings, largest: int) -> None:
        self.largest = largest
        self._failed: ChainError | None = None
        self._weight = 0
        # With this limit produce() refuses a record larger than its topic accepts before anything is sent. Batches stay
        # below the topic's limit: librdkafka does not split a batch that was refused.
        fixed = {**WRITER, "message.max.bytes": str(largest)}
        reports = {"on_delivery": self._on_delivery, "delivery.report.only.error": True}
        super().__init__(settings, Producer, {**settings.client(fixed, WRITER_TUNING), **reports})

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

    def flush(self, deadline: float) -> None:
        """Wait until everything is acknowledged."""
        while self._call(self.driver.flush, _SLICE_S):  # in slices, to raise errors before the deadline
            self._raise()
            if time.monotonic() > deadline:
                raise self.time_out_error(f"{len(self.driver)} records were not acknowledged")
        self._raise()

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
_TOPICS: dict[tuple[KafkaSettings, str], TopicInfo] = {}
atexit.register(POOL.close)


class KafkaWriter(Writer):
    """Writes to Kafka, with one producer for each of the topics' limits of sizes."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._senders: dict[int, Sender] = {}
        self._by_topic: dict[str, Sender] = {}
        self._infos: dict[str, TopicInfo] = {}
        self._failed = False
        self._flushed = True

    def connect(self, topics: Sequence[str]) -> None:
        with self._note_failure():
            for topic in topics:
                self._sender(topic).fetch_metadata(topic)

    def write(self, outputs: Sequence[Output]) -> None:
        self._flushed = False
        with self._note_failure():
            if outputs:
                self._produce(outputs)
            for sender in self._senders.values():
                sender.serve(0)

    def _produce(self, outputs: Sequence[Output]) -> None:
        current = outputs[0][0]
        ready = {current: self._ready(current)}
        produce, earliest, latest = ready[current]
        for topic, partition, key, value, headers, timestamp_ms in outputs:
            if topic != current:
                current = topic
                produce, earliest, latest = ready.get(topic) or ready.setdefault(topic, self._ready(topic))
            # A timestamp of 0 means the time of sending.
            stamp = timestamp_ms if earliest <= timestamp_ms <= latest else 0
            try:  # positional, because that is faster: callback and on_delivery come before the time
                produce(topic, value, key, partition, None, None, stamp, headers)
            except BufferError:
                self._wait_for_room((topic, value, key, partition, None, None, stamp, headers))
            except KafkaException as error:
                raise self._error_of_record(error, topic, partition, key, value) from None

    def _ready(self, topic: str) -> tuple[Callable[..., None], int, int]:
        """The `produce` method for a topic, and the first and last timestamp that a record keeps."""
        sender = self._by_topic.get(topic) or self._sender(topic)
        return sender.driver.produce, *stamps(self._infos[topic], time.time_ns() // 1_000_000)

    def flush(self) -> None:
        deadline = time.monotonic() + self._settings.flush_s
        with self._note_failure():
            for sender in self._senders.values():
                sender.flush(deadline)
        self._flushed = True

    def close(self) -> None:
        for limit, sender in self._senders.items():
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

    def _sender(self, topic: str) -> Sender:
        info = _TOPICS.get((self._settings, topic))
        if info is None:
            info = admin(self._settings).describe([topic]).get(topic)
            if info is None:
                raise ConfigurationError(
                    f"Output topic {topic} does not exist on Kafka at {self._settings.bootstrap}. Create it first."
                )
            _TOPICS[self._settings, topic] = info
        self._infos[topic] = info
        limit = largest_record_bytes(info.max_message_bytes)
        if limit < _SMALLEST:
            raise ConfigurationError(
                f"Topic {topic}: max.message.bytes is too small; at least 1,061 is needed."
            )
        if limit not in self._senders:
            self._senders[limit] = POOL.take((self._settings, limit), lambda: Sender(self._settings, limit))
        self._by_topic[topic] = self._senders[limit]
        return self._by_topic[topic]

    def _wait_for_room(self, record: tuple[Any, ...]) -> None:
        """Send a record when the client's full buffer has room again."""
        sender = self._by_topic[record[0]]
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
            sender = self._by_topic[topic]
            fatal = error.args[0].fatal() or error.args[0].name() == "_FATAL"
            return (
                sender.explain(error)
                if fatal
                else error_for(error, f"Writing {topic}[{partition}]", self._settings)
            )
        _TOPICS.pop((self._settings, topic), None)  # the limit may be raised before the next attempt
        return OutputTooLarge(
            f"An output for {topic}[{partition}], key {key and key[:60]!r}, has {len(key or b'') + len(value or b''):,} bytes of key and "
            f"value; its topic takes records of {self._by_topic[topic].largest:,} with headers and overhead. Raise the topic's "
            "max.message.bytes, or make smaller outputs."
        )
