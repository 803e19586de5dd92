"""A start as a service makes it, on copies of what it would change: nothing is written, published or committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ChainError
from sqe_chain.ext.doctor.diagnostic import Diagnostic
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import (
    Commit,
    Header,
    Home,
    Locations,
    Log,
    Output,
    Rows,
    StateStore,
    TopicPartition,
    Views,
    Writer,
)
from sqe_chain.protocol.services import service_of
from sqe_chain.runtime.observers import Quiet

_Cell = tuple[str, str, int]


class _Discarding(Writer):
    """Publishes nothing."""

    def connect(self, topics: Sequence[str]) -> None:
        """Nothing to prepare."""

    def write(self, outputs: Sequence[Output]) -> None:
        """Drop them."""

    def flush(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


class DryLog:
    """A log whose commits stay here, and whose writers publish nothing; everything else is the log's own.

    Args:
        log: what is read.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._commits: dict[tuple[str, TopicPartition], Commit] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the log's own methods
        return getattr(self._log, name)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """The log's commits, and those that were made here."""
        asked = [*partitions]
        own = {tp: self._commits[group, tp] for tp in asked if (group, tp) in self._commits}
        return self._log.committed(group, asked) | own

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """Keep the commits here."""
        self._commits |= {(group, tp): commit for tp, commit in commits.items()}

    def writer(self) -> Writer:
        """A writer that publishes nothing."""
        return _Discarding()


class DryStore:
    """A store whose writes stay here; what was not written here is the store's own.

    Args:
        store: what is read.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._homes: dict[str, Home | None] = {}
        self._plans: dict[tuple[str, int], bytes] = {}
        self._headers: dict[_Cell, Header | None] = {}
        self._rows: dict[_Cell, dict[bytes, bytes | None]] = {}
        self._locations: dict[str, Locations] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the store's own methods
        return getattr(self._store, name)

    def home(self, flow: str) -> tuple[Home | None, int]:
        """The home record as it was left here, or the store's."""
        home, beat = self._store.home(flow)
        return self._homes.get(flow, home), beat

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        """Keep the home record and the plan here, by the store's rule. Nothing is dropped, whatever `drop_below` is."""
        del drop_below
        current, _ = self.home(flow)
        if current != before:
            return current
        self._homes[flow] = after
        if plan is not None:
            self._plans[flow, after.number] = plan
        return after

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        """No heartbeat moves."""
        home, _ = self.home(flow)
        return home is not None and (home.epoch, home.run_id) == (epoch, run_id)

    def plan(self, flow: str, number: int) -> bytes | None:
        """A plan that was sealed here, or the store's."""
        return self._plans.get((flow, number)) or self._store.plan(flow, number)

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        """The headers as they were left here, or the store's."""
        stored = self._store.headers(flow, stage, parts)
        return [
            self._headers.get((flow, stage, part), header) for part, header in zip(parts, stored, strict=True)
        ]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """States as they were left here, or the store's, with the header."""
        _, states, _ = self._store.read(flow, stage, part, keys)
        own = self._rows.get((flow, stage, part), {})
        (header,) = self.headers(flow, stage, [part])
        return header, [own.get(key, state) for key, state in zip(keys, states, strict=True)], header

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
        """Keep header and rows here, by the store's rule; views are not kept."""
        del views
        (current,) = self.headers(flow, stage, [part])
        if current != before:
            return current
        self._headers[flow, stage, part] = after
        self._rows.setdefault((flow, stage, part), {}).update(rows)
        return after

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """All states, as they were left here."""
        own = self._rows.get((flow, stage, part), {})
        for key, state in self._store.scan(flow, stage, part):
            if key not in own:
                yield key, state
        yield from ((key, state) for key, state in own.items() if state is not None)

    def locations(self, flow: str) -> Locations | None:
        """The locations that were set here, or the store's."""
        return self._locations.get(flow) or self._store.locations(flow)

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        """Keep the locations here, by the store's rule."""
        current = self.locations(flow)
        if current is None or current.age < after.age:
            self._locations[flow] = current = after
        return current

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        """Locations stay."""
        return None if self.locations(flow) == before else self.locations(flow)


class _Impatient:
    """A clock of somebody who does not wait: what is away now is an error."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms

    def wait(self, milliseconds: int) -> bool:
        """Do not wait, as if a stop was asked for."""
        del milliseconds
        return True


def can_start_dry(flow: CompiledFlow) -> bool:
    """Whether a start can be made without changing anything: tables and files are not behind a log or a store."""
    return not flow.file_sources and all(stage.stage_kind.sink is None for stage in flow.stages)


def start_dry(
    flow: CompiledFlow, log: Log, stores: Mapping[str, StateStore], now_ms: Callable[[], int]
) -> None:
    """Do what a start does before its first batch: check, claim, finish an open plan or batch, enter new inputs and stages.

    What another run claims is taken over here, without waiting for its heartbeat. Weak durability is no error here.

    Args:
        flow: the flow; see `can_start_dry`.
        log: the brokers; nothing is published or committed.
        stores: store name -> store; nothing is written.
        now_ms: this machine's clock, milliseconds since 1970.

    Raises:
        ChainError: what the start would end with, or wait for.
    """
    dry_log: Any = DryLog(log)
    dry_stores: dict[str, Any] = {name: DryStore(store) for name, store in stores.items()}
    ports = Ports(dry_log, dry_stores)
    settings = Settings(allow_weak_durability=True)
    env = Environment(
        flow=flow,
        ports=ports,
        engine=InProcessEngine(flow, dry_log, ports.store),
        observer=Quiet(),
        clock=_Impatient(now_ms),
        new_run_id=lambda: "doctor",
        settings=settings.asking(takeover=True),
    )
    service_of(env).start()


def refused_start(
    facts: Facts, log: Log | None, stores: Mapping[str, StateStore], now_ms: Callable[[], int]
) -> list[Diagnostic]:
    """Why a start would not come to its first batch, as one finding with the error's name; [] if it would.

    Nothing is tried while a run is alive: it has started.

    Args:
        facts: of the flow.
        log: see `start_dry`; None: the flow has no topics.
        stores: see `start_dry`.
        now_ms: see `start_dry`.
    """
    flow = facts.flow
    if log is None or facts.alive or not can_start_dry(flow):
        return []
    try:
        start_dry(flow, log, stores, now_ms)
    except ChainError as error:
        text = f"a start ends with this, or waits for it: {error}"
        return [Diagnostic(type(error).__name__, "error", f"flow {flow.name}", text)]
    return []
