"""The work of a join with a table on units side by side: values that give no output are joined in one loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sqe_chain.flow.units import NUMBERS, Unit, UnitRun
from sqe_chain.stages.joining import JOINED
from sqe_chain.stages.run_work import RunWork
from sqe_chain.stages.user_code import RunError


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
        # So that what the input before has given is gathered before this one can fail.
        self._begin(run, index)
        while index < end:
            before = index
            try:
                index = join_run(run.keys, run.values, run.times_ms, index, end)
            except RunError as error:
                self._stop(run, error.index, error)
            if index > before and self._stage.has_results:
                self._begin(run, index - 1)
                try:
                    self._give(run[index - 1])
                except self._POISON as error:
                    self._stop(run, index - 1, error)
                self._begin(run, index)
            elif index < end:
                super().apply((run[index],))
                index += 1
                self._begin(run, index)

    def _begin(self, run: UnitRun, index: int) -> None:
        if index < len(run):
            self._task.before_input(run.origin(index))


def _input_of(path: bytes) -> bytes:
    """By which input of its stage a unit came."""
    return path[-len(NUMBERS[0]) :]
