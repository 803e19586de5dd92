"""The work of windows: runs of records that only change open windows are folded at once; early results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqe_chain.flow.context import Origin
from sqe_chain.flow.stage_kind import StageTask
from sqe_chain.flow.units import Push, Unit, UnitRun
from sqe_chain.stages.record_work import RecordKind, RecordWork
from sqe_chain.stages.run_work import RunWork
from sqe_chain.stages.user_code import RunError
from sqe_chain.stages.window_rows import OPEN


class WindowsWork(RunWork):
    """The work of windows in a flow that stops at poison: an attempt in which a fold fails is worth nothing, so it is given no copy.

    Args:
        kind: the stage; its windows fold runs.
        task: its table, clock and callbacks.
    """

    rows = OPEN

    def apply(self, units: Sequence[Unit]) -> None:
        """Fold units, those that do more than change one open window one by one; see `StageWork`."""
        run = UnitRun.of(units)
        self._load(run)
        index, fold_run = 0, self._stage.fold_run
        while index < len(run):
            # So that what the input before has given is gathered before this one can fail.
            self._task.before_input(run.origin(index))
            try:
                index = fold_run(run.keys, run.values, run.times_ms, index)
            except RunError as error:
                self._stop(run, error.index, error)
            if index < len(run):
                super().apply((run[index],))
                index += 1


class EarlyResults(RecordWork):
    """The work of windows whose `changes()` somebody takes: each window that the batch has changed, and that is still open.

    Args:
        kind: the stage.
        task: its table, clock and callbacks.
    """

    def __init__(self, kind: RecordKind[Any], task: StageTask) -> None:
        super().__init__(kind, task)
        self._stage.changed = {}
        self._early: list[tuple[Origin, Any]] = []

    def finish(self) -> None:
        """See `StageWork`."""
        found = (
            (record.unit[4], self._stage.still_open(key, span))
            for (key, span), record in self._stage.changed.items()
        )
        self._early = [(origin, result) for origin, result in found if result is not None]
        super().finish()

    def push_changes(self, push: Push) -> None:
        """Pass early results to the operators after `changes()`, in the order (last input that changed it, key, window)."""
        kind: Any = self._kind
        for origin, result in sorted(self._early, key=_order_of):
            self._task.before_input(origin)
            push(kind.value_of(result), result.key, b"", origin)


def _order_of(early: tuple[Origin, Any]) -> tuple[tuple[str, int, int], bytes, bytes, Any]:
    origin, result = early
    return origin.order, origin.tp.topic_id, result.key, result.span
