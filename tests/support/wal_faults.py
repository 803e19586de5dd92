"""A write-ahead log that dies, or is refused something, at any call to its directory or to the broker."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import LogUnwritable, Unavailable
from sqe_chain.ext.wal import (
    Limits,
    MemoryFiles,
    Publisher,
    Record,
    WriteAheadLog,
    epoch_of,
    log_of,
    sequence_of,
)
from sqe_chain.ports import Output
from sqe_chain.stages import MemoryTable, StaleSequences
from sqe_chain.stages import Record as Element

TOPIC = "robot.raw"
PARTITIONS = 2
SMALL = Limits(max_bytes=100_000, segment_bytes=1_024, max_record_bytes=1_024, group_bytes=1_024)
Fault = Literal["before", "half", "after", "full", "full half", "refused", "refused half"]
"""The process dies before, within or after a call; the disk is full, and calls that need no space go on; every call is refused."""

_NEED_NO_SPACE = ("truncate", "overwrite", "remove", "sync position", "broker")


class Crash(BaseException):
    """The process dies; nobody may catch it."""


@dataclass
class Faults:
    """Which call goes wrong, and how: calls are numbered, over the directory and the broker.

    Attributes:
        at: number -> fault.
        calls: what was called.
        dead: the process has died: nothing takes effect any more.
    """

    at: Mapping[int, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    dead: bool = False

    def call(self, name: str, effect: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        if self.dead:
            raise Crash(name)
        fault = self.at.get(len(self.calls))
        self.calls.append(name)
        if fault is None or (fault.startswith("full") and name.startswith(_NEED_NO_SPACE)):
            return effect()
        if fault.endswith("half"):
            half()
        if fault == "after":
            effect()
        if fault.startswith(("full", "refused")):
            if name.startswith("broker"):
                raise Unavailable(name)
            raise OSError(errno.ENOSPC, "No space left on device", name)
        self.dead = True
        raise Crash(name)


class FaultyFiles:
    """A directory whose calls are counted."""

    def __init__(self, inner: MemoryFiles, faults: Faults) -> None:
        self._inner, self._faults = inner, faults
        self.where = "memory"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
        half = lambda: self._inner.write(name, at, data[: len(data) // 2])  # noqa: E731
        self._faults.call(f"write {name}", lambda: self._inner.write(name, at, data, zeros), half)

    def overwrite(self, name: str, at: int, data: bytes) -> None:
        half = lambda: self._inner.overwrite(name, at, data[: len(data) // 2])  # noqa: E731
        self._faults.call(f"overwrite {name}", lambda: self._inner.overwrite(name, at, data), half)

    def create(self, name: str) -> None:
        self._faults.call(f"create {name}", lambda: self._inner.create(name))

    def truncate(self, name: str, size: int) -> None:
        self._faults.call(f"truncate {name}", lambda: self._inner.truncate(name, size))

    def sync(self, name: str) -> None:
        self._faults.call(f"sync {name}", lambda: self._inner.sync(name))

    def rename(self, old: str, new: str) -> None:
        self._faults.call(f"rename {old}", lambda: self._inner.rename(old, new))

    def remove(self, name: str) -> None:
        self._faults.call(f"remove {name}", lambda: self._inner.remove(name))

    def sync_directory(self) -> None:
        self._faults.call("sync_directory", self._inner.sync_directory)


class FaultyBroker:
    """A broker in memory, to which writing is counted."""

    def __init__(self, inner: MemoryLog, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def writer(self) -> FaultyWriter:
        return FaultyWriter(self._inner.writer(), self._faults)


class FaultyWriter:
    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def write(self, outputs: Sequence[Output]) -> None:
        half = lambda: self._inner.write(outputs[: len(outputs) // 2])  # noqa: E731
        self._faults.call("broker write", lambda: self._inner.write(outputs), half)

    def flush(self) -> None:
        self._faults.call("broker flush", self._inner.flush)

    def close(self) -> None:
        self._inner.close()


def new_broker(name: str) -> MemoryLog:
    broker = MemoryLog(name)
    broker.clear()
    broker.create_topic(TOPIC, PARTITIONS)
    return broker


def open_log(
    files: Any, now_ms: int = 1_000, *, limits: Limits = SMALL, accept_loss: bool = False
) -> WriteAheadLog:
    return WriteAheadLog(
        files,
        TOPIC,
        PARTITIONS,
        limits=limits,
        now_ms=lambda: now_ms,
        new_id=lambda: b"a log id",
        accept_loss=accept_loss,
    )


@dataclass
class Source:
    """A source that cannot send again: numbers its records, and knows which were acknowledged and which refused."""

    acknowledged: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    sent: int = 0

    def send(self, log: WriteAheadLog, count: int) -> None:
        """Append a group."""
        numbers = list(range(self.sent, self.sent + count))
        self.sent += count
        records = [Record(b"%d" % number, key_of(number), timestamp_ms=number) for number in numbers]
        framed = log.framed(records, iter(()))
        try:
            log.append_frames(framed.pieces, framed.partitions)
        except LogUnwritable:
            self.refused += numbers
        else:
            self.acknowledged += numbers


def key_of(number: int) -> bytes:
    return b"robot-%d" % (number % 5)


def publish_all(log: WriteAheadLog, broker: Any) -> None:
    publisher = Publisher(log, broker)
    while publisher.publish():
        pass
    log.trim()


def counted(broker: MemoryLog) -> list[int]:
    """What a reader counts that drops what is stale: numbers, in the order in which they were counted."""
    table = MemoryTable()
    stale = StaleSequences(
        table,
        sequence=lambda record: sequence_of(record.value, record),
        epoch=lambda record: epoch_of(record.value, record),
        producer=lambda record: log_of(record.value, record),
    )
    found = []
    for message in broker.records(TOPIC):
        element = Element(
            message.value(),
            message.key(),
            topic=TOPIC,
            partition=message.partition(),
            offset=message.offset(),
            headers=message.headers(),
        )
        if stale.accept(element).forward:
            found.append(int(message.value() or b""))
    return found


def assert_exact(broker: MemoryLog, source: Source) -> None:
    """What was acknowledged counts once, what was not at most once, and each key's records in their order."""
    found = counted(broker)
    assert len(found) == len(set(found)), "something counts twice"
    assert set(source.acknowledged) <= set(found), f"lost: {set(source.acknowledged) - set(found)}"
    by_key = defaultdict[bytes, list[int]](list)
    for number in found:
        by_key[key_of(number)].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "a key's order has changed"
