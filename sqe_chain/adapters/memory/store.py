"""A store in this process's memory, for tests and notebooks. Deterministic; lost when the process ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sqe_chain.adapters.limits import (
    Limited,
    Limits,
    check_home,
    check_locations,
    check_name,
    check_rows,
    with_witness,
)
from sqe_chain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqe_chain.adapters.address import Address
    from sqe_chain.ports import Header, Home, Locations, Rows, Shown, ViewKind, Views

_Part = tuple[str, str, int]


@dataclass(slots=True)
class HomeCopy:
    """A flow's data in its home store: its record, heartbeat and plans."""

    home: Home | None = None
    beat: int = 0
    plans: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> HomeCopy:
        """An independent copy."""
        return HomeCopy(self.home, self.beat, dict(self.plans))


@dataclass(slots=True)
class PartCopy:
    """The data of one cell: of a state partition, or of one of its buckets.

    Attributes:
        count: how many states writes have left; None: it is not known.
    """

    header: Header | None = None
    states: dict[bytes, bytes] = field(default_factory=dict)
    views: dict[bytes, Shown] = field(default_factory=dict)
    count: int | None = None

    def copy(self) -> PartCopy:
        """An independent copy."""
        return PartCopy(self.header, dict(self.states), dict(self.views), self.count)

    def told(self) -> Header | None:
        """The header, with what is lost beside it."""
        return self.header and with_witness(self.header, self.count, len(self.states))


@dataclass(slots=True)
class StoreCopy:
    """Everything in a memory store, at one moment."""

    homes: dict[str, HomeCopy] = field(default_factory=dict)
    parts: dict[_Part, PartCopy] = field(default_factory=dict)
    locations: dict[str, Locations] = field(default_factory=dict)

    def copy(self) -> StoreCopy:
        """An independent copy."""
        return StoreCopy(
            {flow: home.copy() for flow, home in self.homes.items()},
            {cell: part.copy() for cell, part in self.parts.items()},
            dict(self.locations),
        )


class _Data:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.content = StoreCopy()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def home(self, flow: str) -> HomeCopy:
        return self.content.homes.setdefault(check_name(flow), HomeCopy())

    def part(self, flow: str, stage: str, part: int) -> PartCopy:
        cell = (check_name(flow), check_name(stage), part)
        return self.content.parts.setdefault(cell, PartCopy())


_LIMITS = Limits(512 << 20, 512 << 20, 512 << 20)

_stores: dict[str, _Data] = {}


