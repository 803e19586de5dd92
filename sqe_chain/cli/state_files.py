"""States written to a file: JSON lines, or Parquet with a column for each field. The file appears when it is whole."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sqe_chain.cli.console import as_json
from sqe_chain.cli.files import appearing, check_new
from sqe_chain.errors import ConfigurationError
from sqe_chain.views import as_dict

_ROWS = 10_000
"""Rows of one group in a Parquet file; what is held in memory."""

Found = Iterable[tuple[bytes, Message]]


def write_states(file: Path, states: Found, state: type[Message]) -> int:
    """Write keys and states to a new file.

    Args:
        file: its name ends with ``.jsonl``, ``.jsonl.gz`` or ``.parquet``.
        states: keys and states.
        state: their type.

    Returns:
        How many there were.

    Raises:
        ConfigurationError: the file is there, its ending is unknown, or pyarrow is missing.
    """
    check_new(file)
    for ending, write in (
        (".jsonl", _write_lines),
        (".jsonl.gz", _write_compressed),
        (".parquet", _write_parquet),
    ):
        if file.name.endswith(ending):
            with appearing(file) as partial:
                return write(partial, states, state)
    raise ConfigurationError(f"{file}: the name must end with .jsonl, .jsonl.gz or .parquet")


def _write_lines(file: Path, states: Found, _: type[Message]) -> int:
    with file.open("w", encoding="utf-8") as out:
        return _lines(out, states)


def _write_compressed(file: Path, states: Found, _: type[Message]) -> int:
    with gzip.open(file, "wt", encoding="utf-8") as out:
        return _lines(cast("IO[str]", out), states)


def _lines(out: IO[str], states: Found) -> int:
    count = 0
    for count, (key, state) in enumerate(states, 1):  # noqa: B007 - the count is what we want
        out.write(json.dumps({"key": as_json(key), "state": as_dict(state)}, ensure_ascii=False) + "\n")
    return count


def _write_parquet(file: Path, states: Found, state: type[Message]) -> int:
    try:
        import pyarrow as pa  # noqa: PLC0415 - only who writes Parquet needs it
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "writing Parquet needs the package 'pyarrow': pip install 'sqe-chain[spark]', or write .jsonl"
        ) from error
    fields: list[FieldDescriptor] = list(state.DESCRIPTOR.fields)  # type: ignore[arg-type]  # the stubs know two
    names = _column_names([field.name for field in fields])
    columns = [(name, *_column(field, pa)) for name, field in zip(names, fields, strict=True)]
    schema = pa.schema([("key", pa.binary()), *((name, kind) for name, kind, _ in columns)])
    remaining, count = iter(states), 0
    with pq.ParquetWriter(file, schema) as writer:
        while rows := list(islice(remaining, _ROWS)):
            arrays = [pa.array([key for key, _ in rows], pa.binary())]
            arrays += [pa.array([of(found) for _, found in rows], kind) for _, kind, of in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(rows)
    return count


def _column_names(names: list[str]) -> list[str]:
    """The fields' names; the key has the column `key`."""
    return ["state.key" if name == "key" else name for name in names]


def _column(field: FieldDescriptor, pa: Any) -> tuple[Any, Callable[[Message], object]]:  # noqa: ANN401 - a module, and a type of it
    """Type and content of a field's column: numbers, text and bytes as they are, all else as JSON."""
    name = field.name
    single = not field.is_repeated and field.message_type is None
    if not single:
        return pa.string(), lambda state: json.dumps(as_dict(state).get(name), ensure_ascii=False)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return pa.string(), lambda state: names.get(getattr(state, name), str(getattr(state, name)))
    kinds = {
        FieldDescriptor.CPPTYPE_INT32: pa.int32(),
        FieldDescriptor.CPPTYPE_INT64: pa.int64(),
        FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
        FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
        FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
        FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
        FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    }
    text = pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    kind = kinds.get(field.cpp_type, text)
    if field.has_presence:
        return kind, lambda state: getattr(state, name) if state.HasField(name) else None
    return kind, lambda state: getattr(state, name)
