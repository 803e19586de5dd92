"""Tables that show states to SQL (`view="NAME"`), and when one of them shows all.

A table changes with each state, in the same transaction. So once it shows all states, it stays so. Then the flow's locations have
its mark; before that, readers of the table see nothing. It gets the mark

* from a rebuild, which has written each row under a name of its own;
* at a start, once the rows of all states were written again (`fill_tables`): the view is new, or has a new column.

A run of code without the view writes states alone. So such a run takes the mark away, before it writes the first one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from sqe_chain.errors import ConfigurationError, Superseded
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Location, Rows, StateStore, Views, ViewTable
from sqe_chain.task.states import Claim, check_owner, chunk_size, view_of

_BLOCK: Final = 5_000
"""States that are shown at once."""


def check_view_kind(stage: StageNode, store: StateStore) -> None:
    """Check that a stage's store writes views of the kind that the stage declares. Raises ConfigurationError: it does not."""
    if stage.view is None or stage.view in store.views:
        return
    form = repr(stage.view) if stage.table is None else f"table {stage.table.name!r}, which PostgreSQL has"
    known = " and ".join(sorted(store.views)) or "none"
    raise ConfigurationError(
        f"{stage.declared_at}: stage {stage.name!r} wants a view as {form}; {store!r} writes {known}"
    )


def check_tables(env: Environment) -> None:
    """Check that the tables of all views are there, with their columns. Raises ConfigurationError: one is not."""
    # What folds states again has another name, and was checked before.
    for stage in env.flow.stages if env.role.refold is None else ():
        if stage.table is not None:
            store, flow = env.ports.store(stage), env.flow.declared_name or env.flow.name
            env.retry.call(
                f"look at view {stage.table.name}",
                partial(store.check_view_table, flow, stage.name, stage.table),
            )


def hide_tables(env: Environment, mine: Claim, last: Plan) -> None:
    """Take the marks away from tables that this code does not write; to be called before it writes a state.

    Raises:
        Superseded: a newer run owns the flow.
    """
    # Before the first plan with inputs there are no states, and no run may have left any.
    if env.role.refold is not None or not last.number:
        return
    written = {stage.name: stage.table for stage in env.flow.stages}
    for store in env.ports.stores.values():
        stored = env.retry.call("read where states are", partial(store.locations, env.flow.name))
        known = dict(stored.stages) if stored is not None else {}
        hidden = {
            name: replace(location, view=None)
            for name, location in known.items()
            if _table_of(location) and not _is_table(location, written.get(name))
        }
        if stored is None or not hidden:
            continue
        # Older than what this run writes once it has recovered, and newer than all that other runs have written.
        without = replace(stored, epoch=mine.epoch, number=0, stages={**known, **hidden})
        now = env.retry.call("hide a view", partial(store.set_locations, env.flow.name, without))
        if now is not None and now.epoch > mine.epoch:
            raise Superseded(
                f"flow {env.flow.name!r}: a run with epoch {now.epoch} has the flow; this one has {mine.epoch}"
            )


def fill_tables(env: Environment, mine: Claim, layout: Layout) -> None:
    """Write the rows of all states into tables that do not show all of them, unless they are folded again.

    Raises:
        Superseded: a newer run owns the flow.
        StoreInconsistent: a header is not as this run has left it.
    """
    for stage in env.flow.stages:
        if stage.table is None or stage.name not in layout.stages:
            continue
        store, flow = env.ports.store(stage), layout.stages[stage.name].flow
        stored = env.retry.call("read where states are", partial(store.locations, env.flow.name))
        known = stored.stages.get(stage.name) if stored is not None else None
        if known is not None and known.flow == flow and known.view == stage.table.mark:
            continue
        # With the mark of fewer columns, it has exactly the rows that it must have.
        clear = known is None or known.flow != flow or not _is_table(known, stage.table)
        for cell in env.flow.cells[stage.index]:
            env.retry.call(
                f"write all rows of view {stage.table.name}",
                partial(_fill, store, mine, stage, (flow, cell), clear=clear),
            )


def _fill(store: StateStore, mine: Claim, stage: StageNode, place: tuple[str, int], *, clear: bool) -> None:
    flow, cell = place
    where = f"{flow}/{stage.name}/{cell}"
    header = check_owner(store.headers(flow, stage.name, [cell])[0], mine, where)

    def write(rows: Rows, views: Views) -> None:
        # The header stays; it is compared, so an older run writes nothing over what a newer one has.
        stored = store.write(flow, stage.name, cell, header, header, rows, views)
        if stored != header:
            check_owner(stored, mine, where)
            raise Superseded(f"{where}: is at {stored}. Expected {header}: another run writes there")

    if clear:
        write((), Views("table", {}, stage.table, clear=True))
    view, block, table = view_of(stage), dict[bytes, bytes | None](), stage.stage_kind.state_table
    if view is None or table is None:
        return

    def write_block() -> None:
        rows = sorted(block.items())
        views = view.of(rows)
        while rows:  # bounded: each round writes at least one
            size = chunk_size(store, rows, views)
            write(rows[:size], views)
            rows = rows[size:]
        block.clear()

    for name, content in table.rows_to_fill(store.scan(flow, stage.name, cell)):
        block[name] = content
        if len(block) == _BLOCK:
            write_block()
    write_block()


def _table_of(location: Location) -> str:
    """The table that a location names as complete; empty: none."""
    name, colon, _ = (location.view or "").partition(":")
    return name if colon else ""


def _is_table(location: Location, table: ViewTable | None) -> bool:
    return table is not None and _table_of(location) == table.name
