"""The work of windows on units side by side: runs of records that only change open windows are folded at once."""

from __future__ import annotations

from collections.abc import Sequence

from sqe_chain.flow.units import Unit, UnitRun
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
                self._stop(run, error)
            if index < len(run):
                super().apply((run[index],))
                index += 1
