"""Faults on order: crashes and outages around any call of a service, and other work while it stands still.

Every port of a service is wrapped once. Each call of a port, reads and the blocks of a read too, is a point
before which and after which something can be armed. All of it hangs on one `Script`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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

Port = Literal["broker", "store"]
"""Whom a service calls."""

Watch = Callable[[str, tuple[object, ...]], None]
"""Sees each write that has taken effect: `home`, `state`, `publish` or `commit`, and its arguments."""


class Crash(BaseException):
    """The process "dies" here. No error handling of the service sees it."""


@dataclass(slots=True)
class Armed:
    """Something that shall happen at a call to come.

    Attributes:
        action: what; it may raise `Crash` or `Unavailable`, or do something else meanwhile.
        of: calls of this port only; None: of both.
        when: before the call, or after it has taken effect.
        writes: only calls that write count.
        passes: such calls that are passed first.
        calls: how many calls in a row it happens to.
    """

    action: Callable[[], object]
    of: Port | None = None
    when: When = "before"
    writes: bool = False
    passes: int = 0
    calls: int = 1


@dataclass(slots=True)
class Script:
    """What shall happen, and what has happened.

    Attributes:
        steps: (step, before or after) -> for each crash to come there, how often it is passed first.
        writes: (number of the write, before or after) that crash; `after` is a lost reply.
        armed: what shall happen at calls to come.
        calls: calls of ports so far.
        written: what was written so far, in words, one entry for each write.
        events: what the service told.
        watch: sees each write that has taken effect, before anything else happens.
    """

    steps: dict[tuple[int, When], list[int]] = field(default_factory=dict)
    writes: set[tuple[int, When]] = field(default_factory=set)
    armed: list[Armed] = field(default_factory=list)
    calls: int = 0
    written: list[str] = field(default_factory=list)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
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

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """See `Observer.event`."""
        self.events.append((name, dict(fields)))

    def cancel(self) -> None:
        """Take back all that was armed and has not happened."""
        self.steps.clear()
        self.writes.clear()
        self.armed.clear()

    def before(self, of: Port, *, write: bool = False) -> None:
        """A call of a port is about to happen."""
        self.calls += 1
        if self.armed:
            self._fire(of, "before", write=write)

    def after(self, of: Port, *, write: bool = False) -> None:
        """A call of a port has taken effect; its reply is on the way."""
        if self.armed:
            self._fire(of, "after", write=write)

    def write(self, what: str) -> int:
        """A write is about to happen; returns its number."""
        number = len(self.written)
        self.written.append(what)
        if (number, "before") in self.writes:
            self.writes.discard((number, "before"))
            raise Crash(f"before write {number}: {what}")
        return number

    def done(self, number: int) -> None:
        """The write has happened."""
        if (number, "after") in self.writes:
            self.writes.discard((number, "after"))
            raise Crash(f"after write {number}: {self.written[number]}")

    def seen(self, kind: str, *what: object) -> None:
        """A write has taken effect."""
        if self.watch is not None:
            self.watch(kind, what)

    def _fire(self, of: Port, when: When, *, write: bool) -> None:
        for one in [*self.armed]:
            if one.when != when or one.of not in {None, of} or (one.writes and not write):
                continue
            if one.passes:
                one.passes -= 1
                continue
            one.calls -= 1
            if not one.calls:
                self.armed.remove(one)
            # Who is called meanwhile passes points too: what is armed waits for the run that stands here.
            waiting, self.armed = self.armed, []
            try:
                one.action()
            finally:
                self.armed = waiting


@dataclass(slots=True)
class FaultyWriter:
    """A writer under a script: each record is one write."""

    inner: Writer
    script: Script

    def write(self, outputs: Sequence[Output]) -> None:
        """See `Writer.write`."""
        script = self.script
        for output in outputs:
            script.before("broker", write=True)
            number = script.write(f"publish to {output[0]}[{output[1]}]")
            self.inner.write([output])
            script.seen("publish", output)
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
    """A log under a script."""

    inner: Log
    script: Script

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """See `Log.describe`."""
        self.script.before("broker")
        found = self.inner.describe(topics)
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
        """See `Log.read`; each block is a point."""
        self.script.before("broker")
        for block in self.inner.read(read_range):
            yield block
            self.script.before("broker")

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
        self.script.seen("commit", group, commits)
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
    """A store under a script."""

    inner: StateStore
    script: Script

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
        standing = self.inner.set_home(flow, before, after, plan, drop_below)
        self.script.seen("home", self.inner, flow, standing)
        self.script.done(number)
        self.script.after("store", write=True)
        return standing

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
        standing = self.inner.write(flow, stage, part, before, after, rows, views)
        self.script.seen("state", self.inner, flow, stage, part, after, standing)
        self.script.done(number)
        self.script.after("store", write=True)
        return standing

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """See `StateStore.scan`."""
        self.script.before("store")
        return self.inner.scan(flow, stage, part)

    def close(self) -> None:
        """See `StateStore.close`."""
        self.inner.close()