class MemoryStore(Limited):
    """A `StateStore` in memory, shared by everything in this process that uses the same name.

    A pickled copy finds the same data in the same process, and an empty store in another one.
    In addition to the port, it can be made to go back in time: `copy_part`, `copy_home` and `copy_all` copy its
    current content, and the `restore_…` methods restore a copy.

    Args:
        name: name of the data.
        max_rows: most rows of one `write`; a small number makes the protocol write in chunks.
        max_bytes: most bytes of keys and states in one `write`.
        limits: largest sizes of keys, states and plans, to imitate another store; by default those of Redis.
    """

    max_rows: int = 5_000
    max_bytes: int = 4_000_000
    views: frozenset[ViewKind] = frozenset({"json", "hash"})

    def __init__(
        self, name: str, max_rows: int = 5_000, max_bytes: int = 4_000_000, limits: Limits = _LIMITS
    ) -> None:
        self.name = name
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._accepted = limits

    def __repr__(self) -> str:
        return f"MemoryStore(memory://{self.name})"

    @property
    def _data(self) -> _Data:
        return _stores.get(self.name) or _stores.setdefault(self.name, _Data())

    @property
    def _limits(self) -> Limits:
        return self._accepted

    def check(self) -> list[str]:
        """One sentence: memory is not durable."""
        return [
            (
                f"memory://{self.name}: all states are lost when this process ends; "
                "--allow-weak-durability accepts that"
            )
        ]

    def home(self, flow: str) -> tuple[Home | None, int]:
        with self._data as data:
            found = data.home(flow)
            return found.home, found.beat

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        check_home(after, plan)
        self._limits.check_plan(self, plan)
        with self._data as data:
            found = data.home(flow)
            if found.home == before:
                found.home = after
                if plan is not None:
                    found.plans[after.number] = bytes(plan)
                for number in [number for number in found.plans if number < drop_below]:
                    del found.plans[number]
            return found.home

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        with self._data as data:
            found = data.home(flow)
            home = found.home
            if home is None or not run_id or (home.epoch, home.run_id) != (epoch, run_id):
                return False
            found.beat += 1
            return True

    def plan(self, flow: str, number: int) -> bytes | None:
        with self._data as data:
            return data.home(flow).plans.get(number)

    def flows(self) -> list[str]:
        with self._data as data:
            return sorted(flow for flow, found in data.content.homes.items() if found.home is not None)

    def forget(self, flow: str, before: Home) -> Home | None:
        with self._data as data:
            if data.home(flow).home == before:
                del data.content.homes[flow]
            return data.home(flow).home

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        with self._data as data:
            if data.part(flow, stage, part).header == before:
                del data.content.parts[flow, stage, part]
            return data.part(flow, stage, part).header

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        with self._data as data:
            return [data.part(flow, stage, part).told() for part in parts]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # Here one snapshot
        self._limits.check(self, [(key, None) for key in keys if len(key) > self._limits.key])
        with self._data as data:
            found = data.part(flow, stage, part)
            return found.told(), [found.states.get(key) for key in keys], found.told()

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        check_rows(rows, self.max_rows, self.max_bytes, views)
        self._limits.check(self, rows, views)
        with self._data as data:
            found = data.part(flow, stage, part)
            had = len(found.states)
            if found.header == before:
                for key, state in rows:
                    if state is None:
                        found.states.pop(key, None)
                        found.views.pop(key, None)
                    else:
                        found.states[key] = state
                        if views is not None and key in views.shown:
                            found.views[key] = views.shown[key]
                found.count = (had if found.count is None else found.count) + len(found.states) - had
                found.header = after
            return found.header

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # Here a snapshot, in key order
        with self._data as data:
            rows = sorted(data.part(flow, stage, part).states.items())
        yield from rows

    def locations(self, flow: str) -> Locations | None:
        with self._data as data:
            return data.content.locations.get(check_name(flow))

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        check_locations(after)
        with self._data as data:
            current = data.content.locations.get(check_name(flow))
            if current is None or current.age < after.age:
                data.content.locations[flow] = current = after
            return current

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        with self._data as data:
            current = data.content.locations.get(check_name(flow))
            if current is not None and current.age == before.age:
                del data.content.locations[flow]
                return None
            return current

    def close(self) -> None:
        """Nothing to close; the data stays."""

    def copy_part(self, flow: str, stage: str, part: int) -> PartCopy:
        """A copy of one cell: of a state partition, or of one of its buckets."""
        with self._data as data:
            return data.part(flow, stage, part).copy()

    def restore_part(self, flow: str, stage: str, part: int, copy: PartCopy | None = None) -> None:
        """Restore a cell from a copy; None: empty it."""
        with self._data as data:
            cell = (check_name(flow), check_name(stage), part)
            data.content.parts[cell] = (copy or PartCopy()).copy()

    def copy_home(self, flow: str) -> HomeCopy:
        """A copy of the flow's claim, heartbeat and plans."""
        with self._data as data:
            return data.home(flow).copy()

    def restore_home(self, flow: str, copy: HomeCopy | None = None) -> None:
        """Restore a flow's claim, heartbeat and plans from a copy; None: remove them."""
        with self._data as data:
            data.content.homes[check_name(flow)] = (copy or HomeCopy()).copy()

    def copy_all(self) -> StoreCopy:
        """A copy of everything in the store."""
        with self._data as data:
            return data.content.copy()

    def restore_all(self, copy: StoreCopy | None = None) -> None:
        """Restore everything from a copy; None: empty the store."""
        with self._data as data:
            data.content = (copy or StoreCopy()).copy()


def open_address(address: Address) -> MemoryStore:
    """The store at ``memory://name``.

    Raises:
        ConfigurationError: no name, or a path.
    """
    if not address.location or address.path:
        raise ConfigurationError("memory:// needs a name and nothing else: memory://name")
    store = MemoryStore(
        address.location, address.whole("max_rows", 5_000), address.whole("max_bytes", 4_000_000)
    )
    address.finish("max_rows", "max_bytes")
    return store
