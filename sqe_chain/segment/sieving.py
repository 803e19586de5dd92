"""A filter that remembers, with its rows in its state partition."""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Any, Final

from sqe_chain._proto.dropped_pb2 import Dropped
from sqe_chain._proto.window_result_pb2 import WindowResult
from sqe_chain.codecs import codec_for
from sqe_chain.errors import EnvelopeError, PoisonError
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.filtering import FilterSpec
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.nodes import StageNode
from sqe_chain.partitioner import Partitioner
from sqe_chain.segment.fitting import ANY_KEY, Fitting
from sqe_chain.segment.poison import UserCodeError, guarded
from sqe_chain.segment.states import CellStates
from sqe_chain.stages.declared import Extract, Filter, Fold, filter_of
from sqe_chain.stages.record import Record, Spot, Verdict
from sqe_chain.stages.units import Push, Unit, number
from sqe_chain.stages.windows import WindowedAggregate

Rows = list[tuple[bytes, bytes | None]]
Failed = Callable[[Origin, Exception], None]

_BLOCK: Final = 1_000
"""Units whose rows are read together."""


class CellTable:
    """A `stages.table.Table` over one cell.

    What is behind a cursor was written by an earlier attempt at this batch; it is read as it is, and not written
    again: that is what the rule of tables is made for.
    """

    def __init__(self, states: CellStates) -> None:
        self._states = states
        self._known: dict[bytes, bytes | None] = {}
        self._changed: set[bytes] = set()

    def get(self, row: bytes) -> bytes | None:
        """See `Table.get`."""
        if row not in self._known:
            self.load((row,))
        return self._known[row]

    def put(self, row: bytes, content: bytes) -> None:
        """See `Table.put`."""
        self._known[row] = content
        self._changed.add(row)

    def delete(self, row: bytes) -> None:
        """See `Table.delete`."""
        self._known[row] = None
        self._changed.add(row)

    def load(self, rows: Iterable[bytes]) -> None:
        """See `Table.load`: one read for all of them."""
        missing = sorted(set(rows).difference(self._known))
        if missing:
            self._known.update(zip(missing, self._states.rows(missing), strict=True))

    def settled(self, row: bytes) -> bool:
        """See `Table.settled`."""
        cursor = self._states.cursor
        return cursor is not None and row <= cursor

    def changes(self) -> Rows:
        """What is to be written, in the order of names."""
        return [(row, self._known[row]) for row in sorted(self._changed) if not self.settled(row)]


