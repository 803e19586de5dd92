"""Units, the input of stages, and `Push`, the type of the functions that take their output."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from struct import Struct
from typing import Any, overload

from sqe_chain.flow.context import Origin

Push = Callable[[object, bytes | None, bytes, Origin], None]
"""Takes value, key, path and the origin of the input, or its number; see `StageTask.applies`."""

_UINT32 = Struct(">I")
NUMBERS = tuple(_UINT32.pack(number) for number in range(256))
"""The first path elements, ready made."""

Unit = tuple[Any, Any, str, bytes, Origin]
"""A value on its way into a stage: key, value, type, path, origin. A plain tuple, because one is made for every message.

The key is bytes, or None where the stage takes units without one; where ids decide, key and id packed together. The value is an
object, None for a heartbeat, or serialized for a shuffle. The type is the full protobuf name of a serialized value, otherwise ""."""


def number(value: int) -> bytes:
    """One element of a path: 4 bytes, big-endian, so that paths compare as their numbers do."""
    return NUMBERS[value] if value < 256 else _UINT32.pack(value)  # noqa: PLR2004 - size of the table


def pack_key_and_id(key: bytes | None, identity: bytes | None) -> bytes:
    """A unit's key, where ids decide its state partition: its own and the id."""
    # Version 2 of the format. Later ones mark objects that are referenced more than once, so equal pairs could have
    # different bytes. These bytes are a key.
    return marshal.dumps((key, identity), 2)


def unpack_key_and_id(packed: bytes) -> tuple[bytes | None, bytes | None]:
    """The key and the id that `pack_key_and_id` was given."""
    key, identity = marshal.loads(packed)  # noqa: S302 - our own: made before the shuffle
    return key, identity


class UnitRun(Sequence[Unit]):
    """Units side by side: a list for each part that a stage needs of them. Origins are made on demand.

    Attributes:
        keys: their keys.
        values: their values.
        paths: their paths.
        times_ms: event times of their inputs.
        orders_ms: places of their inputs in the order of times.
        sources: what gives the origin of each, with the number that it is asked for: two lists.
    """

    __slots__ = ("keys", "numbers", "orders_ms", "paths", "sources", "times_ms", "values")

    def __init__(
        self,
        keys: list[Any],
        values: list[Any],
        paths: list[bytes],
        times_ms: list[int],
        orders_ms: list[int],
        sources: list[Any],
        numbers: list[int],
    ) -> None:
        self.keys, self.values, self.paths = keys, values, paths
        self.times_ms, self.orders_ms = times_ms, orders_ms
        self.sources, self.numbers = sources, numbers

    @classmethod
    def of(cls, units: Sequence[Unit], *, timed: bool = True) -> UnitRun:
        """The same units side by side.

        Args:
            units: the units.
            timed: their times are wanted; else the columns of times are -1.
        """
        if isinstance(units, cls):
            return units
        origins = [unit[4] for unit in units]
        none = [-1] * len(origins)
        return cls(
            [unit[0] for unit in units],
            [unit[1] for unit in units],
            [unit[3] for unit in units],
            [origin.timestamp_ms for origin in origins] if timed else none,
            [origin.order_ms for origin in origins] if timed else none,
            [_Listed(origins)] * len(origins),
            list(range(len(origins))),
        )

    @classmethod
    def joined(cls, runs: Iterable[UnitRun]) -> UnitRun:
        """Several runs, one after the other."""
        runs = list(runs)
        if len(runs) == 1:
            return runs[0]
        columns = list(zip(*(run.columns for run in runs), strict=True))
        return cls(*(list(chain.from_iterable(parts)) for parts in columns or [()] * 7))

    def chosen(self, indexes: Iterable[int]) -> UnitRun:
        """Some of the units, in the order of these indexes."""
        at = list(indexes)
        return type(self)(*([column[index] for index in at] for column in self.columns))

    def origin(self, index: int) -> Origin:
        """The input that a unit comes from."""
        origin: Origin = self.sources[index].origin(self.numbers[index])
        return origin

    def by_source(self, least: int) -> Iterator[UnitRun]:
        """The units in runs of one source each, in their order; as one run where these would be shorter than this, on average."""
        ends = [len(list(same)) for _, same in groupby(map(id, self.sources))]
        begin = 0
        for count in ends if len(ends) * least <= len(self) else [len(self)]:
            yield self[begin : begin + count] if count < len(self) else self
            begin += count

    def spots(self) -> list[tuple[int, bytes]]:
        """Lane and position of each unit; the position ends with its path."""
        own: dict[int, list[int]] = {}
        for index, source in enumerate(map(id, self.sources)):
            own.setdefault(source, []).append(index)
        spots: list[tuple[int, bytes]] = [(0, b"")] * len(self)
        for indexes in own.values():
            source = self.sources[indexes[0]]
            places = source.places_of([self.numbers[index] for index in indexes])
            for index, (lane, position) in zip(indexes, places, strict=True):
                spots[index] = lane, position + self.paths[index]
        return spots

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Unit: ...

    @overload
    def __getitem__(self, index: slice) -> UnitRun: ...

    def __getitem__(self, index: int | slice) -> Unit | UnitRun:
        if isinstance(index, slice):
            return type(self)(*(column[index] for column in self.columns))
        return self.keys[index], self.values[index], "", self.paths[index], self.origin(index)

    @property
    def columns(self) -> tuple[list[Any], ...]:
        """Its lists."""
        return (
            self.keys, self.values, self.paths, self.times_ms, self.orders_ms, self.sources, self.numbers,
        )  # fmt: skip


class _Listed:
    """Origins by their indexes."""

    def __init__(self, origins: Sequence[Origin]) -> None:
        self.origin = origins.__getitem__

    def places_of(self, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """Lane and position of each."""
        origins = map(self.origin, numbers)
        return [(origin.lane, origin.position) for origin in origins]
