"""What `windowed` declares: the kind of stages of windows, and its work in one state partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from sqe_chain._proto.window_result_pb2 import WindowResult
from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.codecs import Codec
from sqe_chain.codecs.window import key_text, window_of
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.context import Origin
from sqe_chain.flow.declaration import check_windows
from sqe_chain.flow.event_time import event_ms
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import STANDARD, EventTimeSpan, StageTask, StageTraits, StageWork
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import Push, Unit, UnitRun
from sqe_chain.stages.record_work import Given, RecordFunctions, RunWork, context_of, moves_in
from sqe_chain.stages.timed_stage import TimedKind
from sqe_chain.stages.user_code import RunError, guarded
from sqe_chain.stages.window_rows import OPEN, RETAINED, SHOWN, Result, key_of_shown, results_of
from sqe_chain.stages.window_runs import WindowRuns
from sqe_chain.stages.window_table import WindowTable, window_columns


@dataclass(frozen=True)
class WindowsKind(TimedKind[WindowRuns[Any]]):
    """The kind of `windowed`."""

    name = "windows"

    windows: Any
    states: Codec[Any]
    fold: DeclaredFunction
    merge: DeclaredFunction | None = None
    lateness_ms: int = 0
    late: Any = "drop"
    retention_ms: int = 0
    beats: DeclaredFunction | None = None
    guard: Any = STANDARD
    shown: bool = False
    time: DeclaredFunction | None = None

    @property
    def codec(self) -> Codec[Any]:
        return self.states

    @property
    def state_table(self) -> WindowTable:
        return WindowTable(self.states, window_columns(self.states))

    @property
    def traits(self) -> StageTraits:
        # Only a stage that is declared with a view keeps a row for each window; retained ones can be read
        return StageTraits(
            method="windowed",
            called="filter",
            order="times",
            heartbeat=self.beats,
            guard=self.time_guard,
            gives_outputs=True,
            has_views=self.shown,
            falls_due=True,
            windowed=True,
            sides=("dropped", "changes"),
            may_be_last=bool(self.retention_ms),
            own_times=self.own_times,
        )

    def check(self, where: str, *, dead_letters: bool) -> None:
        if check_windows(self.windows, where, overlap=True).merges and self.merge is None:
            raise FlowError(
                f"{where}: sessions need merge=: a record between two sessions merges their states"
            )
        if self.merge is not None and self.merge.takes_context:
            raise FlowError(f"{where}: merge must take 2 argument(s), and no context")
        super().check(where, dead_letters=dead_letters)

    @property
    def only_folds(self) -> bool:
        """Whether a value does nothing but change the state of one window, so that it needs no record around it."""
        fixed = not (self.windows.overlap or self.windows.merges)
        plain = not any(function.takes_context for function in self.functions)
        guard, refuses = self.time_guard, False
        if self.time is not None and guard is not None:
            refuses = guard.policy != "hold"  # it judges each record
        return fixed and plain and not refuses and self.beats is None

    def start(self, task: StageTask) -> StageWork:
        return WindowsWork(self, task)

    def begin(self, stage: WindowRuns[Any], event_time: EventTimeSpan) -> None:
        super().begin(stage, event_time)
        stage.note_missed(event_time.late_ms)

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> WindowRuns[Any]:
        call: Callable[..., Any] = guarded(self.fold.function)

        @wraps(call)
        def fold_in_context(state: object, value: object) -> object:
            if windows.record is None:
                raise AssertionError("a fold is called for a record")
            context = context_of(windows.record, functions.now_ms)
            given = call(state, value, context)
            if context.state_deleted:
                raise PoisonError(
                    f"stage {functions.name!r}: delete_state() is not for windows: a window's state ends with the window"
                )
            return given

        windows: WindowRuns[Any] = WindowRuns(
            table,
            windows=self.windows,
            state=self.states,
            fold=fold_in_context if self.fold.takes_context else call,
            merge=None if self.merge is None else guarded(self.merge.function),
            lateness_ms=self.lateness_ms,
            retention_ms=self.retention_ms,
            shown=self.shown,
            **self.timing(clock_ms),
        )
        return windows

    def outputs(self, stage: WindowRuns[Any]) -> Iterable[Given]:
        """The windows that have become final, with the moment at which they did."""
        moments = stage.moments
        return (
            Given(
                result.key,
                self.value_of(result),
                "the window from {} to {} ms".format(*result.span),
                moments.get(index),
            )
            for index, result in enumerate(stage.take_results())
        )

    def value_of(self, result: Result) -> object:
        """A value of the flow's kind: JSON with its state, or the message for states in any other form."""
        key, (start_ms, end_ms), state = result
        if self.states.name == "json":
            return window_of(self.states.python_type)(key_text(key), start_ms, end_ms, state)
        encoded = self.states.encode(state)
        return WindowResult(
            key=key, start_ms=start_ms, end_ms=end_ms, type=self.states.type_name, state=encoded
        )

    def close(self, stage: WindowRuns[Any], event_ms: int) -> None:
        stage.close_all(event_ms, early=self.time is not None)

    def states_in(self, row: bytes, content: bytes) -> Iterable[StoredState]:
        # Each open window, and each final one that is retained
        final = row.startswith(RETAINED)
        for key, span, state in results_of(row, content, self.states):
            yield StoredState(key, state, span, final)

    def shown_in(self, row: bytes, content: bytes) -> Mapping[str, object] | None:
        # Each window that has a row of its own, as results in topics have it, and whether it is final
        if not row.startswith(SHOWN):
            return None
        (window,) = WindowsRow.FromString(content).windows
        return {
            "key": key_text(key_of_shown(row)),
            "start_ms": window.start_ms,
            "end_ms": window.start_ms + window.length_ms,
            "final": window.final,
            "state": self.states.to_view(self.states.decode(window.state)),
        }


