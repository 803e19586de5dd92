"""Writes and deletes the rows of one cell, in as many writes as they need, each under a header that the store compares."""

from __future__ import annotations

from collections.abc import Sequence

from sqe_chain.ports import Header, StateStore, Views
from sqe_chain.task.states import chunk_size

Cell = tuple[str, str, int]
"""Name of the flow under which it is stored, name of the stage, number."""
Row = tuple[bytes, bytes | None]
"""Key and state; None deletes it."""


def write_rows(
    store: StateStore,
    cell: Cell,
    before: Header | None,
    after: Header,
    rows: Sequence[Row],
    views: Views | None = None,
) -> Header | None:
    """Write a header, and rows under it; the header alone where there are no rows.

    Returns:
        What is stored then: `after`; or what another run has written, and then the rest of the rows is not written.
    """
    while True:  # bounded by the rows
        size = chunk_size(store, rows, views)
        stored = store.write(*cell, before, after, rows[:size], views)
        rows, before = rows[size:], after
        if stored != after or not rows:
            return stored


def delete_rows(store: StateStore, cell: Cell, header: Header, views: Views | None) -> Header | None:
    """Delete all rows of a cell that has this header, and keeps it; and their views, where the stage has some (`no_views`).

    Returns:
        What is stored then; see `write_rows`.
    """
    rows: list[Row] = [(key, None) for key, _ in store.scan(*cell)]
    if views is not None and views.kind not in store.views:
        views = None
    return write_rows(store, cell, header, header, rows, views) if rows else header
