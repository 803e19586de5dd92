"""The kinds of joins: connect their declarations in `sqe_chain.flow.joins` with `TableJoin` and `StreamJoin`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import check_choice
from sqe_chain.flow.filtering import guard_setting
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import MATCHED, STANDARD, UNMATCHED, StageTask, StageTraits, StageWork
from sqe_chain.flow.table import Table
from sqe_chain.flow.units import NUMBERS, Unit, UnitRun
from sqe_chain.stages.joining import JOINED, StreamJoin
from sqe_chain.stages.record import Record
from sqe_chain.stages.record_work import Given, RecordFunctions, RecordKind, RecordWork, RunWork
from sqe_chain.stages.table_join import TableJoin
from sqe_chain.stages.user_code import RunError, guarded
from sqe_chain.stages.windowing import WINDOW_GUARD


def is_second(record: Record) -> bool:
    """Whether a record came by the second input of its stage: the compiler ends its path with the number of the input."""
    unit: Any = getattr(record, "unit", ())
    return bool(unit[3].endswith(NUMBERS[1]))


@dataclass(frozen=True)
class JoinKind(RecordKind[Any]):
    """What both kinds have in common."""

    method: ClassVar[str]

    combine: DeclaredFunction
    how: str = "inner"
    guard: Any = STANDARD
    late: Any = "drop"

    @property
    def traits(self) -> StageTraits:
        return StageTraits(
            method=self.method,
            called="join",
            order="times",
            inputs=2,
            needs_key=True,
            maker=self.combine.function,
            guard=WINDOW_GUARD if self.guard == STANDARD else self.guard,
            gives_outputs=True,
            sides=("dropped",),
        )

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        return (self.combine,)

    def check(self, where: str, *, dead_letters: bool) -> None:
        check_choice("late", self.late, ("drop", "stop"), where)
        super().check(where, dead_letters=dead_letters)

    def outputs(self, stage: TableJoin | StreamJoin) -> Iterable[Given]:
        return [Given(key, value) for key, value in stage.take_results()]

    def _common(self, clock_ms: int | None) -> dict[str, Any]:
        call: Callable[..., Any] = guarded(self.combine.function)
        return {
            "combine": call,
            "is_second": is_second,
            "how": self.how,
            "clock_ms": clock_ms,
            **guard_setting(self.guard),
        }


@dataclass(frozen=True)
class TableJoinKind(JoinKind):
    """The kind of `join_table`; see there, and `TableJoin`."""

    name = "table-join"
    method = "join_table"

    deleted: DeclaredFunction | None = None
    history_ms: int = 0
    static: bool = False

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        return (self.combine,) if self.deleted is None else (self.combine, self.deleted)

    def check(self, where: str, *, dead_letters: bool) -> None:
        if self.static and (self.history_ms or self.guard != STANDARD):
            raise FlowError(
                f"{where}: join_table(static=True) goes by no times, so it has neither history_ms nor guard: leave them out"
            )
        super().check(where, dead_letters=dead_letters)

    def counted(self, stage: TableJoin) -> dict[str, int]:
        return {MATCHED: stage.joined, UNMATCHED: stage.unmatched}

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> TableJoin:
        del functions
        deleted = None if self.deleted is None else guarded(self.deleted.function)
        join = TableJoin(
            table,
            deleted=deleted,
            history_ms=self.history_ms,
            static=self.static,
            **self._common(clock_ms),
        )
        join.plain_combine = self.combine.function
        return join

    def start(self, task: StageTask) -> StageWork:
        return RecordWork(self, task) if task.reversible else TableJoinWork(self, task)


@dataclass(frozen=True)
class StreamJoinKind(JoinKind):
    """The kind of `join_stream`; see there, and `StreamJoin`."""

    name = "stream-join"
    method = "join_stream"

    before_ms: int = 0
    after_ms: int = 0
    lateness_ms: int = 0

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> StreamJoin:
        del functions
        return StreamJoin(
            table,
            before_ms=self.before_ms,
            after_ms=self.after_ms,
            lateness_ms=self.lateness_ms,
            **self._common(clock_ms),
        )


class TableJoinWork(RunWork):
    """The work of a join with a table in a flow that stops at poison.

    Args:
        kind: the stage.
        task: its table, clock and callbacks.
    """

    rows = JOINED

    def apply(self, units: Sequence[Unit]) -> None:
        """Join units; changes of the table are taken one by one. See `StageWork`."""
        run = UnitRun.of(units)
        self._load(run)
        begin = 0
        for path, same in groupby(run.paths, key=_input_of):
            end = begin + len(list(same))
            if path == NUMBERS[0]:
                self._join(run, begin, end)
            else:
                super().apply(run[begin:end])
            begin = end

    def _join(self, run: UnitRun, begin: int, end: int) -> None:
        """Join values of the first stream."""
        index, join_run = begin, self._stage.join_run
        while index < end:
            before = index
            try:
                index = join_run(run.keys, run.values, run.times_ms, index, end)
            except RunError as error:
                self._stop(run, error.index, error)
            if index > before and self._stage.has_results:
                try:
                    self._give(run[index - 1])
                except self._POISON as error:
                    self._stop(run, index - 1, error)
            elif index < end:
                super().apply((run[index],))
                index += 1


def _input_of(path: bytes) -> bytes:
    """By which input of its stage a unit came."""
    return path[-len(NUMBERS[0]) :]