class WindowsWork(RunWork):
    """The work of windows: record by record, or in runs where values are only folded."""

    rows = OPEN

    def __init__(self, kind: WindowsKind, task: StageTask) -> None:
        super().__init__(kind, task)
        self._declared = kind
        # Runs change states without copies: not where an input may be taken back. They note no records: not for early results.
        self._in_runs = kind.only_folds and not (task.reversible or task.changes)
        if task.changes:
            self._stage.changed = {}
        # Each window that the batch has changed and that is open at its end, with the input that changed it last.
        self._early: list[tuple[Origin, Result]] = []

    def apply(self, units: Sequence[Unit]) -> None:
        if not self._in_runs:
            super().apply(units)
            return
        run = UnitRun.of(units)
        self._load(run)
        # The user's own function: a fold that fails ends the attempt, so nobody has to know whose error it was.
        times_ms, (moves_ms, placed) = run.times_ms, moves_in(run)
        if self._declared.time is not None:
            times_ms, moves_ms = self._own_times(run, self._declared.time), run.orders_ms
        if not times_ms:  # it fails on its record
            super().apply(run)
            return
        index, fold_run, fold = 0, self._stage.fold_run, self._declared.fold.function
        while index < len(run):  # each turn takes one unit at least
            try:
                index = fold_run(fold, run.keys, run.values, times_ms, index, moves_ms, placed=placed)
            except RunError as error:
                self._stop(run, error.index, error)
            if index < len(run):
                super().apply((run[index],))
                index += 1

    @property
    def missed(self) -> int:
        missed: int = self._stage.missed
        return missed

    def finish(self) -> None:
        for (key, span), record in (self._stage.changed or {}).items():
            result = self._stage.still_open(key, span)
            if result is not None:
                self._early.append((record.unit[4], result))
        super().finish()

    def _own_times(self, run: UnitRun, time: DeclaredFunction) -> list[int]:
        """The times of the values of a run; none where they have to be looked at one by one."""
        call = time.function
        if min(run.orders_ms) < 0:
            return []
        try:
            return [event_ms(call(value)) for value in run.values]
        except Exception:  # noqa: BLE001 - user code may raise anything
            return []

    def push_changes(self, push: Push) -> None:
        """Pass early results to the operators after `changes()`, in the order (last input that changed it, key, window)."""
        for origin, result in sorted(
            self._early, key=lambda early: (early[0].order, early[0].tp.topic_id, *early[1][:2])
        ):
            push(self._declared.value_of(result), result.key, b"", origin)
