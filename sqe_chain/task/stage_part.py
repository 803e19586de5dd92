"""One stage in one state partition, in one batch: which units belong there, their order, and what is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from operator import itemgetter, le
from typing import Any, Final

from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.errors import ChangedType, PoisonError
from sqe_chain.flow.context import Origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import Spread, StageTable, StageTask, StageWork
from sqe_chain.flow.units import Push, Unit, UnitRun, unpack_key_and_id
from sqe_chain.ports import StateStore
from sqe_chain.task.roots import NEVER_MS
from sqe_chain.task.states import PartitionStates, Transition, view_of

Rows = list[tuple[bytes, bytes | None]]


class PartitionTable(PartitionStates, StageTable):
    """The rows of a stage in one state partition, as the stage sees them while a batch runs.

    Rows up to a cell's cursor were written by an earlier attempt at this batch; they are read as they are, and not written
    again. The rule of tables (`sqe_chain.flow.table`) makes that right.
    """

    def __init__(
        self, store: StateStore, transition: Transition, stage: str, part: int, layout: tuple[int, int]
    ) -> None:
        super().__init__(store, transition, stage, part, layout)
        self._known: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, None] = {}

    def get(self, row: bytes) -> bytes | None:
        if row not in self._known:
            self.load((row,))
        return self._known[row]

    def take(self, row: bytes) -> bytes | None:
        content = self.get(row)
        del self._known[row]
        return content

    def put(self, row: bytes, content: bytes) -> None:
        self._known[row] = content
        self._changed[row] = None

    def delete(self, row: bytes) -> None:
        self._known[row] = None
        self._changed[row] = None

    def load(self, rows: Iterable[bytes]) -> None:
        # One read for all of them in a cell
        missing = sorted(set(rows).difference(self._known))
        if missing:
            self._known.update(self.rows(missing))

    def changes(self) -> dict[int, Rows]:
        """Cell -> what has to be written there, in the order of names."""
        rows: dict[int, Rows] = {}
        untouched = self.untouched
        for row in sorted(self._changed):
            # Settled rows were written by an earlier attempt at this plan: they hold what this batch makes of them.
            if untouched or not self.settled(row):
                rows.setdefault(self.cell(row), []).append((row, self._known[row]))
        return rows


_ROW_NAME: Final = 64
"""Bytes that a filter's row adds to the key in its name, at most."""
_ANY_KEY: Final = 32 * 1024
"""A key up to this length fits into every store."""
_ANY_ROW: Final = 64 * 1024
"""The same of a state; its view may be a few times as large."""

Address = Callable[[Unit], Any]
"""What decides the state partition of a unit."""

_BLOCK: Final = 1_000
"""Units whose rows are read together, among those that are put in order first."""


