"""The kind of windowed stages: connects the declaration in `sqe_chain.flow.windows` with `WindowedAggregate`."""

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
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import STANDARD, StageTask, StageTraits, StageWork
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import Push, Unit, UnitRun
from sqe_chain.stages.record_work import Given, RecordFunctions, RecordKind, RecordWork, RunWork, context_of
from sqe_chain.stages.timed_stage import TimedKind
from sqe_chain.stages.user_code import RunError, guarded
from sqe_chain.stages.window_rows import OPEN, RETAINED, SHOWN, Result, key_of_shown, results_of
from sqe_chain.stages.windows import WindowedAggregate


@dataclass(frozen=True)
class WindowsKind(TimedKind[WindowedAggregate[Any]]):
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

    @property
    def codec(self) -> Codec[Any]:
        return self.states

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
            windowed=True,
            sides=("dropped", "changes"),
            may_be_last=bool(self.retention_ms),
        )

    def check(self, where: str, *, dead_letters: bool) -> None:
        if check_windows(self.windows, where, overlap=True).merges and self.merge is None:
            raise FlowError(
                f"{where}: sessions need merge=: a record between two sessions merges their states"
            )
        if self.merge is not None and self.merge.takes_context:
            raise FlowError(f"{where}: merge must take 2 argument(s), and no context")
        super().check(where, dead_letters=dead_letters)

    def start(self, task: StageTask) -> StageWork:
        if task.changes:
            return EarlyResults(self, task)
        plain = not (
            task.reversible or self.fold.takes_context or self.windows.overlap or self.windows.merges
        )
        if plain and self.beats is None and self.states.self_checking:
            return WindowsWork(self, task)
        return RecordWork(self, task)

    def stage(
        self, table: RowTable, functions: RecordFunctions, clock_ms: int | None
    ) -> WindowedAggregate[Any]:
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

        windows: WindowedAggregate[Any] = WindowedAggregate(
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

    def outputs(self, stage: WindowedAggregate[Any]) -> Iterable[Given]:
        """The windows that have become final, under the input that moved stream time past their end."""
        return (
            Given(result.key, self.value_of(result), "the window from {} to {} ms".format(*result.span))
            for result in stage.take_results()
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

    def close(self, stage: WindowedAggregate[Any], event_ms: int) -> None:
        stage.close_all(event_ms)

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
    """The work of windows in a flow that stops at poison: folds change states without copies."""

    rows = OPEN

    def apply(self, units: Sequence[Unit]) -> None:
        run = UnitRun.of(units)
        self._load(run)
        # The user's own function: a fold that fails ends the attempt, so nobody has to know whose error it was.
        kind: Any = self._kind
        index, fold_run, fold = 0, self._stage.fold_run, kind.fold.function
        while index < len(run):
            try:
                index = fold_run(fold, run.keys, run.values, run.times_ms, index)
            except RunError as error:
                self._stop(run, error.index, error)
            if index < len(run):
                super().apply((run[index],))
                index += 1


class EarlyResults(RecordWork):
    """The work of windows with `changes()`: it emits each window that the batch has changed, and that is still open."""

    def __init__(self, kind: RecordKind[Any], task: StageTask) -> None:
        super().__init__(kind, task)
        self._stage.changed = {}
        self._early: list[tuple[Origin, Any]] = []

    def finish(self) -> None:
        changed = (
            (record.unit[4], self._stage.still_open(key, span))
            for (key, span), record in self._stage.changed.items()
        )
        self._early = [(origin, result) for origin, result in changed if result is not None]
        super().finish()

    def push_changes(self, push: Push) -> None:
        """Pass early results to the operators after `changes()`, in the order (last input that changed it, key, window)."""
        kind: Any = self._kind
        for origin, result in sorted(
            self._early, key=lambda early: (early[0].order, early[0].tp.topic_id, *early[1][:2])
        ):
            push(kind.value_of(result), result.key, b"", origin)
