"""The end of a stream in a table. The kind of stage, in `sqe_chain.stages.ingest`, does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic

from sqe_chain.errors import FlowError, PoisonError, RowOfAnotherType, RowWithoutKey
from sqe_chain.flow.declaration import caller_line, check_bool, check_int, check_name
from sqe_chain.flow.functions import Value
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.shapes import check_callable
from sqe_chain.flow.stage_kind import StageKind
from sqe_chain.safe_text import without_secrets
from sqe_chain.tables.addresses import in_place, text_of
from sqe_chain.tables.columns import Column, reader_of
from sqe_chain.tables.schema import TableSchema

TABLES: Final = "SQE_CHAIN_TABLES"
"""Environment variable: the directory or address under which tables live; by default the directory `tables`."""
_MAX_VERSION: Final = 1_000_000
_MAX_ROW_BYTES: Final = 1 << 30


class IngestSteps(Generic[Value]):
    """The end of a stream in a table."""

    __slots__ = ()

    def _value_type(self) -> type | None:
        raise NotImplementedError

    def _ingested(
        self, name: str, kind: StageKind, where: str, key: Callable[[Any], bytes], store: str | None
    ) -> None:
        raise NotImplementedError

    def ingest(  # noqa: PLR0913 - a declaration names what it needs
        self,
        table: str,
        *,
        partition_key: str | Sequence[str],
        row_key: str | Sequence[str],
        columns: Mapping[str, str] | Sequence[str | Column] | None = None,
        payload: type | None = None,
        at: str | os.PathLike[str] | None = None,
        options: Mapping[str, str] | None = None,
        version: int = 0,
        replaces: bool = False,
        max_row_bytes: int = 16 * 1024 * 1024,
        store: str | None = None,
    ) -> None:
        """Write each value as a row of a table in Delta Lake or Cassandra: exactly once, at the end of the batch (docs/tables.md).

        Rows are told apart by partition key and row key; a later row replaces an earlier one for readers. What is not a row
        of the table goes to the poison policy.

        Args:
            table: name of the table and of the stage; permanent.
            partition_key: the column, or columns, by which rows are spread over state partitions and lie together.
            row_key: the column, or columns, by which the rows of a partition key are sorted and told apart.
            columns: name -> type (see `sqe_chain.tables.Column`); or names of fields, and `Column` objects; by default all
                fields of the values' type: a protobuf message, a msgspec Struct or a dataclass. Columns may be added later.
            payload: type of the values, where the flow cannot know it: after `map`, `flat_map` and stages.
            at: the directory or address under which the table gets a directory of its own, or a keyspace
                (``cassandra://host[:port]/keyspace``, as for stores); by default what the environment variable
                SQE_CHAIN_TABLES says when the flow is declared, else the directory ``tables``.
            options: logins and settings of an object store, for delta-rs; or options of stores in Cassandra.
            version: of the table, from 0: another one is another table, under the stage name ``TABLE.vN``.
            replaces: rows are replayed in order to replace what is there: no chunk is skipped because it looks the same.
            max_row_bytes: largest row, in bytes of its cells.
            store: name of the store for the stage's headers; by default the service's.

        Raises:
            FlowError: a name clash, a field that cannot be a column, a key that is none, or a stage after `changes()`.
        """
        where = caller_line()
        check_name("table", table, where)
        check_int("version", version, 0, _MAX_VERSION, where)
        check_int("max_row_bytes", max_row_bytes, 1, _MAX_ROW_BYTES, where)
        check_bool("replaces", replaces, where)
        _check_shapes(columns, payload, options, where)
        try:
            schema = TableSchema.of(
                payload or self._value_type(), partition_key=partition_key, row_key=row_key, columns=columns
            )
        except FlowError as error:
            raise FlowError(f"{where}: table {table!r}: {error}") from error
        for column in schema.columns:
            if column.of is not None:
                check_callable(f"of of column {column.name!r}", column.of, where)
        name = f"{table}.v{version}" if version else table
        try:
            address = address_of(name, at)
        except ValueError as error:
            raise FlowError(without_secrets(f"{where}: at={at!r}; {error}")) from None
        kind = kind_named("ingest")(
            table=table,
            schema=schema,
            address=address,
            options=dict(options or {}),
            version=version,
            replaces=replaces,
            max_row_bytes=max_row_bytes,
        )
        self._ingested(name, kind, where, PartitionKey(schema), store)


def _check_shapes(columns: object, payload: object, options: object, where: str) -> None:
    """Refuse settings of another type. Raises FlowError."""
    listed = isinstance(columns, Sequence) and not isinstance(columns, str | bytes)
    if not (columns is None or listed or isinstance(columns, Mapping)):
        raise FlowError(f"{where}: columns={columns!r}; names of fields and Column objects, or name -> type")
    if not (payload is None or isinstance(payload, type)):
        raise FlowError(f"{where}: payload={payload!r}; a class: the type of the values")
    texts = isinstance(options, Mapping) and all(
        isinstance(one, str) for pair in options.items() for one in pair
    )
    if not (options is None or texts):
        names = list(options) if isinstance(options, Mapping) else type(options).__name__
        raise FlowError(f"{where}: options={names}; texts by their names")


def address_of(table: str, at: str | os.PathLike[str] | None) -> str:
    """Where a table lives: an absolute path, or a URL.

    Args:
        table: name of its directory.
        at: see `IngestSteps.ingest`.

    Raises:
        ValueError: see `text_of`.
    """
    found = text_of(at if at is not None else os.environ.get(TABLES) or "tables")
    if "://" not in found:
        return str(Path(found).absolute() / table)
    return in_place(found, table)


class PartitionKey:
    """The function ``value -> key`` of a table.

    Args:
        schema: of the table.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._columns = tuple(schema.columns[schema.number(name)] for name in schema.partition_key)
        self._read = reader_of(schema.payload, self._columns)
        self._schema = schema

    def __call__(self, value: Any) -> bytes:  # noqa: ANN401 - a user's value
        """The key of a value.

        Raises:
            RowOfAnotherType: the value, or a cell of the key, is not of the type of the table.
            RowWithoutKey: a cell of the key is null.
        """
        schema = self._schema
        if schema.payload is not None and not isinstance(value, schema.payload):
            raise RowOfAnotherType(
                f"a row of type {type(value).__qualname__}; the table takes {schema.payload.__qualname__}"
            )
        try:
            cells = self._read(value)
        except PoisonError:
            raise
        except Exception as error:  # what a cell is read by may be a function or a property of the user's
            raise RowOfAnotherType(f"a row of type {type(value).__qualname__}: {error!r}") from error
        for column, cell in zip(self._columns, cells, strict=True):
            if cell is None:
                raise RowWithoutKey(f"a row without partition key: column {column.name!r} is null")
            why = column.refusal(cell)
            if why is not None:
                raise RowOfAnotherType(f"column {column.name!r}: {why}")
        return schema.key_bytes(cells)
