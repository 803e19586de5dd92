"""Reading and writing the states of cells, with each cell's header checked around every read.

A cell is what has a header of its own: a (stage, state partition), or one bucket of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import StoreInconsistent, Superseded, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Header, Rows, Shown, StateStore, ViewKind, Views, ViewTable


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may write: the run's epoch and random name."""

    epoch: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Transition:
    """From one plan to the next: where headers are before it, and who applies it.

    Attributes:
        flow: flow name.
        claim: the run.
        before_number: number of the plan before.
        before_id: its id.
        stored_in: stage name -> name of the flow under which its states are stored, where that is another name.
    """

    flow: str
    claim: Claim
    before_number: int
    before_id: str
    stored_in: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def without_plans(cls, flow: str) -> Self:
        """That of a flow without stages, whose place is in its group's commits."""
        return cls(flow, Claim(0, ""), 0, "")

    def store_flow(self, stage: str) -> str:
        """The name of the flow under which a stage's states are stored."""
        return self.stored_in.get(stage, self.flow)


def check_owner(header: Header | None, claim: Claim, where: str) -> Header:
    """The header, after a check that this run stamped it.

    Args:
        header: as read.
        claim: this run.
        where: flow, stage and state partition, for the error's text.

    Raises:
        Superseded: a newer run stamped it.
        StoreInconsistent: it is missing, or its states are, or shows an older stamp: the store went back in time.
    """
    if header is None:
        raise StoreInconsistent(f"{where}: the header is gone; the store lost what it had acknowledged")
    if header.lost:
        header.check_whole(where)
    if header.epoch > claim.epoch or (header.epoch == claim.epoch and header.run_id != claim.run_id):
        raise Superseded(f"{where}: run {header.run_id} has epoch {header.epoch}, this one {claim.epoch}")
    if header.epoch < claim.epoch:
        raise StoreInconsistent(
            f"{where}: stamped with epoch {claim.epoch} by this run, now {header.epoch}: the store went back in "
            "time. Start again: recovery finds out what can be done"
        )
    return header


