"""States written to a file: JSON lines, or Parquet with a column for each field. The file appears when it is whole."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Container, Iterable
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sqe_chain.cli.console import text_of
from sqe_chain.cli.files import appearing, check_new
from sqe_chain.cli.selection import Found
from sqe_chain.errors import ConfigurationError
from sqe_chain.segment.views import as_plain

_ROWS = 10_000
"""Rows of one group in a Parquet file; what is held in memory."""


def write_states(file: Path, states: Iterable[Found], state: type[Message], *, windows: bool = False) -> int:
    """Write keys and states to a new file.

    Args:
        file: its name ends with ``.jsonl``, ``.jsonl.gz`` or ``.parquet``.
        states: what there is.
        state: type of the states.
        windows: whether they are of windows.

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
                return write(partial, states, state, windows=windows)
    raise ConfigurationError(f"{file}: the name must end with .jsonl, .jsonl.gz or .parquet")


def _write_lines(file: Path, states: Iterable[Found], _: type[Message], **__: bool) -> int:
    with file.open("w", encoding="utf-8") as out:
        return _lines(out, states)


def _write_compressed(file: Path, states: Iterable[Found], _: type[Message], **__: bool) -> int:
    with gzip.open(file, "wt", encoding="utf-8") as out:
        return _lines(cast("IO[str]", out), states)


def _lines(out: IO[str], states: Iterable[Found]) -> int:
    count = 0
    for count, found in enumerate(states, 1):  # noqa: B007 - the count is what we want
        out.write(json.dumps(found.line(), ensure_ascii=False) + "\n")
    return count


def _write_parquet(file: Path, states: Iterable[Found], state: type[Message], *, windows: bool) -> int:
    try:
        import pyarrow as pa  # noqa: PLC0415 - only who writes Parquet needs it
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "writing Parquet needs the package 'pyarrow': pip install 'sqe-chain[spark]', or write .jsonl"
        ) from error
    fields: list[FieldDescriptor] = list(state.DESCRIPTOR.fields)  # type: ignore[arg-type]  # the stubs know two
    taken: list[tuple[str, Any, Callable[[Found], object]]] = [
        ("key", pa.string(), lambda found: text_of(found.key)),
        ("key_hex", pa.string(), lambda found: None if text_of(found.key) is not None else found.key.hex()),
    ]
    if windows:
        taken += [
            ("start_ms", pa.int64(), lambda found: found.span and found.span.start_ms),
            ("end_ms", pa.int64(), lambda found: found.span and found.span.end_ms),
            ("final", pa.bool_(), lambda found: found.final),
        ]
    own = {name for name, _, _ in taken}
    columns = taken + [_column(field, pa, own) for field in fields]
    schema = pa.schema([(name, kind) for name, kind, _ in columns])
    remaining, count = iter(states), 0
    with pq.ParquetWriter(file, schema) as writer:
        while rows := list(islice(remaining, _ROWS)):
            arrays = [pa.array([of(found) for found in rows], kind) for _, kind, of in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(rows)
    return count


def _column(
    field: FieldDescriptor,
    pa: Any,  # noqa: ANN401 - a module
    own: Container[str],
) -> tuple[str, Any, Callable[[Found], object]]:
    """Name, type and content of a field's column; fields named like columns of our own get a prefix."""
    kind, of = _content(field, pa)
    name = f"state.{field.name}" if field.name in own else field.name
    return name, kind, lambda found: of(found.state)


def _content(field: FieldDescriptor, pa: Any) -> tuple[Any, Callable[[Any], object]]:  # noqa: ANN401 - a module, and a type of it
    """Numbers, text and bytes as they are, all else as JSON."""
    name = field.name
    single = not field.is_repeated and field.message_type is None
    if not single:
        return pa.string(), lambda state: json.dumps(as_plain(state).get(name), ensure_ascii=False)
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
