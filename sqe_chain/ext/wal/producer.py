"""A producer for sources that cannot send again.

>>> from sqe_chain.adapters.memory import MemoryLog
>>> from sqe_chain.ext.wal import MemoryFiles
>>> broker = MemoryLog("producer-example")
>>> broker.create_topic("robot.raw", 2)
>>> with DurableProducer(MemoryFiles(), "robot.raw", partitions=2, kafka=broker) as producer:
...     receipt = producer.append(b"3 screws", key="robot-7")  # durable
...     producer.flush(timeout_s=60)  # acknowledged by Kafka
>>> receipt.offset, receipt.partition, [message.value() for message in broker.records("robot.raw")]
(0, 0, [b'3 screws'])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from sqe_chain.envelope.partitioner import key_bytes
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable
from sqe_chain.ext.wal.background import Background
from sqe_chain.ext.wal.files import Files, LocalFiles
from sqe_chain.ext.wal.group import Pending, Receipt
from sqe_chain.ext.wal.group_commit import GroupCommit
from sqe_chain.ext.wal.log import DEFAULT, WriteAheadLog, now_ms
from sqe_chain.ext.wal.publisher import Publisher
from sqe_chain.ext.wal.record import Record
from sqe_chain.ext.wal.tail import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqe_chain.ports import Headers, Log


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a log.

    Attributes:
        log_id: id of the log, hexadecimal.
        end: offset after the last durable record.
        published: everything before this offset was acknowledged by Kafka.
        waiting: records that wait for Kafka.
        used_bytes: bytes of all segments.
        max_bytes: their limit.
        error: why nothing is published at the moment; None: nothing is wrong.
        oldest_s: how long the oldest record that waits has waited, in seconds: since it was appended, or since the log was opened.
    """

    log_id: str
    end: int
    published: int
    waiting: int
    used_bytes: int
    max_bytes: int
    error: ChainError | None
    oldest_s: float = 0.0


class DurableProducer:
    """Takes records, syncs them to a local log, and publishes them in the background: for threads and asyncio.

    A record that `append` has returned is published, whatever happens to the process, the machine or Kafka, as long as the
    directory remains. Flows with `drop_stale` count it once. Records of one key that are appended one after the other stay in
    that order. A record may be published although `append` raised or has not returned.

    Args:
        directory: of the log; for one process at a time. Its disk must keep what it has synced.
        topic: permanent for this directory.
        partitions: over how many partitions of the topic keys are spread; permanent. The topic may have more.
        kafka: `host:port` of brokers, or a log, such as `KafkaLog` with settings of its own.
        config: librdkafka properties, with an address only; see `KafkaLog`.
        limits: of the log, and of what is synced at once.
        timeout_s: how long to wait for room, by default.
        accept_loss: see `WriteAheadLog`.

    Raises:
        LogLocked, LogDamaged, LogUnwritable, PartitionsMismatch, ConfigurationError: see `WriteAheadLog`.
    """

    def __init__(
        self,
        directory: str | Path | Files,
        topic: str,
        *,
        partitions: int,
        kafka: str | Log,
        config: Mapping[str, str] = MappingProxyType({}),
        limits: Limits = DEFAULT,
        timeout_s: float = 5.0,
        accept_loss: bool = False,
    ) -> None:
        where = LocalFiles(directory) if isinstance(directory, str | Path) else directory
        broker = _kafka_log(kafka, config)
        self._timeout_s = timeout_s
        self.log = WriteAheadLog(where, topic, partitions, limits=limits, accept_loss=accept_loss)
        self._closed = False
        self._background = Background(self.log, Publisher(self.log, broker))
        self._commit = GroupCommit(self.log, on_durable=self._background.durable)
        self._background.start(on_freed=self._commit.room_freed)

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Append one record; when this returns, it is durable.

        Args:
            value: what is published, for example of `wrap`; None is a tombstone.
            key: decides the partition, as Kafka's Java clients do; without one, records are spread in turn.
            headers: Kafka headers.
            timestamp_ms: event time, milliseconds since 1970; by default now.
            timeout_s: how long to wait for room; 0: not at all.

        Raises:
            LogFull: no room in time, because too much waits for Kafka (back-pressure).
            LogUnwritable: the disk is full or fails.
            RecordTooLarge: the record is too large.
            LogClosed: the producer is closed.
            LogLocked: this process is a fork of the one that made the producer.
            TypeError: the value, key or a header is neither bytes nor a buffer of single bytes.
        """
        record = _record(value, key, headers, timestamp_ms)
        return self._commit.append((record,), self._timeout(timeout_s))[0]

    def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Pending:
        """Hand over one record without waiting for the disk; `result()` of what is returned waits, and raises.

        Args and errors of `append`, but for `LogUnwritable`.
        """
        record = _record(value, key, headers, timestamp_ms)
        return self._commit.submit(record, self._timeout(timeout_s))

    def append_many(self, records: Sequence[Record], *, timeout_s: float | None = None) -> list[Receipt]:
        """Append records together: when this returns they are durable, and after a crash all are there or none.

        Args:
            records: at most `group_records`, of at most `group_bytes`.
            timeout_s: how long to wait for room; 0: not at all.

        Raises:
            LogFull, LogUnwritable, RecordTooLarge, LogClosed, LogLocked: as `append`; none is acknowledged.
        """
        if not records:
            return []
        return self._commit.append(records, self._timeout(timeout_s))

    async def append_async(
        self,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """`append` for asyncio. If the wait is cancelled, the record may be published nevertheless."""
        record = _record(value, key, headers, timestamp_ms)
        return (await self._commit.append_async((record,), self._timeout(timeout_s)))[0]

    async def append_many_async(
        self, records: Sequence[Record], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """`append_many` for asyncio."""
        if not records:
            return []
        return await self._commit.append_async(records, self._timeout(timeout_s))

    def _timeout(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    @property
    def status(self) -> Status:
        """The state of the log."""
        log, published = self.log, self.log.position
        end = log.end
        return Status(
            log.log_id.hex(),
            end,
            published,
            end - published,
            log.used_bytes,
            log.limits.max_bytes,
            self._background.error,
            self._background.oldest_s(),
        )

    def flush(self, *, timeout_s: float) -> None:
        """Wait until Kafka has acknowledged everything that is durable now.

        Raises:
            Unavailable: not in time. Nothing is lost.
        """
        end = self.log.end
        if not self._background.wait_until_published(end, timeout_s):
            raise Unavailable(
                f"{end - self.log.position:,} records of the write-ahead log in {self.log.files.where} are not published within "
                f"{timeout_s:g} s: {self._background.error or 'it goes on'}"
            )

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Take no more records, publish what can be published in time, and release the directory.

        What is not published then is published when the log is opened again. May take as long as Kafka's time limits.

        Args:
            timeout_s: how long to go on publishing; 0: not at all.
        """
        if self._closed:
            return
        self._closed = True
        self._commit.close()
        self._background.wait_until_published(self.log.end, timeout_s)
        self._background.stop()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record(
    value: bytes | None, key: bytes | str | None, headers: Headers | None, timestamp_ms: int | None
) -> Record:
    stamp = now_ms() if timestamp_ms is None else timestamp_ms
    return Record(value, None if key is None else key_bytes(key), headers, stamp)


def _kafka_log(kafka: str | Log, config: Mapping[str, str]) -> Log:
    if not isinstance(kafka, str):
        if config:
            raise ConfigurationError("config goes with an address; a log has its own")
        return kafka
    from sqe_chain.adapters.kafka import KafkaLog  # noqa: PLC0415 - the driver is loaded when it is used

    return KafkaLog(kafka, config, flush_s=10.0)
