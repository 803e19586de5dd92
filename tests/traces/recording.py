"""Records every call of the state store and of the broker in a schedule, with its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqe_chain.adapters.memory import MemoryLog, MemoryMessage
from sqe_chain.adapters.memory import MemoryTransaction as Transaction
from sqe_chain.adapters.memory.store import MemoryStore, PartCopy, StoreCopy
from sqe_chain.ports import (
    Bounds,
    Commit,
    Headers,
    Membership,
    Output,
    Range,
    TopicInfo,
    TopicPartition,
    Writer,
)
from tests.lab.simulator import Schedule, Simulation, Violation, drawn

CALLS_OF_STORES: Final = (
    *("home", "set_home", "beat", "plan", "flows", "forget", "forget_part", "headers", "read", "write"),
    *("scan", "locations", "set_locations", "forget_locations"),
)
READS: Final = frozenset(
    {
        *("home", "plan", "flows", "headers", "read", "scan", "locations"),
        *("describe", "topic_ids", "bounds", "committed", "offsets_at", "connect"),
    }
)
"""Calls that change nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in place of an answer.

    Attributes:
        type: name of its class.
        text: its text, which need not be the same elsewhere.
    """

    type: str
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One call and its answer.

    Attributes:
        name: of the method.
        arguments: by position.
        answer: what it gave; a `Failure` if it raised.
    """

    name: str
    arguments: tuple[Any, ...]
    answer: Any


@dataclass(slots=True)
class Trace:
    """The calls of one port, until something happens that no port can do.

    Attributes:
        calls: in order.
        cut: what ended it; empty: nothing, it is whole.
        timeless: topic, partition and offset of records that services wrote without a time: the broker's clock gives them one.
    """

    calls: list[Call] = field(default_factory=list)
    cut: str = ""
    timeless: set[tuple[str, int, int]] = field(default_factory=set)

    def record(self, name: str, arguments: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
        """Ask, and keep what was asked with the answer."""
        if self.cut:
            return ask()
        try:
            answer = ask()
        except Exception as error:
            self.calls.append(Call(name, arguments, Failure(type(error).__name__, str(error))))
            raise
        self.calls.append(Call(name, arguments, answer))
        return answer

    def asked(self) -> Iterator[Call]:
        """The calls, without reads that repeat what was asked since the last change."""
        known: set[str] = set()
        for call in self.calls:
            if call.name not in {*READS, "read range"}:
                known.clear()
            elif (text := repr((call.name, call.arguments))) in known:
                continue
            else:
                known.add(text)
            yield call


class RecordedStore(MemoryStore):
    """A store in memory whose calls are recorded.

    Args:
        name: of its data.
        max_rows: most rows of one `write`.

    Attributes:
        trace: the calls.
    """

    def __init__(self, name: str, max_rows: int = 5_000) -> None:
        super().__init__(name, max_rows)
        self.trace = Trace()

    def look_at_all(self) -> None:
        """Ask for everything that is in it, so that a replay compares that, too."""
        if self.trace.cut:
            return
        content = self.copy_all()
        for flow, home in content.homes.items():
            self.home(flow)
            self.locations(flow)
            for number in home.plans:
                self.plan(flow, number)
        for flow, stage, part in content.parts:
            self.headers(flow, stage, [part])
            list(self.scan(flow, stage, part))

    def restore_all(self, copy: StoreCopy | None = None) -> None:
        """See `MemoryStore`; no port can do that."""
        if self.trace.calls:
            self._cut("the store went back in time")
        super().restore_all(copy)

    def restore_part(self, flow: str, stage: str, part: int, copy: PartCopy | None = None) -> None:
        """See `MemoryStore`; no port can do that."""
        self._cut("a state partition went back in time")
        super().restore_part(flow, stage, part, copy)

    def _cut(self, reason: str) -> None:
        self.look_at_all()
        self.trace.cut = self.trace.cut or reason


def _recorded(name: str) -> Callable[..., Any]:
    real = getattr(MemoryStore, name)

    def call(self: RecordedStore, *arguments: Any) -> Any:
        if name == "scan":
            return iter(self.trace.record(name, arguments, lambda: sorted(real(self, *arguments))))
        return self.trace.record(name, arguments, lambda: real(self, *arguments))

    return call


for _name in CALLS_OF_STORES:
    setattr(RecordedStore, _name, _recorded(_name))


class RecordedTransaction:
    """A transaction of a producer, recorded."""

    def __init__(self, inner: Transaction, trace: Trace, number: int) -> None:
        self._inner = inner
        self._trace = trace
        self._number = number

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None) -> int:
        asked = (self._number, topic, partition, value, key)
        found: int = self._trace.record(
            "append in transaction", asked, lambda: self._inner.append(topic, partition, value, key)
        )
        return found

    def abort(self) -> None:
        self._trace.record("abort", (self._number,), self._inner.abort)


