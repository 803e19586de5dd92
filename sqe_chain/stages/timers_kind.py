"""The kind of aggregates with timers: connects the declaration in `sqe_chain.flow.aggregates` with `TimedAggregate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.context import Origin
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_values
from sqe_chain.flow.stage_kind import STANDARD, StageTask, StageTraits
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.timers import KeyTimers, TimersContext
from sqe_chain.flow.units import Push, Unit
from sqe_chain.stages.own_values import OwnValues
from sqe_chain.stages.record_work import RecordFunctions, RecordWork, UnitRecord
from sqe_chain.stages.timed_keys import KEYS, key_in
from sqe_chain.stages.timed_stage import TimedKind
from sqe_chain.stages.timers import Change, TimedAggregate, TimerFailed
from sqe_chain.stages.user_code import guarded


@dataclass(frozen=True)
class TimersKind(TimedKind[TimedAggregate[Any]]):
    """The kind of `aggregate` with `on_timer` or `expire_after_ms`."""

    name = "timers"

    fold: DeclaredFunction
    states: Codec[Any]
    on_timer: DeclaredFunction | None = None
    expire_after_ms: int | None = None
    beats: DeclaredFunction | None = None
    guard: Any = STANDARD

    @property
    def codec(self) -> Codec[Any]:
        return self.states

    @property
    def traits(self) -> StageTraits:
        return StageTraits(
            method="aggregate",
            called="aggregate",
            order="times",
            needs_key=True,
            heartbeat=self.beats,
            maker=self.fold.function,
            guard=self.time_guard,
            gives_fresh=True,
            gives_outputs=True,
            ticks=self.on_timer is not None,
            gives_later=self.on_timer is not None,
            sides=("changes",),
        )

    def check(self, where: str, *, dead_letters: bool) -> None:
        if self.on_timer is None and self.expire_after_ms is None:
            raise FlowError(f"{where}: an aggregate of this kind needs on_timer= or expire_after_ms=")
        if self.on_timer is not None and not self.fold.takes_context:
            raise FlowError(
                f"{where}: on_timer= without a fold that sets a timer: let the fold take the context as its third argument, "
                "and call context.set_timer(at_ms)"
            )
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> TimedAggregate[Any]:
        def in_context(declared: DeclaredFunction) -> Callable[..., Any]:
            call, takes_context = declared.function, declared.takes_context
            what = "fold" if declared is self.fold else "on_timer"
            values = OwnValues(what)

            def called(state: object, given: object, timers: KeyTimers) -> list[object]:
                context = [TimersContext(stage.cause, functions.now_ms, timers)] if takes_context else []
                given_values = call(state, given, *context)
                if given_values is None:
                    return []
                check_values(what, call, given_values, state)
                # What is given is passed on later: the next value may be the same object, filled again, or the state.
                return list(map(values.read_back, given_values))

            return called

        stage: TimedAggregate[Any] = TimedAggregate(
            table,
            state=self.states,
            fold=guarded(in_context(self.fold)),
            on_timer=None if self.on_timer is None else in_context(self.on_timer),
            expire_after_ms=self.expire_after_ms,
            stage=functions.name,
            **self.timing(clock_ms),
        )
        return stage

    def start(self, task: StageTask) -> TimersWork:
        return TimersWork(self, task)

    def states_in(self, row: bytes, content: bytes) -> Iterable[StoredState]:
        if not row.startswith(KEYS):  # of the timetable
            return ()
        return (StoredState(row[len(KEYS) :], key_in(self.states, None, content).state),)


class TimersWork(RecordWork):
    """The work of one such stage, in one state partition and batch."""

    def __init__(self, kind: TimersKind, task: StageTask) -> None:
        super().__init__(kind, task)
        self._broken = False

    def apply(self, units: Sequence[Unit]) -> None:
        # After a timer has failed nothing more is done, for this attempt counts for nothing
        if self._broken:
            return
        try:
            super().apply(units)
        except TimerFailed as error:
            self._break(error)

    def tick(self, origin: Origin, clock_ms: int) -> None:
        if self._broken:
            return
        self._stage.cause = origin
        try:
            self._stage.tick(clock_ms)
            self._give((b"", None, "", b"", origin))
            self._report_due()
        except TimerFailed as error:
            self._break(error)

    @property
    def timer_ms(self) -> int | None:
        timer_ms: int | None = self._stage.timer_ms
        return timer_ms

    def _break(self, error: TimerFailed) -> None:
        self._broken = True
        name = f"{error.timer.name!r} " if error.timer.name else ""
        what = f"on_timer, for the timer {name}of key {error.key!r} at {error.timer.at_ms} ms,"
        self._task.broken(what, error.raised)

    def finish(self) -> None:
        if not self._broken:
            super().finish()

    def push_changes(self, push: Push) -> None:
        """Pass changed states to the operators after `changes()`, in the order (last input that changed it, key)."""
        changes: Sequence[Change] = self._stage.take_changes()
        by_input = sorted(
            changes, key=lambda change: (change.cause.order, change.cause.tp.topic_id, change.key)
        )
        for key, state, origin in by_input:
            push(state, key, b"", origin)

    def _process(self, record: UnitRecord, unit: Unit) -> None:
        self._stage.cause = unit[4]
        super()._process(record, unit)

    def _beat(self, unit: Unit) -> None:
        self._stage.cause = unit[4]
        super()._beat(unit)
