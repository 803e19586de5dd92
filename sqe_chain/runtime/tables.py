"""States as Arrow tables: a column for the key, and one for each field of the state."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sqe_chain.errors import ConfigurationError
from sqe_chain.runtime.states import StoredState, text_of
from sqe_chain.segment.views import as_plain

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ConfigurationError("tables need the package 'pyarrow': pip install 'sqe-chain[spark]'") from error

Column = tuple[str, pa.DataType, Callable[[StoredState], object]]
"""Its name, its type, and what it holds of a state."""


def arrow_table(states: Iterable[StoredState], state: type[Message], *, windows: bool = False) -> pa.Table:
    """All states as one table.

    Args:
        states: what is stored.
        state: type of the states.
        windows: whether they are of windows.
    """
    return table_of(
        [found for found in states if found.state is not None], columns_of(state, windows=windows)
    )


def table_of(states: Sequence[StoredState], columns: Sequence[Column]) -> pa.Table:
    """States in these columns."""
    arrays = [pa.array([of(found) for found in states], kind) for _, kind, of in columns]
    return pa.Table.from_arrays(arrays, schema=schema_of(columns))


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Names and types of columns."""
    return pa.schema([(name, kind) for name, kind, _ in columns])


def columns_of(state: type[Message], *, windows: bool) -> list[Column]:
    """The columns for states of a type; ``key`` is text, ``key_hex`` holds keys that are none."""
    fields: list[FieldDescriptor] = list(state.DESCRIPTOR.fields)  # type: ignore[arg-type]  # the stubs know two
    taken: list[Column] = [
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
    return taken + [_column(field, own) for field in fields]


def _column(
    field: FieldDescriptor,
    own: Container[str],
) -> Column:
    """Name, type and content of a field's column; fields named like columns of our own get a prefix."""
    kind, of = _content(field)
    name = f"state.{field.name}" if field.name in own else field.name
    return name, kind, lambda found: of(found.state)


def _content(field: FieldDescriptor) -> tuple[pa.DataType, Callable[[Any], object]]:
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
