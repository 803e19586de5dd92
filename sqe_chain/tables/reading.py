"""Reads a table: the latest row of each (partition key, row key), from as few files and row groups as possible."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sqe_chain.errors import ConfigurationError
from sqe_chain.partitioner import partition_of
from sqe_chain.tables.addresses import directory_at
from sqe_chain.tables.arrow import PARTITION, SEQUENCE
from sqe_chain.tables.chunk import ChunkInfo
from sqe_chain.tables.columns import Column
from sqe_chain.tables.compacting import Compaction, aligned, compact
from sqe_chain.tables.engine import Directory, Snapshot, StoredFile
from sqe_chain.tables.files import chunk_id_in, chunks_in
from sqe_chain.tables.memtable import newest
from sqe_chain.tables.pruning import Bounds, group_may_hold, may_hold, within
from sqe_chain.tables.schema import TableSchema

_OWN: Final = (SEQUENCE, PARTITION)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a read found, and what it did not have to read.

    Attributes:
        rows: an Arrow table.
        files: files that were opened.
        files_left_out: files of which the table's log alone has said that nothing in them is wanted.
        row_groups: parts of the opened files that were read.
        row_groups_left_out: parts of the opened files of which their footer has said so.
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


@dataclass(slots=True)
class _Pruning:
    """What is wanted, and counts of what was not read."""

    wanted: Mapping[str, Bounds]
    files: int = 0
    files_left_out: int = 0
    row_groups: int = 0
    row_groups_left_out: int = 0
    pieces: list[Any] = field(default_factory=list)


def open_table(address: str, options: Mapping[str, str] | None = None) -> Table:
    """Open a table for reading and maintenance. Needs no flow, no store and no running service.

    Args:
        address: its directory, or a URL: what `ingest` was given as `at`, then ``/`` and the table's name.
        options: for delta-rs: logins and settings of an object store.

    Raises:
        ConfigurationError: there is no table that `ingest` has written.
        Unavailable: no answer.
    """
    found = Table(directory_at(address, options))
    found.schema()  # to fail now
    return found


class Table:
    """A table. Each call reads its newest version; writers and a compaction may be at work at the same time.

    Args:
        directory: where it lives.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __repr__(self) -> str:
        return repr(self._directory)

    def schema(self) -> TableSchema:
        """Its columns and keys."""
        return _schema_in(self._snapshot(), self._directory)

    def scan(
        self,
        partition_key: object = None,
        *,
        row_key: Bounds | None = None,
        where: Mapping[str, Bounds] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Scan:
        """Read rows: of those with the same keys the latest one.

        What cannot be wanted is not read: state partitions that do not hold the partition key, files by the bounds of their
        columns in the table's log, row groups by those in the files' footers.

        Args:
            partition_key: only its rows: one value, or a tuple where the partition key has several columns.
            row_key: smallest and largest row key wanted, both included; of its first column, if it has several.
            where: column -> smallest and largest value wanted, both included; None in a pair: no limit. A row whose latest
                version lies outside is not found by an older one.
            columns: names of columns; by default all, in the order of their declaration.

        Raises:
            ConfigurationError: there is no such column or table.
            Unavailable: no answer.
        """
        snapshot = self._snapshot()
        schema = _schema_in(snapshot, self._directory)
        names = list(columns) if columns is not None else schema.names
        keys = _wanted_keys(schema, partition_key, row_key)
        others = dict(where or {})
        for name in (*names, *others):
            if name not in schema.names:
                raise ConfigurationError(
                    f"{self}: there is no column {name!r}; it has {', '.join(schema.names)}"
                )
        # Of columns that are no keys another version of a row may have other values: so they prune only what no key can be in.
        needed = list(dict.fromkeys([*schema.keys, *others, *names]))
        pruning = _Pruning(keys | {name: others[name] for name in others if name in schema.keys})
        self._read(snapshot, schema, pruning, partition_key, needed)
        found = _joined(pruning.pieces, snapshot, needed)
        read = found.num_rows
        latest = latest_of(found, schema)
        replaced = read - latest.num_rows
        for name, bounds in (keys | others).items():
            latest = latest.filter(within(latest[name], bounds))
        return Scan(
            latest.select(names),
            pruning.files,
            pruning.files_left_out,
            pruning.row_groups,
            pruning.row_groups_left_out,
            read,
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
        """Paths or URLs of the files that make up the newest version, for programs that read Parquet."""
        return [self._directory.uri(file.path) for file in self._snapshot().files()]

    def chunks(self, partition_key: object = None) -> list[ChunkInfo]:
        """What is known of each chunk, in the order of chunk ids.

        Args:
            partition_key: only its chunks.
        """
        snapshot = self._snapshot()
        schema = _schema_in(snapshot, self._directory)
        key = None if partition_key is None else schema.key_bytes(_tuple(partition_key))
        found: list[ChunkInfo] = []
        for file in snapshot.files():
            with self._directory.open_file(file.path) as opened:
                own = chunk_id_in(file.path)
                chunks = chunks_in(pq.read_metadata(opened))
            found += [one if own is None else one.with_id(own) for one in chunks]
        wanted = [one for one in found if key is None or one.name.partition_key == key]
        return sorted(wanted, key=lambda one: (one.name.chunk_id, one.name.partition_key))

    def compact(self, *, least_files: int = 2) -> Compaction:
        """Merge files and leave out replaced rows, one state partition after the other; readers and writers go on meanwhile.

        Each state partition is one commit, so a crash leaves it as it was or compacted. What the old files hold stays for readers
        of older versions until `vacuum`.

        Args:
            least_files: state partitions with fewer files are left as they are.

        Raises:
            Unavailable: no answer.
            ConfigurationError: there is no table.
        """
        return compact(self._directory, self.schema(), least_files)

    def vacuum(self, *, retain_hours: int = 168) -> list[str]:
        """Delete files that no version of the last hours needs.

        Args:
            retain_hours: at least 1; longer than any reader takes, and than the persist of a batch.

        Returns:
            What was deleted, as paths from the table's directory on.
        """
        return self._directory.vacuum(retain_hours)

    def latest_sql(self, source: str, *, quote: str = '"') -> str:
        """SQL (of DuckDB, Spark and others) that gives the latest row of each key.

        Args:
            source: what to select from: a name, or an expression such as ``delta_scan('…')``.
            quote: what stands around names of columns: a backtick for Spark.
        """
        schema = self.schema()
        names, keys = (
            ", ".join(f"{quote}{name}{quote}" for name in found) for found in (schema.names, schema.keys)
        )
        return (
            f"SELECT {names} FROM (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {SEQUENCE} DESC) "  # noqa: S608 - names are checked
            f"AS _sqe_version FROM {source}) AS versions WHERE _sqe_version = 1"
        )

    # ------------------------------------------------------------------ small parts

    def _snapshot(self) -> Snapshot:
        found: Snapshot | None = self._directory.snapshot()
        if found is None:
            raise ConfigurationError(f"{self}: there is no table")
        return found

    def _read(
        self,
        snapshot: Snapshot,
        schema: TableSchema,
        pruning: _Pruning,
        partition_key: object,
        needed: Sequence[str],
    ) -> None:
        part = None
        if partition_key is not None:
            count = _partitions(snapshot)
            part = partition_of(schema.key_bytes(_tuple(partition_key)), count)
        for file in snapshot.files():
            statistics = json.loads(file.statistics)
            if (part is not None and file.part != part) or not may_hold(statistics, pruning.wanted):
                pruning.files_left_out += 1
                continue
            pruning.files += 1
            self._read_file(file, pruning, needed)

    def _read_file(self, file: StoredFile, pruning: _Pruning, needed: Sequence[str]) -> None:
        with self._directory.open_file(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            known = parquet.schema_arrow.names
            groups = [
                number
                for number in range(parquet.metadata.num_row_groups)
                if group_may_hold(parquet.metadata.row_group(number), known, pruning.wanted)
            ]
            pruning.row_groups += len(groups)
            pruning.row_groups_left_out += parquet.metadata.num_row_groups - len(groups)
            if groups:
                own = [name for name in needed if name in known]
                pruning.pieces.append(parquet.read_row_groups(groups, columns=[*own, SEQUENCE]))


def latest_of(found: Any, schema: TableSchema) -> Any:  # noqa: ANN401 - Arrow tables
    """Of rows with a sequence number: the latest of each key, in the order of keys.

    Args:
        found: an Arrow table with the key columns and the sequence number.
        schema: of the table.
    """
    keys = [(name, "ascending") for name in schema.keys]
    order = pc.sort_indices(found, sort_keys=[*keys, (SEQUENCE, "ascending")])
    return newest(found.take(order).combine_chunks(), schema)


def _joined(pieces: Sequence[Any], snapshot: Snapshot, needed: Sequence[str]) -> Any:  # noqa: ANN401 - Arrow tables
    """Pieces one after the other; a column that one does not have is null there."""
    wanted = pa.schema([snapshot.schema.field(name) for name in (*needed, SEQUENCE)])
    return pa.concat_tables(
        [wanted.empty_table(), *(aligned(piece, wanted) for piece in pieces)]
    ).combine_chunks()


def _wanted_keys(schema: TableSchema, partition_key: object, row_key: Bounds | None) -> dict[str, Bounds]:
    wanted: dict[str, Bounds] = {}
    if partition_key is not None:
        cells = _tuple(partition_key)
        if len(cells) != len(schema.partition_key):
            raise ConfigurationError(
                f"partition_key={partition_key!r}; a value for each of {', '.join(schema.partition_key)}"
            )
        wanted |= {name: (cell, cell) for name, cell in zip(schema.partition_key, cells, strict=True)}
    if row_key is not None:
        wanted[schema.row_key[0]] = row_key
    return wanted


def _tuple(given: object) -> tuple[object, ...]:
    return given if isinstance(given, tuple) else (given,)


def _partitions(snapshot: Snapshot) -> int:
    """How many state partitions the flow has, from the table's description."""
    return int(json.loads(snapshot.description)["sqe-chain"]["state_partitions"])


def _schema_in(snapshot: Snapshot, directory: Directory) -> TableSchema:
    try:
        told = json.loads(snapshot.description)["sqe-chain"]
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{directory}: a table that `ingest` has not created") from None
    columns = [Column(one.name, _type_name(one.type)) for one in snapshot.schema if one.name not in _OWN]
    return TableSchema(tuple(columns), tuple(told["partition_key"]), tuple(told["row_key"]))


def _type_name(found: Any) -> str:  # noqa: ANN401 - an Arrow type
    if pa.types.is_list(found):
        return f"list<{_type_name(found.value_type)}>"
    if pa.types.is_decimal(found):
        return f"decimal({found.precision},{found.scale})"
    if pa.types.is_timestamp(found):
        return "timestamp"
    names = {pa.float32(): "float32", pa.float64(): "float64", pa.date32(): "date"}
    return names.get(found) or str(found)
