"""Makes a world that is wrong as small as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sqe_chain.testing.shrinking import smallest
from tests.lab.event_time_worlds.world import Way, World

Item = TypeVar("Item", bound=Struct)


def shrunk(world: World, wrong: Callable[[World], bool], most_attempts: int = 3_000) -> World:
    """The smallest world that is still wrong.

    Args:
        world: is wrong.
        wrong: whether a world is.
        most_attempts: worlds to try.
    """
    return smallest(world, _smaller, wrong, most_attempts)


def _smaller(world: World) -> Iterator[World]:
    for number in range(len(world.readers)) if len(world.readers) > 1 else ():
        yield replace(
            world,
            readers=_without(world.readers, number, 1),
            steps=tuple(_of_readers(world.steps, number)),
        )
    for size in (16, 8, 4, 2, 1):
        for at in range(0, len(world.steps), size):
            yield replace(world, steps=_without(world.steps, at, size))
        for at in range(0, len(world.facts), size):
            yield replace(world, facts=_without(world.facts, at, size))
    yield from _plainer(world)


def _plainer(world: World) -> Iterator[World]:
    yield from _changed(world, {"close": False, "by_clock": False})
    for at, fact in enumerate(world.facts):
        for plainer in _changed(fact, {"age_ms": 0, "gap_ms": 0, "partition": 0, "key": "a"}):
            yield replace(world, facts=_with(world.facts, at, plainer))
    for at, way in enumerate(world.ways):
        for shorter in (*_changed(way, {"partitions": max(1, way.partitions - 1)}), *_plainer_hops(way)):
            yield replace(world, ways=_with(world.ways, at, shorter))
    plain = {"state_partitions": 1, "in_place": False, "max_records": 1_000, "max_bytes": 100_000_000}
    for at, reader in enumerate(world.readers):
        for one in _changed(reader, plain):
            yield replace(world, readers=_with(world.readers, at, one))


def _plainer_hops(way: Way) -> Iterator[Way]:
    for at, hop in enumerate(way.hops):
        plain = {"partitions": max(1, hop.partitions - 1), "keep": 10, "by_number": False, "max_records": 100}
        for one in _changed(hop, plain):
            yield replace(way, hops=_with(way.hops, at, one))


def _changed(item: Item, plain: Mapping[str, object]) -> Iterator[Item]:
    """The item with one field after the other as in a plainer one."""
    for field, value in plain.items():
        if getattr(item, field) != value:
            yield replace(item, **{field: value})


def _of_readers(steps: Sequence[str], gone: int) -> Iterator[str]:
    """The steps without those of one reader."""
    for step in steps:
        if step[0] not in "rRb":
            yield step
            continue
        number, colon, rest = step[1:].partition(":")
        if int(number) != gone:
            yield f"{step[0]}{int(number) - (int(number) > gone)}{colon}{rest}"


def _without(items: tuple[Any, ...], at: int, size: int) -> tuple[Any, ...]:
    return items[:at] + items[at + size :]


def _with(items: tuple[Item, ...], at: int, item: Item) -> tuple[Item, ...]:
    return (*items[:at], item, *items[at + 1 :])
