"""What all stores do alike: names, sizes, how a record is a row of values, and what the exceptions of drivers mean.

Which error is for what, `StateStore` lists.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from sqe_chain.errors import ChainError, ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.ports import Header, Home, Location, Locations, Rows, StateStore, Views

Cell = tuple[str, str, int]
"""Flow, stage, and number of a state partition or bucket."""

HOME_FIELDS: Final = ("epoch", "run_id", "owner", "number", "plan_id")
HEADER_FIELDS: Final = ("epoch", "run_id", "number", "plan_id", "begun_id", "cursor")
LOCATION_FIELDS: Final = (
    "stored_flow", "state_partitions", "buckets", "kind", "type_name", "shown_as", "store",
)  # fmt: skip
"""The columns or fields of a home, a header and a location, in the order of their attributes."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@lru_cache(maxsize=1024)
def check_name(name: str) -> str:
    """The name itself, if all stores can hold it. Raises ValueError: it is empty, or has other characters."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a flow's or stage's name is made of A-Z a-z 0-9 . _ -, not {name!r}")
    return name


def cell_of(flow: str, stage: str, part: int) -> Cell:
    """A cell, with names that are checked."""
    return check_name(flow), check_name(stage), part


def home_values(home: Home | None) -> tuple[Any, ...]:
    """A home as values of `HOME_FIELDS`; None for each: it is absent."""
    return tuple([home and getattr(home, name) for name in HOME_FIELDS])


def header_values(header: Header | None) -> tuple[Any, ...]:
    """A header as values of `HEADER_FIELDS`; None for each: it is absent."""
    return tuple([header and getattr(header, name) for name in HEADER_FIELDS])


def location_values(location: Location) -> tuple[Any, ...]:
    """A location as values of `LOCATION_FIELDS`."""
    where = (location.flow, location.state_partitions, location.buckets)
    return *where, location.kind, location.type_name, location.view or "", location.store


def home_of(values: Sequence[Any], where: str) -> Home | None:
    """The home that these values are.

    Args:
        values: of `HOME_FIELDS`.
        where: they were read, for the error.

    Raises:
        StoreInconsistent: some are missing.
    """
    return None if _are_absent(values) else Home(*complete(values, where))


def header_of(values: Sequence[Any], where: str, lost: str = "") -> Header | None:
    """The header that the values of `HEADER_FIELDS` are; see `home_of`. `lost` is what the store misses beside it."""
    if _are_absent(values):
        return None
    *whole, cursor = values
    return Header(*[*complete(whole, where), cursor, lost])


def location_of(values: Sequence[Any], where: str) -> Location:
    """The location that the values of `LOCATION_FIELDS` are; see `home_of`."""
    *place, view, store = complete(values, where)
    return Location(*[*place, view or None, store])


def _are_absent(values: Sequence[Any]) -> bool:
    return all(value is None for value in values)


def complete(values: Sequence[Any], where: str) -> Sequence[Any]:
    """The values themselves, if none of them is missing; see `home_of`."""
    if any(value is None for value in values):
        raise StoreInconsistent(
            f"{where} lacks fields; another program writes to it: stop that, then restore the store"
        )
    return values


def with_lost(header: Header, expected: int | None, count: int) -> Header:
    """A header with what is lost beside it.

    Args:
        header: as it is stored.
        expected: number of states that the last write has noted; None: an older version has written it, which notes none.
        count: number of states that are there.
    """
    if expected is None or expected == count:
        return header
    return replace(header, lost=f"there must be {expected:,} of them, and there are {count:,}")


def check_keys(where: object, keys: Sequence[bytes], most: int) -> None:
    """Check that a store accepts every key, of at most this number of bytes. Raises ConfigurationError: one is too long."""
    for key in keys:
        if len(key) > most:
            raise ConfigurationError(
                f"{where}: a key has {len(key)} bytes. Expected at most {most}. Use a shorter key, for example a digest, or "
                "another store"
            )


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The largest sizes that one server accepts, in bytes; see `StateStore.max_key_bytes`.

    Attributes:
        key: of a key.
        state: of a key, its state and its view together.
        plan: of a plan.
        setting: the server's setting that limits states and plans, for error texts; empty: none.
    """

    key: int
    state: int
    plan: int
    setting: str = ""

    def check(self, where: object, rows: Rows, views: Views | None = None) -> None:
        """Check that the server accepts every key and every state, with its view. Raises ConfigurationError: one is too large."""
        check_keys(where, [key for key, _ in rows], self.key)
        for key, state in rows:
            size = len(key) + len(state or b"") + (views.size(key) if views is not None else 0)
            if size > self.state:
                raise ConfigurationError(
                    f"{where}: key {key[:40]!r}, its state and its view have {size} bytes together. Expected at most "
                    f"{self.state}{self._by}. Keep less in one state, or spread it over several keys"
                )

    def check_plan(self, where: object, plan: bytes) -> None:
        """Check that the server accepts a plan; raises as `check` does."""
        if len(plan) > self.plan:
            raise ConfigurationError(
                f"{where}: a plan has {len(plan)} bytes. Expected at most {self.plan}{self._by}. Use another store"
            )

    @property
    def _by(self) -> str:
        return f" (by {self.setting} of the server)" if self.setting else ""


