"""Waiting for a broker or a store that is away: a call that got no answer is repeated until it gets one.

`RetryingLog` and `RetryingStore` offer the calls of their ports that can be repeated one by one. Not offered are

* `read`, `scan`, `writer` and `transactional_writer`: what they give takes many calls, so that what must be repeated is larger than one call;
* `beat` and `close`: a heartbeat and an end must not wait;
* `check_view_table` and `unlike_rows`: not every store has tables, so who asks has the bare one, and repeats it;
* deletions (`delete_topic`, `delete_group`, `forget`, `forget_part`, `forget_locations`): `operations.forget` does them, and is
  started again as a whole.

`Retry.call` repeats several calls that belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqe_chain.errors import ChainError, Unavailable
from sqe_chain.ports import (
    Bounds,
    Commit,
    Header,
    Home,
    Locations,
    Log,
    Membership,
    Message,
    Range,
    Rows,
    StateStore,
    TopicInfo,
    TopicPartition,
    ViewKind,
    Views,
)

T = TypeVar("T")

FIRST_WAIT_MS = 100
"""The first wait for a server that does not answer. Each further one is twice as long, up to `Settings.back_off_ms`."""


class Retry:
    """Repeats calls that got no answer.

    Args:
        wait: waits for a number of milliseconds, and returns whether the service was asked to stop; gets what is waited for, and why.
        back_off_ms: longest wait between two attempts, in milliseconds.
    """

    def __init__(self, wait: Callable[[str, str, int], bool], back_off_ms: int) -> None:
        self._wait = wait
        self._back_off_ms = back_off_ms

    def call(self, what: str, action: Callable[[], T]) -> T:
        """Call something that is safe to repeat, until nothing of it is unavailable. Elsewhere "repeated as one" means: by one call of this.

        Args:
            what: what is done, for people: it follows "waiting to".
            action: the call; after a lost reply it must find out by itself that it has happened.

        Returns:
            What the action returned.

        Raises:
            Unavailable: the service was asked to stop while it waited.
            ChainError: any other error of the action, at once.
        """
        wait_ms = FIRST_WAIT_MS
        # Not bounded: an outage may last. The clock decides when to stop: on a signal, or when `--once` has lost patience.
        while True:
            try:
                return action()
            except Unavailable as error:
                if self._wait(what, str(error), wait_ms):
                    raise
                wait_ms = min(wait_ms * 2, self._back_off_ms)


class RetryingLog:
    """A log whose calls wait for the broker.

    Each call raises what that of `Log` raises, and `Unavailable` only when the service was asked to stop while it
    waited.
    """

    def __init__(self, log: Log, retry: Retry) -> None:
        self._log = log
        self._retry = retry

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        names = list(topics)
        return self._retry.call("look at the topics", lambda: self._log.describe(names))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        names = list(topics)
        return self._retry.call("look at the topics", lambda: self._log.topic_ids(names))

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        # One that was created by an attempt without an answer is left as it is
        create = partial(self._log.create_topic, topic, partitions, kept=kept, compacted=compacted)
        self._retry.call(f"create topic {topic}", create)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        tps = list(partitions)
        return self._retry.call("look at the inputs", lambda: self._log.bounds(tps))

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        # All of the ranges are read again after an outage
        return self._retry.call("read records again", lambda: self._log.read_all(ranges))

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        tps = list(partitions)
        return self._retry.call("read the group's commits", lambda: self._log.committed(group, tps))

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        # The attempt that is answered fences those before
        names = list(topics)
        return self._retry.call("join the group", lambda: self._log.join(group, names))

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        tps = list(partitions)
        return self._retry.call("look for that time", lambda: self._log.offsets_at(tps, timestamp_ms))


class RetryingStore:
    """A store whose calls wait for it.

    The writes, `set_home`, `set_locations` and `write`, are safe to repeat after a lost reply because the store compares.
    The second attempt finds `after` stored, and returns it as the first one would have.

    Each call raises what that of `StateStore` raises, and `Unavailable` only when the service was asked to stop while
    it waited.
    """

    def __init__(self, store: StateStore, retry: Retry) -> None:
        self._store = store
        self._retry = retry

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def views(self) -> frozenset[ViewKind]:
        return self._store.views

    @property
    def max_plan_bytes(self) -> int:
        return self._retry.call("ask how large a plan may be", lambda: self._store.max_plan_bytes)

    def check(self) -> list[str]:
        return self._retry.call("look at the store's settings", self._store.check)

    def remarks(self) -> list[str]:
        return self._retry.call("look at the store's settings", self._store.remarks)

    def home(self, flow: str) -> tuple[Home | None, int]:
        return self._retry.call(f"read the claim of {flow}", lambda: self._store.home(flow))

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        return self._retry.call(
            f"seal plan {after.number}" if plan is not None else f"claim {flow}",
            lambda: self._store.set_home(flow, before, after, plan, drop_below),
        )

    def plan(self, flow: str, number: int) -> bytes | None:
        return self._retry.call(f"read plan {number}", lambda: self._store.plan(flow, number))

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        return self._retry.call(
            f"read the headers of stage {stage}", lambda: self._store.headers(flow, stage, parts)
        )

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
        return self._retry.call(
            f"write {flow}/{stage}/{part}",
            lambda: self._store.write(flow, stage, part, before, after, rows, views),
        )

    def locations(self, flow: str) -> Locations | None:
        return self._retry.call(f"read where {flow} is", lambda: self._store.locations(flow))

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        return self._retry.call(f"write where {flow} is", lambda: self._store.set_locations(flow, after))


Action = Callable[[], None]


@dataclass(slots=True)
class Committing:
    """Sends the commits of a run, in order. Used by one thread."""

    retry: Retry
    _pool: Executor | None = None
    _sent: tuple[Future[None], Action] | None = None
    _then: list[Action] = field(default_factory=list)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """In this context `commit` does not wait for the broker; `settle` does. The caller settles before it ends."""
        with ThreadPoolExecutor(1, "sqe-chain commit") as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def commit(self, action: Action) -> None:
        """Commit, when the commit before is acknowledged.

        Raises:
            ChainError: what the action raises, or that of the commit before; `Unavailable` only when asked to stop.
        """
        self.settle()
        if self._pool is None:
            self.retry.call("commit", action)
        else:
            self._sent = self._pool.submit(action), action

    def then(self, action: Action) -> None:
        """Call this as soon as it is known that all commits so far are acknowledged: at once, or when they are settled."""
        if self._sent is None:
            action()
        else:
            self._then.append(action)

    def settle(self) -> None:
        """Wait until what was committed is acknowledged.

        Raises:
            ChainError: as `commit`.
        """
        if self._sent is not None:
            (future, action), self._sent = self._sent, None
            try:
                future.result()
            except Unavailable:  # the pool's thread has tried once; who waits here can be asked to stop
                self.retry.call("commit", action)
            self._acknowledged()

    def leave(self) -> None:
        """The same at the end of a run, which must not wait for a broker that is away: without an answer the commit lags."""
        if self._sent is not None:
            (future, _), self._sent = self._sent, None
            with suppress(ChainError):
                future.result()
                self._acknowledged()

    def _acknowledged(self) -> None:
        then, self._then = self._then, []
        for action in then:
            action()
