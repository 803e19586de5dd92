"""Finds the states of a stage for readers, even while a rebuild switches over and deletes the old ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.partitioner import cell_of
from sqe_chain.ports import Location, StateStore
from sqe_chain.protocol.layout import Layout, TypeLayout
from sqe_chain.protocol.plan import Plan
from sqe_chain.segment.states import check_whole


@dataclass(frozen=True, slots=True)
class StoredStage:
    """A stage as readers find it, under the name of its flow.

    Args:
        flow: name of the flow.
        name: name of the stage.
        home: a store that holds the flow's locations: all stores of the flow do. It must be the home store only
            for flows that no version with locations has run yet.
        store: the store that holds the states.
    """

    flow: str
    name: str
    home: StateStore
    store: StateStore

    def location(self) -> Location:
        """Where it is now; see `location_of`."""
        return location_of(self.home, self.flow, self.name)

    def read(self, keys: Sequence[bytes], where: Location | None = None) -> list[bytes | None]:
        """The states of these keys, None where there is none.

        A rebuild deletes old states only after it has written the new location. So a state that was found is valid; but
        one that is missing may have been deleted, if the stage has moved since `where` was read.

        Args:
            keys: the keys.
            where: the stage's location, if it was just looked up.
        """
        where = where or self.location()
        while True:  # ends: each further round needs another rebuild of the flow
            found = []
            for key in keys:
                cell = cell_of(key, where.state_partitions, where.buckets)
                header, states, _ = self.store.read(where.flow, self.name, cell, [key])
                if header is not None:
                    check_whole(header, f"{where.flow}/{self.name}/{cell}")
                found += states
            if None not in found:
                return found
            before, where = where, self.location()
            if _same_rows(before, where):
                return found

    def scan(self, keys: Sequence[bytes] = ()) -> Iterator[tuple[bytes, bytes]]:
        """All rows, those of a state partition in the order of their keys.

        Args:
            keys: for a stage without buckets: read only the state partitions of these keys; without any, all.

        Raises:
            Unavailable: the flow was rebuilt during the scan, so rows may be missing; begin again.
        """
        where = self.location()
        partitions = where.state_partitions
        cells = {cell_of(key, partitions, 1) for key in keys} if keys else range(partitions * where.buckets)
        for cell in sorted(cells):
            yield from sorted(self.store.scan(where.flow, self.name, cell))
        if not _same_rows(where, self.location()):
            raise Unavailable(
                f"flow {self.flow!r} was rebuilt while stage {self.name!r} was read; read it again"
            )


def location_of(store: StateStore, flow: str, stage: str) -> Location:
    """Where a stage is now.

    Args:
        store: one with the flow's locations; see `StoredStage.home`.
        flow: name of the flow.
        stage: name of the stage.

    Raises:
        ConfigurationError: the flow, or the stage, has not run with this store yet.
        StoreInconsistent: the flow's last plan is missing, or cannot be read.
    """
    known = store.locations(flow)
    stages = known.stages if known is not None else _as_locations(_layout(store, flow))
    if stage not in stages:
        raise ConfigurationError(f"flow {flow!r} has not run with stage {stage!r} yet")
    return stages[stage]


def _same_rows(one: Location, other: Location) -> bool:
    return (one.flow, one.state_partitions, one.buckets) == (
        other.flow,
        other.state_partitions,
        other.buckets,
    )


def _layout(home: StateStore, flow: str) -> Layout:
    """The layout of the last plan; for flows whose locations were never written."""
    stored, _ = home.home(flow)
    if stored is None or stored.number < 0:
        raise ConfigurationError(f"the store has no flow {flow!r}: it has not run with this store yet")
    data = home.plan(flow, stored.number)
    if data is None:
        raise StoreInconsistent(f"the home store has no plan {stored.number} of flow {flow!r}")
    return Plan.from_bytes(data).layout


def _as_locations(layout: Layout) -> dict[str, Location]:
    types = {name: layout.types.get(f"stage/{name}", TypeLayout("")) for name in layout.stages}
    return {
        name: Location(
            stored.flow, layout.state_partitions, stored.buckets, types[name].kind, types[name].name
        )
        for name, stored in layout.stages.items()
    }