class StagePart:
    """What the framework does around a stage's work, the same for every kind.

    Attributes:
        timer_ms: after `changed`, when the batch's clock next reaches a timer; -1: at no time; None: nothing was looked at.
        missed: after `changed`, see `StageWork.missed`.
        due_ms: after `changed`, when something is due next by event time; `NEVER_MS`: at no time; None: nothing was looked at.

    Args:
        node: the stage.
        store: its store, which is asked only when something is large.
        table: its rows.
        partition: the state partition, and how many there are.
        task: what the work is given.
        by_places: units are applied in the order of their places, when all of the batch are there; else as they come.
    """

    def __init__(
        self,
        node: StageNode,
        store: StateStore,
        table: PartitionTable,
        partition: tuple[int, int],
        task: StageTask,
        *,
        by_places: bool,
    ) -> None:
        self._node, self._store, self._traits = node, store, node.traits
        self._part, partitions = partition
        self._task = task
        self._table = table
        self._ordered: list[UnitRun] | None = [] if by_places else None
        # A kind that cannot take an input back never gets candidates; all others revert them.
        self._refuses = frozenset() if node.traits.reversible else task.candidates
        self._address, self._part_of = addressing(node.traits.spread, partitions)
        self._own: set[Any] = set()
        self._work: StageWork | None = None
        self.timer_ms: int | None = None
        self.due_ms: int | None = None
        self.missed = 0

    def take(self, run: UnitRun) -> int:
        """Apply units, or keep them for the end of the batch. Returns how many keys belong to another state partition."""
        # Few addresses are new in a block, so only those are looked at more closely.
        addresses = run.keys if self._traits.spread == "key" else list(map(self._address, run))
        fresh = set(addresses).difference(self._own)
        mispartitioned: set[Any] = set()
        if fresh:
            mispartitioned = {address for address in fresh if self._part_of(address) != self._part}
            if mispartitioned:
                run = run.chosen(
                    [at for at, address in enumerate(addresses) if address not in mispartitioned]
                )
            if self._traits.spread != "id":  # ids are too many to keep
                self._own |= fresh - mispartitioned
        if fresh or self._traits.spread != "key":
            run = self._without_too_long(run)
        if self._refuses:
            run = run.chosen([at for at in range(len(run)) if run.origin(at).order not in self._refuses])
        work = self._work or self._start()
        if self._table.done:
            return len(mispartitioned)
        if self._ordered is not None:
            self._ordered.append(run)
        else:
            with self._named():
                work.apply(run)
        return len(mispartitioned)

    def resume(self) -> None:
        """Begin though no unit has come: because windows are closed, or timers due."""
        if self._work is None:
            self._start()

    def changed(self, tick: tuple[Origin, int] | None = None) -> dict[int, Rows]:
        """After the last unit: cell -> changed rows in the order of their names.

        Args:
            tick: see `StageWork.tick`; None: the batch's clock reaches nothing.
        """
        work = self._work
        if work is None or self._table.done:
            return {}
        with self._named():
            if self._ordered is not None:
                # By event time, now that all of the batch are there: so the result does not depend on which partition
                # was read first.
                run = _by_places(UnitRun.joined(self._ordered))
                self._ordered.clear()
                for begin in range(0, len(run), _BLOCK):
                    work.apply(run[begin : begin + _BLOCK])
            # Before the batch's clock: what timers of both give to one key is in the order of event time.
            work.reach()
            if tick is not None:
                work.tick(*tick)
            if self._task.closing is not None and self._traits.windowed:
                work.close_windows(self._task.closing)
            work.finish()
        if self._traits.ticks:
            self.timer_ms = -1 if work.timer_ms is None else work.timer_ms
        if self._traits.falls_due:
            self.due_ms = NEVER_MS if work.due_ms is None else work.due_ms
            self.missed = work.missed
        return self._table.changes()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of rows that cannot be read with the name of the stage."""
        try:
            yield
        except ChangedType as error:
            raise ChangedType(f"stage {self._task.name!r}, state partition {self._part}: {error}") from error

    def push_changes(self, push: Push) -> None:
        """Give what `changes()` gives, after `changed`."""
        if self._work is not None:
            self._work.push_changes(push)

    def too_large(self, rows: Rows) -> str | None:
        """Why one of these rows cannot be written; None when all can: after the seal nothing may fail on data."""
        # What is small fits into every store, so the store is asked for its limit only where something is large.
        large = [(key, state) for key, state in rows if len(key) + len(state or b"") > _ANY_ROW]
        if not large or self._node.stage_kind.sink is not None:
            return None
        view, most = view_of(self._node), self._store.max_state_bytes
        for key, state in large:
            size = len(key) + len(state or b"")
            if view is not None and state is not None:
                size += view.of([(key, state)]).size(key)
            if size > most:
                shown = " and its view" if view is not None else ""
                return (
                    f"stage {self._node.name!r}: key {key[:40]!r}, its state{shown} take {size} bytes together, its store "
                    f"takes {most}: keep less in one state, or spread it over several keys; nothing was sealed"
                )
        return None

    def _start(self) -> StageWork:
        """Create the work. Where rows are not named by keys, the header is read before the first decision."""
        task = self._task
        if not self._traits.states_by_key:
            self._table.rows(())
            if not self._table.untouched:
                # An earlier attempt has written a part of the rows, so its outputs are published, and stages after this one are
                # written. What this attempt would emit was decided on other rows: it counts for nothing.
                task = replace(task, emit=None, drop=None, counts=Counter())
        self._work = work = self._node.stage_kind.start(task)
        return work

    def _without_too_long(self, run: UnitRun) -> UnitRun:
        """The units whose key the store takes; the inputs of all others fail."""
        long = {key for key in run.keys if key is not None and len(key) > _ANY_KEY}
        if not long:
            return run
        most = self._store.max_key_bytes
        room = max(_ANY_KEY, most if self._traits.states_by_key else most - _ROW_NAME)
        refused = {key for key in long if len(self._key_in(key)) > room}
        self._own -= refused
        for at, key in enumerate(run.keys):
            if key in refused:
                error = PoisonError(
                    f"stage {self._node.name!r}: a key of {len(self._key_in(key))} bytes; its store takes {most}: use a shorter key, "
                    "for example a digest"
                )
                self._task.failed(run.origin(at), error, key)
        return run.chosen([at for at, key in enumerate(run.keys) if key not in refused])

    def _key_in(self, key: bytes) -> bytes:
        """The key alone, where an id came with it."""
        return key if self._traits.spread != "id" else unpack_key_and_id(key)[0] or b""


class OfMoments:
    """The inputs of units that moments have caused: in the order of places they come after all inputs of their time."""

    __slots__ = ()


def _by_places(run: UnitRun) -> UnitRun:
    """Units in the order of their places: those of one time by topic, partition, offset and path, what moments have caused last."""
    orders_ms = run.orders_ms
    if any(issubclass(kind, OfMoments) for kind in set(map(type, run.sources))):
        # A batch may end between inputs of one time, and a moment comes after all of them.
        places = [
            (order_ms, isinstance(source, OfMoments))
            for order_ms, source in zip(orders_ms, run.sources, strict=True)
        ]
        return run.chosen(sorted(range(len(run)), key=places.__getitem__))
    if all(map(le, orders_ms, islice(orders_ms, 1, None))):
        return run
    return run.chosen(sorted(range(len(run)), key=orders_ms.__getitem__))


def addressing(spread: Spread, partitions: int) -> tuple[Address, Callable[[Any], int]]:
    """What decides the state partition of a unit, and the state partition of that."""
    if spread == "partition":
        return lambda unit: unit[4].tp.partition, lambda partition: int(partition) % partitions
    if spread == "lane":
        return lambda unit: unit[4].lane, lambda lane: int(lane) % partitions
    partitioner = Partitioner(partitions)
    if spread == "key":
        return itemgetter(0), lambda key: partitioner(key or b"")
    return lambda unit: unpack_key_and_id(unit[0])[1], lambda identity: partitioner(identity or b"")