class RecordedWriter:
    """A writer, recorded."""

    def __init__(self, log: MemoryLog, trace: Trace) -> None:
        self._log = log
        self._inner: Writer = log.writer()
        self._trace = trace

    def connect(self, topics: Sequence[str]) -> None:
        self._trace.record("connect", (tuple(topics),), lambda: self._inner.connect(topics))

    def write(self, outputs: Sequence[Output]) -> None:
        def ask() -> None:
            for output in outputs:
                self._inner.write([output])
                topic, partition, *_, timestamp_ms = output
                if timestamp_ms <= 0:
                    self._trace.timeless.add((topic, partition, max(self._log.kept(topic, partition))))

        self._trace.record("write outputs", (tuple(outputs),), ask)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.close()


class RecordedMember(Membership):
    """A member of a group, whose calls are recorded with its number."""

    def __init__(self, inner: Membership, trace: Trace, number: int) -> None:
        self._inner, self._trace, self._number = inner, trace, number

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        tps = tuple(partitions)
        found: dict[TopicPartition, Commit] = self._trace.record(
            "committed to member", (self._number, tps), lambda: self._inner.committed(tps)
        )
        return found

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        self._trace.record(
            "commit of member", (self._number, dict(commits)), lambda: self._inner.commit(commits)
        )

    def leave(self) -> None:
        self._trace.record("leave", (self._number,), self._inner.leave)


class RecordedLog(MemoryLog):
    """A broker in memory whose calls are recorded: those of the port, and those of producers and operators.

    Attributes:
        trace: the calls.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.trace = Trace()
        self._plain = MemoryLog(name)
        self._transactions = self._members = 0

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        assert not kept
        assert not compacted, "no recorded flow asks for either"
        self.trace.record(
            "create_topic", (topic, partitions), lambda: self._plain.create_topic(topic, partitions)
        )

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        names = tuple(topics)
        found: dict[str, TopicInfo] = self.trace.record(
            "describe", (names,), lambda: self._plain.describe(names)
        )
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        names = tuple(topics)
        found: dict[str, bytes] = self.trace.record(
            "topic_ids", (names,), lambda: self._plain.topic_ids(names)
        )
        return found

    def delete_topic(self, topic: str) -> None:
        self.trace.record("delete_topic", (topic,), lambda: self._plain.delete_topic(topic))

    def delete_group(self, group: str) -> None:
        self.trace.record("delete_group", (group,), lambda: self._plain.forget(group))

    forget = delete_group

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        tps = tuple(partitions)
        found: dict[TopicPartition, Bounds] = self.trace.record(
            "bounds", (tps,), lambda: self._plain.bounds(tps)
        )
        return found

    def read(self, read_range: Range) -> Iterator[Sequence[MemoryMessage]]:
        """See `Log`; all of it at once."""
        blocks: list[Sequence[MemoryMessage]] = []

        def ask() -> list[tuple[Any, ...]]:
            blocks.extend(self._plain.read(read_range))
            return [content_of(message, self.trace.timeless) for block in blocks for message in block]

        self.trace.record("read range", (read_range,), ask)
        yield from blocks

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        tps = tuple(partitions)
        found: dict[TopicPartition, Commit] = self.trace.record(
            "committed", (group, tps), lambda: self._plain.committed(group, tps)
        )
        return found

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        self.trace.record("commit", (group, dict(commits)), lambda: self._plain.commit(group, commits))

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        self._members += 1
        names, found = tuple(topics), list[Membership]()
        self.trace.record(
            "join", (self._members, group, names), lambda: found.append(self._plain.join(group, names))
        )
        return RecordedMember(found[0], self.trace, self._members)

    def writer(self) -> Any:
        return RecordedWriter(self._plain, self.trace)

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
        leader_epoch: int | None = None,
        offset: int | None = None,
    ) -> int:
        """What a producer writes."""
        if leader_epoch is not None or offset is not None:
            self.trace.cut = self.trace.cut or "a record at an offset of its own"
        asked = (topic, partition, value, key, headers, timestamp_ms)
        found: int = self.trace.record(
            "append", asked, lambda: self._plain.append(*asked, leader_epoch=leader_epoch, offset=offset)
        )
        return found

    def transaction(self) -> Any:
        self._transactions += 1
        return RecordedTransaction(self._plain.transaction(), self.trace, self._transactions)

    def grow(self, topic: str, partitions: int) -> None:
        self.trace.record("grow", (topic, partitions), lambda: self._plain.grow(topic, partitions))

    def recreate(self, topic: str, partitions: int | None = None, *, keep_commits: bool = False) -> None:
        if keep_commits:
            self.trace.cut = self.trace.cut or "commits of a deleted topic were kept"
        self.trace.record(
            "recreate",
            (topic, partitions),
            lambda: self._plain.recreate(topic, partitions, keep_commits=keep_commits),
        )

    def elect(self, topic: str, partition: int) -> int:
        """See `MemoryLog`: a broker elects when it likes to."""
        self.trace.cut = self.trace.cut or "another leader was elected"
        return self._plain.elect(topic, partition)

    def snapshot(self) -> object:
        """See `MemoryLog`: no broker is put back to what it was."""
        self.trace.cut = self.trace.cut or "a log has lost records, and was put back"
        return self._plain.snapshot()

    def configure(self, topic: str, **settings: Any) -> None:
        """See `MemoryLog`: the broker's clock is none of ours, and so limits of times mean something else there."""
        self.trace.cut = self.trace.cut or "topics have limits of times"
        self._plain.configure(topic, **settings)