class CheckedStore(StateStore):
    """A `StateStore` whose calls that change something are checked; then `_set_home`, `_write` and `_set_locations` do them.

    Args:
        max_rows: most rows of one `write`.
        max_bytes: most bytes of keys, states and views in one `write`.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes

    @property
    @abstractmethod
    def _limits(self) -> SizeLimits:
        """The largest sizes; may ask the server."""

    @property
    def max_key_bytes(self) -> int:
        return self._limits.key

    @property
    def max_state_bytes(self) -> int:
        return self._limits.state

    @property
    def max_plan_bytes(self) -> int:
        return self._limits.plan

    def remarks(self) -> list[str]:
        return []

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        if plan is not None:
            if after.number < 0:
                raise ValueError(f"a plan cannot have the number {after.number}")
            self._limits.check_plan(self, plan)
        return self._set_home(check_name(flow), before, after, plan, drop_below)

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
        if len(rows) > self.max_rows:
            raise ValueError(f"{len(rows)} rows in one write, at most {self.max_rows}: write in chunks")
        size = sum(len(key) + len(state or b"") for key, state in rows)
        if views is not None:
            size += sum(views.size(key) for key, _ in rows)
        if size > self.max_bytes and len(rows) > 1:
            raise ValueError(f"{size} bytes in one write, at most {self.max_bytes}: write in chunks")
        self._limits.check(self, rows, views)
        return self._write(cell_of(flow, stage, part), before, after, rows, views)

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        if not after.stages:
            raise ValueError("locations of a flow without stages")
        if min(after.age) < 0:
            raise ValueError(f"locations of plan {after.number}, epoch {after.epoch}: there is none before 0")
        for stage, location in after.stages.items():
            check_name(stage)
            check_name(location.flow)
        return self._set_locations(check_name(flow), after)

    @abstractmethod
    def _set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> Home | None: ...

    @abstractmethod
    def _write(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None: ...

    @abstractmethod
    def _set_locations(self, flow: str, after: Locations) -> Locations | None: ...


CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
"""In the text of an error whose cause is a certificate that is not trusted."""


class Meaning(Enum):
    """What to do about an exception."""

    TRY_AGAIN = "the servers or the network: it may pass; whether a write was done is unknown, and sending it again is safe"
    SETTINGS = "address, login, rights, tables, limits, kind of server: somebody has to change something"
    REPLY = "an error that the server itself sent: its first word decides"
    SEVERAL = "one error for each node that was asked: the worst of them decides"
    PROGRAM = "misuse of the driver, or a part of it that is not used here: crash"


def meaning_in(table: Mapping[type[BaseException], Meaning], error: BaseException) -> Meaning:
    """The meaning of an exception's class in a table; a class that is missing counts as its parent."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), Meaning.PROGRAM)


def error_of(meaning: Meaning, text: str) -> ChainError | None:
    """Our error for an exception with this meaning; None for programming errors, which must crash."""
    if meaning is Meaning.TRY_AGAIN:
        return Unavailable(text)
    return ConfigurationError(text) if meaning is Meaning.SETTINGS else None


@contextmanager
def raised_as_ours(
    kinds: tuple[type[BaseException], ...],
    error_for: Callable[[BaseException, str], ChainError | None],
    address: str,
) -> Iterator[None]:
    """Raise our errors in place of a driver's.

    Args:
        kinds: the classes of the driver's exceptions.
        error_for: takes an exception and the address, returns our error; None: the exception itself is raised.
        address: of the servers, without passwords.
    """
    try:
        yield
    except kinds as error:
        known = error_for(error, address)
        if known is None:
            raise
        raise known from error
