"""Units on their way through a shuffle, side by side: what a fold or the operators give leaves as columns, and arrives as them."""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby, repeat
from operator import gt, itemgetter
from typing import Any, Final, NamedTuple, Self

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import CONTEXT, ENVELOPE
from sqe_chain.flow.units import UnitRun
from sqe_chain.task.inputs import Given, Inputs, numbered
from sqe_chain.task.roots import is_moment
from sqe_chain.task.stage_part import OfMoments, addressing

_KNOWN_ADDRESSES: Final = 200_000
_ORDER, _CHAIN, _TIME, _ENVELOPE = 4, 6, 7, 8
"""Where `Origin.pack` puts the place in the order of times, the links and the time; its length without key and headers."""
_RECORD_BYTES: Final = 64
"""Size of a unit without its value and what is carried of its input, roughly."""
WAKES: Final = -1
"""Instead of a stage: the state partition has something to do, though it may get no units."""

Place = tuple[int, int, str, int]
"""State partition, stage index, topic, partition: units of one place follow each other."""


# Between tasks a block is one `marshal` of its columns. What is carried is marshalled by itself within, because a stage
# that asks for no origin never needs to read it.
class ShuffledUnits(NamedTuple):
    """Units for one stage and state partition, of inputs of one partition, in the order (offset, path).

    Attributes:
        place: where they go, and where their inputs were read.
        offsets: those of their inputs.
        paths: their paths.
        keys: their keys.
        tags: of their codecs; "" of a heartbeat.
        values: their values as bytes.
        causes: what has caused them, where no input has; see `Origin.cause`.
        carried: what is carried of their inputs; see `Origin.pack`. The same object for those of one input.
    """

    place: Place
    offsets: list[int]
    paths: list[bytes]
    keys: list[Any]
    tags: list[str]
    values: list[bytes]
    causes: list[str | None]
    carried: Sequence[tuple[Any, ...]]

    @classmethod
    def joined(cls, blocks: Sequence[Self]) -> Self:
        """Units of one place together, in order: no matter where they come from."""
        first, *more = blocks
        if more:
            columns = zip(*(block[1:] for block in blocks), strict=True)
            first = cls._make([first.place, *(list(chain.from_iterable(parts)) for parts in columns)])
        # Down to the values, so that the order does not depend on which task a block came from, or which came first.
        order = first.order
        if any(map(gt, order, order[1:])):
            return first.only(sorted(range(len(order)), key=order.__getitem__))
        return first

    @property
    def order(self) -> list[tuple[Any, ...]]:
        """By what units of one place are ordered."""
        return list(zip(self.offsets, self.paths, self.keys, self.tags, self.values, strict=True))

    def only(self, at: Sequence[int] | slice) -> Self:
        """Some of them, in this order."""
        if isinstance(at, slice):
            return type(self)._make([self.place, *(column[at] for column in self[1:])])
        return type(self)._make([self.place, *(list(map(column.__getitem__, at)) for column in self[1:])])

    def before(self, offset: int, path: bytes) -> int:
        """How many of them come before an offset and path."""
        if (self.offsets[-1], self.paths[-1]) < (offset, path):
            return len(self.offsets)
        return bisect_left(list(zip(self.offsets, self.paths, strict=True)), (offset, path))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each, roughly."""
        return [
            _RECORD_BYTES + len(value) + (_size_of(carried) if carried else 0)
            for value, carried in zip(self.values, self.carried, strict=True)
        ]

    def dumped(self) -> bytes:
        """All of them as bytes; what is carried is read only when it is asked for."""
        return marshal.dumps((*self[:7], marshal.dumps([*self.carried])))

    @classmethod
    def loaded(cls, data: bytes) -> ShuffledUnits:
        """From what `dumped` returned."""
        *columns, carried = marshal.loads(data)  # noqa: S302 - made by `dumped`, in this service
        return cls._make([*columns, _Later(carried)])


def in_order(blocks: Iterable[ShuffledUnits]) -> Iterator[ShuffledUnits]:
    """All units in their order: by place, offset and path."""
    for _, own in groupby(sorted(blocks, key=_place_of), key=_place_of):
        yield ShuffledUnits.joined(list(own))


_place_of: Final = itemgetter(0)


class _Later(Sequence[tuple[Any, ...]]):
    """A list that is read from its bytes once somebody asks for what is in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def _list(self) -> list[tuple[Any, ...]]:
        read: list[tuple[Any, ...]] = marshal.loads(self._data)  # noqa: S302 - made by `ShuffledUnits.dumped`
        return read

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - an index or a slice
        return self._list[at]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._list)


def _size_of(carried: tuple[Any, ...]) -> int:
    """Bytes of what is carried of an input: its links, or with key and headers all of it."""
    return len(carried[_CHAIN]) if len(carried) <= _ENVELOPE else len(marshal.dumps(carried))


