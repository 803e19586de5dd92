"""What `Stream.ingest` declares: the kind of the stage, and the function that gives its key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.errors.safe_text import without_secrets
from sqe_chain.ext.tables.addresses import in_place, text_of
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.reading import open_table
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.stage import IngestKind
from sqe_chain.flow.declaration import check_bool, check_int
from sqe_chain.flow.shapes import check_callable

TABLES: Final = "SQE_CHAIN_TABLES"
"""Environment variable: the directory or address under which tables live; by default the directory `tables`."""
_MAX_VERSION: Final = 1_000_000
_MAX_ROW_BYTES: Final = 1 << 30


def declare_table(  # noqa: PLR0913, D417 - the arguments of `Stream.ingest`; a declaration names what it needs
    where: str,
    table: str,
    payload: type | None,
    *,
    partition_key: str | Sequence[str],
    row_key: str | Sequence[str],
    columns: Mapping[str, str] | Sequence[str | Column] | None,
    at: str | os.PathLike[str] | None,
    options: Mapping[str, str] | None,
    version: int,
    replaces: bool,
    max_row_bytes: int,
) -> tuple[str, IngestKind, Callable[[object], bytes]]:
    """Name, kind and key of the stage that writes a table; the arguments are those of `Stream.ingest`.

    Args:
        where: file and line of the declaration.
        payload: type of the values, or None.

    Raises:
        FlowError: a field that cannot be a column, a key that is none, or a setting of another type.
    """
    check_int("version", version, 0, _MAX_VERSION, where)
    check_int("max_row_bytes", max_row_bytes, 1, _MAX_ROW_BYTES, where)
    check_bool("replaces", replaces, where)
    _check_shapes(columns, payload, options, where)
    try:
        schema = TableSchema.of(payload, partition_key=partition_key, row_key=row_key, columns=columns)
    except FlowError as error:
        raise FlowError(f"{where}: table {table!r}: {error}") from error
    for column in schema.columns:
        if column.of is not None:
            check_callable(f"of of column {column.name!r}", column.of, where)
    name = f"{table}.v{version}" if version else table
    try:
        address = _address_of(name, at)
    except ValueError as error:
        raise FlowError(without_secrets(f"{where}: at={at!r}; {error}")) from None
    kind = IngestKind(
        table=table,
        schema=schema,
        address=address,
        options=dict(options or {}),
        version=version,
        replaces=replaces,
        max_row_bytes=max_row_bytes,
    )
    return name, kind, schema.partition_key_of


def _check_shapes(columns: object, payload: object, options: object, where: str) -> None:
    """Refuse settings of another type. Raises FlowError."""
    listed = isinstance(columns, Sequence) and not isinstance(columns, str | bytes)
    if not (columns is None or listed or isinstance(columns, Mapping)):
        raise FlowError(f"{where}: columns={columns!r}; names of fields and Column objects, or name -> type")
    if not (payload is None or isinstance(payload, type)):
        raise FlowError(f"{where}: payload={payload!r}; a class: the type of the values")
    texts = isinstance(options, Mapping) and all(
        isinstance(text, str) for pair in options.items() for text in pair
    )
    if not (options is None or texts):
        names = list(options) if isinstance(options, Mapping) else type(options).__name__
        raise FlowError(f"{where}: options={names}; texts by their names")


def _address_of(table: str, at: str | os.PathLike[str] | None) -> str:
    """Where a table lives: an absolute path, or a URL. Raises ValueError: see `text_of`."""
    place = text_of(at if at is not None else os.environ.get(TABLES) or "tables")
    if "://" not in place:
        return str(Path(place).absolute() / table)
    return in_place(place, table)


def rows_of(kind: IngestKind) -> list[dict[str, Any]]:
    """All rows of a table, as a reader sees them; none where it does not exist yet."""
    try:
        rows: list[dict[str, Any]] = open_table(kind.address).read().to_pylist()
    except ConfigurationError:
        return []
    return rows
