"""A start as a service makes it, on copies of what it would change: nothing is written, published or committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ChainError, PlanMismatch, PoisonError
from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.features.overwrite import Overwrite
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import (
    Commit,
    Flush,
    Header,
    Home,
    Locations,
    Log,
    Membership,
    Output,
    Range,
    Rows,
    Sink,
    SinkClaim,
    SinkState,
    StateStore,
    TopicPartition,
    TransactionalWriter,
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


class _DiscardingTransactions(_Discarding, TransactionalWriter):
    """Publishes nothing, and fences nobody."""

    worn = False

    def commit(self) -> None:
        """Nothing is under way."""


class _DryMember(Membership):
    """A member of no group."""

    def __init__(self, log: _DryLog, group: str) -> None:
        self._log, self._group = log, group

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        return self._log.committed(self._group, partitions)

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        self._log.commit(self._group, commits)

    def leave(self) -> None:
        """It has not joined."""


class _DryLog:
    """A log whose commits stay here, which joins no group, and whose writers publish nothing; everything else is the log's own.

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

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        """Join nothing: a run that is alive goes on."""
        del topics
        return _DryMember(self, group)

    def writer(self) -> Writer:
        """A writer that publishes nothing."""
        return _Discarding()

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> TransactionalWriter:
        """A writer that publishes nothing: a run that is alive goes on. The right to transactions is tried by an id of our own."""
        self._log.transactional_writer(f"{transactional_id}.doctor", topics).close()
        return _DiscardingTransactions()


class _DryStore:
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


class _DrySink:
    """A table that is looked at and not claimed, and takes no rows.

    Args:
        sink: what is looked at.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def check(self) -> list[str]:
        """The table's own answer."""
        return self._sink.check()

    def remarks(self) -> list[str]:
        """The table's own answer."""
        return self._sink.remarks()

    def look(self, flow: str, stage: str, parts: range) -> SinkState:
        """The table's own answer."""
        return self._sink.look(flow, stage, parts)

    def claim(self, claim: SinkClaim) -> None:
        """Claim nothing."""

    def flush(self, flush: Flush) -> tuple[int, bytes]:
        """Drop the rows."""
        return 0, flush.known or b""


def _start_dry(
    flow: CompiledFlow, log: Log, stores: Mapping[str, StateStore], now_ms: Callable[[], int]
) -> None:
    """Do what a start does before its first batch, and read a record of each input topic.

    It checks, claims, finishes an open plan or batch, and enters new inputs and stages. What another run claims is taken over
    here, without waiting for its heartbeat. Weak durability is no error here.

    Args:
        flow: the flow.
        log: brokers and files; nothing is published or committed.
        stores: store name -> store; nothing is written.
        now_ms: this machine's clock, milliseconds since 1970.

    Raises:
        ChainError: what the start would end with, or wait for.
    """
    dry_log: Any = _DryLog(log)
    dry_stores: dict[str, Any] = {name: _DryStore(store) for name, store in stores.items()}
    ports = Ports(dry_log, dry_stores, _DrySink)
    settings = Settings(allow_weak_durability=True)
    env = Environment(
        flow=flow,
        ports=ports,
        engine=InProcessEngine(flow, dry_log, ports.store, sinks=ports.sink),
        observer=Quiet(),
        clock=_Impatient(now_ms),
        new_run_id=lambda: "doctor",
        settings=settings.asking(takeover=True),
    )
    service_of(env).start()
    _read_one_of_each(log, flow.input_topics)


def _read_one_of_each(log: Log, topics: Collection[str]) -> None:
    """Read the newest record of each topic: the rights to all records of a topic are the same.

    Raises:
        ChainError: one cannot be read.
    """
    infos = log.describe(topics)
    for info in infos.values():
        for (topic, partition), bound in log.bounds([(info.name, n) for n in range(info.partitions)]).items():
            if bound.stable_end > bound.begin:
                newest = Range(topic, info.topic_id, partition, bound.stable_end - 1, bound.stable_end)
                for _ in log.read(newest):
                    pass
                break


_ATTEMPTS: Final = 3
_WAIT_MS: Final = 1_000
_OF_A_BATCH: Final = (PlanMismatch, PoisonError)
"""What is wrong with a batch that a run has begun; while the run is alive it may finish that batch itself."""


def refused_start(
    facts: Facts,
    log: Log | None,
    stores: Mapping[str, StateStore],
    now_ms: Callable[[], int],
    wait: Callable[[int], object],
) -> list[Diagnostic]:
    """Why a start would not come to its first batch, as one finding with the error's name; and what of it could not be tried.

    While a run is at work, what is read is not of one moment. So an error counts only if nothing has moved meanwhile, and if it is
    not of a batch that the run is about to finish.

    Args:
        facts: of the flow.
        log: see `_start_dry`; None: the flow has no inputs.
        stores: see `_start_dry`.
        now_ms: see `_start_dry`.
        wait: waits for some milliseconds, before the next attempt.
    """
    flow, where = facts.flow, f"flow {facts.flow.name}"
    if log is None:
        return []
    if facts.plan is not None and Overwrite.of(facts.plan).under_way:
        why = "an overwrite is under way, and a start was not made on copies"
        return [report("not-tried", where, why=why, action="sqe-chain load")]
    untried = [
        report(
            "not-tried",
            f"stage {stage.name!r}",
            why="its table was looked at, and not claimed or written",
            action="start the service",
        )
        for stage in flow.stages
        if stage.stage_kind.sink is not None
    ]
    last: ChainError | None = None
    for _ in range(_ATTEMPTS):
        if last is not None:
            wait(_WAIT_MS)
        before = _moving_parts(flow, log, stores)
        try:
            _start_dry(flow, log, stores, now_ms)
        except ChainError as error:
            still = _moving_parts(flow, log, stores) == before
            if still and not (facts.alive and isinstance(error, _OF_A_BATCH)):
                text = f"a start ends with this, or waits for it: {error}"
                return [Diagnostic(type(error).__name__, "error", where, text), *untried]
            last = error
        else:
            return untried
    why = (
        f"a run is at work in a batch; a start made now, on copies, ended with {type(last).__name__}: {last}"
    )
    action = "stop the run, then look again with the code that is to start"
    return [report("not-tried", where, why=why, action=action), *untried]


def _moving_parts(flow: CompiledFlow, log: Log, stores: Mapping[str, StateStore]) -> object:
    """What a run changes as it works: claim, plan and headers; without stages the commits. Errors are no matter here."""
    with suppress(ChainError):
        if flow.keeps_plans:
            home, _ = stores[""].home(flow.name)
            where = stores[""].locations(flow.name)
            headers = [
                stores[stage.store or ""].headers(
                    at.flow, stage.name, range(at.state_partitions * at.buckets)
                )
                for stage in flow.stages
                if where is not None and (at := where.stages.get(stage.name)) is not None
            ]
            return home, headers
        infos = log.describe(flow.input_topics)
        tps = [(info.name, partition) for info in infos.values() for partition in range(info.partitions)]
        return log.committed(flow.declared_name, tps)
    return None
