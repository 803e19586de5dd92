"""Tables in Cassandra: the rows of `chunk_rows` as four tables of a keyspace, which `sqe-chain store init` creates.

Only conditional batches change heads, each on the partition of one state partition. The head is in static columns and chunk sets
are rows, so a commit is one mutation. Heads are read at serial consistency. Chunk sets are read at quorum together with the static
columns, so that `ChunkSnapshot` sees whether both are of one moment. All other rows are written at quorum before a commit names
them, never change, and are read at quorum.

A write that is repeated after a lost answer is the same, and nothing that was deleted is written again. So no clock decides.
"""

# ruff: noqa: S608 - keyspaces are checked where the address is read; everything else is bound

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Final

from sqe_chain.adapters.address import Address
from sqe_chain.adapters.cassandra import CassandraSettings, durability, schema, settings_of
from sqe_chain.adapters.cassandra.client import CassandraClient, Statement
from sqe_chain.errors import ConfigurationError, TableAltered
from sqe_chain.ext.tables.chunk_rows import (
    HEAD_COLUMNS,
    ChunkRows,
    ChunkSet,
    Definition,
    IndexRow,
    PartHead,
    Piece,
    WantedBlobs,
)
from sqe_chain.ext.tables.chunk_table import ChunkTable

_NAME: Final = re.compile(r"([A-Za-z0-9._-]+?)(?:\.v([1-9]\d{0,6}))?")
_BATCH_BYTES: Final = 1 << 20
_BATCH: Final = 50
"""Statements of a batch."""
_KEYS: Final = 100
_PAGE_BYTES: Final = 4 << 20
_INDEX_PAGE: Final = 500
_MIXED: Final = PartHead(number=-1, compactions=-1)
"""Of no state partition: its pages are of several moments."""
_ROWS: Final = "rows"
"""What is kept, in sentences about durability."""
_TABLE: Final = "name = ? AND version = ?"
_PART: Final = f"{_TABLE} AND part = ?"


def chunk_table_at(address: str, options: Mapping[str, str]) -> ChunkTable:
    """The table at ``cassandra://host[:port][,…]/keyspace/table``, with the options of stores in Cassandra.

    Raises:
        ConfigurationError: keyspace or table is missing, an unknown option, a secret that cannot be read.
    """
    parsed = Address.parse(address, options)
    keyspace, _, name = parsed.path.strip("/").partition("/")
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigurationError(
            f"{parsed.scheme}://: the path of a table is its keyspace and its name, as in /sqe_chain/readings"
            f"{f'; not /{keyspace}/{name}' if name else ''}"
        )
    settings = settings_of(replace(parsed, path=f"/{keyspace}"))
    return ChunkTable(CassandraRows(settings, match[1], int(match[2] or 0)))


