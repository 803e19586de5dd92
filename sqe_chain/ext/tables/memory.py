"""Tables in this process's memory, for tests and notebooks: commits as Delta Lake makes them. Lost when the process ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from sqe_chain.errors import Unavailable
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.files import TableFile, foreign_in
from sqe_chain.ext.tables.parquet_storage import ParquetStorage, heads_of, is_awaited
from sqe_chain.ext.tables.storage import Conflict, Head, StoredFile, TableChange


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A table at one version; see `sqe_chain.ext.tables.storage.Snapshot`.

    Attributes:
        set_at: name of a marker -> version that has set it last.
        foreign: version -> what another program has done, in words.
    """

    version: int  # number of the commit
    table_id: str  # another one for each table that was ever created
    description: str  # what was given at its creation
    schema: Any  # an Arrow schema
    markers: Mapping[str, int] = field(default_factory=dict)  # name -> number
    set_at: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, StoredFile] = field(default_factory=dict)  # path -> file
    schema_at: int = 0  # the version that has changed the columns last
    foreign: Mapping[int, str] = field(default_factory=dict)

    def marker(self, name: str) -> int | None:
        """The number under a marker; None: it was never set."""
        return self.markers.get(name)

    def heads(self, flow: str, stage: str, parts: Sequence[int]) -> dict[int, Head]:
        return heads_of(self.marker, flow, stage, parts)

    def files(self, part: int | None = None) -> list[StoredFile]:
        return [file for _, file in sorted(self.stored.items()) if part is None or file.part == part]

    def foreign_file(self) -> str | None:
        return foreign_in(self.stored)

    def foreign_commit(self, since: int) -> str | None:
        return next((text for at, text in self.foreign.items() if at > since), None)


@dataclass(slots=True)
class TableCopy:
    """A table at one moment.

    Attributes:
        files: path -> its bytes, and when it was written, in seconds.
    """

    newest: MemorySnapshot | None = None  # its newest version; None: there is no table
    files: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    created: int = 0  # how often it was created

    def copy(self) -> TableCopy:
        """An independent copy."""
        return TableCopy(self.newest, dict(self.files), self.created)


_tables: dict[str, TableCopy] = {}
_lock = threading.RLock()


class MemoryStorage(ParquetStorage):
    """A `sqe_chain.ext.tables.storage.Storage` in memory, shared by everything in this process that uses the same address.

    Args:
        address: ``memory://NAME/TABLE``.
        now_s: clock of `vacuum`, in seconds.
    """

    def __init__(self, address: str, now_s: Callable[[], float] = time.time) -> None:
        self.address = address
        self._now_s = now_s

    def __repr__(self) -> str:
        return f"table {self.address}"

    @property
    def _table(self) -> TableCopy:
        return _tables.setdefault(self.address, TableCopy())

    def check(self) -> list[str]:
        # Memory is not durable
        return [
            f"{self.address}: all rows are lost when this process ends; --allow-weak-durability accepts that"
        ]

    def snapshot(self) -> MemorySnapshot | None:
        return self._table.newest

    def create(self, schema: Any, name: str, description: str) -> None:  # noqa: ANN401 - an Arrow schema
        del name
        with _lock:
            table = self._table
            if table.newest is None:
                table.created += 1
                table_id = f"{self.address}#{table.created}"
                table.newest = MemorySnapshot(0, table_id, description, schema)

    def add_columns(self, snapshot: MemorySnapshot, columns: Sequence[Any]) -> None:
        with _lock:
            table = self._table
            newest = self._newest(snapshot)
            if newest.schema_at > snapshot.version:
                raise Conflict(f"{self}: its columns were changed")
            version = newest.version + 1
            schema = pa.schema([*newest.schema, *columns])
            table.newest = replace(newest, version=version, schema=schema, schema_at=version)

    def put(self, path: str, file: TableFile, missing: Sequence[ChunkInfo] = ()) -> None:
        # A file is there as a whole or not at all
        del missing
        with _lock:
            self._table.files.setdefault(path, (bytes(file.data), self._now_s()))

    def absent(self, files: Sequence[StoredFile]) -> list[str]:
        stored = self._table.files
        return [file.path for file in files if len(stored.get(file.path, (b"", 0.0))[0]) != file.size]

    def commit_markers(
        self, snapshot: MemorySnapshot, markers: Mapping[str, int], change: TableChange
    ) -> None:
        with _lock:
            table = self._table
            newest = self._newest(snapshot)
            since = snapshot.version
            if newest.schema_at > since:
                raise Conflict(f"{self}: {change.what}: its columns were changed")
            for name in markers:
                if newest.set_at.get(name, -1) > since:
                    raise Conflict(f"{self}: {change.what}: {name} was set by version {newest.set_at[name]}")
            version = newest.version + 1
            gone = {file.path for file in change.removed}
            stored = {path: file for path, file in newest.stored.items() if path not in gone}
            table.newest = replace(
                newest,
                version=version,
                markers={**newest.markers, **markers},
                set_at={**newest.set_at, **dict.fromkeys(markers, version)},
                stored={**stored, **{file.path: file for file in change.added}},
            )

    def vacuum(self, retain_hours: int) -> list[str]:
        with _lock:
            table = self._table
            newest = table.newest
            if newest is None:
                return []
            before = self._now_s() - retain_hours * 3_600
            gone = sorted(
                path
                for path, (_, at) in table.files.items()
                if path not in newest.stored and at < before and not is_awaited(newest, path)
            )
            for path in gone:
                del table.files[path]
            return gone

    def open_file(self, path: str) -> Any:  # noqa: ANN401 - an Arrow file
        stored = self._table.files.get(path)
        if stored is None:
            raise FileNotFoundError(path)
        return pa.BufferReader(stored[0])

    def copy_all(self) -> TableCopy:
        """A copy of the table, for `restore_all`."""
        with _lock:
            return self._table.copy()

    def restore_all(self, copy: TableCopy | None = None) -> None:
        """Make it what it was; None: as if there had never been one."""
        with _lock:
            _tables[self.address] = (copy or TableCopy()).copy()

    def drop(self) -> None:
        """Delete it, as who deletes its directory."""
        with _lock:
            _tables[self.address] = TableCopy(created=self._table.created)

    def _newest(self, snapshot: MemorySnapshot) -> MemorySnapshot:
        newest = self._table.newest
        if newest is None or newest.table_id != snapshot.table_id:
            raise Unavailable(f"{self}: the table of the snapshot is gone")
        return newest
