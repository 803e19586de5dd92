"""Crashes on order: before or after any numbered step, and around any single write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqe_chain.ports import (
    Bounds,
    Commit,
    Header,
    Home,
    Log,
    Message,
    Output,
    Range,
    Rows,
    StateStore,
    TopicInfo,
    TopicPartition,
    ViewKind,
    Views,
    Writer,
)
from sqe_chain.protocol.surroundings import When


class Crash(BaseException):
    """The process "dies" here. No error handling of the service sees it."""


@dataclass(slots=True)
class Script:
    """What shall crash, and what has happened.

    Attributes:
        steps: (step, before or after) -> for each crash to come there, how often it is passed first.
        writes: (number of the write, before or after) that crash; `after` is a lost reply.
        written: what was written so far, in words, one entry for each write.
        events: what the service told.
    """

    steps: dict[tuple[int, When], list[int]] = field(default_factory=dict)
    writes: set[tuple[int, When]] = field(default_factory=set)
    written: list[str] = field(default_factory=list)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def step(self, number: int, when: When) -> None:
        """See `Observer.step`."""
        passes = self.steps.get((number, when))
        if not passes:
            return
        passes[0] -= 1
        if passes[0] < 0:
            passes.pop(0)
            raise Crash(f"{when} step {number}")

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """See `Observer.event`."""
        self.events.append((name, dict(fields)))

    def write(self, what: str) -> int:
        """A write is about to happen; returns its number."""
        number = len(self.written)
        self.written.append(what)
        if (number, "before") in self.writes:
            raise Crash(f"before write {number}: {what}")
        return number

    def done(self, number: int) -> None:
        """The write has happened."""
        if (number, "after") in self.writes:
            raise Crash(f"after write {number}: {self.written[number]}")


@dataclass(slots=True)
class CrashingWriter:
    """A writer that crashes on order: each record is one write."""

    inner: Writer
    script: Script

    def write(self, outputs: Sequence[Output]) -> None:
        """See `Writer.write`."""
        for output in outputs:
            number = self.script.write(f"publish to {output[0]}[{output[1]}]")
            self.inner.write([output])
            self.script.done(number)

    def flush(self) -> None:
        """See `Writer.flush`."""
        self.inner.flush()

    def close(self) -> None:
        """See `Writer.close`."""
        self.inner.close()


@dataclass(slots=True)
class CrashingLog:
    """A log whose writes and commits crash on order."""

    inner: Log
    script: Script

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """See `Log.describe`."""
        return self.inner.describe(topics)

    def create_topic(self, topic: str, partitions: int) -> None:
        """See `Log.create_topic`."""
        self.inner.create_topic(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """See `Log.delete_topic`."""
        number = self.script.write(f"delete topic {topic}")
        self.inner.delete_topic(topic)
        self.script.done(number)

    def delete_group(self, group: str) -> None:
        """See `Log.delete_group`."""
        number = self.script.write(f"delete group {group}")
        self.inner.delete_group(group)
        self.script.done(number)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """See `Log.bounds`."""
        return self.inner.bounds(partitions)

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """See `Log.read`."""
        return self.inner.read(read_range)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """See `Log.committed`."""
        return self.inner.committed(group, partitions)

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """See `Log.commit`."""
        number = self.script.write(f"commit of {group}")
        self.inner.commit(group, commits)
        self.script.done(number)

    def writer(self) -> CrashingWriter:
        """See `Log.writer`."""
        return CrashingWriter(self.inner.writer(), self.script)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Log.offsets_at`."""
        return self.inner.offsets_at(partitions, timestamp_ms)


@dataclass(slots=True)
class CrashingStore:
    """A store whose writes crash on order."""

    inner: StateStore
    script: Script

    @property
    def max_rows(self) -> int:
        """See `StateStore.max_rows`."""
        return self.inner.max_rows

    @property
    def max_bytes(self) -> int:
        """See `StateStore.max_bytes`."""
        return self.inner.max_bytes

    @property
    def max_key_bytes(self) -> int:
        """See `StateStore.max_key_bytes`."""
        return self.inner.max_key_bytes

    @property
    def max_state_bytes(self) -> int:
        """See `StateStore.max_state_bytes`."""
        return self.inner.max_state_bytes

    @property
    def max_plan_bytes(self) -> int:
        """See `StateStore.max_plan_bytes`."""
        return self.inner.max_plan_bytes

    @property
    def views(self) -> frozenset[ViewKind]:
        """See `StateStore.views`."""
        return self.inner.views

    def check(self) -> list[str]:
        """See `StateStore.check`."""
        return self.inner.check()

    def remarks(self) -> list[str]:
        """See `StateStore.remarks`."""
        return self.inner.remarks()

    def home(self, flow: str) -> tuple[Home | None, int]:
        """See `StateStore.home`."""
        return self.inner.home(flow)

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        """See `StateStore.set_home`."""
        number = self.script.write(f"home of {flow}: epoch {after.epoch}, plan {after.number}")
        standing = self.inner.set_home(flow, before, after, plan, drop_below)
        self.script.done(number)
        return standing

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        """See `StateStore.beat`."""
        return self.inner.beat(flow, epoch, run_id)

    def plan(self, flow: str, number: int) -> bytes | None:
        """See `StateStore.plan`."""
        return self.inner.plan(flow, number)

    def flows(self) -> list[str]:
        """See `StateStore.flows`."""
        return self.inner.flows()

    def forget(self, flow: str, before: Home) -> Home | None:
        """See `StateStore.forget`."""
        number = self.script.write(f"forget home of {flow}")
        standing = self.inner.forget(flow, before)
        self.script.done(number)
        return standing

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        """See `StateStore.forget_part`."""
        number = self.script.write(f"forget {flow}/{stage}/{part}")
        standing = self.inner.forget_part(flow, stage, part, before)
        self.script.done(number)
        return standing

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        """See `StateStore.headers`."""
        return self.inner.headers(flow, stage, parts)

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """See `StateStore.read`."""
        return self.inner.read(flow, stage, part, keys)

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        """See `StateStore.write`."""
        begun = " and part of the next" if after.begun_id else ""
        number = self.script.write(f"{flow}/{stage}/{part}: {len(rows)} rows, plan {after.number}{begun}")
        standing = self.inner.write(flow, stage, part, before, after, rows, views)
        self.script.done(number)
        return standing

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """See `StateStore.scan`."""
        return self.inner.scan(flow, stage, part)

    def close(self) -> None:
        """See `StateStore.close`."""
        self.inner.close()
