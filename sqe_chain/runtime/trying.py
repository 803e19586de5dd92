"""Writes as a service makes them, to find out whether a store takes them from this login now; nothing of them stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from sqe_chain.errors import ChainError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Header, Home, Location, Locations, StateStore, ViewKind

_KEY = b"doctor"


@runtime_checkable
class TriesWrites(Protocol):
    """A store that can try a write which undoes itself."""

    def try_writes(
        self, flow: str, cells: Sequence[tuple[str, int]], views: Collection[ViewKind] = ()
    ) -> list[str]:
        """Try all that a service of a flow does there; nothing of it stays, whenever the process is killed.

        Args:
            flow: name of the flow.
            cells: stage and number of each cell that it writes.
            views: kinds of the views that it writes.

        Returns:
            What could not be tried, in words; empty: all was.

        Raises:
            Unavailable: no answer, or the server takes no writes now.
            ConfigurationError: the login may not do it.
        """


def try_writes(
    store: StateStore,
    flow: str,
    run_id: str,
    cells: Sequence[tuple[str, int]] = (),
    views: Collection[ViewKind] = (),
) -> list[str]:
    """Try writes to a store; see `TriesWrites.try_writes` for what is returned, and for errors.

    A store that cannot undo them gets a flow of another name, with one state, and it is deleted again.

    Args:
        store: the store.
        flow: name of the flow.
        run_id: of this attempt.
        cells: stage and number of each cell that the flow writes there.
        views: kinds of the views that it writes there.
    """
    if isinstance(store, TriesWrites):
        return store.try_writes(flow, cells, views)
    _write_and_delete(store, f"{flow}.doctor-{run_id}", run_id)
    return []


def _write_and_delete(store: StateStore, flow: str, run_id: str) -> None:
    claim, sealed = Home(1, run_id, "", -1, ""), Home(1, run_id, "", 0, run_id)
    header = Header(1, run_id, 0, run_id)
    locations = Locations(1, 0, {"doctor": Location(flow, 1, 1, "aggregate")})
    try:
        store.set_home(flow, None, claim)
        store.set_home(flow, claim, sealed, run_id.encode())
        store.beat(flow, 1, run_id)
        store.plan(flow, 0)
        store.set_locations(flow, locations)
        store.write(flow, "doctor", 0, None, header, [(_KEY, b"1")])
        store.read(flow, "doctor", 0, [_KEY])
        store.write(flow, "doctor", 0, header, header, [(_KEY, None)])
    finally:
        with suppress(ChainError):  # what a server does not take, it need not delete
            store.forget_locations(flow, locations)
            store.forget_part(flow, "doctor", 0, header)
            store.forget(flow, sealed)
            store.forget(flow, claim)


def try_store(store: StateStore, name: str, flow: CompiledFlow, run_id: str) -> list[str]:
    """Try the writes of a flow to one of its stores; see `try_writes`.

    Args:
        store: the store.
        name: its name in the flow; "": the metadata store.
        flow: the flow.
        run_id: of this attempt.
    """
    own = [(stage, cell) for stage, cell in flow.all_cells if (stage.store or "") == name]
    views = {stage.view for stage, _ in own if stage.view is not None}
    return try_writes(store, flow.name, run_id, [(stage.name, cell) for stage, cell in own], views)
