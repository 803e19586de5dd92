"""Reads a table: the latest row of each (partition key, row key), from as few files and row groups as possible."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import ConfigurationError, FlowError, TableAltered
from sqe_chain.errors.safe_text import without_secrets
from sqe_chain.ext.tables.addresses import text_of
from sqe_chain.ext.tables.arrow import OWN, SEQUENCE
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.columns import Column, type_name
from sqe_chain.ext.tables.compacting import Compaction, aligned, compact
from sqe_chain.ext.tables.describing import Description, describe
from sqe_chain.ext.tables.memtable import latest_of
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.pruning import Bounds, bounds_in, cell_of, may_hold, narrowed, within
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import (
    Pieces,
    Snapshot,
    Storage,
    StoredFile,
    TableDeclaration,
    Wanted,
    named_if_foreign,
    retried,
)

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a read, and what it skipped.

    Attributes:
        rows: an Arrow table.
        files: files that were opened.
        files_left_out: files that were skipped by the table's log.
        row_groups: parts of the opened files that were read.
        row_groups_left_out: parts of the opened files that were skipped by their footers.
        rows_read: rows in what was read.
        rows_replaced: of them, those that are not the latest ones of their keys.
    """

    rows: Any
    files: int = 0
    files_left_out: int = 0
    row_groups: int = 0
    row_groups_left_out: int = 0
    rows_read: int = 0
    rows_replaced: int = 0


