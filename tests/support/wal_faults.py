"""A write-ahead log that dies, or is refused something, at any call to its directory or to the broker."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import LogUnwritable, Unavailable
from sqe_chain.ext.wal import (
    Limits,
    Publisher,
    Record,
    WriteAheadLog,
    epoch_of,
    log_of,
    sequence_of,
)
from sqe_chain.stages import MemoryTable, StaleSequences
from sqe_chain.stages import Record as Element
from sqe_chain.testing.faults import Crash, PortCall, Scheduler
from sqe_chain.testing.faulty_ports import FaultyPort

TOPIC = "robot.raw"
PARTITIONS = 2
SMALL = Limits(max_bytes=100_000, segment_bytes=1_024, max_record_bytes=1_024, group_bytes=1_024)
Fault = Literal["before", "half", "after", "full", "full half", "refused", "refused half"]
"""The process dies before, within or after a call; the disk is full, and calls that need no space go on; every call is refused."""

_NEED_NO_SPACE = ("truncate", "overwrite", "remove", "sync position", "broker")


class FaultyFiles(FaultyPort):
    """A directory that asks a scheduler at each call that changes something."""

    of = "file"
    reads = frozenset()
    writes: ClassVar = {
        **{name: f"{name} {{0}}" for name in ("write", "overwrite", "create", "truncate", "sync", "rename")},
        "remove": "remove {0}",
        "sync_directory": "sync_directory",
    }


def make_half(call: PortCall) -> None:
    """Write the first half of what a call writes; a record goes to the broker as a whole, or not at all."""
    if call.of == "file" and call.name in {"write", "overwrite"}:
        name, at, data, *_ = call.args
        getattr(call.port, call.name)(name, at, data[: len(data) // 2])


def changes_something(call: PortCall) -> bool:
    """Whether a fault at this call can leave something behind: reads of the broker do not count."""
    return call.write or call.name == "flush"


@dataclass
class Faults(Scheduler):
    """Which call goes wrong, and how: calls are numbered, over the directory and the broker.

    Attributes:
        at: number -> fault.
        calls: what was called.
        dead: the process has died: nothing takes effect any more.
    """

    at: Mapping[int, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    dead: bool = False

    def answer(self, call: PortCall) -> Any:
        if not changes_something(call):
            return call.make()
        name = f"broker {call.name}" if call.of == "broker" else call.text
        if self.dead:
            raise Crash(name)
        fault = self.at.get(len(self.calls))
        self.calls.append(name)
        if fault is None or (fault.startswith("full") and name.startswith(_NEED_NO_SPACE)):
            return call.make()
        if fault.endswith("half"):
            make_half(call)
        if fault == "after":
            call.make()
        if fault.startswith(("full", "refused")):
            if call.of == "broker":
                raise Unavailable(name)
            raise OSError(errno.ENOSPC, "No space left on device", name)
        self.dead = True
        raise Crash(name)


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
