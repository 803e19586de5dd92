"""A store in one SQLite file: the embedded default, for one machine and any number of processes on it.

Each write is one transaction: ``BEGIN IMMEDIATE`` takes the write lock before anything is compared, and
with ``journal_mode=WAL`` and ``synchronous=FULL`` a committed transaction survives a power failure.
The schema is documented in docs/stores.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqe_chain.adapters.limits import (
    Limited,
    Limits,
    check_home,
    check_locations,
    check_name,
    check_rows,
    with_witness,
)
from sqe_chain.adapters.sqlite.file import LOCATIONS, WITNESSES, SqliteFile, absolute
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Header, Home, Location, Locations, Rows, ViewKind, Views

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from sqe_chain.adapters.address import Address

_COUNTED: Final = 1_000
"""States of a cell that are counted when it is read: of more, it is seen that there are more."""

_SCAN_ROWS: Final = 200
"""Rows of one page of a scan; no lock is held between two pages."""


class SqliteStore(Limited):
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

    max_rows: int = 20_000
    max_bytes: int = 16_000_000
    views: frozenset[ViewKind] = frozenset({"json"})

    def __init__(
        self, path: str, timeout_s: float = 10.0, max_rows: int = 20_000, max_bytes: int = 16_000_000
    ) -> None:
        self.path = absolute(path)
        self.timeout_s = timeout_s
        self.max_rows = max_rows
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"SqliteStore(sqlite://{self.path})"

    @property
    def _file(self) -> SqliteFile:
        return SqliteFile.of_this_process(self.path, self.timeout_s)

    @property
    def _limits(self) -> Limits:
        return self._file.limits

    def check(self) -> list[str]:
        """Open the file; returns [], because its settings are fixed and durable.

        Raises:
            Unavailable: locked by another process, or the disk is full.
            ConfigurationError: not a database, another program's, or no right to write it.
        """
        with self._file.transaction(write=Path(self.path).exists()):
            return []

    def home(self, flow: str) -> tuple[Home | None, int]:
        with self._file.transaction() as connection:
            return _home(connection, check_name(flow))

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        check_home(after, plan)
        self._limits.check_plan(self, plan)
        with self._file.transaction(write=True) as connection:
            current, beat = _home(connection, check_name(flow))
            if current != before:
                return current
            connection.execute(
                "INSERT OR REPLACE INTO homes (flow, epoch, run_id, owner, number, plan_id, beat)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (flow, after.epoch, after.run_id, after.owner, after.number, after.plan_id, beat),
            )
            if plan is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO plans (flow, number, plan) VALUES (?, ?, ?)",
                    (flow, after.number, plan),
                )
            if drop_below > 0:
                connection.execute("DELETE FROM plans WHERE flow = ? AND number < ?", (flow, drop_below))
            return after

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        with self._file.transaction(write=True) as connection:
            # An empty run id means that the claim was released: nobody may beat, not even an equal one.
            done = connection.execute(
                "UPDATE homes SET beat = beat + 1 WHERE flow = ? AND epoch = ? AND run_id = ? AND run_id <> ''",
                (check_name(flow), epoch, run_id),
            )
            return done.rowcount == 1

    def plan(self, flow: str, number: int) -> bytes | None:
        with self._file.transaction() as connection:
            row = connection.execute(
                "SELECT plan FROM plans WHERE flow = ? AND number = ?", (check_name(flow), number)
            ).fetchone()
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
                connection.execute(f"DELETE FROM {table} WHERE flow = ?", (flow,))  # noqa: S608 - two constants
            return None

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        cell = (check_name(flow), check_name(stage), part)
        with self._file.transaction(write=True) as connection:
            current = _header(connection, cell)
            if current != before:
                return current
            connection.execute(WITNESSES)
            for table in ("headers", "states", "witnesses"):
                connection.execute(
                    f"DELETE FROM {table} WHERE flow = ? AND stage = ? AND part = ?",  # noqa: S608 - as above
                    cell,
                )
            return None

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        # Here one snapshot
        with self._file.transaction() as connection:
            return [_told(connection, (check_name(flow), check_name(stage), part)) for part in parts]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # Here one snapshot, so both headers are the same
        cell = (check_name(flow), check_name(stage), part)
        select = "SELECT state FROM states WHERE flow = ? AND stage = ? AND part = ? AND key = ?"
        with self._file.transaction() as connection:
            header = _told(connection, cell)
            rows = [connection.execute(select, (*cell, key)).fetchone() for key in keys]
        return header, [row[0] if row else None for row in rows], header

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
        shown = views.shown if views else {}
        cell = (check_name(flow), check_name(stage), part)
        with self._file.transaction(write=True) as connection:
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
                "DELETE FROM states WHERE flow = ? AND stage = ? AND part = ? AND key = ?",
                ((*cell, key) for key, state in rows if state is None),
            )
            said = None if current is None else _said(connection, cell, current.run_id)
            kept = sum(state is not None for _, state in rows)
            count = _count(connection, cell) if said is None else said - had + kept
            connection.execute(WITNESSES)
            connection.execute(
                "INSERT OR REPLACE INTO witnesses (flow, stage, part, run_id, states) VALUES (?, ?, ?, ?, ?)",
                (*cell, after.run_id, count),
            )
            connection.execute(
                "INSERT OR REPLACE INTO headers"
                " (flow, stage, part, epoch, run_id, number, plan_id, begun_id, cursor)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*cell, after.epoch, after.run_id, after.number, after.plan_id, after.begun_id, after.cursor),
            )
            return after

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # Here in key order, in pages
        cell = (check_name(flow), check_name(stage), part)
        select = "SELECT key, state FROM states WHERE flow = ? AND stage = ? AND part = ?"
        page: list[tuple[bytes, bytes]]
        with self._file.transaction() as connection:
            page = connection.execute(f"{select} ORDER BY key LIMIT ?", (*cell, _SCAN_ROWS)).fetchall()
        while page:
            yield from page
            with self._file.transaction() as connection:
                page = connection.execute(
                    f"{select} AND key > ? ORDER BY key LIMIT ?", (*cell, page[-1][0], _SCAN_ROWS)
                ).fetchall()

    def locations(self, flow: str) -> Locations | None:
        with self._file.transaction() as connection:
            return _locations(connection, check_name(flow))

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        # A file of an older version gets the table now
        check_locations(after)
        with self._file.transaction(write=True) as connection:
            current = _locations(connection, check_name(flow))
            if current is not None and current.age >= after.age:
                return current
            # Keep the version of the file: older versions of this library ignore the table, and can still open the file.
            for statement in LOCATIONS.split(";"):
                connection.execute(statement)
            connection.execute("DELETE FROM locations WHERE flow = ?", (flow,))
            connection.executemany(
                "INSERT INTO locations (flow, epoch, number, stage, stored_flow, state_partitions, buckets, kind,"
                " type_name, shown_as, store) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (flow, *after.age, stage, one.flow, one.state_partitions, one.buckets, one.kind, one.type_name, one.view or "", one.store)
                    for stage, one in after.stages.items()
                ),
            )  # fmt: skip
            return after

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        with self._file.transaction(write=True) as connection:
            current = _locations(connection, check_name(flow))
            if current is None or current.age != before.age:
                return current
            connection.execute("DELETE FROM locations WHERE flow = ?", (flow,))
            return None

    def close(self) -> None:
        """Close this process's connection; a later call opens it again."""
        SqliteFile.forget(self.path, self.timeout_s)