def open_table(address: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Table:
    """Open a table for reading and maintenance. Needs no flow, no store and no running service.

    Args:
        address: its directory, or a URL: what `ingest` was given as `at`, then ``/`` and the table's name.
        options: as `ingest` was given: logins and settings of an object store, or of Cassandra.

    Raises:
        ConfigurationError: there is no table that `ingest` has written, or the address is none.
        Unavailable: no answer.
    """
    try:
        where = text_of(address)
    except ValueError as error:
        raise ConfigurationError(without_secrets(f"open_table({address!r}): {error}")) from None
    table = Table(storage_at(where, options))
    table.schema()  # to fail now
    return table


class Table:
    """A table. Each call reads its newest version; writers and a compaction may be at work at the same time.

    Args:
        storage: where it lives.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __repr__(self) -> str:
        return repr(self._storage)

    def schema(self) -> TableSchema:
        """Its columns and keys."""
        return _schema_in(self._snapshot(), self._storage)

    def scan(
        self,
        partition_key: object = None,
        *,
        row_key: Bounds | None = None,
        where: Mapping[str, Bounds] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Scan:
        """Read rows: of those with the same keys the latest one.

        A read skips state partitions without the partition key, files by the bounds in the table's log, and row groups by the bounds
        in footers.

        Args:
            partition_key: only its rows: one value, or a tuple where the partition key has several columns. Values here and in bounds are
                those of the column, also of numpy and pandas. Nothing is rounded, and a time has a time zone.
            row_key: smallest and largest row key wanted, both included; of its first column, if it has several.
            where: column -> smallest and largest value wanted, both included; None in a pair: no limit. A row whose latest
                version lies outside is not found by an older one.
            columns: names of columns; by default all, in the order of their declaration.

        Raises:
            ConfigurationError: there is no such column or table, or a column has no such value.
            TableAltered: another program, or the disk, has taken away or changed a file or rows that are wanted.
            Unavailable: no answer.
        """
        return self._read(
            lambda snapshot: self._scan(snapshot, partition_key, row_key, dict(where or {}), columns)
        )

    def _scan(
        self,
        snapshot: Snapshot,
        partition_key: object,
        row_key: Bounds | None,
        where: Mapping[str, Bounds],
        columns: Sequence[str] | None,
    ) -> Scan:
        schema = _schema_in(snapshot, self._storage)
        names = list(columns) if columns is not None else schema.names
        for name in (*names, *where):
            if name not in schema.names:
                raise ConfigurationError(
                    f"{self}: there is no column {name!r}; it has {', '.join(schema.names)}"
                )
        key_cells = self._key_cells(schema, partition_key)
        keys = {name: (cell, cell) for name, cell in zip(schema.partition_key, key_cells, strict=False)}
        if row_key is not None:
            keys[schema.row_key[0]] = self._bounds(schema, schema.row_key[0], row_key)
        # Other versions of a row may have other values in columns that are no keys. So files are skipped by keys alone.
        others: dict[str, Bounds] = {}
        for name, given in where.items():
            bounds = self._bounds(schema, name, given)
            if name in schema.keys:
                keys[name] = narrowed(bounds, keys.get(name, bounds))
            else:
                others[name] = bounds
        needed = list(dict.fromkeys([*schema.keys, *where, *names]))
        wanted = Wanted(needed, schema.key_bytes(key_cells) if key_cells else None, keys, others)
        files = snapshot.files()
        chosen = _files_with(files, wanted, TableDeclaration.of(snapshot).state_partitions)
        pieces = self._storage.read(snapshot, chosen, wanted)
        rows = _joined(pieces, snapshot, needed)
        latest = latest_of(rows, schema)
        replaced = rows.num_rows - latest.num_rows
        for name, bounds in (keys | others).items():
            latest = latest.filter(within(latest[name], bounds))
        return Scan(
            latest.select(names),
            len(chosen),
            len(files) - len(chosen),
            pieces.row_groups,
            pieces.row_groups_left_out,
            rows.num_rows,
            replaced,
        )

    def read(
        self,
        partition_key: object = None,
        *,
        row_key: Bounds | None = None,
        where: Mapping[str, Bounds] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:  # noqa: ANN401 - an Arrow table
        """The rows alone, as an Arrow table; see `scan`."""
        return self.scan(partition_key, row_key=row_key, where=where, columns=columns).rows

    def files(self) -> list[str]:
        """Paths or URLs of the files that make up the newest version, for programs that read Parquet.

        Raises:
            ConfigurationError: it lies in Cassandra, where there are none.
        """
        return [self._storage.uri(file.path) for file in self._snapshot().files()]

    def chunks(self, partition_key: object = None) -> list[ChunkInfo]:
        """What is known of each chunk, in the order of chunk ids.

        Args:
            partition_key: only its chunks.

        Raises:
            TableAltered: see `scan`.
        """
        chunks = self._read(lambda snapshot: self._chunks(snapshot, partition_key))
        return sorted(chunks, key=lambda chunk: (chunk.name.chunk_id, chunk.name.partition_key))

    def _chunks(self, snapshot: Snapshot, partition_key: object) -> list[ChunkInfo]:
        schema = _schema_in(snapshot, self._storage)
        key_cells = self._key_cells(schema, partition_key)
        key = schema.key_bytes(key_cells) if key_cells else None
        files = _files_with(snapshot.files(), Wanted((), key), TableDeclaration.of(snapshot).state_partitions)
        return self._storage.chunks(snapshot, files, key)

    def _read(self, read: Callable[[Snapshot], Read]) -> Read:
        """What is read of the newest version that is still there: it may be compacted and vacuumed meanwhile."""

        def attempt() -> Read:
            snapshot = self._snapshot()
            with named_if_foreign(self._storage, snapshot):
                return read(snapshot)

        return retried(self._storage, attempt)

    def compact(self, *, least_files: int = 2) -> Compaction:
        """Merge files and drop replaced rows, one state partition after the other. Readers and writers go on meanwhile.

        Each state partition is one commit, so a crash leaves it as it was or compacted. What the old files hold stays for readers
        of older versions until `vacuum`.

        Args:
            least_files: state partitions with fewer files are left as they are.

        Raises:
            Unavailable: no answer.
            ConfigurationError: there is no table.
            TableAltered: see `scan`; state partitions before it are compacted.
        """
        return compact(self._storage, self.schema(), least_files)

    def describe(self) -> Description:
        """What it is, and how many files and rows it has, from its log alone.

        Raises:
            ConfigurationError: there is no table.
            Unavailable: no answer.
        """
        snapshot = self._snapshot()
        return describe(snapshot, _schema_in(snapshot, self._storage))

    def vacuum(self, *, retain_hours: int = 168) -> list[str]:
        """Delete files that no version of the last hours needs.

        Args:
            retain_hours: at least 1; longer than any reader takes, and than the persist of a batch.

        Returns:
            What was deleted, as paths from the table's directory on.

        Raises:
            ConfigurationError: less than an hour: a flush at work has written what no commit names yet.
        """
        if type(retain_hours) is not int or retain_hours < 1:
            raise ConfigurationError(
                f"{self._storage}: retain_hours={retain_hours!r}; whole hours, 1 or more"
            )
        return self._storage.vacuum(retain_hours)

    def latest_sql(self, source: str, *, quote: str = '"') -> str:
        """SQL (of DuckDB, Spark and others) that gives the latest row of each key.

        Args:
            source: what to select from: a name, or an expression such as ``delta_scan('…')``.
            quote: the quote around names of columns: a backtick for Spark.
        """
        schema = self.schema()
        names, keys = (
            ", ".join(f"{quote}{name}{quote}" for name in columns) for columns in (schema.names, schema.keys)
        )
        return (
            f"SELECT {names} FROM (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {SEQUENCE} DESC) "  # noqa: S608 - names are checked
            f"AS _sqe_version FROM {source}) AS versions WHERE _sqe_version = 1"
        )

    def _key_cells(self, schema: TableSchema, partition_key: object) -> list[Any]:
        """The cells of a wanted partition key; none: all are wanted. The key's bytes are those that the writer made of the same cells."""
        if partition_key is None:
            return []
        given = partition_key if isinstance(partition_key, tuple) else (partition_key,)
        if len(given) != len(schema.partition_key):
            raise ConfigurationError(
                f"partition_key={partition_key!r}; a value for each of {', '.join(schema.partition_key)}"
            )
        return [
            self._cell(schema, name, value) for name, value in zip(schema.partition_key, given, strict=True)
        ]

    def _bounds(self, schema: TableSchema, name: str, given: Bounds) -> Bounds:
        try:
            low, high = given
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"{self}: bounds of {name!r}: {given!r}. Expected a pair of smallest and largest value; None: no limit"
            ) from None
        low, high = (None if bound is None else self._cell(schema, name, bound) for bound in (low, high))
        return low, high

    def _cell(self, schema: TableSchema, name: str, given: object) -> Any:  # noqa: ANN401 - of the column's type
        try:
            return cell_of(schema.columns[schema.number(name)], given)
        except ValueError as error:
            raise ConfigurationError(f"{self}: {error}") from None

    def _snapshot(self) -> Snapshot:
        snapshot: Snapshot | None = self._storage.snapshot()
        if snapshot is None:
            raise ConfigurationError(f"{self}: there is no table")
        return snapshot