class Sieving:
    """One filter in one state partition.

    Filters compare event times. Read one input partition after the other, a batch that spans an hour would make the
    second partition an hour late. So units wait for the end of the batch, and are then taken as Kafka Streams does: of
    the input partitions the one whose next record is the earliest. Each keeps its own order. Where only one input
    partition comes to the state partition, nothing has to wait.

    Args:
        node: the stage.
        states: its cell.
        place: the state partition, and how many there are.
        now_ms: the batch's clock.
        forward: takes what goes on; None when nobody wants it.
        drop: takes what does not; None when nobody wants it.
        before_input: called with the next input before its first unit is looked at.
        failed: called when user code raises, in the filter or in the steps after it, and when the filter refuses
            an input. Raises to stop at once.
        counts: (stage, reason) -> records, added to.
        fitting: what the stage's store takes.
        suspects: topic, partition and offset of inputs that are taken as if they were not there: what a filter
            remembers cannot be taken back.
        waits: whether units of several input partitions come.
    """

    _POISON: Final = (UserCodeError, PoisonError, EnvelopeError)
    """What an input is to blame for. Whatever else is raised comes from a store, or is a bug."""

    def __init__(  # noqa: PLR0913 - one for each neighbour
        self,
        node: StageNode,
        states: CellStates,
        place: tuple[int, int],
        now_ms: int,
        pushes: tuple[Push | None, Push | None],
        before_input: Callable[[Origin], None],
        failed: Failed,
        counts: Counter[tuple[str, str]],
        *,
        fitting: Fitting,
        suspects: frozenset[tuple[str, int, int]] = frozenset(),
        waits: bool = True,
    ) -> None:
        if node.spec is None:
            raise AssertionError("a sieve is declared with what it does")
        self._node = node
        self._spec = spec = node.spec
        self._states = states
        self._part, partitions = place
        self._spread = spread_of(spec, partitions)
        self._now_ms = now_ms
        self._forward, self._drop = (push and guarded(push) for push in pushes)
        self._before_input = before_input
        self._failed = failed
        self._counts = counts
        self._fitting = fitting
        self._suspects = suspects
        self._waits = waits
        self._table = CellTable(states)
        self._input: Origin | None = None
        self._failing: Origin | None = None
        self._filter: Filter | None = None
        self._roots: dict[int, tuple[str, bytes, int]] = {}
        self._waiting: dict[tuple[str, int], list[Unit]] = {}

    @property
    def done(self) -> bool:
        """Whether the batch is known to be applied already."""
        return self._states.done

    def take(self, units: Sequence[Unit]) -> int:
        """Look at units, or keep them for the end of the batch; returns how many belong to another state partition."""
        mine = [unit for unit in units if self._spread(unit) == self._part]
        strays = len(units) - len(mine)
        if self._suspects:
            mine = [unit for unit in mine if unit[4].order not in self._suspects]
        current = self._filter or self._begin()
        if not self._waits and not self.done:
            self._look_at_all(current, mine)
        elif not self.done:
            for unit in mine:
                place = unit[4].place
                self._waiting.setdefault((place.topic, place.partition), []).append(unit)
        return strays

    def changed(self) -> dict[int, Rows]:
        """Look at all units; cell -> changed rows in the order of names."""
        current = self._filter
        if current is None or self.done:
            return {}
        merged = merge(*(self._waiting.pop(place) for place in sorted(self._waiting)), key=_time_of)
        while block := list(islice(merged, _BLOCK)):
            self._look_at_all(current, block)
        current.finish(self._now_ms)
        rows = self._table.changes()
        return {self._part: rows} if rows else {}

    def _begin(self) -> Filter:
        """Read the header and what the filter needs at once."""
        spec, states = self._spec, self._states
        states.rows(())
        settings = dict(spec.settings)
        if settings.get("merge") is not None:
            settings["merge"] = guarded(settings["merge"])  # type: ignore[arg-type] # checked when declared
        self._filter = current = filter_of(
            replace(spec, settings=settings),
            self._table,
            extract=self._id
            if spec.spread == "id"
            else self._function(spec.function, takes_context=spec.takes_context),
            epoch=self._function(spec.epoch, takes_context=spec.epoch_takes_context),
            fold=self._fold(spec.function),
            clock_ms=self._now_ms,
        )
        if states.cursor is not None:
            # Written in part, so all behind it is done. What would go on now was decided over other rows.
            self._forward = self._drop = None
            self._counts = Counter()
        return current

    def _look_at_all(self, current: Filter, units: Sequence[Unit]) -> None:
        """Look at a block of units, whose rows are read together."""
        known = [self._record(unit) for unit in units]
        readable = [one for one, key in known if one is not None and (key is None or len(key) <= ANY_KEY)]
        self._table.load(self._wanted(current, readable))
        for (record, key), unit in zip(known, units, strict=True):
            origin = unit[4]
            if origin is not self._input:
                self._before_input(origin)
                self._input = origin
            if origin is self._failing:
                continue
            try:
                if record is None:
                    self._beat(current, unit)
                else:
                    self._look_at(current, record, key, unit)
            except self._POISON as error:
                self._failed(origin, error)
                self._failing = origin

    @staticmethod
    def _wanted(current: Filter, records: Sequence[Record]) -> Iterable[bytes]:
        """The rows of records, as far as user code gives their names; where it fails, it will again, at its place."""
        try:
            return list(current.rows_for(records))
        except UserCodeError:
            return ()

    def _beat(self, current: Filter, unit: Unit) -> None:
        """A heartbeat moves stream time, not beyond the service's clock, and does nothing else."""
        if isinstance(current, WindowedAggregate):
            current.advance(min(unit[4].timestamp_ms, self._now_ms))
            self._give_results(current, unit)

    def _look_at(self, current: Filter, record: Record, key: bytes | None, unit: Unit) -> None:
        origin = unit[4]
        if record.key is not None and len(record.key) > ANY_KEY and not self._fitting.fits(record.key):
            raise self._fitting.too_long(record.key)
        if self._spec.kind == "roots":
            record.root, record.root_position = self._root(origin), origin.position
        verdict = current.accept(record)
        if verdict.reason is not None:
            self._counts[self._node.name, str(verdict.reason)] += 1
        if verdict.dead_letter:
            raise PoisonError(f"stage {self._node.name!r}: {verdict.detail}")
        if isinstance(current, WindowedAggregate):
            self._give_results(current, unit)
        elif verdict.forward and self._forward is not None:
            self._forward(unit[1], key, unit[3], origin)
        if verdict.reason is not None and self._drop is not None:
            self._drop(self._dropped(record, verdict, unit[1]), key, unit[3], origin)

    def _give_results(self, windows: WindowedAggregate[Any], unit: Unit) -> None:
        """Windows close under the input that moved stream time past their end."""
        codec = self._node.codec
        for index, result in enumerate(windows.take_results()):
            if self._forward is not None and codec is not None:
                value = WindowResult(
                    key=result.key,
                    start_ms=result.span.start_ms,
                    end_ms=result.span.end_ms,
                    type=codec.type_name,
                    state=codec.encode(result.state),
                )
                self._forward(value, result.key, unit[3] + number(index), unit[4])

    def _record(self, unit: Unit) -> tuple[Record | None, bytes | None]:
        """The unit as filters see it, and its key; no record of a heartbeat.

        The functions below take the whole unit as its value. Where ids decide, the key's place in it is the id's.
        """
        key, value, _, path, origin = unit
        if value is None:
            return None, key
        if self._spec.spread == "id":
            key, identity = marshal.loads(key)  # noqa: S302 - made by the step before
            unit = (identity, *unit[1:])
        place = origin.place
        record = Record(
            value=unit,
            key=key,
            timestamp_ms=origin.timestamp_ms,
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
            offset=origin.offset,
            spot=Spot(origin.lane, origin.position + path),
        )
        return record, key

    def _function(self, function: UserFunction | None, *, takes_context: bool) -> Extract | None:
        """A user's function of values, for records."""
        if function is None:
            return None
        # Sequences have a policy of their own for numbers that cannot be had, and look at no row meanwhile.
        call = function if self._spec.kind == "sequences" else guarded(function)
        if not takes_context:
            return lambda record: call(_unit_of(record)[1])
        return lambda record: call(
            _unit_of(record)[1], Context(_unit_of(record)[4], record.key, self._now_ms)
        )

    def _fold(self, fold: Any) -> Fold:  # noqa: ANN401 - with two arguments or three
        """The user's fold, for units."""
        fold = guarded(fold)
        if not self._spec.takes_context:
            return lambda state, unit: fold(state, unit[1])

        def fold_with_context(state: object, unit: Unit) -> None:
            context = Context(unit[4], unit[0], self._now_ms)
            fold(state, unit[1], context)
            if context.state_deleted:
                raise PoisonError(
                    f"stage {self._node.name!r}: a window's state cannot be deleted, it ends with its window"
                )

        return fold_with_context

    @staticmethod
    def _id(record: Record) -> Any:  # noqa: ANN401 - bytes, or None
        return _unit_of(record)[0]

    def _root(self, origin: Origin) -> tuple[str, bytes, int]:
        """Root topic, its id, and partition: the same for all of a lane."""
        found = self._roots.get(origin.lane)
        if found is None:
            root = Context(origin, None, 0).root
            found = self._roots[origin.lane] = root.topic, root.topic_id, root.partition
        return found

    def _dropped(self, record: Record, verdict: Verdict, value: object) -> Dropped:
        original, codec = verdict.original, codec_for(type(value))
        return Dropped(
            stage=self._node.name,
            reason=str(verdict.reason),
            detail=verdict.detail,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            lane=record.spot.lane,
            position=record.spot.position,
            original_lane=None if original is None else original.lane,
            original_position=None if original is None else original.position,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            type=codec.type_name,
            payload=codec.encode(value),
        )


def spread_of(spec: FilterSpec, partitions: int) -> Callable[[Unit], int]:
    """The state partition of a unit."""
    if spec.spread == "partition":
        return lambda unit: int(unit[4].place.partition) % partitions
    if spec.spread == "lane":
        return lambda unit: int(unit[4].lane) % partitions
    partitioner = Partitioner(partitions)
    if spec.spread == "key":
        return lambda unit: partitioner(unit[0] or b"")
    return lambda unit: partitioner(marshal.loads(unit[0])[1] or b"")  # noqa: S302 - made by the step before


def _time_of(unit: Unit) -> int:
    """Units of one input have one time, so they stay together; input partitions of one time go by their names."""
    return unit[4].timestamp_ms


def _unit_of(record: Record) -> Unit:
    unit: Any = record.value
    return unit  # type: ignore[no-any-return]  # put there by `Sieving._record`
