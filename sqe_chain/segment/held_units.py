r"""Units that wait for event time: a stage that goes by it takes units in the order of their times, across input partitions.

The *order* of units is (`Origin.order_ms`, topic, partition, offset, path). A unit may be taken when no earlier one can come
any more: up to the frontier (`sqe_chain.segment.event_times`). What comes after it is held: within a batch in memory, at
its end in rows beside those of the stage.

So the units of one stage and state partition are taken in one order, wherever batches end and however far one input
partition is ahead of another. Positions on a lane rise in it, as they must, because `order_ms` never falls along a lane.

Rows, all after those of the stage by their names:

    \xffu<number>   up to 500 units
    \xffz           the manifest: which rows there are

Why this survives a crash between two chunks of one batch (the rule of `sqe_chain.flow.table`): a stage's rows depend on
units in rows with greater names, which are old as long as any of the stage's are. A row of units never changes; it is
written by one batch, and deleted by the batch that takes its last unit. What the manifest becomes depends on itself, on
the batch's units and on two frontiers, of the plan before and of this batch; its name is the greatest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter, le
from struct import Struct
from typing import Final

from sqe_chain._proto.held_pb2 import HeldManifest, HeldRow, HeldUnit
from sqe_chain.errors import StoreInconsistent, TooManyHeld
from sqe_chain.flow.context import Carried, Origin, TopicIdPartition
from sqe_chain.flow.stage_kind import CONTEXT
from sqe_chain.flow.table import Table
from sqe_chain.flow.units import Unit, UnitRun
from sqe_chain.segment.event_times import Frontier, WaitingUnits, furthest
from sqe_chain.stages.own_values import Stored

MANIFEST: Final = b"\xffz"
ROW: Final = b"\xffu"
ROW_UNITS: Final = 500
"""Units of one row."""

_NUMBER: Final = Struct(">Q")
Order = tuple[int, str, int, int, bytes, bytes]
"""Of a unit: time in milliseconds, topic, partition, offset, topic id (it may have been created again since), path."""
Encode = Callable[[object], tuple[str, bytes]]
"""A value -> what an envelope says of its type, and its bytes."""


class HeldUnits:
    """The units of one stage and state partition that wait, while a batch runs.

    Args:
        table: rows of the stage.
        need: what of their inputs has to be kept; see `StageKind.needs`.
        encode: encodes values that are objects.
        limit: how many units may be held.
        known: what waits since the batch before; None: nothing.
    """

    def __init__(
        self, table: Table, need: int, encode: Encode, limit: int, known: WaitingUnits | None
    ) -> None:
        self._table = table
        self._need = need
        self._encode = encode
        self._limit = limit
        self._frontier = known.frontier if known is not None else None
        self._manifest = HeldManifest()
        if known is not None and known.units:
            self._manifest = HeldManifest.FromString(table.get(MANIFEST) or b"")
        self._before = self._manifest.SerializeToString(deterministic=True)
        self._new: list[UnitRun] = []
        self._left = UnitRun.joined(())

    def add(self, units: Sequence[Unit]) -> None:
        """Add units of this batch, which come in the order (topic, partition, offset, path)."""
        self._new.append(UnitRun.of(units))

    def take(self, frontier: Frontier | None) -> UnitRun:
        """The units up to a frontier, in their order; once, after the last `add`. Values that have waited are `Stored`.

        Args:
            frontier: None: not known. It never goes back: one before that of an earlier batch is taken for that.
        """
        new = _by_time(UnitRun.joined(self._new))
        self._new.clear()
        taken = self._frontier
        frontier = furthest(frontier, taken)
        if frontier is None:
            self._left = new
            return new[:0]
        self._frontier = frontier
        end = _end_of(new, frontier)
        due, self._left = new[:end], new[end:]
        stored = sorted(self._take_stored(frontier, taken), key=itemgetter(0))
        return due if not stored else _merged(UnitRun.of([unit for _, unit in stored]), due)

    def finish(self, holder: str) -> WaitingUnits:
        """Write what is left. Returns what waits now.

        Args:
            holder: what holds it back, for an error's text.

        Raises:
            TooManyHeld: more is left than may be held; nothing was written.
        """
        held = sum(row.units for row in self._manifest.rows) + len(self._left)
        if held > self._limit:
            raise TooManyHeld(
                f"{held} records of one state partition wait for event time, allowed are {self._limit}: {holder} holds them back. "
                "Look why it is behind, or raise Flow(max_held=…)"
            )
        for begin in range(0, len(self._left), ROW_UNITS):
            self._write([(_order_of(unit), unit) for unit in self._left[begin : begin + ROW_UNITS]])
        content = self._manifest.SerializeToString(deterministic=True)
        if not held and self._before:
            self._table.delete(MANIFEST)
        elif held and content != self._before:
            self._table.put(MANIFEST, content)
        return WaitingUnits(held, self._frontier)

    def _write(self, units: list[tuple[Order, Unit]]) -> None:
        number, (last, _) = self._manifest.next_number, units[-1]
        row = HeldRow(units=[self._packed(order, unit) for order, unit in units])
        self._table.put(_name(number), row.SerializeToString(deterministic=True))
        self._manifest.rows.add(
            number=number,
            units=len(units),
            first_ms=units[0][0][0],
            last_ms=last[0],
            last_topic=last[1],
            last_partition=last[2],
        )
        self._manifest.next_number = number + 1

    def _take_stored(self, frontier: Frontier, taken: Frontier | None) -> list[tuple[Order, Unit]]:
        """Units in rows up to the frontier, without those that an earlier batch has taken."""
        due = [row for row in self._manifest.rows if row.first_ms <= frontier.at_ms]
        if not due:
            return []
        self._table.load([_name(row.number) for row in due])
        found: list[tuple[Order, Unit]] = []
        for row in due:
            units = [self._unpacked(one) for one in self._units(row.number)]
            left = [one for one in units if taken is None or one[0][:3] > taken]
            own = [one for one in left if one[0][:3] <= frontier]
            found += own
            if len(own) < len(left):
                row.units, row.first_ms = len(left) - len(own), left[len(own)][0][0]
        kept = [row for row in self._manifest.rows if _last(row) > frontier]
        for row in due:
            if _last(row) <= frontier and self._table.get(_name(row.number)) is not None:
                self._table.delete(_name(row.number))
        self._manifest = HeldManifest(rows=kept, next_number=self._manifest.next_number)
        return found

    def _units(self, number: int) -> Iterable[HeldUnit]:
        name = _name(number)
        content = self._table.get(name)
        if content is None:
            if self._table.settled(
                name
            ):  # an earlier attempt has taken all of it, and written all that came of it
                return ()
            raise StoreInconsistent(
                f"row {name.hex()} of held units is missing: the store lost what it had acknowledged"
            )
        return HeldRow.FromString(content).units

    def _packed(self, order: Order, unit: Unit) -> HeldUnit:
        key, value, tag, path, origin = unit
        if value is not None and not tag:
            tag, value = self._encode(value)
        packed = HeldUnit(
            order_ms=order[0],
            topic=origin.tp.topic,
            topic_id=origin.tp.topic_id,
            partition=origin.tp.partition,
            offset=origin.offset,
            path=path,
            key=key,
            value=value,
            type=tag,
            leader_epoch=origin.epoch,
            lane=origin.lane,
            position=origin.position,
            stated_lane=origin.stated_lane,
            chain=origin.chain_bytes,
            timestamp_ms=origin.timestamp_ms,
        )
        if self._need == CONTEXT:
            packed.event_id = origin.event_id
            if origin.key is not None:
                packed.message_key = origin.key
            for name, content in origin.headers or ():
                packed.headers.add(name=name, content=content)
        return packed

    def _unpacked(self, one: HeldUnit) -> tuple[Order, Unit]:
        carried = Carried(
            one.stated_lane,
            one.chain,
            one.timestamp_ms,
            one.message_key if one.HasField("message_key") else None,
            [(header.name, header.content if header.HasField("content") else None) for header in one.headers]
            or None,
            one.event_id,
        )
        tp = TopicIdPartition(one.topic, one.topic_id, one.partition)
        epoch, order_ms = one.leader_epoch, one.order_ms
        origin = Origin(tp, one.offset, epoch, one.lane, one.position, None, None, carried, order_ms)
        value = Stored(one.type, one.value) if one.HasField("value") else None
        key = one.key if one.HasField("key") else None
        return (one.order_ms, one.topic, one.partition, one.offset, one.topic_id, one.path), (
            key,
            value,
            "",
            one.path,
            origin,
        )


def _order_of(unit: Unit) -> Order:
    origin = unit[4]
    return origin.order_ms, *origin.order, origin.tp.topic_id, unit[3]


def _by_time(run: UnitRun) -> UnitRun:
    """The units in the order of their times; those of one time stay as they are."""
    orders_ms = run.orders_ms
    if all(map(le, orders_ms, islice(orders_ms, 1, None))):
        return run
    return run.chosen(sorted(range(len(run)), key=orders_ms.__getitem__))


def _end_of(run: UnitRun, frontier: Frontier) -> int:
    """Up to which index units in their order lie before a frontier."""
    begin, end = bisect_left(run.orders_ms, frontier.at_ms), bisect_right(run.orders_ms, frontier.at_ms)
    same_time = range(begin, end)
    return begin + bisect_right(same_time, frontier[1:], key=lambda index: run.origin(index).order[:2])


def _merged(one: UnitRun, other: UnitRun) -> UnitRun:
    """The units of both in their order."""
    run = _by_time(UnitRun.joined((one, other)))
    # Where both have units of one time, what comes first has still to be asked.
    shared, indexes = set(one.orders_ms).intersection(other.orders_ms), list(range(len(run)))
    for at_ms in shared:
        begin, end = bisect_left(run.orders_ms, at_ms), bisect_right(run.orders_ms, at_ms)
        indexes[begin:end] = sorted(range(begin, end), key=lambda index: _order_of(run[index]))
    return run.chosen(indexes) if shared else run


def _name(number: int) -> bytes:
    return ROW + _NUMBER.pack(number)


def _last(row: HeldManifest.Row) -> tuple[int, str, int]:
    return row.last_ms, row.last_topic, row.last_partition
