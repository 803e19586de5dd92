"""The output of one run, and how far the run is: seen from outside, by a reader that sees only what is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import confluent_kafka.admin
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.flows import PARTITIONS
from benchmarks.peers.workloads import Findings
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import Unavailable

_driver: Any = confluent_kafka.admin  # its stubs lack half of what is used here
_BLOCK = 10_000
_ERRORS = 3  # of syslog
_WAIT_S = 0.1
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Outputs:
    """The topic that one run writes to; it exists within the context, and all topics of the run are removed after it.

    Args:
        bootstrap: Kafka.
        run: name of the run, and of its consumer group.
        source: the input topic.
        findings: take what is read.
        payload: value of a record -> the JSON in it.
        records: how many records were read.
    """

    bootstrap: str
    run: str
    source: str
    findings: Findings
    payload: Callable[[bytes], bytes]
    records: int = 0
    _committed: int = 0
    _admin: AdminClient = field(init=False)
    _reader: Consumer = field(init=False)
    _group: Consumer = field(init=False)

    @property
    def target(self) -> str:
        """The output topic."""
        return f"{self.run}.out"

    @property
    def middle(self) -> str:
        """The topic between two services of a chain."""
        return f"{self.run}.middle"

    def __enter__(self) -> Self:
        """Create the topics."""
        log = KafkaLog(self.bootstrap)
        for topic in (self.target, self.middle):
            log.create_topic(topic, PARTITIONS)
        log.close()
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": _ERRORS})
        common = {"bootstrap.servers": self.bootstrap, "enable.auto.commit": False, "log_level": _ERRORS}
        self._reader = Consumer(
            {
                **common,
                "group.id": f"{self.run}.check",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 2,
            }
        )
        if self.findings.tails:
            self._assign(dict.fromkeys(range(PARTITIONS), 0))
        # It never joins. Offsets of open transactions do not count, and are not waited for.
        self._group = Consumer({**common, "group.id": self.run, "isolation.level": "read_uncommitted"})
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what the run has left on the broker."""
        self._reader.close()
        self._group.close()
        own = [name for name in self._admin.list_topics().topics if self.run in name]
        for removed in self._admin.delete_topics(own).values():
            with suppress(KafkaException):
                removed.result()
        del self._admin  # it has no close()

    def progress(self) -> int:
        """How many records are done: committed, or contained in the totals published."""
        if self.findings.tails:
            self._read(0.0)
            return self.findings.events
        asked = [TopicPartition(self.source, partition) for partition in range(PARTITIONS)]
        # While the coordinator is being found or a transaction is open, there is no answer. The caller asks again.
        with suppress(KafkaException):
            found = self._group.committed(asked, timeout=_PATIENCE_S)
            self._committed = sum(max(0, one.offset) for one in found)
        return self._committed

    def stable(self) -> bool:
        """Whether everything that was written to the topic is visible to those who read what is committed."""
        return self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED)

    def drain(self) -> None:
        """Read everything that is left."""
        asked = [TopicPartition(self.target, partition) for partition in range(PARTITIONS)]
        self._assign({one.partition: max(0, one.offset) for one in self._reader.position(asked)})
        ended, deadline_s = set[int](), time.monotonic() + _PATIENCE_S
        while len(ended) < PARTITIONS:
            before = self.records
            ended |= self._read(_WAIT_S)
            if self.records > before:
                deadline_s = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline_s:
                raise Unavailable(
                    f"{self.target} cannot be read to its end: nothing came for {_PATIENCE_S:.0f} s"
                )

    def _assign(self, offsets: Mapping[int, int]) -> None:
        self._reader.assign([TopicPartition(self.target, number, at) for number, at in offsets.items()])

    def _read(self, timeout_s: float) -> set[int]:
        """Take all records that come in time; returns the partitions whose end was reached."""
        ended = set[int]()
        take, payload = self.findings.take, self.payload
        while block := self._reader.consume(_BLOCK, timeout_s):
            self.records += len(block)
            for message in block:
                error = message.error()
                if error is None:
                    take((message.key() or b"").decode(), payload(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
                    ended.add(message.partition() or 0)
                else:
                    raise KafkaException(error)
        return ended

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        asked = {
            TopicPartition(self.target, partition): _driver.OffsetSpec.latest()
            for partition in range(PARTITIONS)
        }
        answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=_PATIENCE_S)
        return [answers[partition].result().offset for partition in asked]
