"""What surrounds a service: ports, settings, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from sqe_chain.errors import ConfigurationError, Superseded, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.flow.topology import Node
from sqe_chain.ports import Header, Log, StateStore, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.plan import Unfinished
from sqe_chain.segment.results import Job, Portion, Report

T = TypeVar("T")
When = Literal["before", "after"]

CLAIM, RECOVER, PROCESS, SEAL, PUBLISH, PERSIST, COMMIT = range(1, 8)
"""The numbered steps."""

_LEAST = {
    "interval_ms": 0,
    "max_records": 1,
    "max_bytes": 1,
    "keep_plans": 2,
    "max_excluded": 0,
    "standby_ms": 0,
    "back_off_ms": 0,
}
"""Settings that are whole numbers, and the least that each may be."""
_MOST = 10**15


class Engine(Protocol):
    """Runs the tasks of one attempt at a batch. Keeps what it computed until it is released."""

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run levels 0 to `job.top_level`; keep outputs and changed states.

        Raises:
            ChainError: whatever a task raised, by its own name.
        """

    def publish(self) -> None:
        """Write all outputs kept, acknowledged when this returns. May be called again."""

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Write the changed states of one level, acknowledged when this returns. May be called again.

        Args:
            level: 1 or more.
            plan_id: id of the plan being applied.
            before: (stage index, cell) -> the header as it stands before this step.

        Returns:
            Rows written.
        """

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """For a flow without stages: read, transform and publish, acknowledged when this returns."""

    def release(self) -> None:
        """Forget what was kept."""


class Observer(Protocol):
    """Hears what a service does. An error raised here ends the service as a crash would."""

    def step(self, number: int, when: When) -> None:
        """A numbered step begins or has ended."""

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """Something worth a log line: claimed, recovered, sealed, published, persisted, committed, ..."""


class Clock(Protocol):
    """Time, from outside."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def wait(self, milliseconds: int) -> bool:
        """Wait that long, less when the service is asked to stop: then True."""


@dataclass(frozen=True, slots=True)
class Again:
    """What is folded once more, beside a flow's states: nothing of it is published or committed.

    Attributes:
        number: of its birth plan: beyond all plans of the flow, whose history it will continue.
        starts: where the flow once began, where that was not offset 0.
        until: where to end.
        quiet: "topic/partition" -> up to where outputs were published before.
        unfinished: the batch that is to be published first, afterwards.
    """

    number: int
    starts: Mapping[TopicPartition, int]
    until: Mapping[TopicPartition, int]
    quiet: Mapping[str, int]
    unfinished: Unfinished | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How a service runs.

    Attributes:
        interval_ms: how often a batch is made, hence how often a state is written at most.
        start: where a new flow begins when a log no longer begins at offset 0, or `latest` for what
            comes from now on; None: only where nothing is missing.
        takeover: claim although another run seems alive.
        max_records: records of one batch, over all partitions.
        max_bytes: bytes of values of one batch, over all partitions (kept by the average so far).
        keep_plans: sealed plans that the home store keeps; at least 2.
        max_excluded: inputs that one batch may exclude, whatever their share. A batch that would exclude more than
            this, and more than `max_excluded_share` of what it read, stops before anything is sealed.
        max_excluded_share: share of its records, 0 to 1, that one batch may exclude, however many they are.
        accept_rollback: go on although the store went back as a whole.
        allow_weak_durability: accept stores that may lose acknowledged writes.
        drop_stages: stored stages that the flow no longer has and that may be forgotten.
        in_place: run level 1 in the reading tasks where the partitions allow it.
        standby_ms: how long the other run's heartbeat must stand still.
        back_off_ms: longest wait between two attempts to reach a broker or store.
        owner: who this run is (JSON), for the claim.
        again: fold only this, silently.
    """

    interval_ms: int = 5_000
    start: Literal["earliest", "latest"] | None = None
    takeover: bool = False
    max_records: int = 400_000
    max_bytes: int = 96 * 1024 * 1024
    keep_plans: int = 20
    max_excluded: int = 100
    max_excluded_share: float = 0.1
    accept_rollback: bool = False
    allow_weak_durability: bool = False
    drop_stages: tuple[str, ...] = ()
    in_place: bool = True
    standby_ms: int = 6_000
    back_off_ms: int = 10_000
    owner: str = "{}"
    again: Again | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work."""
        for name, least in _LEAST.items():
            found = getattr(self, name)
            if type(found) is not int or not least <= found <= _MOST:
                raise ConfigurationError(f"{name}={found!r}; a whole number, {least} to {_MOST}")
        share = self.max_excluded_share
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise ConfigurationError(f"max_excluded_share={share!r}; a number, 0 to 1")


@dataclass(slots=True)
class Surroundings:
    """A flow with its ports.

    Attributes:
        flow: the flow.
        log: Kafka.
        stores: store name -> store; "" is the service's default and home store.
        engine: runs the tasks.
        observer: hears what happens.
        clock: time.
        settings: how to run.
        new_run_id: gives a random name.
        is_dead: whether the process that an owner text names is known to be dead.
    """

    flow: Flow
    log: Log
    stores: Mapping[str, StateStore]
    engine: Engine
    observer: Observer
    clock: Clock
    new_run_id: Callable[[], str]
    settings: Settings = field(default_factory=Settings)
    is_dead: Callable[[str], bool] = lambda _owner: False

    @property
    def home(self) -> StateStore:
        """The store that holds claim and plans."""
        return self.stores[""]

    def store(self, stage: Node) -> StateStore:
        """The store of a stage.

        Raises:
            ConfigurationError: the stage names a store that is not there.
        """
        found = self.stores.get(stage.store or "")
        if found is None:
            raise ConfigurationError(
                f"{stage.place}: stage {stage.name!r} wants the store {stage.store!r}; known are "
                f"{sorted(name for name in self.stores if name)}"
            )
        return found

    def places(self) -> list[tuple[Node, int]]:
        """Every (stage, cell)."""
        return [(stage, cell) for stage in self.flow.stages() for cell in self.flow.cells(stage)]

    def tell(self, name: str, **fields: object) -> None:
        """Tell the observer."""
        self.observer.event(name, fields)

    def notice_weak_topics(self, infos: Mapping[str, TopicInfo]) -> None:
        """Refuse outputs that may lose what they acknowledged, or say so where that is accepted.

        Raises:
            WeakDurability: see `inputs.check_durable`.
        """
        for text in inputs.check_durable(self.flow, infos, allowed=self.settings.allow_weak_durability):
            self.tell("notice", text=f"weak durability: {text}")

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Mark the beginning and the end of a numbered step."""
        self.observer.step(number, "before")
        yield
        self.observer.step(number, "after")

    def patiently(self, what: str, action: Callable[[], T]) -> T:
        """Do something that is safe to repeat, until broker and store are there.

        Raises:
            Unavailable: the service was asked to stop while it waited.
        """
        wait_ms = 100
        while True:
            try:
                return action()
            except Superseded:
                raise
            except Unavailable as error:
                self.tell("waiting", what=what, reason=str(error), wait_ms=wait_ms)
                if self.clock.wait(wait_ms):
                    raise
                wait_ms = min(wait_ms * 2, self.settings.back_off_ms)
