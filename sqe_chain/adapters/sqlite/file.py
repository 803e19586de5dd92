"""One process's connection to a SQLite file: opening, transactions, and the mapping of its errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqe_chain.adapters.store_rules import Meaning, SizeLimits, error_of, raised_as_ours
from sqe_chain.errors import START_OVER, ChainError, ConfigurationError, StoreInconsistent

_ROW_OVERHEAD: Final = 10_000
"""Flow, stage and the lengths of a row's columns."""

_APPLICATION_ID: Final = 0x73716563
"""``PRAGMA application_id`` of our files: "sqec"."""

_SCHEMA_VERSION: Final = 1
"""``PRAGMA user_version`` of our files."""

SCHEMA: Final = """
CREATE TABLE homes (
    flow TEXT NOT NULL PRIMARY KEY, epoch INTEGER NOT NULL, run_id TEXT NOT NULL, owner TEXT NOT NULL,
    number INTEGER NOT NULL, plan_id TEXT NOT NULL, beat INTEGER NOT NULL
) STRICT;
CREATE TABLE plans (
    flow TEXT NOT NULL, number INTEGER NOT NULL, plan BLOB NOT NULL, PRIMARY KEY (flow, number)
) STRICT;
CREATE TABLE headers (
    flow TEXT NOT NULL, stage TEXT NOT NULL, part INTEGER NOT NULL, epoch INTEGER NOT NULL,
    run_id TEXT NOT NULL, number INTEGER NOT NULL, plan_id TEXT NOT NULL, begun_id TEXT NOT NULL,
    cursor BLOB, PRIMARY KEY (flow, stage, part)
) STRICT;
CREATE TABLE states (
    flow TEXT NOT NULL, stage TEXT NOT NULL, part INTEGER NOT NULL, key BLOB NOT NULL,
    state BLOB NOT NULL, shown TEXT, PRIMARY KEY (flow, stage, part, key)
) STRICT, WITHOUT ROWID;
"""
"""The tables. `cursor` is NULL when no plan is begun, `shown` when the stage has no view."""

LOCATIONS: Final = """
CREATE TABLE IF NOT EXISTS locations (
    flow TEXT NOT NULL, epoch INTEGER NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL,
    stored_flow TEXT NOT NULL, state_partitions INTEGER NOT NULL, buckets INTEGER NOT NULL,
    kind TEXT NOT NULL, type_name TEXT NOT NULL, shown_as TEXT NOT NULL, store TEXT NOT NULL,
    PRIMARY KEY (flow, stage)
) STRICT;
CREATE VIEW IF NOT EXISTS results AS
    SELECT l.flow, l.stage, s.key, s.state, s.shown
    FROM locations AS l
    CROSS JOIN headers AS h ON h.flow = l.stored_flow AND h.stage = l.stage
    CROSS JOIN states AS s ON s.flow = h.flow AND s.stage = h.stage AND s.part = h.part
    WHERE l.kind = 'aggregate';
"""
"""Where the states of each stage are, and a view that joins them: the states of all flows under permanent names.

The joins are in the order in which an index finds the rows: a stage, its state partitions, a key in each. CROSS makes
SQLite keep that order; otherwise it may begin with a scan of all states.
"""

WITNESSES: Final = """
CREATE TABLE IF NOT EXISTS witnesses (
    flow TEXT NOT NULL, stage TEXT NOT NULL, part INTEGER NOT NULL, run_id TEXT NOT NULL, states INTEGER NOT NULL,
    PRIMARY KEY (flow, stage, part)
) STRICT
"""
"""How many states a cell had when the run wrote it last; an older version of the library, which writes none, is another run."""

_MEANINGS: Final = {code: meaning for meaning, codes in (
    (Meaning.TRY_AGAIN, (
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT,
    )),
    (Meaning.SETTINGS, (
        sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOLFS,
    )),
) for code in codes}  # fmt: skip
"""Primary code of an error -> what it means. A code that is missing is a programming error."""


def absolute(path: str) -> str:
    """The absolute path of a file whose directory exists.

    Raises:
        ConfigurationError: the directory is missing, or the path is a directory.
    """
    file = Path(os.path.normpath(Path.cwd() / path.replace("//", "/")))
    if not os.path.isdir(file.parent):  # noqa: PTH112 - unlike Path's it never raises
        raise ConfigurationError(
            f"sqlite://{file}: the directory {file.parent} does not exist; create it first"
        )
    if os.path.isdir(file):  # noqa: PTH112 - the same
        raise ConfigurationError(f"sqlite://{file} is a directory; a file is needed")
    return str(file)


def is_there(path: str) -> bool:
    """Whether there is a file; one whose name is too long is not."""
    return os.path.exists(path)  # noqa: PTH110 - unlike Path's it never raises