def content_of(
    message: Any,
    timeless: Container[tuple[str, int, int]],
    prefix: str = "",
    since_ms: int = 0,
) -> tuple[Any, ...]:
    """What must be the same of a record: offset, key, value, headers, time, leader epoch.

    Args:
        message: the record.
        timeless: see `Trace`.
        prefix: of its topic.
        since_ms: when the broker may have given times first.
    """
    headers, time = message.headers(), message.timestamp()[1]
    given = (message.topic().removeprefix(prefix), message.partition(), message.offset()) in timeless
    return (
        message.offset(),
        message.key(),
        message.value(),
        [tuple(header) for header in headers] if headers else None,
        "time of sending" if given and time >= since_ms else time,
        message.leader_epoch(),
    )


class RecordedSimulation(Simulation):
    """A simulation that records what is asked of stores and broker."""

    def new_log(self, name: str) -> RecordedLog:
        return RecordedLog(name)

    def new_store(self, name: str, rows: int) -> RecordedStore:
        return RecordedStore(name, rows)


@dataclass(frozen=True, slots=True)
class Recording:
    """What one schedule asked.

    Attributes:
        log: of the broker.
        stores: of each store.
    """

    log: Trace
    stores: tuple[Trace, ...]


def recorded(seeds: Iterable[int]) -> dict[int, Recording]:
    """Draw schedules and record them, by their seeds; without transactional flows, whose topic of markers a replay does not make."""
    schedules = {seed: drawn(seed) for seed in seeds}
    return {
        seed: record(schedule) for seed, schedule in schedules.items() if not schedule.world.transactional
    }


def record(schedule: Schedule) -> Recording:
    """Execute a schedule, and record it; also one that violates something."""
    simulation = RecordedSimulation(schedule)
    with contextlib.suppress(Violation):
        simulation.run()
    log, stores = simulation.log, [simulation.store, *simulation.other_stores.values()]
    assert isinstance(log, RecordedLog)
    traces = []
    for store in stores:
        assert isinstance(store, RecordedStore)
        store.look_at_all()
        traces.append(store.trace)
    return Recording(log.trace, tuple(traces))
