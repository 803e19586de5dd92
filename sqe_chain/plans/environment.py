"""The environment of a run: its flow, ports, engine, observer, clock and settings, and what the run is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.events import Event, Notice, Observer, Waiting
from sqe_chain.plans.plan import Section
from sqe_chain.plans.retrying import Committing, Retry, RetryingLog, RetryingStore
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Header, Log, Output, Sink, StateStore, TopicPartition
from sqe_chain.task.results import Job, Portion, Report

Item = TypeVar("Item")


class Engine(Protocol):
    """Runs the tasks of one attempt at a batch. Keeps what it computed until it is released.

    An engine reads and writes through the bare ports. A call that fails ends its task with `Unavailable`, and the
    protocol repeats the whole task.
    """

    def warm_up(self) -> None:
        """Do now what the first batch would have to do first: import, connect, start processes.

        Publishes, commits, writes and claims nothing, and calls no function of the user. Another thread may use the engine
        meanwhile.

        Raises:
            ChainError: something does not work; the first batch will find out, too.
        """

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run levels 0 to `job.top_level`; keep outputs and changed states.

        Raises:
            ChainError: whatever a task raised, by its own name.
        """

    def publish(self) -> None:
        """Write all outputs kept, acknowledged when this returns; not those of a transactional flow. May be called again."""

    def outputs(self) -> Iterator[Sequence[Output]]:
        """All outputs kept, for one transaction: in the order of each task, block by block. May be asked for again."""

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Write the changed states of one level, acknowledged when this returns. May be called again.

        Args:
            level: 1 or more.
            plan_id: id of the plan being applied.
            before: (stage index, cell) -> the header as it is stored before this step.

        Returns:
            Rows written.
        """

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """For a flow without stages: read, transform and publish, acknowledged when this returns."""

    def release(self) -> None:
        """Forget what was kept."""


class Clock(Protocol):
    """Time, from outside."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def wait(self, milliseconds: int) -> bool:
        """Wait for this time, less when the service is asked to stop: then True."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Log and stores as they are: a call fails with `Unavailable` as soon as there is no answer.

    For engines, whose tasks are repeated as a whole. Also for the heartbeat and for the end of a run, which must not wait for
    a store that is away.

    Attributes:
        log: Kafka.
        stores: store name -> store; "" is the service's default and metadata store.
        wrap_sink: what is put around the sinks of stages; for tests.
    """

    log: Log
    stores: Mapping[str, StateStore]
    wrap_sink: Callable[[Sink], Sink] = lambda sink: sink

    @property
    def home(self) -> StateStore:
        """The store that holds claim and plans."""
        return self.stores[""]

    def store(self, stage: StageNode) -> StateStore:
        """The store of a stage.

        Raises:
            ConfigurationError: the stage names a store that is not there.
        """
        store = self.stores.get(stage.store or "")
        if store is None:
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} wants the store {stage.store!r}; known are "
                f"{sorted(name for name in self.stores if name)}"
            )
        return store

    def sink(self, stage: StageNode) -> Sink | None:
        """Where a stage writes its rows, if not into its store."""
        sink = stage.stage_kind.sink
        return None if sink is None else self.wrap_sink(sink)


@dataclass(frozen=True, slots=True)
class Refold:
    """What a run folds again, apart from the flow's states. It publishes and commits nothing.

    Attributes:
        number: of its birth plan: greater than that of every plan of the flow, whose history it continues.
        starts: first offset of each partition that the flow did not begin at 0.
        until: offset of each partition at which it ends.
        sections: what features keep in its birth plan; see `Plan.sections`.
        outputs: see `Layout.outputs`: those of the flow so far, whose names are permanent.
        follows: more comes after `until`: the flow goes on, and this run behind it.
        notes: sections that its next plans keep, besides what features give them.
    """

    number: int
    starts: Mapping[TopicPartition, int]
    until: Mapping[TopicPartition, int]
    sections: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    follows: bool = False
    notes: Sequence[Section] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """What a run is there for; no user sets it.

    Attributes:
        owner: who this run is (JSON), for the claim.
        refold: fold this again, and then end; None: go on.
        only_recovers: finish what is unfinished, and nothing else.
        decides: decide about failed records, and nothing else.
    """

    owner: str = "{}"
    refold: Refold | None = None
    only_recovers: bool = False
    decides: bool = False


