"""A store in one SQLite file: the embedded default, for one machine and any number of processes on it.

Each write is one transaction: ``BEGIN IMMEDIATE`` takes the write lock before anything is compared. With
``journal_mode=WAL`` and ``synchronous=FULL`` a committed transaction survives a power failure.
The schema is documented in docs/stores.md.
"""

# ruff: noqa: S608 - tables and columns are constants; everything else is bound

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sqe_chain.adapters.address import Address
from sqe_chain.adapters.sqlite.file import LOCATIONS, WITNESSES, SqliteFile, absolute, is_there
from sqe_chain.adapters.store_rules import (
    HEADER_FIELDS,
    HOME_FIELDS,
    LOCATION_FIELDS,
    Cell,
    CheckedStore,
    SizeLimits,
    cell_of,
    check_name,
    header_of,
    header_values,
    home_of,
    home_values,
    location_of,
    location_values,
    with_lost,
)
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Header, Home, Locations, Rows, ViewKind, Views

_COUNTED: Final = 1_000
"""States of a cell that are counted when it is read: of more, it is seen that there are more."""
_SCAN_ROWS: Final = 200
"""Rows of one page of a scan; no lock is held between two pages."""
_CELL: Final = "flow = ? AND stage = ? AND part = ?"
_HOME: Final = ", ".join(HOME_FIELDS)
_HEADER: Final = ", ".join(HEADER_FIELDS)
_LOCATION: Final = ", ".join(LOCATION_FIELDS)


class _TakeBack(Exception):
    """Rolls a transaction back."""


