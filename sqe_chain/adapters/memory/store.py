"""A store in this process's memory, for tests and notebooks. Deterministic; lost when the process ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from sqe_chain.adapters.address import Address
from sqe_chain.adapters.store_rules import (
    Cell,
    CheckedStore,
    SizeLimits,
    cell_of,
    check_keys,
    check_name,
    with_lost,
)
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Header, Home, Locations, Rows, Shown, ViewKind, Views


@dataclass(slots=True)
class HomeCopy:
    """A flow's data in its metadata store: its home record, heartbeat and plans."""

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
        count: number of states that writes have left; None: it is not known.
    """

    header: Header | None = None
    states: dict[bytes, bytes] = field(default_factory=dict)
    views: dict[bytes, Shown] = field(default_factory=dict)
    count: int | None = None

    def copy(self) -> PartCopy:
        """An independent copy."""
        return PartCopy(self.header, dict(self.states), dict(self.views), self.count)

    def read_header(self) -> Header | None:
        """The header, with what is lost beside it."""
        return self.header and with_lost(self.header, self.count, len(self.states))


@dataclass(slots=True)
class StoreCopy:
    """Everything in a memory store, at one moment."""

    homes: dict[str, HomeCopy] = field(default_factory=dict)
    parts: dict[Cell, PartCopy] = field(default_factory=dict)
    locations: dict[str, Locations] = field(default_factory=dict)

    def copy(self) -> StoreCopy:
        """An independent copy."""
        return StoreCopy(
            {flow: home.copy() for flow, home in self.homes.items()},
            {cell: part.copy() for cell, part in self.parts.items()},
            dict(self.locations),
        )


class _SharedContent:
    """The content of the stores with one name, and its lock."""

    def __init__(self) -> None:
        # Services of a test may be threads of one process, and each call of a store is atomic.
        self._lock = threading.RLock()
        self.content = StoreCopy()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def home(self, flow: str) -> HomeCopy:
        return self.content.homes.setdefault(check_name(flow), HomeCopy())

    def part(self, cell: Cell) -> PartCopy:
        return self.content.parts.setdefault(cell, PartCopy())


_LARGEST: Final = 512 << 20
_LIMITS: Final = SizeLimits(_LARGEST, _LARGEST, _LARGEST)
_contents: dict[str, _SharedContent] = {}


class MemoryStore(CheckedStore):
    """A `StateStore` in memory, shared by everything in this process that uses the same name.

    A pickled copy finds the same data in the same process, and an empty store in another one.
    It can be made to go back in time: `copy_part`, `copy_home` and `copy_all` copy its content, and the `restore_…` methods
    restore a copy.

    Args:
        name: name of the data.
        max_rows: most rows of one `write`; a small number makes the protocol write in chunks.
        max_bytes: most bytes of keys and states in one `write`.
        limits: largest sizes of keys, states and plans, to imitate another store; by default those of Redis.
        views: the kinds of views that it accepts. By default all of them, since in a rehearsal it takes the place of any store.
    """

    def __init__(
        self,
        name: str,
        max_rows: int = 5_000,
        max_bytes: int = 4_000_000,
        limits: SizeLimits = _LIMITS,
        views: frozenset[ViewKind] = frozenset({"json", "hash", "table"}),
    ) -> None:
        super().__init__(max_rows, max_bytes)
        self.name = name
        self._views = views
        self._accepted = limits

    def __repr__(self) -> str:
        return f"MemoryStore(memory://{self.name})"

    @property
    def views(self) -> frozenset[ViewKind]:
        return self._views

    @property
    def _data(self) -> _SharedContent:
        return _contents.get(self.name) or _contents.setdefault(self.name, _SharedContent())

    @property
    def _limits(self) -> SizeLimits:
        return self._accepted

    def check(self) -> list[str]:
        return [
            (
                f"memory://{self.name}: all states are lost when this process ends; "
                "--allow-weak-durability accepts that"
            )
        ]

    def home(self, flow: str) -> tuple[Home | None, int]:
        with self._data as data:
            stored = data.content.homes.get(check_name(flow), HomeCopy())  # reading stores nothing
            return stored.home, stored.beat

    def _set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> Home | None:
        with self._data as data:
            stored = data.home(flow)
            if stored.home == before:
                stored.home = after
                if plan is not None:
                    stored.plans[after.number] = bytes(plan)
                for number in [number for number in stored.plans if number < drop_below]:
                    del stored.plans[number]
            return stored.home

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        with self._data as data:
            stored = data.home(flow)
            home = stored.home
            if home is None or not run_id or (home.epoch, home.run_id) != (epoch, run_id):
                return False
            stored.beat += 1
            return True

    def plan(self, flow: str, number: int) -> bytes | None:
        with self._data as data:
            return data.home(flow).plans.get(number)

    def flows(self) -> list[str]:
        with self._data as data:
            return sorted(flow for flow, stored in data.content.homes.items() if stored.home is not None)

    def forget(self, flow: str, before: Home) -> Home | None:
        with self._data as data:
            if data.home(flow).home == before:
                del data.content.homes[flow]
            return data.home(flow).home

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        cell = cell_of(flow, stage, part)
        with self._data as data:
            if data.part(cell).header == before:
                del data.content.parts[cell]
            return data.part(cell).header

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        with self._data as data:
            return [data.part(cell_of(flow, stage, part)).read_header() for part in parts]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        check_keys(self, keys, self._limits.key)
        with self._data as data:
            stored = data.part(cell_of(flow, stage, part))
            header = stored.read_header()
            return header, [stored.states.get(key) for key in keys], header

    def _write(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None:
        with self._data as data:
            stored = data.part(cell)
            if stored.header != before:
                return stored.header
            had = len(stored.states)
            if views is not None and views.clear:
                stored.views.clear()
            for key, state in rows:
                if state is None:
                    stored.states.pop(key, None)
                    stored.views.pop(key, None)
                else:
                    stored.states[key] = state
                    if views is not None and key in views.shown:
                        stored.views[key] = views.shown[key]
            stored.count = (had if stored.count is None else stored.count) + len(stored.states) - had
            stored.header = after
            return after

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # Here a snapshot, in key order.
        with self._data as data:
            rows = sorted(data.part(cell_of(flow, stage, part)).states.items())
        yield from rows

    def locations(self, flow: str) -> Locations | None:
        with self._data as data:
            return data.content.locations.get(check_name(flow))

    def _set_locations(self, flow: str, after: Locations) -> Locations | None:
        with self._data as data:
            current = data.content.locations.get(flow)
            if current is None or current.age < after.age:
                data.content.locations[flow] = current = after
            return current

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        with self._data as data:
            current = data.content.locations.get(check_name(flow))
            if current is None or current.age != before.age:
                return current
            del data.content.locations[flow]
            return None

    def close(self) -> None:
        """Nothing to close; the data stays."""

    def copy_part(self, flow: str, stage: str, part: int) -> PartCopy:
        """A copy of one cell: of a state partition, or of one of its buckets."""
        with self._data as data:
            return data.part(cell_of(flow, stage, part)).copy()

    def restore_part(self, flow: str, stage: str, part: int, copy: PartCopy | None = None) -> None:
        """Restore a cell from a copy; None: empty it."""
        with self._data as data:
            data.content.parts[cell_of(flow, stage, part)] = (copy or PartCopy()).copy()

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
    """The store at ``memory://name``. Raises ConfigurationError: no name, or a path."""
    if not address.location or address.path:
        raise ConfigurationError("memory:// needs a name and nothing else: memory://name")
    store = MemoryStore(
        address.location,
        address.whole("max_rows", 5_000),
        address.whole("max_bytes", 4_000_000),
        # A service that names this store gets no tables from it.
        views=frozenset({"json", "hash"}),
    )
    address.finish()
    return store
