"""Fault injection: crashes and outages around any call of a service, and other work while it is paused.

Every port of a service is wrapped once. A fault can be injected before and after each call of a port, including reads
and each block of a read. One `FaultScript` holds all faults of a service.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqe_chain.ports import (
    Bounds,
    Commit,
    Header,
    Home,
    Locations,
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
from sqe_chain.protocol.events import Event
from sqe_chain.protocol.interfaces import When

Port = Literal["broker", "store", "table"]
"""What a service calls."""

Watch = Callable[[str, tuple[object, ...]], None]
"""Called after each write that took effect, with its kind (`home`, `state`, `locations`, `publish`, `commit`, `table`)
and arguments."""


class Crash(BaseException):
    """The process "dies" here. The service's own error handling never sees this exception."""


@dataclass(slots=True)
class InjectedFault:
    """A fault that will happen at a future call.

    Attributes:
        action: may raise `Crash` or `Unavailable`, or do something else while the run is paused.
        of: only at calls of this port; None: of all.
        when: before the call, or after it has taken effect.
        writes: whether only calls that write count.
        passes: such calls that pass before the fault.
        calls: how many consecutive calls it affects.
    """

    action: Callable[[], object]
    of: Port | None = None
    when: When = "before"
    writes: bool = False
    passes: int = 0
    calls: int = 1


@dataclass(slots=True)
class FaultScript:
    """The faults to come, and what has happened so far.

    Attributes:
        steps: (step, before or after) -> for each future crash there, how often the step passes first.
        writes: (number of the write, before or after) at which to crash; `after` means a lost reply.
        injected: faults at future calls.
        calls: calls of ports so far.
        written: a description of each write so far.
        events: events that the service reported.
        watch: called after each write that took effect, before anything else happens.
    """

    steps: dict[tuple[int, When], list[int]] = field(default_factory=dict)
    writes: set[tuple[int, When]] = field(default_factory=set)
    injected: list[InjectedFault] = field(default_factory=list)
    calls: int = 0
    written: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    watch: Watch | None = None

    def step(self, number: int, when: When) -> None:
        """See `Observer.step`."""
        passes = self.steps.get((number, when))
        if not passes:
            return
        passes[0] -= 1
        if passes[0] < 0:
            passes.pop(0)
            raise Crash(f"{when} step {number}")

    def event(self, event: Event) -> None:
        """See `Observer.event`."""
        self.events.append(event)

    def cancel(self) -> None:
        """Cancel all faults that have not happened yet."""
        self.steps.clear()
        self.writes.clear()
        self.injected.clear()

    def before(self, of: Port, *, write: bool = False) -> None:
        """Called before each call of a port."""
        self.calls += 1
        if self.injected:
            self._fire(of, "before", write=write)

    def after(self, of: Port, *, write: bool = False) -> None:
        """Called after a call of a port took effect, before its reply arrives."""
        if self.injected:
            self._fire(of, "after", write=write)

    def write(self, what: str) -> int:
        """Called before each write; returns the write's number."""
        number = len(self.written)
        self.written.append(what)
        if (number, "before") in self.writes:
            self.writes.discard((number, "before"))
            raise Crash(f"before write {number}: {what}")
        return number

    def done(self, number: int) -> None:
        """Called after each write."""
        if (number, "after") in self.writes:
            self.writes.discard((number, "after"))
            raise Crash(f"after write {number}: {self.written[number]}")

    def took_effect(self, kind: str, *what: object) -> None:
        """Tell the watch about a write that took effect."""
        if self.watch is not None:
            self.watch(kind, what)

    def _fire(self, of: Port, when: When, *, write: bool) -> None:
        for one in [*self.injected]:
            if one.when != when or one.of not in {None, of} or (one.writes and not write):
                continue
            if one.passes:
                one.passes -= 1
                continue
            one.calls -= 1
            if not one.calls:
                self.injected.remove(one)
            # Calls during the action must not trigger faults: those are for the paused run.
            waiting, self.injected = self.injected, []
            try:
                one.action()
            finally:
                self.injected = waiting


@dataclass(slots=True)
class FaultyWriter:
    """A writer with injected faults; each record counts as one write."""

    inner: Writer
    script: FaultScript
    number: int = field(default_factory=itertools.count().__next__)

    def connect(self, topics: Sequence[str]) -> None:
        """See `Writer.connect`."""
        self.script.before("broker")
        self.inner.connect(topics)

    def write(self, outputs: Sequence[Output]) -> None:
        """See `Writer.write`."""
        script = self.script
        for output in outputs:
            script.before("broker", write=True)
            number = script.write(f"publish to {output[0]}[{output[1]}]")
            self.inner.write([output])
            script.took_effect("publish", output, self.number)
            script.done(number)
            script.after("broker", write=True)

    def flush(self) -> None:
        """See `Writer.flush`."""
        self.script.before("broker")
        self.inner.flush()
        self.script.after("broker")

    def close(self) -> None:
        """See `Writer.close`."""
        self.inner.close()


