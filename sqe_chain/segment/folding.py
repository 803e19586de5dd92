"""A fold by key, with the states of its state partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqe_chain.partitioner import Partitioner
from sqe_chain.segment.fitting import Fitting
from sqe_chain.segment.states import PartitionStates
from sqe_chain.stages.aggregate import Aggregate
from sqe_chain.stages.units import Unit

Rows = list[tuple[bytes, bytes | None]]


@dataclass(slots=True)
class Folding:
    """One aggregate in one state partition.

    Attributes:
        aggregate: the stage's work.
        states: where its states come from.
        part: the state partition.
        partitioner: of keys over state partitions.
        fitting: what the stage's store takes.
    """

    aggregate: Aggregate
    states: PartitionStates
    part: int
    partitioner: Partitioner
    fitting: Fitting

    def take(self, units: Sequence[Unit]) -> int:
        """Fold units, in their order; returns how many keys belong to another state partition."""
        aggregate, strays = self.aggregate, set[bytes]()
        missing = {unit[0] for unit in units}.difference(aggregate.entries)
        if missing:
            strays = {key for key in missing if self.partitioner(key) != self.part}
            if strays:
                units = [unit for unit in units if unit[0] not in strays]
                missing -= strays
            too_long = {key for key in missing if not self.fitting.fits(key)}
            if too_long:
                units = self._without(units, too_long)
                missing -= too_long
            keys = sorted(missing)
            aggregate.add(keys, self.states.load(keys))
        aggregate.fold(units)
        return len(strays)

    def _without(self, units: Sequence[Unit], too_long: set[bytes]) -> list[Unit]:
        """Units without those whose key the store does not take: their inputs are told to have failed."""
        kept = []
        for unit in units:
            if unit[0] in too_long:
                self.aggregate.failed(unit[4], self.fitting.too_long(unit[0]))
            else:
                kept.append(unit)
        return kept

    def changed(self) -> dict[int, Rows]:
        """Cell -> changed states in key order, after the last unit."""
        rows: dict[int, Rows] = {}
        for key, data in self.aggregate.changed():
            rows.setdefault(self.states.cell(key), []).append((key, data))
        return rows