def _home(connection: sqlite3.Connection, flow: str) -> tuple[Home | None, int]:
    row = connection.execute(
        "SELECT epoch, run_id, owner, number, plan_id, beat FROM homes WHERE flow = ?", (flow,)
    ).fetchone()
    return (Home(*row[:5]), row[5]) if row else (None, 0)


def _header(connection: sqlite3.Connection, cell: tuple[str, str, int]) -> Header | None:
    row = connection.execute(
        "SELECT epoch, run_id, number, plan_id, begun_id, cursor FROM headers"
        " WHERE flow = ? AND stage = ? AND part = ?",
        cell,
    ).fetchone()
    return Header(*row) if row else None


def _told(connection: sqlite3.Connection, cell: tuple[str, str, int]) -> Header | None:
    """A header with what is lost beside it."""
    header = _header(connection, cell)
    said = None if header is None else _said(connection, cell, header.run_id)
    if header is None or said is None:
        return header
    most = min(said, _COUNTED) + 1
    found = _count(connection, cell, most)
    return with_witness(header, said, said if found == min(said, most) else found)


def _said(connection: sqlite3.Connection, cell: tuple[str, str, int], run_id: str) -> int | None:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'witnesses'").fetchone():
        return None  # the file was made by an older version
    row = connection.execute(
        "SELECT states FROM witnesses WHERE flow = ? AND stage = ? AND part = ? AND run_id = ?",
        (*cell, run_id),
    ).fetchone()
    return int(row[0]) if row else None


def _has(connection: sqlite3.Connection, cell: tuple[str, str, int], key: bytes) -> bool:
    select = "SELECT 1 FROM states WHERE flow = ? AND stage = ? AND part = ? AND key = ?"
    return connection.execute(select, (*cell, key)).fetchone() is not None


def _count(connection: sqlite3.Connection, cell: tuple[str, str, int], most: int = -1) -> int:
    """How many states a cell has; they are not counted further than `most`."""
    select = "SELECT COUNT(*) FROM (SELECT 1 FROM states WHERE flow = ? AND stage = ? AND part = ? LIMIT ?)"
    return int(connection.execute(select, (*cell, most)).fetchone()[0])


def _locations(connection: sqlite3.Connection, flow: str) -> Locations | None:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'locations'").fetchone():
        return None  # the file was made by an older version
    rows = connection.execute(
        "SELECT epoch, number, stage, stored_flow, state_partitions, buckets, kind, type_name,"
        " nullif(shown_as, ''), store FROM locations WHERE flow = ?",
        (flow,),
    ).fetchall()
    return Locations(rows[0][0], rows[0][1], {row[2]: Location(*row[3:]) for row in rows}) if rows else None


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
    address.finish("timeout_s", "max_rows", "max_bytes")
    return store