@dataclass(slots=True)
class Environment:
    """Everything outside that a run works with.

    Its `log`, `home` and `store(stage)` wait while a broker or store is away. `ports` holds the same ones bare.

    Attributes:
        flow: the flow.
        ports: log and stores, bare.
        engine: runs the tasks.
        observer: hears what happens.
        clock: time.
        new_run_id: gives a random name.
        settings: how to run.
        role: what the run is there for.
        is_dead: whether the process that an owner text names is known to be dead.
        writers: how many state partitions the driver writes at the same time, where tasks do not: each write waits for a disk.
        retry: repeats what consists of several calls of ports.
        log: Kafka; its calls are repeated until they are answered.
        commits: sends the commits of the run.
    """

    flow: CompiledFlow
    ports: Ports
    engine: Engine
    observer: Observer
    clock: Clock
    new_run_id: Callable[[], str]
    settings: Settings = field(default_factory=Settings)
    role: Role = field(default_factory=Role)
    is_dead: Callable[[str], bool] = lambda _owner: False
    writers: int = 1
    retry: Retry = field(init=False)
    log: RetryingLog = field(init=False)
    commits: Committing = field(init=False)

    def __post_init__(self) -> None:
        self.retry = Retry(self._wait, self.settings.back_off_ms)
        self.log = RetryingLog(self.ports.log, self.retry)
        self.commits = Committing(self.retry)

    def _wait(self, what: str, reason: str, wait_ms: int) -> bool:
        self.emit(Waiting(what, reason, wait_ms))
        return self.clock.wait(wait_ms)

    @property
    def home(self) -> RetryingStore:
        """The store that holds claim and plans; its calls are repeated until they are answered."""
        return RetryingStore(self.ports.home, self.retry)

    def store(self, stage: StageNode) -> RetryingStore:
        """The store of a stage; its calls are repeated until they are answered.

        Raises:
            ConfigurationError: the stage names a store that is not there.
        """
        return RetryingStore(self.ports.store(stage), self.retry)

    def for_each(self, what: str, left: list[Item], do: Callable[[Item], None]) -> None:
        """Do something for each of these, `writers` at a time, and repeat what is not answered. The list is empty then.

        Args:
            what: what is done, for people: it follows "waiting to".
            left: the first one last; each is taken away when it is done.
            do: what; it must find out by itself that it was done before.

        Raises:
            Unavailable: the service was asked to stop while it waited.
            ChainError: any other error, when no call is under way any more.
        """
        self.retry.call(what, partial(_do_all, left, do, self.writers))

    def cells(self) -> list[tuple[StageNode, int]]:
        """Every (stage, cell)."""
        return [(stage, cell) for stage in self.flow.stages for cell in self.flow.cells[stage.index]]

    def emit(self, event: Event) -> None:
        """Report to the observer."""
        self.observer.event(event)

    def say(self, texts: Iterable[str]) -> None:
        """Report what a person should know."""
        for text in texts:
            self.emit(Notice(text))

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Mark the beginning and the end of a numbered step."""
        self.observer.step(number, "before")
        yield
        self.observer.step(number, "after")


def _do_all(left: list[Item], do: Callable[[Item], None], writers: int) -> None:
    """See `Environment.for_each`: all of it once."""
    if writers == 1 or len(left) <= 1:
        while left:
            do(left[-1])
            left.pop()
        return
    undone, away = list[Item](), list[Unavailable]()
    with ThreadPoolExecutor(min(writers, len(left)), "sqe-chain headers") as pool:
        calls = [(item, pool.submit(do, item)) for item in reversed(left)]
        try:
            for item, call in calls:
                try:
                    call.result()
                except CancelledError:
                    undone.append(item)
                except Unavailable as error:  # what the others find weighs more, but no more of them begin
                    undone.append(item)
                    away.append(error)
                    pool.shutdown(wait=False, cancel_futures=True)
        finally:
            pool.shutdown(cancel_futures=True)
    left[:] = reversed(undone)
    if away:
        raise away[0]