class CellStates:
    """The states of one cell, for the batch at hand.

    The first read decides what is left to do. That is nothing when the plan is applied already, as in a redo
    or a recomputation after the persist, and less when it is begun. Every later read must find the same header.

    Attributes:
        where: flow, stage and cell, for texts.
        done: this batch is applied already.
        cursor: it is applied to keys up to this one; None: to none.
    """

    def __init__(self, store: StateStore, transition: Transition, stage: str, part: int) -> None:
        self._store = store
        self._transition = transition
        self._stage = stage
        self._part = part
        self._first: Header | None = None
        self.where = f"{transition.flow}/{stage}/{part}"
        self.done = False
        self.cursor: bytes | None = None

    def settled(self, key: bytes) -> bool:
        """Whether this batch is known to be applied to a key already."""
        return self.done or (self.cursor is not None and key <= self.cursor)

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The states of these keys: as they were before this batch; of keys up to the cursor, as they are after it.

        Raises:
            Superseded: a newer run owns the flow.
            StoreInconsistent: a header is not as the plan before left it.
            Unavailable: the store does not answer.
        """
        transition = self._transition
        flow = transition.store_flow(self._stage)
        # Header, states, header: where both are the same, no other run wrote between, and the states are of one moment.
        before, states, after = self._store.read(flow, self._stage, self._part, keys)
        for header in (before, after):
            stored = check_owner(header, transition.claim, self.where)
            if self._first is None:
                self._begin(stored)
            elif stored != self._first:
                raise StoreInconsistent(
                    f"{self.where}: the header moved while it was read: {self._first} to {stored}"
                )
        return states

    def _begin(self, stored: Header) -> None:
        transition, self._first = self._transition, stored
        # This plan or a later one is there: a redo has nothing to do in this cell.
        if stored.number > transition.before_number:
            self.done = True
        # As the plan before left it: the usual case.
        elif stored.number == transition.before_number and stored.plan_id == transition.before_id:
            # Begun and not ended: a killed attempt has written the keys up to the cursor. They are as after this
            # batch.
            self.cursor = stored.cursor if stored.begun_id else None
        else:
            raise StoreInconsistent(
                f"{self.where}: is at plan {stored.number} ({stored.plan_id}), expected was "
                f"{transition.before_number} ({transition.before_id}): the store went back in time; start again"
            )


class PartitionStates:
    """The states of one stage in one state partition, for the batch at hand: those of its buckets.

    Args:
        store: the stage's store.
        transition: the batch's.
        stage: stage name.
        part: state partition.
        layout: number of state partitions, and of buckets of each.
    """

    def __init__(
        self, store: StateStore, transition: Transition, stage: str, part: int, layout: tuple[int, int]
    ) -> None:
        self._partitions, self._buckets = layout
        self._first = part * self._buckets
        numbers = range(self._first, self._first + self._buckets)
        self._cells = {cell: CellStates(store, transition, stage, cell) for cell in numbers}

    @property
    def done(self) -> bool:
        """Whether the plan is known to be applied already in the whole state partition."""
        return all(cell.done for cell in self._cells.values())

    def cell(self, key: bytes) -> int:
        """The number of the cell that stores a key of this state partition."""
        if self._buckets == 1:
            return self._first
        return cell_of(key, self._partitions, self._buckets)

    @property
    def untouched(self) -> bool:
        """Whether no key is known to be settled."""
        return all(not cell.done and cell.cursor is None for cell in self._cells.values())

    def settled(self, key: bytes) -> bool:
        """Whether this batch is known to be applied to a key already."""
        return self._cells[self.cell(key)].settled(key)

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """The states of these keys; None where there is none, or where the whole cell is done.

        Without keys, it reads the headers alone.

        Raises:
            Superseded: a newer run owns the flow.
            StoreInconsistent: a header is not as the plan before left it.
            Unavailable: the store does not answer.
        """
        keys_of: dict[int, list[bytes]] = {} if keys else {cell: [] for cell in self._cells}
        for key in keys:
            keys_of.setdefault(self.cell(key), []).append(key)
        contents: dict[bytes, bytes | None] = {}
        for number, own in keys_of.items():
            cell = self._cells[number]
            content = [None] * len(own) if cell.done else cell.rows(own)
            contents.update(zip(own, content, strict=True))
        return contents


@dataclass(frozen=True, slots=True)
class View:
    """How a stage shows its states to other programs.

    Attributes:
        kind: the form.
        show: a row and its content -> what is shown; None: nothing.
        table: with a view as a table, which one.
        error_row: of a table: a row and why it cannot be shown -> what is shown instead.
    """

    kind: ViewKind
    show: Callable[[bytes, bytes], Shown | None]
    table: ViewTable | None = None
    error_row: Callable[[bytes, str], str] | None = None

    def of(self, rows: Rows) -> Views:
        """The views of these rows.

        Never fails on data: views are written after the seal. A state that cannot be shown
        is replaced by the reason. So is NaN, a time that JSON has no form for, or an `Any` of an unknown type.

        Raises:
            Unavailable: a codec could not reach what it needs.
        """
        shown_rows = {row: self._shown(row, content) for row, content in rows if content is not None}
        all_shown = {row: shown for row, shown in shown_rows.items() if shown is not None}
        return Views(self.kind, all_shown, self.table)

    def _shown(self, row: bytes, content: bytes) -> Shown | None:
        try:
            return self.show(row, content)
        except Exception as error:  # noqa: BLE001 - protobuf's JSON mapping raises errors of several kinds
            raise_outage(error, f"the view of row {row!r}")
            text = f"this state cannot be shown: {type(error).__name__}: {text_of(error)}"
            if self.error_row is not None:
                return self.error_row(row, text)
            reason = {"error": text}
            return json.dumps(reason, ensure_ascii=False) if self.kind == "json" else reason


def persist(
    store: StateStore,
    transition: Transition,
    plan_id: str,
    stage: str,
    part: int,
    rows: Rows,
    before: Header,
    view: View | None = None,
) -> int:
    """Step 6 for one cell: write rows and header, in chunks if need be.

    Each chunk is written only if the header is as the chunk before it left it. Sending all of them again after any
    crash or lost reply is safe: keys at or before the stored cursor are skipped.

    Args:
        store: the stage's store.
        transition: the batch's.
        plan_id: id of its plan.
        stage: stage name.
        part: number of the cell.
        rows: changed keys in key order; those at or before `before.cursor` must be absent.
        before: the header as it is stored now.
        view: how the stage shows its states; None: it does not.

    Returns:
        Rows written by this call.

    Raises:
        Superseded: a newer run owns the flow.
        StoreInconsistent: the header is neither as expected nor further on.
        Unavailable: no answer; call again.
    """
    where, flow = f"{transition.flow}/{stage}/{part}", transition.store_flow(stage)
    number = transition.before_number + 1
    last = Header(transition.claim.epoch, transition.claim.run_id, number, plan_id)
    remaining = list(rows)
    views = view.of(remaining) if view else None
    written = 0
    # Bounded by the rows: each round writes a chunk, or learns how far an earlier attempt has come, which never goes back.
    while True:
        size = chunk_size(store, remaining, views) if remaining else 0
        chunk = remaining[:size]
        # The header records how far the chunks have come; only the last chunk moves it to the plan itself.
        after = last if size == len(remaining) else replace(before, begun_id=plan_id, cursor=chunk[-1][0])
        stored = store.write(flow, stage, part, before, after, chunk, views)
        if stored == after:
            written += size
            if after is last:
                return written
            remaining, before = remaining[size:], after
            continue
        stored = check_owner(stored, transition.claim, where)
        if stored.number == number and stored.plan_id == plan_id:  # an earlier attempt has written all of it
            return written
        # An earlier call, whose reply was lost, may have written further than this one knows.
        ahead = stored.begun_id == plan_id and stored.number == before.number and stored.cursor is not None
        if not ahead or (before.cursor is not None and stored.cursor <= before.cursor):  # type: ignore[operator]
            raise StoreInconsistent(
                f"{where}: is at {stored}; expected was {before}: the store went back in time; start again"
            )
        remaining = [row for row in remaining if row[0] > stored.cursor]  # type: ignore[operator]
        before = stored


def chunk_size(store: StateStore, rows: Rows, views: Views | None = None) -> int:
    """How many of these rows fit into one atomic write: at least one, if there is one."""
    size = 0
    for index, (key, state) in enumerate(rows):
        size += len(key) + len(state or b"") + (views.size(key) if views else 0)
        if index and (index >= store.max_rows or size > store.max_bytes):
            return index
    return len(rows)


def view_of(stage: StageNode) -> View | None:
    """How a stage shows its states; None: it does not."""
    if stage.view is None or stage.codec is None:
        return None
    if stage.view != "table":
        return View(stage.view, partial(_as_json if stage.view == "json" else _as_hash, stage))
    table = stage.stage_kind.state_table
    return View("table", table.row, stage.table, table.error_row) if table is not None else None


def no_views(stage: StageNode) -> Views | None:
    """Those of a write that deletes states of a stage: their views are deleted, too. None: it has none."""
    return None if stage.view is None else Views(stage.view, {}, stage.table)


def _as_json(stage: StageNode, row: bytes, content: bytes) -> str | None:
    shown = stage.stage_kind.shown_in(row, content)
    return None if shown is None else json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _as_hash(stage: StageNode, row: bytes, content: bytes) -> dict[str, str] | None:
    """Texts as they are, everything else as JSON; of a window the fields of its state, too."""
    shown = stage.stage_kind.shown_in(row, content)
    if shown is None:
        return None
    fields = dict(shown)
    if stage.traits.windowed and isinstance(state := fields.get("state"), dict):
        del fields["state"]
        fields |= {f"state.{name}": value for name, value in state.items()}
    return {
        str(name): value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in fields.items()
    }
