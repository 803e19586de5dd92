"""The invariants of the table of a world, checked after every commit to it and after every header of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Header
from tests.lab.reference.expected import ExpectedStates, TableRow
from tests.lab.simulator.table_rows import Markers, difference, is_compacted, markers_of

if TYPE_CHECKING:
    from sqe_chain.ext.tables.memory import MemorySnapshot
    from sqe_chain.ext.tables.storage import Head
    from tests.lab.simulator.table_audit import TableAudit


class Require(Protocol):
    """Raises a violation of an invariant where it does not hold."""

    def __call__(self, name: str, holds: bool, text: str, /) -> None:
        """See the class."""


class TableChecks:
    """Compares the table with the plans.

    Args:
        table: reads it.
        state_partitions: of `totals`.
        plans: id -> plan; more are added while it runs.
        expected: plan id -> what must be after it.
        require: called for each invariant that was checked.

    Attributes:
        is_back: the table is one of an earlier time, and the service has yet to notice it.
        sealed_epoch: epoch of the run that has sealed the last plan, and so has claimed the table before.
    """

    def __init__(
        self,
        table: TableAudit,
        state_partitions: int,
        plans: Mapping[str, Plan],
        expected: Mapping[str, ExpectedStates],
        require: Require,
    ) -> None:
        self.is_back = False
        self._table = table
        self._parts = range(state_partitions)
        self._plans = plans
        self._expected = expected
        self._require = require
        self.reset()

    def reset(self) -> None:
        """Forget what was seen, because table or store were rolled back."""
        self.sealed_epoch = 0
        self._markers: dict[int, Markers] = {}

    def on_commit(self, moved: Mapping[int, Head]) -> None:
        """Check a commit that took effect, by the heads that it has moved; a compaction moves none."""
        snapshot = self._table.snapshot()
        if snapshot is None or self.is_back:
            return
        late = any(head.epoch < self.sealed_epoch for head in moved.values())
        self._require("one writer", not late, f"table: {moved}, epoch {self.sealed_epoch} has sealed")
        rows = self._table.parts(snapshot)
        for part in self._parts:
            markers, where = markers_of(snapshot, "totals", part), f"table, state partition {part}"
            before = self._markers.get(part, Markers())
            self._markers[part] = markers
            back = markers.number < before.number or markers.epoch < before.epoch
            self._require("monotone", not back, f"{where}: {markers}, before {before}")
            plan_id = self._plan_of(markers)
            sealed = markers.number < 0 or plan_id is not None
            self._require("order", sealed, f"{where}: {markers}, of a plan that nobody sealed")
            self._check_rows(snapshot, part, rows.get(part, ()), plan_id, where)

    def on_seal(self, epoch: int) -> None:
        """Check that a run which seals a plan has claimed the table before."""
        self.sealed_epoch = epoch
        snapshot = self._table.snapshot()
        if self.is_back or snapshot is None:
            return
        for part in self._parts:
            markers = markers_of(snapshot, "totals", part)
            text = f"a run with epoch {epoch} has sealed a plan, and the table is at {markers}"
            self._require("one writer", markers.epoch >= epoch, text)

    def on_header(self, part: int, header: Header, where: str) -> None:
        """Check that the table has what the header of a state partition promises."""
        if self.is_back:
            return
        snapshot = self._table.snapshot()
        if snapshot is None:
            wanted = self._expected[header.plan_id].rows.get(part, ())
            self._require("prefix", not wanted, f"{where}: there is no table")
            return
        markers = markers_of(snapshot, "totals", part)
        plan_id = self._plan_of(markers) if markers.number >= header.number else header.plan_id
        rows = self._table.parts(snapshot).get(part, ())
        self._check_rows(snapshot, part, rows, plan_id, f"{where}, table at {markers}")

    def _check_rows(
        self,
        snapshot: MemorySnapshot,
        part: int,
        rows: Sequence[tuple[int, TableRow]],
        plan_id: str | None,
        where: str,
    ) -> None:
        expected = self._expected.get(plan_id or "")
        wanted = expected.rows.get(part, ()) if expected is not None else ()
        wrong = difference(rows, wanted, compacted=is_compacted(snapshot, part))
        self._require("prefix", not wrong, f"{where}: {wrong}")

    def _plan_of(self, markers: Markers) -> str | None:
        """The id of the plan that markers name."""
        from sqe_chain.ext.tables.storage import word  # noqa: PLC0415 - needs pyarrow

        found = (plan.plan_id for plan in self._plans.values() if plan.number == markers.number)
        return next((one for one in found if word(one) == markers.plan), None)
