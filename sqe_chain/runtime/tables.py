"""States as Arrow tables: a column for the key, and one for each field of the state."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from sqe_chain.codecs import Codec, Field, FieldKind
from sqe_chain.flow.stored import StoredState, printable_text
from sqe_chain.wings import needing

with needing("a table of states", "spark"):
    import pyarrow as pa

Column = tuple[str, pa.DataType, Callable[[StoredState], object]]
"""Its name, its type, and a function that takes its value from a state."""

_TEXTS: frozenset[FieldKind] = frozenset({"text", "enum", "other"})
"""Kinds that are text: text, names of enums, and everything else as JSON."""


def arrow_table(states: Iterable[StoredState], codec: Codec[Any], *, windows: bool = False) -> pa.Table:
    """All states as one table."""
    return table_of(
        [stored for stored in states if stored.state is not None], columns_of(codec, windows=windows)
    )


def table_of(states: Sequence[StoredState], columns: Sequence[Column]) -> pa.Table:
    """States in these columns. One in which a whole number does not fit into its type is text: in JSON they have any length."""
    arrays = [_array([of(stored) for stored in states], kind) for _, kind, of in columns]
    return pa.Table.from_arrays(arrays, names=[name for name, _, _ in columns])


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except OverflowError:
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def with_text_of(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """The schema with the columns as text that are text in another one of the same names; None: there is no other such column."""
    both = zip(schema, other, strict=True)
    changed = pa.schema([after if pa.types.is_string(after.type) else before for before, after in both])
    return None if changed.equals(schema) else changed


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Names and types of columns."""
    return pa.schema([(name, kind) for name, kind, _ in columns])


def columns_of(codec: Codec[Any], *, windows: bool) -> list[Column]:
    """The columns for states of a type; ``key`` is text, ``key_hex`` holds keys that are not text.

    For a type without fields (plain JSON) the state is one column, as JSON.
    """
    taken: list[Column] = [
        ("key", pa.string(), lambda stored: printable_text(stored.key)),
        (
            "key_hex",
            pa.string(),
            lambda stored: None if printable_text(stored.key) is not None else stored.key.hex(),
        ),
    ]
    if windows:
        taken += [
            ("start_ms", pa.int64(), lambda stored: stored.span and stored.span.start_ms),
            ("end_ms", pa.int64(), lambda stored: stored.span and stored.span.end_ms),
            ("final", pa.bool_(), lambda stored: stored.final),
        ]
    own = {name for name, _, _ in taken}
    whole = Field("state", "other", lambda state: json.dumps(codec.to_json(state), ensure_ascii=False))
    return taken + [_column(field, own) for field in codec.fields() or (whole,)]


def _column(field: Field, own: Container[str]) -> Column:
    """Name, type and content of a field's column; fields named like columns of our own get a prefix."""
    name = f"state.{field.name}" if field.name in own else field.name
    kind = pa.string() if field.kind in _TEXTS else pa.type_for_alias(field.kind.replace("bytes", "binary"))
    return name, kind, lambda stored: field.of(stored.state)
