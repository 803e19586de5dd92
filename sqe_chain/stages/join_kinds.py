"""The kinds of joins: connect their declarations in `sqe_chain.flow.joins` with `TableJoin` and `StreamJoin`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import check_choice
from sqe_chain.flow.filtering import guard_setting
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import MATCHED, STANDARD, UNMATCHED, StageTask, StageTraits, StageWork
from sqe_chain.flow.table import Table
from sqe_chain.flow.units import NUMBERS
from sqe_chain.stages.join_work import TableJoinWork
from sqe_chain.stages.joining import StreamJoin
from sqe_chain.stages.record import Record
from sqe_chain.stages.record_work import Given, RecordFunctions, RecordKind, RecordWork
from sqe_chain.stages.table_join import TableJoin
from sqe_chain.stages.user_code import guarded
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
        """See `StageKind`."""
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
        """See `StageKind`."""
        return (self.combine,)

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        guard_setting(self.guard, where)
        check_choice("late", self.late, ("drop", "stop"), where)
        super().check(where, dead_letters=dead_letters)

    def outputs(self, stage: TableJoin | StreamJoin) -> Iterable[Given]:
        """See `RecordKind`."""
        return [Given(key, value) for key, value in stage.take_results()]

    def _common(self, clock_ms: int | None) -> dict[str, Any]:
        call: Callable[..., Any] = guarded(self.combine.function)
        return {
            "combine": call,
            "is_second": is_second,
            "how": self.how,
            "clock_ms": clock_ms,
            **guard_setting(self.guard, ""),
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
        """See `StageKind`."""
        return (self.combine,) if self.deleted is None else (self.combine, self.deleted)

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        if self.static and (self.history_ms or self.guard != STANDARD):
            raise FlowError(
                f"{where}: join_table(static=True) goes by no times, so it has neither history_ms nor guard: leave them out"
            )
        super().check(where, dead_letters=dead_letters)

    def counted(self, stage: TableJoin) -> dict[str, int]:
        """See `RecordKind`."""
        return {MATCHED: stage.joined, UNMATCHED: stage.unmatched}

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> TableJoin:
        """See `RecordKind`."""
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
        """See `StageKind`."""
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
        """See `RecordKind`."""
        del functions
        return StreamJoin(
            table,
            before_ms=self.before_ms,
            after_ms=self.after_ms,
            lateness_ms=self.lateness_ms,
            **self._common(clock_ms),
        )