class SqliteStore(CheckedStore):
    """A `StateStore` in a SQLite file. The object carries settings only and can be pickled.

    The file must lie on a local disk: SQLite's locks do not work over network file systems.

    Args:
        path: the file; created if it is missing. Its directory must exist.
        timeout_s: how long to wait for another process's transaction before `Unavailable`, in seconds.
        max_rows: most rows of one `write`.
        max_bytes: most bytes of keys and states in one `write`.

    Raises:
        ConfigurationError: the directory does not exist.
    """

    views: frozenset[ViewKind] = frozenset({"json"})

    def __init__(
        self, path: str, timeout_s: float = 10.0, max_rows: int = 20_000, max_bytes: int = 16_000_000
    ) -> None:
        super().__init__(max_rows, max_bytes)
        self.path = absolute(path)
        self.timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"SqliteStore(sqlite://{self.path})"

    @property
    def _file(self) -> SqliteFile:
        return SqliteFile.of_this_process(self.path, self.timeout_s)

    @property
    def _limits(self) -> SizeLimits:
        return self._file.limits

    def check(self) -> list[str]:
        # Opens the file, whose settings are fixed and durable.
        with self._file.transaction(write=is_there(self.path)):
            return []

    def home(self, flow: str) -> tuple[Home | None, int]:
        with self._file.transaction() as connection:
            return _home(connection, check_name(flow))

    def _set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> Home | None:
        with self._file.transaction(write=True) as connection:
            current, beat = _home(connection, flow)
            if current != before:
                return current
            _replace(connection, "homes", f"flow, beat, {_HOME}", (flow, beat, *home_values(after)))
            if plan is not None:
                _replace(connection, "plans", "flow, number, plan", (flow, after.number, plan))
            if drop_below > 0:
                connection.execute("DELETE FROM plans WHERE flow = ? AND number < ?", (flow, drop_below))
            return after

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        with self._file.transaction(write=True) as connection:
            # An empty run id means that the claim was released: no run holds it, not even one with an empty id.
            done = connection.execute(
                "UPDATE homes SET beat = beat + 1 WHERE flow = ? AND epoch = ? AND run_id = ? AND run_id <> ''",
                (check_name(flow), epoch, run_id),
            )
            return done.rowcount == 1

    def plan(self, flow: str, number: int) -> bytes | None:
        with self._file.transaction() as connection:
            select = "SELECT plan FROM plans WHERE flow = ? AND number = ?"
            row = connection.execute(select, (check_name(flow), number)).fetchone()
        return row[0] if row else None

    def flows(self) -> list[str]:
        with self._file.transaction() as connection:
            return [row[0] for row in connection.execute("SELECT flow FROM homes ORDER BY flow")]

    def forget(self, flow: str, before: Home) -> Home | None:
        with self._file.transaction(write=True) as connection:
            current, _ = _home(connection, check_name(flow))
            if current != before:
                return current
            for table in ("homes", "plans"):
                connection.execute(f"DELETE FROM {table} WHERE flow = ?", (flow,))
            return None

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        cell = cell_of(flow, stage, part)
        with self._file.transaction(write=True) as connection:
            current = _header(connection, cell)
            if current != before:
                return current
            connection.execute(WITNESSES)
            for table in ("headers", "states", "witnesses"):
                connection.execute(f"DELETE FROM {table} WHERE {_CELL}", cell)
            return None

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        # Here one snapshot.
        with self._file.transaction() as connection:
            return [_header_with_lost(connection, cell_of(flow, stage, part)) for part in parts]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # Here one snapshot, so both headers are the same.
        cell = cell_of(flow, stage, part)
        select = f"SELECT state FROM states WHERE {_CELL} AND key = ?"
        with self._file.transaction() as connection:
            header = _header_with_lost(connection, cell)
            rows = [connection.execute(select, (*cell, key)).fetchone() for key in keys]
        return header, [row[0] if row else None for row in rows], header

    def _write(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None:
        shown = views.shown if views else {}
        with self._file.transaction(write=True) as connection:
            # Before the rows are written: how many of them are replaced or deleted, to keep count of the states.
            had = sum(_has(connection, cell, key) for key, _ in rows)
            current = _header(connection, cell)
            if current != before:
                return current
            connection.executemany(
                "INSERT INTO states (flow, stage, part, key, state, shown) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET state = excluded.state, shown = excluded.shown",
                ((*cell, key, state, shown.get(key)) for key, state in rows if state is not None),
            )
            connection.executemany(
                f"DELETE FROM states WHERE {_CELL} AND key = ?",
                ((*cell, key) for key, state in rows if state is None),
            )
            expected = None if current is None else _expected(connection, cell, current.run_id)
            kept = sum(state is not None for _, state in rows)
            count = _count(connection, cell) if expected is None else expected - had + kept
            connection.execute(WITNESSES)
            _replace(
                connection, "witnesses", "flow, stage, part, run_id, states", (*cell, after.run_id, count)
            )
            _replace(connection, "headers", f"flow, stage, part, {_HEADER}", (*cell, *header_values(after)))
            return after

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # Here in key order, in pages.
        cell = cell_of(flow, stage, part)
        select = f"SELECT key, state FROM states WHERE {_CELL} AND key {{}} ? ORDER BY key LIMIT {_SCAN_ROWS}"
        comparison, last = ">=", b""
        while True:  # bounded by the rows: each page begins behind the last key of the one before
            with self._file.transaction() as connection:
                page = connection.execute(select.format(comparison), (*cell, last)).fetchall()
            if not page:
                return
            yield from page
            comparison, last = ">", page[-1][0]

    def locations(self, flow: str) -> Locations | None:
        with self._file.transaction() as connection:
            return _locations(connection, check_name(flow))

    def _set_locations(self, flow: str, after: Locations) -> Locations | None:
        with self._file.transaction(write=True) as connection:
            current = _locations(connection, flow)
            if current is not None and current.age >= after.age:
                return current
            # A file of an older version gets the table now, and keeps its version: older versions of this library ignore the table.
            for statement in LOCATIONS.split(";"):
                connection.execute(statement)
            connection.execute("DELETE FROM locations WHERE flow = ?", (flow,))
            for stage, location in after.stages.items():
                values = (flow, *after.age, stage, *location_values(location))
                _replace(connection, "locations", f"flow, epoch, number, stage, {_LOCATION}", values)
            return after

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        with self._file.transaction(write=True) as connection:
            current = _locations(connection, check_name(flow))
            if current is None or current.age != before.age:
                return current
            connection.execute("DELETE FROM locations WHERE flow = ?", (flow,))
            return None

    def try_writes(
        self, flow: str, cells: Sequence[tuple[str, int]] = (), views: Collection[ViewKind] = ()
    ) -> list[str]:
        """Try a write, which its transaction takes back. A file that is not there is not created: its directory is looked at.

        Args:
            flow: name of the flow.
            cells: a file has one right for all.
            views: the same.

        Returns:
            What could not be tried: nothing.

        Raises:
            Unavailable: locked by others for too long, disk full, input/output error.
            ConfigurationError: the user may not write the file, or make it.
        """
        del cells, views
        directory = Path(self.path).parent
        if not os.access(directory, os.W_OK | os.X_OK):  # SQLite makes files beside its own, too
            raise ConfigurationError(
                f"sqlite://{self.path}: no right to write into {directory}. Expected one. Change its owner or its mode, or mount it writable"
            )
        if not is_there(self.path):
            return []
        with suppress(_TakeBack), self._file.transaction(write=True) as connection:
            _replace(connection, "plans", "flow, number, plan", (check_name(flow), -1, b""))
            raise _TakeBack
        return []

    def close(self) -> None:
        SqliteFile.forget(self.path, self.timeout_s)


def _replace(connection: sqlite3.Connection, table: str, columns: str, values: Sequence[Any]) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", values)


def _home(connection: sqlite3.Connection, flow: str) -> tuple[Home | None, int]:
    select = f"SELECT beat, {_HOME} FROM homes WHERE flow = ?"
    row = connection.execute(select, (flow,)).fetchone()
    return (home_of(row[1:], "sqlite: table homes"), row[0]) if row else (None, 0)


def _header(connection: sqlite3.Connection, cell: Cell) -> Header | None:
    row = connection.execute(f"SELECT {_HEADER} FROM headers WHERE {_CELL}", cell).fetchone()
    return header_of(row, "sqlite: table headers") if row else None


def _header_with_lost(connection: sqlite3.Connection, cell: Cell) -> Header | None:
    header = _header(connection, cell)
    expected = None if header is None else _expected(connection, cell, header.run_id)
    if header is None or expected is None:
        return header
    most = min(expected, _COUNTED) + 1
    count = _count(connection, cell, most)
    return with_lost(header, expected, expected if count == min(expected, most) else count)


def _expected(connection: sqlite3.Connection, cell: Cell, run_id: str) -> int | None:
    """The number of states that the last write has noted; None: an older version has written the cell."""
    if not _has_table(connection, "witnesses"):
        return None
    select = f"SELECT states FROM witnesses WHERE {_CELL} AND run_id = ?"
    row = connection.execute(select, (*cell, run_id)).fetchone()
    return int(row[0]) if row else None


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether the file has a table; one that an older version made may lack some."""
    select = "SELECT 1 FROM sqlite_schema WHERE name = ?"
    return connection.execute(select, (name,)).fetchone() is not None


def _has(connection: sqlite3.Connection, cell: Cell, key: bytes) -> bool:
    select = f"SELECT 1 FROM states WHERE {_CELL} AND key = ?"
    return connection.execute(select, (*cell, key)).fetchone() is not None


def _count(connection: sqlite3.Connection, cell: Cell, most: int = -1) -> int:
    """The number of states of a cell; they are not counted further than `most`."""
    select = f"SELECT COUNT(*) FROM (SELECT 1 FROM states WHERE {_CELL} LIMIT ?)"
    return int(connection.execute(select, (*cell, most)).fetchone()[0])


def _locations(connection: sqlite3.Connection, flow: str) -> Locations | None:
    if not _has_table(connection, "locations"):
        return None
    select = f"SELECT epoch, number, stage, {_LOCATION} FROM locations WHERE flow = ?"
    rows = connection.execute(select, (flow,)).fetchall()
    stages = {row[2]: location_of(row[3:], "sqlite: table locations") for row in rows}
    return Locations(rows[0][0], rows[0][1], stages) if rows else None


def open_address(address: Address) -> SqliteStore:
    """The store at ``sqlite:///absolute/path`` or ``sqlite://relative/path``.

    Raises:
        ConfigurationError: no path, no such directory, unknown options.
    """
    path = address.location + address.path
    if not path.strip("/"):
        raise ConfigurationError("sqlite:// needs a file: sqlite:///var/lib/sqe-chain/totals.db")
    store = SqliteStore(
        path,
        timeout_s=address.seconds("timeout_s", 10.0),
        max_rows=address.whole("max_rows", 20_000),
        max_bytes=address.whole("max_bytes", 16_000_000),
    )
    address.finish()
    return store