@dataclass(frozen=True, slots=True, repr=False)
class CassandraRows(ChunkRows):
    """`ChunkRows` in a keyspace."""

    settings: CassandraSettings  # how to reach the cluster
    name: str  # of the table
    version: int  # of the table

    def __repr__(self) -> str:
        return f"table {self.address}"

    @property
    def address(self) -> str:
        return f"{self.settings}/{self.name}{f'.v{self.version}' if self.version else ''}"

    def check(self) -> list[str]:
        # What a store in this keyspace would check
        return durability.weaknesses(self._client, _ROWS)

    def remarks(self) -> list[str]:
        # What a store in this keyspace would remark
        return durability.remarks(self._client, _ROWS)

    def definition(self) -> Definition | None:
        read = f"SELECT table_id, description, columns FROM {self._in('sqe_tables')} WHERE {_TABLE}"
        rows = self._client.rows((read, self._table), serial=True)
        if not rows:
            return None
        if not rows[0][2]:
            raise TableAltered(
                f"{self}: another program has deleted the columns from its row in sqe_tables: restore it"
            )
        return Definition(rows[0][0], rows[0][1], _columns_in(rows[0][2]))

    def define(self, before: Definition | None, after: Definition) -> bool:
        told, table = _columns_as(after), self._in("sqe_tables")
        if before is None:
            add = f"INSERT INTO {table} (name, version, table_id, description, columns) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS"
            return self._client.compare_and_set(
                [(add, (*self._table, after.table_id, after.description, told))]
            )
        change = f"UPDATE {table} SET columns = ? WHERE {_TABLE} IF table_id = ? AND columns = ?"
        values = (told, *self._table, before.table_id, _columns_as(before))
        return self._client.compare_and_set([(change, values)])

    def heads(self, parts: Sequence[int]) -> list[PartHead]:
        # Serial reads
        read = f"SELECT {', '.join(HEAD_COLUMNS)} FROM {self._heads} WHERE {_PART} LIMIT 1"
        answers = self._client.together([(read, (*self._table, part)) for part in parts], serial=True)
        return [PartHead(*rows[0]) if rows else PartHead() for rows in answers]

    def sets(self, parts: Sequence[int]) -> list[tuple[PartHead, list[ChunkSet]]]:
        # At quorum
        columns = f"{', '.join(HEAD_COLUMNS)}, chunk_set, size, statistics"
        read = f"SELECT {columns} FROM {self._heads} WHERE {_PART}"
        answers = self._client.together([(read, (*self._table, part)) for part in parts])
        return [_loaded(rows) for rows in answers]

    def compare_and_set(
        self,
        part: int,
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        added: Sequence[ChunkSet] = (),
        removed_to: str | None = None,
    ) -> bool:
        # A conditional batch on one partition
        at = (*self._table, part)
        setting = ", ".join(f"{name} = ?" for name in changes)
        holding = " AND ".join(f"{name} = ?" for name in expected)
        change = f"UPDATE {self._heads} SET {setting} WHERE {_PART} IF {holding}"
        # The row with the empty name makes that static columns are found without passing what was deleted.
        anchor = f"INSERT INTO {self._heads} (name, version, part, chunk_set) VALUES (?, ?, ?, '')"
        statements: list[Statement] = [(change, (*changes.values(), *at, *expected.values())), (anchor, at)]
        if removed_to is not None:
            remove = f"DELETE FROM {self._heads} WHERE {_PART} AND chunk_set > '' AND chunk_set <= ?"
            statements.append((remove, (*at, removed_to)))
        add = f"INSERT INTO {self._heads} (name, version, part, chunk_set, size, statistics) VALUES (?, ?, ?, ?, ?, ?)"
        statements += [
            (add, (*at, chunk_set.name, chunk_set.size, chunk_set.statistics)) for chunk_set in added
        ]
        return self._client.compare_and_set(statements)

    def index(self, part: int, partition_key: bytes | None = None) -> Iterator[IndexRow]:
        read = f"SELECT {_INDEXED} FROM {self._index} WHERE {_PART}"
        values: tuple[object, ...] = (*self._table, part)
        if partition_key is not None:
            read, values = f"{read} AND partition_key = ?", (*values, partition_key)
        state = None
        while True:  # bounded by the pages of the partition
            page, state = self._client.page((read, values), state, _INDEX_PAGE)
            yield from (IndexRow(*row) for row in page)
            if state is None:
                return

    def index_of(self, part: int, chunk_set: str, partition_keys: Sequence[bytes]) -> list[IndexRow]:
        read = f"SELECT {_INDEXED} FROM {self._index} WHERE {_PART} AND partition_key IN ? AND chunk_set = ?"
        answers = self._client.together(
            [
                (read, (*self._table, part, list(partition_keys[start : start + _KEYS]), chunk_set))
                for start in range(0, len(partition_keys), _KEYS)
            ]
        )
        return [IndexRow(*row) for row in chain.from_iterable(answers)]

    def write_index(self, part: int, rows: Sequence[IndexRow]) -> None:
        write = (
            f"INSERT INTO {self._index} (name, version, part, {_INDEXED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        sized = ((_insert(write, (*self._table, part), row), len(row.info) + len(row.blocks)) for row in rows)
        self._client.write(_batches(sized))

    def write_pieces(self, chunks: Iterable[Sequence[Piece]]) -> None:
        # The pieces of a chunk are one partition, so up to a mebibyte of them is one batch
        columns = "name, version, partition_key, chunk_set, column_name, block, piece, data"
        write = f"INSERT INTO {self._chunks} ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

        for_chunks = (
            _batches((_insert(write, self._table, piece), len(piece.data)) for piece in pieces)
            for pieces in chunks
        )
        self._client.write(chain.from_iterable(for_chunks))

    def pieces(self, asked: Sequence[WantedBlobs]) -> list[list[Piece]]:
        if not asked:
            return []
        read = (
            f"SELECT column_name, block, piece, data FROM {self._chunks} WHERE {_TABLE} AND partition_key = ? "
            "AND chunk_set = ? AND column_name IN ? AND block IN ?"
        )
        statements: list[Statement] = [
            (
                read,
                (*self._table, blobs.partition_key, blobs.chunk_set, list(blobs.columns), list(blobs.blocks)),
            )
            for blobs in asked
        ]
        count = max(1, _PAGE_BYTES // max(blobs.average for blobs in asked))
        answers = self._client.together(statements, count=min(count, 5_000))
        return [
            [Piece(blobs.partition_key, blobs.chunk_set, *row) for row in rows]
            for blobs, rows in zip(asked, answers, strict=True)
        ]

    def drop(self, part: int, partition_keys: Sequence[bytes], below: str) -> None:
        # For each partition key one deletion of a range, whatever number of chunks is in it
        pieces = f"DELETE FROM {self._chunks} WHERE {_TABLE} AND partition_key = ? AND chunk_set < ?"
        index = f"DELETE FROM {self._index} WHERE {_PART} AND partition_key = ? AND chunk_set < ?"
        self._client.write([(pieces, (*self._table, key, below))] for key in partition_keys)
        self._client.write([(index, (*self._table, part, key, below))] for key in partition_keys)

    @property
    def _client(self) -> CassandraClient:
        client = CassandraClient.of_this_process(self.settings)
        if client.version < schema.WITH_TABLES:
            client.version = schema.check(client)
            if client.version < schema.WITH_TABLES:
                raise ConfigurationError(
                    f"{self.settings}: the tables have version {client.version}, {schema.WITH_TABLES} is needed for ingest; "
                    f"run: sqe-chain store init {self.settings}"
                )
        return client

    @property
    def _table(self) -> tuple[str, int]:
        return self.name, self.version

    @property
    def _heads(self) -> str:
        return self._in("sqe_table_heads")

    @property
    def _index(self) -> str:
        return self._in("sqe_chunk_index")

    @property
    def _chunks(self) -> str:
        return self._in("sqe_chunks")

    def _in(self, table: str) -> str:
        return f"{self.settings.keyspace}.{table}"


_INDEXED: Final = "partition_key, chunk_set, info, blocks, size, pieces"
"""Columns of the index, in the order of `IndexRow`."""


def _columns_as(definition: Definition) -> str:
    return "\n".join(f"{name} {of}" for name, of in definition.columns)


def _columns_in(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (line.partition(" ") for line in text.splitlines())
    return tuple((name, of) for name, _, of in pairs)


def _loaded(rows: Sequence[tuple[Any, ...]]) -> tuple[PartHead, list[ChunkSet]]:
    """Head and chunk sets of the rows of a partition."""
    if not rows:
        return PartHead(), []
    width = len(HEAD_COLUMNS)
    heads = {PartHead(*row[:width]) for row in rows}
    sets = [ChunkSet(*row[width:]) for row in rows if row[width]]
    return (heads.pop() if len(heads) == 1 else _MIXED), sets


def _insert(write: str, table: Sequence[object], row: IndexRow | Piece) -> Statement:
    """The statement that writes a row, whose columns are in the order of its fields."""
    return write, (*table, *(getattr(row, field.name) for field in fields(row)))


def _batches(sized: Iterable[tuple[Statement, int]]) -> Iterator[list[Statement]]:
    """Statements of one partition in batches of bounded size."""
    batch: list[Statement] = []
    size = 0
    for statement, own in sized:
        if batch and (size + own > _BATCH_BYTES or len(batch) >= _BATCH):
            yield batch
            batch, size = [], 0
        batch.append(statement)
        size += own
    if batch:
        yield batch
