"""Writes as a service makes them, to find out whether a store takes them from this login now. Nothing of them stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from sqe_chain.errors import ChainError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Header, Home, Location, Locations, StateStore

_KEY = b"doctor"


@runtime_checkable
class TriesWrites(Protocol):
    """A store that can try a write which undoes itself."""

    def try_writes(self, flow: str, cells: Sequence[tuple[str, int]]) -> None:
        """Try all that a service of a flow does there; nothing of it stays, whenever the process is killed.

        Args:
            flow: name of the flow.
            cells: stage and number of each cell that it writes.

        Raises:
            Unavailable: no answer, or the server takes no writes now.
            ConfigurationError: the login may not do it.
        """


def try_store(store: StateStore, name: str, flow: CompiledFlow, run_id: str) -> None:
    """Try the writes of a flow to one of its stores; see `TriesWrites.try_writes` for errors.

    A store that cannot undo them gets a flow of another name, with one state, and it is deleted again.

    Args:
        store: the store.
        name: its name in the flow; "": the metadata store.
        flow: the flow.
        run_id: of this attempt.
    """
    cells = [(stage.name, cell) for stage, cell in flow.all_cells if (stage.store or "") == name]
    if isinstance(store, TriesWrites):
        store.try_writes(flow.name, cells)
    else:
        _write_and_delete(store, f"{flow.name}.doctor-{run_id}", run_id)


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


def store_errors(stores: Mapping[str, StateStore], flow: CompiledFlow, run_id: str) -> dict[str, str]:
    """Store name -> why it does not take the writes of a flow; without the stores that do."""
    errors = {}
    for name, store in stores.items():
        try:
            try_store(store, name, flow, run_id)
        except ChainError as error:
            errors[name] = str(error)
    return errors
