"""Publishes the records of a log to Kafka, in their order. A plain object; `DurableProducer` runs it in the background.

Each published record has three headers, as text: `sqe-wal-log`, the id of the log in hexadecimal; `sqe-wal-epoch` and
`sqe-wal-sequence`, decimal. Within a partition of the topic, the numbers of each log rise: epochs never fall, sequence
numbers rise by one. A record that is published again has the numbers that it had before. So it is dropped by

    stream.drop_stale("once", sequence=sequence_of, epoch=epoch_of, producer=log_of)

>>> from sqe_chain.adapters.memory import MemoryLog
>>> from sqe_chain.ext.wal import MemoryFiles, Publisher, Record, WriteAheadLog
>>> broker, log = MemoryLog("publisher-example"), WriteAheadLog(MemoryFiles(), "robot.raw", 1)
>>> broker.create_topic("robot.raw", 1)
>>> log.append(Record(b"3 screws"))
0
>>> Publisher(log, broker).publish()
1
>>> [message.value() for message in broker.records("robot.raw")], log.position
([b'3 screws'], 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from sqe_chain.errors import ConfigurationError, OutputTooLarge, PartitionsMismatch
from sqe_chain.ext.wal.files import unwritable
from sqe_chain.ext.wal.log import WriteAheadLog
from sqe_chain.ext.wal.record import Entry
from sqe_chain.ext.wal.segment import Reader
from sqe_chain.ext.wal.tail import MIB
from sqe_chain.ports import Headers, Output

if TYPE_CHECKING:
    from sqe_chain.ports import Log, Output, Writer


_LOG_HEADER: Final = "sqe-wal-log"
_EPOCH_HEADER: Final = "sqe-wal-epoch"
_SEQUENCE_HEADER: Final = "sqe-wal-sequence"
_LONGEST: Final = 20


class WithHeaders(Protocol):
    """What has the headers of a message: the context of a flow's functions, or a `Record` of a filter."""

    @property
    def headers(self) -> Headers | None:
        """The headers."""


def sequence_of(value: object, context: WithHeaders) -> int | None:
    """The sequence number of a message; None if it has none: it did not come through a write-ahead log.

    For `drop_stale(sequence=sequence_of)`.
    """
    del value
    return _number(context.headers, _SEQUENCE_HEADER)


def epoch_of(value: object, context: WithHeaders) -> int | None:
    """The epoch of a message; None if it has none. For `drop_stale(epoch=epoch_of)`."""
    del value
    return _number(context.headers, _EPOCH_HEADER)


def log_of(value: object, context: WithHeaders) -> str | None:
    """The id of the log that a message came from; None if it has none. For `drop_stale(producer=log_of)`."""
    del value
    content = _last(context.headers, _LOG_HEADER)
    return None if content is None else content.decode("ascii")


def numbered(topic: str, log_id: str, entry: Entry) -> Output:
    """A record as it is published, with the hexadecimal id of its log: the same bytes, however often."""
    record = entry.record
    headers: Headers = [
        *(record.headers or ()),
        (_LOG_HEADER, log_id.encode()),
        (_EPOCH_HEADER, b"%d" % entry.epoch),
        (_SEQUENCE_HEADER, b"%d" % entry.sequence),
    ]
    return topic, entry.partition, record.key, record.value, headers, record.timestamp_ms


def _number(headers: Headers | None, name: str) -> int | None:
    content = _last(headers, name)
    if content is None:
        return None
    if not content.isdigit() or len(content) > _LONGEST:
        raise ValueError(f"header {name} is no decimal number")
    return int(content)


def _last(headers: Headers | None, name: str) -> bytes | None:
    """The last header of a name: the log appends its own after those of the record."""
    for header, content in reversed(headers or ()):
        if header == name:
            return content
    return None


_BATCH_RECORDS: Final = 5_000
_BATCH_BYTES: Final = 4 * MIB