@dataclass(slots=True)
class FaultyLog:
    """A log with injected faults."""

    inner: Log
    script: FaultScript

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """See `Log.describe`."""
        self.script.before("broker")
        found = self.inner.describe(topics)
        self.script.after("broker")
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """See `Log.topic_ids`."""
        self.script.before("broker")
        found = self.inner.topic_ids(topics)
        self.script.after("broker")
        return found

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
        self.script.before("broker")
        found = self.inner.bounds(partitions)
        self.script.after("broker")
        return found

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """See `Log.read`; a fault can happen at each block."""
        self.script.before("broker")
        for block in self.inner.read(read_range):
            yield block
            self.script.before("broker")

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        """See `Log.read_all`; a fault can happen at each block."""
        return [[message for block in self.read(one) for message in block] for one in ranges]

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """See `Log.committed`."""
        self.script.before("broker")
        found = self.inner.committed(group, partitions)
        self.script.after("broker")
        return found

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """See `Log.commit`."""
        self.script.before("broker", write=True)
        number = self.script.write(f"commit of {group}")
        self.inner.commit(group, commits)
        self.script.took_effect("commit", group, commits)
        self.script.done(number)
        self.script.after("broker", write=True)

    def writer(self) -> FaultyWriter:
        """See `Log.writer`."""
        return FaultyWriter(self.inner.writer(), self.script)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Log.offsets_at`."""
        self.script.before("broker")
        return self.inner.offsets_at(partitions, timestamp_ms)


@dataclass(slots=True)
class FaultyStore:
    """A store with injected faults."""

    inner: StateStore
    script: FaultScript

    def __repr__(self) -> str:
        return repr(self.inner)

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
        self.script.before("store")
        return self.inner.check()

    def remarks(self) -> list[str]:
        """See `StateStore.remarks`."""
        return self.inner.remarks()

    def home(self, flow: str) -> tuple[Home | None, int]:
        """See `StateStore.home`."""
        self.script.before("store")
        found = self.inner.home(flow)
        self.script.after("store")
        return found

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        """See `StateStore.set_home`."""
        self.script.before("store", write=True)
        number = self.script.write(f"home of {flow}: epoch {after.epoch}, plan {after.number}")
        stored = self.inner.set_home(flow, before, after, plan, drop_below)
        self.script.took_effect("home", self.inner, flow, stored)
        self.script.done(number)
        self.script.after("store", write=True)
        return stored

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        """See `StateStore.beat`."""
        self.script.before("store")
        return self.inner.beat(flow, epoch, run_id)

    def plan(self, flow: str, number: int) -> bytes | None:
        """See `StateStore.plan`."""
        self.script.before("store")
        found = self.inner.plan(flow, number)
        self.script.after("store")
        return found

    def flows(self) -> list[str]:
        """See `StateStore.flows`."""
        return self.inner.flows()

    def forget(self, flow: str, before: Home) -> Home | None:
        """See `StateStore.forget`."""
        number = self.script.write(f"forget home of {flow}")
        stored = self.inner.forget(flow, before)
        self.script.done(number)
        return stored

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        """See `StateStore.forget_part`."""
        number = self.script.write(f"forget {flow}/{stage}/{part}")
        stored = self.inner.forget_part(flow, stage, part, before)
        self.script.done(number)
        return stored

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        """See `StateStore.headers`."""
        self.script.before("store")
        found = self.inner.headers(flow, stage, parts)
        self.script.after("store")
        return found

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """See `StateStore.read`."""
        self.script.before("store")
        found = self.inner.read(flow, stage, part, keys)
        self.script.after("store")
        return found

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
        self.script.before("store", write=True)
        number = self.script.write(f"{flow}/{stage}/{part}: {len(rows)} rows, plan {after.number}{begun}")
        stored = self.inner.write(flow, stage, part, before, after, rows, views)
        self.script.took_effect("state", self.inner, flow, stage, part, after, stored)
        self.script.done(number)
        self.script.after("store", write=True)
        return stored

    def locations(self, flow: str) -> Locations | None:
        """See `StateStore.locations`."""
        self.script.before("store")
        found = self.inner.locations(flow)
        self.script.after("store")
        return found

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        """See `StateStore.set_locations`."""
        self.script.before("store", write=True)
        number = self.script.write(f"locations of {flow}: epoch {after.epoch}, plan {after.number}")
        stored = self.inner.set_locations(flow, after)
        self.script.took_effect("locations", self.inner, flow, stored)
        self.script.done(number)
        self.script.after("store", write=True)
        return stored

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        """See `StateStore.forget_locations`."""
        number = self.script.write(f"forget locations of {flow}")
        stored = self.inner.forget_locations(flow, before)
        self.script.done(number)
        return stored

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """See `StateStore.scan`."""
        self.script.before("store")
        return self.inner.scan(flow, stage, part)

    def close(self) -> None:
        """See `StateStore.close`."""
        self.inner.close()