class Shuffle:
    """Makes blocks of the units that leave a level."""

    def __init__(self, flow: CompiledFlow) -> None:
        self._flow = flow
        self._ways: dict[
            int, tuple[int, Callable[[Any], Any] | None, dict[Any, int], Callable[[Any], int]]
        ] = {}

    def _way(
        self, stage: int
    ) -> tuple[int, Callable[[Any], Any] | None, dict[Any, int], Callable[[Any], int]]:
        """What units of a stage carry, their addresses, and the state partitions of these: those known, and how to find others.

        The addresses are None where keys are the addresses. Looked up on demand: most tasks without a shuffle need none of it.
        """
        node = self._flow.stage_at(stage)
        address, part_of = addressing(node.traits.spread, self._flow.state_partitions)
        own = None if node.traits.spread == "key" else address
        return self._ways.setdefault(stage, (carried_need(self._flow, node), own, {}, part_of))

    def blocks(
        self,
        stage: int,
        units: Sequence[tuple[Any, ...]],
        numbers: Sequence[int],
        inputs: Inputs,
        causes: Sequence[str | None] | None = None,
    ) -> list[ShuffledUnits]:
        """Blocks of serialized units, by where they go.

        Args:
            stage: index of its node.
            units: key, value, tag, path, and what is not looked at.
            numbers: of each, the number of its input.
            inputs: the inputs.
            causes: see `ShuffledUnits`; None: their inputs have caused all of them.
        """
        need, address, known, part_of = self._ways.get(stage) or self._way(stage)
        keys, values, tags, paths, _ = zip(*units, strict=True)
        addresses = keys
        if address is not None:
            origins = map(inputs.origin, numbers)
            addresses = tuple(
                [address((key, None, "", b"", origin)) for key, origin in zip(keys, origins, strict=True)]
            )
        # The memo only saves hashing. It is bounded, since keys may always be new.
        if len(known) >= _KNOWN_ADDRESSES:
            known.clear()
        for fresh in set(addresses).difference(known):
            known[fresh] = part_of(fresh)
        tps, tp_at = numbered(inputs.partitions(numbers))
        at: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        parts = map(known.__getitem__, addresses)
        for index, place in enumerate(zip(parts, tp_at if len(tps) > 1 else repeat(0), strict=False)):
            at[place].append(index)
        causes = causes or [None] * len(units)
        columns = inputs.offsets(numbers), paths, keys, tags, values, causes, inputs.carried(numbers, need)
        return [
            ShuffledUnits._make(
                [
                    (part, stage, tps[tp].topic, tps[tp].partition),
                    *(list(map(column.__getitem__, own)) for column in columns),
                ]
            )
            for (part, tp), own in at.items()
        ]


def carried_need(flow: CompiledFlow, stage: StageNode) -> int:
    """What units of a stage must carry of their input through its shuffle; see `Node.needs`."""
    need = CONTEXT if flow.traces else stage.traits.needs
    if stage.traits.order == "times" or stage.index in flow.after_falling:
        need = max(need, ENVELOPE)
    pending = [*flow.children[stage.index]]
    while pending:
        node = pending.pop()
        need = max(need, node.needs)
        pending += flow.children[node.index]
    return need


def wake(parts: Sequence[int]) -> list[ShuffledUnits]:
    """What makes state partitions run; it comes before all units."""
    return [
        ShuffledUnits((part, WAKES, "", -1), [-1], [b""], [b""], [""], [b""], [None], [()]) for part in parts
    ]


class ShuffledInputs:
    """The inputs of units that have come through a shuffle.

    Args:
        units: the units. The number of an input is the index of its first unit.
    """

    def __init__(self, units: ShuffledUnits) -> None:
        self._units = units
        self._origins: dict[int, Origin] = {}

    def origin(self, number: int) -> Origin:
        """One of them."""
        origin = self._origins.get(number)
        if origin is None:
            units = self._units
            _, _, topic, partition = units.place
            offset, carried = units.offsets[number], units.carried[number]
            origin = self._origins[number] = Origin.unpack(topic, partition, offset, carried)
        return origin

    def places_of(self, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """See `Records.places_of`."""
        origins = map(self.origin, numbers)
        return [(origin.lane, origin.position) for origin in origins]

    def inputs_of(self, numbers: Sequence[int]) -> Given:
        """See `Records.inputs_of`."""
        return [(0, len(numbers), *Inputs.numbered(numbers, self.origin))]

    def run(self, values: list[Any], *, timed: bool) -> UnitRun:
        """The units as a stage takes them.

        Args:
            values: their values.
            timed: their times and places are wanted.
        """
        units, count = self._units, len(values)
        times_ms, orders_ms = [-1] * count, [-1] * count
        if timed:
            times_ms = [carried[_TIME] for carried in units.carried]
            orders_ms = [carried[_ORDER] for carried in units.carried]
        numbers = list(range(count))
        if len(set(units.offsets)) < count:
            firsts: dict[int, int] = {}
            # Units of one input have one number, and so one origin object.
            numbers = [firsts.setdefault(offset, index) for index, offset in enumerate(units.offsets)]
        sources: list[Any] = [self] * count
        if any(units.causes):
            due = MomentInputs if is_moment(units.place[2]) else DueInputs
            sources = [self if cause is None else due(self, cause) for cause in units.causes]
        return UnitRun(units.keys, values, units.paths, times_ms, orders_ms, sources, numbers)


class DueInputs:
    """The inputs under which units have come that something else has caused.

    Args:
        inputs: the inputs.
        cause: see `Origin.cause`.
    """

    def __init__(self, inputs: ShuffledInputs, cause: str) -> None:
        self._inputs = inputs
        self._cause = cause

    def origin(self, number: int) -> Origin:
        """One of them."""
        return self._inputs.origin(number).due(self._cause)

    def places_of(self, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """See `Records.places_of`."""
        return self._inputs.places_of(numbers)

    def inputs_of(self, numbers: Sequence[int]) -> Given:
        """See `Records.inputs_of`."""
        return self._inputs.inputs_of(numbers)


class MomentInputs(DueInputs, OfMoments):
    """Those that a moment of event time has caused."""