class Publisher:
    """Publishes a log; for one thread, and one at a time for each log.

    A batch is written, then Kafka acknowledges it, then the log notes that. A crash in between, or an error, repeats the
    batch, with the same numbers in its headers (`numbered`). The next batch is only written when all of this
    one is acknowledged, so what is repeated never comes before its first time.

    Args:
        log: the log.
        kafka: where its topic is.
        batch_records: about how many records are written before their acknowledgement is waited for.
        batch_bytes: the same in bytes.
    """

    def __init__(
        self,
        log: WriteAheadLog,
        kafka: Log,
        *,
        batch_records: int = _BATCH_RECORDS,
        batch_bytes: int = _BATCH_BYTES,
    ) -> None:
        self._log, self._kafka = log, kafka
        self._limits = (batch_records, batch_bytes)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._log_id = log.log_id.hex()

    def publish(self) -> int:
        """Publish the next durable records, and return when Kafka has acknowledged them.

        After an error the next call begins after Kafka's last acknowledgement. No record is skipped.

        Returns:
            By how many offsets the position has moved, with those that were given up; 0: nothing is there.

        Raises:
            ConfigurationError: the topic does not exist.
            PartitionsMismatch: it has fewer partitions than the log.
            OutputTooLarge: it does not accept a record for its size; the records before it were published.
            OutputRefused: it refuses a record for another reason.
            Unavailable: Kafka does not answer, or not all replicas do.
            LogDamaged: the record is not in the log as it was appended.
            LogUnwritable: the log cannot be read.
        """
        try:
            return self._publish()
        except BaseException as error:  # whatever it is: the reader is beyond what Kafka has acknowledged
            self.reset()
            if isinstance(error, OSError):
                raise unwritable(self._log.files, "read", error) from error
            raise

    def _publish(self) -> int:
        before = self._log.position
        if self._reader is None:
            self._reader = self._log.reader(before)
        if self._reader.offset >= self._log.end:
            return 0
        writer = self._writer or self._connected()  # first: nothing is read while Kafka is away
        entries = self._reader.read(*self._limits)
        outputs = [numbered(self._log.topic, self._log_id, entry) for entry in entries]
        try:
            writer.write(outputs)
            writer.flush()
        except OutputTooLarge:
            # The writer does not name the record. Those before it are published; the same call then raises for the record itself.
            self._one_by_one(writer, [entry.offset for entry in entries], outputs)
        self._log.acknowledge(self._reader.offset)
        return self._log.position - before

    def _one_by_one(self, writer: Writer, offsets: Sequence[int], outputs: Sequence[Output]) -> None:
        writer.flush()
        for offset, output in zip(offsets, outputs, strict=True):
            try:
                writer.write([output])
                writer.flush()
            except OutputTooLarge as error:
                raise OutputTooLarge(
                    f"{error} It is the record at offset {offset} of the write-ahead log in {self._log.files.where}, and all records "
                    "after it wait. A smaller max_record_bytes of the log refuses such records when they are appended"
                ).at(self._log.topic, output[1]) from None
            self._log.acknowledge(offset + 1)

    def _connected(self) -> Writer:
        topic = self._log.topic
        info = self._kafka.describe([topic]).get(topic)
        if info is None:
            raise ConfigurationError(
                f"Topic {topic} does not exist, so the records of the write-ahead log in {self._log.files.where} wait. Create it "
                f"with {self._log.partitions} partitions or more"
            ).at(topic)
        if info.partitions < self._log.partitions:
            raise PartitionsMismatch(
                f"Topic {topic} has {info.partitions} partitions, the write-ahead log in {self._log.files.where} spreads its records "
                f"over {self._log.partitions}. Add partitions to the topic"
            ).at(topic)
        self._writer = self._kafka.writer()
        return self._writer

    def reset(self) -> None:
        """Give up the connection; the next call begins after what Kafka has acknowledged."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()

    def close(self) -> None:
        """Close the connection."""
        self.reset()
