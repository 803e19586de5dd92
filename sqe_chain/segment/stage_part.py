"""One stage in one state partition, in one batch: which units belong there, their order, and what is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import PlainFold, Spread, StageTask, StageWork
from sqe_chain.flow.units import Push, Unit
from sqe_chain.partitioner import Partitioner
from sqe_chain.segment.fitting import ANY_KEY, Fitting
from sqe_chain.segment.stage_table import PartitionTable, Rows
from sqe_chain.segment.states import PartitionStates
from sqe_chain.stages.record_work import unpack_key_and_id

Address = Callable[[Unit], Any]
"""What decides the state partition of a unit."""

_BLOCK: Final = 1_000
"""Units whose rows are read together, among those that waited for the end of the batch."""


class StagePart:
    """What the framework does around a stage's work, the same for every kind.

    Args:
        node: the stage.
        states: where its rows come from.
        table: its rows.
        partition: the state partition, and how many there are.
        task: what the work is given.
        fitting: what the stage's store takes.
        several: whether units of several input partitions come; then a stage that takes them in the order of times waits.
    """

    def __init__(
        self,
        node: StageNode,
        states: PartitionStates,
        table: PartitionTable,
        partition: tuple[int, int],
        task: StageTask,
        fitting: Fitting,
        *,
        several: bool,
    ) -> None:
        kind = node.stage_kind
        self._kind = kind
        self._states = states
        self._part, partitions = partition
        self._task = task
        self._table = table
        self._fitting = fitting
        self._waits = several and kind.order == "times"
        self._refuses = frozenset() if kind.reversible else task.suspects
        self._address, self._part_of = addressing(kind.spread, partitions)
        self._own: set[Any] = set()
        self._work: StageWork | None = None
        self._waiting: dict[tuple[str, int], list[Unit]] = {}

    @property
    def done(self) -> bool:
        """Whether the batch is known to be applied already in the whole state partition."""
        return self._states.done

    def take(self, units: Sequence[Unit]) -> int:
        """Apply units, or keep them for the end of the batch. Returns how many keys belong to another state partition."""
        # Few addresses are new in a block, so only those are looked at more closely.
        fresh = set(map(self._address, units)).difference(self._own)
        misplaced: set[Any] = set()
        if fresh:
            misplaced = {one for one in fresh if self._part_of(one) != self._part}
            if misplaced:
                units = [unit for unit in units if self._address(unit) not in misplaced]
            if self._kind.spread != "id":  # ids are too many to keep
                self._own |= fresh - misplaced
        if fresh or self._kind.spread != "key":
            units = self._without_too_long(units)
        if self._refuses:
            units = [unit for unit in units if unit[4].order not in self._refuses]
        work = self._work or self._start()
        if self.done:
            return len(misplaced)
        if self._waits:
            for unit in units:
                tp = unit[4].tp
                self._waiting.setdefault((tp.topic, tp.partition), []).append(unit)
        else:
            work.apply(units)
        return len(misplaced)

    def changed(self) -> dict[int, Rows]:
        """After the last unit: cell -> changed rows in the order of their names."""
        work = self._work
        if work is None or self.done:
            return {}
        merged = merge(*(self._waiting.pop(tp) for tp in sorted(self._waiting)), key=_time_of)
        while block := list(islice(merged, _BLOCK)):
            work.apply(block)
        work.finish()
        return self._table.changes()

    def push_changes(self, push: Push) -> None:
        """Give what `changes()` gives, after `changed`."""
        if self._work is not None:
            self._work.push_changes(push)

    def plain_fold(self) -> PlainFold | None:
        """See `StageWork.plain_fold`; only where units are folded in their order by their keys."""
        if not self._kind.states_by_key or self._kind.spread != "key" or self._waits:
            return None
        return (self._work or self._start()).plain_fold()

    def _start(self) -> StageWork:
        """Create the work. Where rows are not named by keys, the header is read before the first decision."""
        task, kind = self._task, self._kind
        if not kind.states_by_key:
            self._states.rows(())
            if not self._states.untouched:
                # An earlier attempt has written a part of the rows, so its outputs are published, and stages after this one are
                # written. What this attempt would emit was decided on other rows: it counts for nothing.
                task = replace(task, emit=None, drop=None, counts=Counter())
        self._work = work = kind.start(task)
        return work

    def _without_too_long(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """The units whose key the store takes; the inputs of all others fail."""
        long = {unit[0] for unit in units if unit[0] is not None and len(unit[0]) > ANY_KEY}
        refused = {key for key in long if not self._fitting.fits(self._key_in(key))}
        if not refused:
            return units
        self._own -= refused
        for unit in units:
            if unit[0] in refused:
                self._task.failed(unit[4], self._fitting.too_long(self._key_in(unit[0])))
        return [unit for unit in units if unit[0] not in refused]

    def _key_in(self, key: bytes) -> bytes:
        """The key alone, where an id came with it."""
        return key if self._kind.spread != "id" else unpack_key_and_id(key)[0] or b""


def addressing(spread: Spread, partitions: int) -> tuple[Address, Callable[[Any], int]]:
    """What decides the state partition of a unit, and the state partition of that.

    Args:
        spread: as the kind of the stage says.
        partitions: how many state partitions there are.
    """
    if spread == "partition":
        return lambda unit: unit[4].tp.partition, lambda partition: int(partition) % partitions
    if spread == "lane":
        return lambda unit: unit[4].lane, lambda lane: int(lane) % partitions
    partitioner = Partitioner(partitions)
    if spread == "key":
        return itemgetter(0), lambda key: partitioner(key or b"")
    return lambda unit: unpack_key_and_id(unit[0])[1], lambda identity: partitioner(identity or b"")


def _time_of(unit: Unit) -> int:
    """Units of one input have one time, so they stay together; at equal times input partitions go in the order of their names."""
    return unit[4].timestamp_ms