def error_for(error: BaseException, path: str) -> ChainError | None:
    """Our error for an error of the driver; None for programming errors, which must crash."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    text = f"sqlite://{path}: {error} ({getattr(error, 'sqlite_errorname', '')})"
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_CORRUPT:
        return StoreInconsistent(f"{text}; the file is damaged: restore it, or {START_OVER}")
    return error_of(_MEANINGS.get(primary, Meaning.PROGRAM), text)


class SqliteFile:
    """A connection that the threads of one process share, one transaction at a time."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._timeout_s = timeout_s
        self._identity = (0, 0)
        self._limits: SizeLimits | None = None

    @classmethod
    def of_this_process(cls, path: str, timeout_s: float) -> SqliteFile:
        """The process's own connection to this file.

        A forked child gets a new one. Its parent's entry remains, unused and open: SQLite does not allow a child to use
        or close an inherited connection.
        """
        key = (os.getpid(), path, timeout_s)
        return _files.get(key) or _files.setdefault(key, cls(path, timeout_s))

    @classmethod
    def forget(cls, path: str, timeout_s: float) -> None:
        """Close the process's connection to this file, if there is one."""
        file = _files.pop((os.getpid(), path, timeout_s), None)
        if file is not None:
            file.close()

    @property
    def limits(self) -> SizeLimits:
        """The limits of this build of SQLite: a row, names and lengths included, must not exceed its longest blob.

        Raises:
            Unavailable, ConfigurationError: as `transaction`.
        """
        if self._limits is None:
            with self.transaction() as connection:
                largest = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - _ROW_OVERHEAD
                self._limits = SizeLimits(largest, largest, largest)
        return self._limits

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction: committed at the end, rolled back by an exception. Reading does not create the file.

        Args:
            write: take the write lock first, so that nobody changes what is read until the end.

        Raises:
            Unavailable: locked by others for too long, disk full, input/output error.
            ConfigurationError: not our database, or no right to use it.
            StoreInconsistent: damaged, or replaced by another file.
        """
        with self._lock, raised_as_ours((sqlite3.Error,), error_for, self._path):
            connection = self._opened(create=write)
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if connection is not self._connection:
                    connection.close()

    def close(self) -> None:
        """Close the connection; waits for a transaction of another thread."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self, *, create: bool) -> sqlite3.Connection:
        if self._connection is None:
            if not create and not is_there(self._path):
                return _empty()
            connection = sqlite3.connect(
                self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(connection, self._path, self._timeout_s)
                self._identity = _identity(self._path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        elif _identity(self._path) != self._identity:
            # SQLite would go on writing to the deleted file, and nobody would notice.
            raise StoreInconsistent(
                f"sqlite://{self._path}: the file was deleted or replaced while it was open; "
                "stop every service that uses it, then start again"
            )
        return self._connection


_files: dict[tuple[int, str, float], SqliteFile] = {}


def _empty() -> sqlite3.Connection:
    """What a file holds that nobody has written yet."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _make_tables(connection)
    return connection


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for each transaction, and pathlib costs twice as much
    except FileNotFoundError:
        return (0, 0)
    return status.st_dev, status.st_ino


def _prepare(connection: sqlite3.Connection, path: str, timeout_s: float) -> None:
    version, application, tables = _versions(connection)
    # Write-ahead logging first, because it cannot be set within the transaction that makes the tables.
    if application == 0 and version == 0 and tables == 0:
        _journal_mode_wal(connection, timeout_s)
        connection.execute("BEGIN IMMEDIATE")
        # Look again under the lock: another process may have made the tables since.
        if _versions(connection) == (0, 0, 0):
            _make_tables(connection)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        connection.execute("COMMIT")
        version, application, tables = _versions(connection)
    if application != _APPLICATION_ID:
        raise ConfigurationError(f"sqlite://{path} is the database of another program; name another file")
    if version != _SCHEMA_VERSION:
        raise ConfigurationError(
            f"sqlite://{path} has schema {version}, this sqe-chain needs {_SCHEMA_VERSION}: use the version of sqe-chain that wrote it"
        )
    mode = _journal_mode_wal(connection, timeout_s)
    if mode != "wal":
        raise ConfigurationError(
            f"sqlite://{path}: this file system allows only the journal mode {mode}, not wal; use a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in (SCHEMA + LOCATIONS + WITNESSES).split(";"):
        connection.execute(statement)


def _journal_mode_wal(connection: sqlite3.Connection, timeout_s: float) -> str:
    """Set write-ahead logging.

    SQLite upgrades a read lock to the write lock here. It does not wait if another process has the write lock, because
    two processes that do so would wait for each other without end. So wait here, where no lock is held.

    Returns:
        The journal mode that the file has now.
    """
    deadline = time.monotonic() + timeout_s
    while True:  # until the deadline
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(0.01)


def _versions(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Schema, application and number of tables, by one statement and so of one moment: another process may be making the tables."""
    schema, application, tables = connection.execute(
        "SELECT s.user_version, a.application_id, (SELECT count(*) FROM sqlite_schema)"
        " FROM pragma_user_version AS s, pragma_application_id AS a"
    ).fetchone()
    return schema, application, tables