def _joined(pieces: Pieces, snapshot: Snapshot, needed: Sequence[str]) -> Any:  # noqa: ANN401 - Arrow tables
    """Pieces one after the other; a column that one does not have is null there."""
    wanted = pa.schema([snapshot.schema.field(name) for name in (*needed, SEQUENCE)])
    return pa.concat_tables(
        [wanted.empty_table(), *(aligned(piece, wanted) for piece in pieces.tables)]
    ).combine_chunks()


def _files_with(files: Sequence[StoredFile], wanted: Wanted, partitions: int) -> list[StoredFile]:
    """The files that may hold wanted rows, by their state partition and the bounds of keys in the table's log."""
    part = None if wanted.partition_key is None else partition_of(wanted.partition_key, partitions)
    return [
        file
        for file in files
        if (part is None or file.part == part) and may_hold(bounds_in(file.statistics), wanted.keys)
    ]


def _schema_in(snapshot: Snapshot, storage: Storage) -> TableSchema:
    try:
        table = TableDeclaration.of(snapshot)
    except ValueError:
        raise ConfigurationError(f"{storage}: a table that `ingest` has not created") from None
    try:
        columns = [
            Column(column.name, type_name(column.type))
            for column in snapshot.schema
            if column.name not in OWN
        ]
        return TableSchema(tuple(columns), tuple(table.partition_key), tuple(table.row_key))
    except FlowError as error:
        raise TableAltered(
            f"{storage}: another program has changed its columns: {error}; restore the table to the version before"
        ) from error
