"""Stores that go back in time, as after a backup was restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqe_chain.adapters.memory.store import MemoryStore, StoreCopy
from sqe_chain.errors import ConfigurationError
from sqe_chain.testing.results import Results


class Backups(Results):
    """Copies the stores of a rehearsal, and restores them."""

    def copy_stores(self) -> dict[str, StoreCopy]:
        """Copy all stores, for `roll_back`."""
        return {name: self._memory(name).copy_all() for name in self.stores}

    def roll_back(
        self, copies: Mapping[str, StoreCopy], *, stage: str | None = None, cells: Sequence[int] | None = None
    ) -> None:
        """Restore stores to an earlier state, as after a backup was restored, or a failover lost acknowledged writes.

        Args:
            copies: from `copy_stores`.
            stage: restore only this stage; by default everything, including claim and plans.
            cells: restore only these cells of the stage: state partitions, or their buckets.
        """
        if stage is None:
            for name, copy in copies.items():
                self._memory(name).restore_all(copy)
            return
        node = self._stage(stage)
        store, flow = self._memory(node.store or ""), self._store_flow(stage)
        parts = copies[node.store or ""].parts
        for cell in self._flow.cells[node.index] if cells is None else cells:
            store.restore_part(flow, stage, cell, parts.get((flow, stage, cell)))

    def _memory(self, name: str) -> MemoryStore:
        store = self.stores[name]
        if not isinstance(store, MemoryStore):
            raise ConfigurationError(
                f"{store!r} cannot be rolled back. Expected a MemoryStore. Rehearse with one"
            )
        return store
