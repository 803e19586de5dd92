"""Compares what the table of a view shows with the states behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final

from sqe_chain.errors import Unavailable
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.ports import StateStore, ViewTable
from sqe_chain.runtime.states import location_of
from sqe_chain.task.states import View, view_of

_ATTEMPTS: Final = 20
"""How often a cell is read until no batch is written meanwhile."""


@dataclass(frozen=True, slots=True)
class AuditedView:
    """What an audit of a view found.

    Attributes:
        view: name of the table, or the form.
        rows: states whose rows were compared.
        different: keys whose rows are not as their states; of a row without a state, its place in the index.
        not_compared: why not; empty: they were.
    """

    view: str
    rows: int = 0
    different: tuple[bytes, ...] = ()
    not_compared: str = ""


def audit_view(env: Environment, stage: StageNode, sample: int, random: Random) -> AuditedView | None:
    """Compare rows of a view with the states, in cells that are drawn at random; None: the stage has no view.

    Args:
        env: the flow and its ports.
        stage: of the states.
        sample: states that are compared.
        random: draws the cells.

    Raises:
        Unavailable: a cell is written all the time.
    """
    view = view_of(stage)
    if view is None:
        return None
    table = stage.table
    if table is None:
        return AuditedView(view.kind, not_compared=f"a view as {view.kind!r} is not")
    where, store = location_of(env.ports.home, env.flow.name, stage.name), env.ports.store(stage)
    if where.view != table.mark:
        return AuditedView(
            table.name, not_compared="it does not show all states yet; a start with this code fills it"
        )
    cells, rows, different = list(range(where.state_partitions * where.buckets)), 0, set[bytes]()
    random.shuffle(cells)
    for cell in cells:
        if rows >= sample:
            break
        keys = [key for key, _ in islice(store.scan(where.flow, stage.name, cell), sample - rows)]
        rows += len(keys)
        different |= set(_unlike(store, (where.flow, stage.name, cell), table, keys, view))
    return AuditedView(table.name, rows, tuple(sorted(different)))


def _unlike(
    store: StateStore, place: tuple[str, str, int], table: ViewTable, keys: Sequence[bytes], view: View
) -> list[bytes]:
    flow, stage, cell = place
    for _ in range(_ATTEMPTS):
        before, contents, after = store.read(*place, keys)
        shown = view.of(list(zip(keys, contents, strict=True))).shown
        wanted = {key: text if isinstance(text := shown.get(key), str) else None for key in keys}
        unlike = store.unlike_rows(*place, table, wanted)
        if before == after == store.headers(flow, stage, [cell])[0]:
            return unlike
    raise Unavailable(
        f"{flow}/{stage}/{cell}: was written during each comparison with view {table.name}. Ask again"
    )
