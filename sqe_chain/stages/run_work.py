"""The work of stages that take runs of units side by side, in a flow that stops at poison."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from sqe_chain.flow.stage_kind import StageTask
from sqe_chain.flow.units import UnitRun
from sqe_chain.stages.record_work import LONGEST_KEY, RecordKind, RecordWork


class RunWork(RecordWork):
    """What such stages have in common: an attempt in which user code fails is worth nothing.

    Args:
        kind: the stage.
        task: its table, clock and callbacks.
    """

    rows: ClassVar[bytes]
    """Prefix of the rows of keys."""

    def __init__(self, kind: RecordKind[Any], task: StageTask) -> None:
        super().__init__(kind, task)
        self._loaded: set[bytes | None] = {None}

    def _load(self, run: UnitRun) -> None:
        """Load the rows of keys that were not met before."""
        fresh = set(run.keys).difference(self._loaded)
        self._loaded |= fresh
        self._task.table.load([self.rows + key for key in fresh if len(key) <= LONGEST_KEY])

    def _stop(self, run: UnitRun, index: int, error: Exception) -> NoReturn:
        """Stop at the unit for which user code has failed."""
        self._task.failed(run.origin(index), error, run.keys[index])
        raise AssertionError("poison stops this flow") from error
