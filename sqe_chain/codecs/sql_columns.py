"""The columns of states in a table of SQL: their types, and a row as the text of a JSON object.

PostgreSQL reads each column from that object (`json_to_recordset`). A row that it would refuse is found here, because a write
must not fail on data. Such a row has the reason in its column `sqe_error`, and NULL in all others but the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.codecs.codec import Codec, Field, FieldKind

if TYPE_CHECKING:
    from sqe_chain.codecs.type_walk import Info

KEY: Final = "key"
ERROR: Final = "sqe_error"
_RESERVED: Final = frozenset((KEY, "tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))
_LONGEST_NAME: Final = 63
_MOST_COLUMNS: Final = 1_000
_INT64: Final = range(-(1 << 63), 1 << 63)
_DIGITS: Final = range(-16_383, 131_072)
"""Powers of ten that a numeric may have."""

ToJson = Callable[[Any], str]
"""Takes a value that is not None, returns the JSON of its column; raises ValueError: PostgreSQL cannot hold it."""


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """One column.

    Attributes:
        name: of the column and of the field.
        sql_type: as SQL names it.
        of: takes a state, returns the field's value; None is NULL.
        to_json: of a value.
    """

    name: str
    sql_type: str
    of: Callable[[Any], Any]
    to_json: ToJson


def text_json(value: str) -> str:
    """A text that PostgreSQL can hold, as JSON."""
    if "\0" in value:
        raise ValueError("a text with U+0000, which PostgreSQL cannot hold")
    value.encode()  # no half of a surrogate pair
    return json.dumps(value, ensure_ascii=False)


def _int_json(value: int) -> str:
    if value not in _INT64:
        raise ValueError(f"{value} is beyond 64 bits")
    return str(int(value))


def _numeric_json(value: Decimal | float) -> str:
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    if not number.is_finite():
        raise ValueError(f"{value} is no number")
    exponent = number.as_tuple().exponent
    if number and (number.adjusted() not in _DIGITS or exponent not in _DIGITS):
        raise ValueError("a number with more digits than numeric has")
    return f'"{number}"'


def _time_json(value: datetime) -> str:
    """In UTC; so is a time without a zone."""
    return f'"{(value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)).isoformat()}Z"'


def _nested_json(value: str) -> str:
    """JSON of a field that is not flat, as jsonb can hold it."""
    if "\\u0000" in value and _has_nul(json.loads(value)):
        raise ValueError("a text with U+0000, which PostgreSQL cannot hold")
    value.encode()
    return value


def _has_nul(value: object) -> bool:
    if isinstance(value, dict):
        return any("\0" in name or _has_nul(part) for name, part in value.items())
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def _bool_json(value: bool) -> str:  # noqa: FBT001 - a value
    return "true" if value else "false"


def _float_json(value: float) -> str:
    # Not numbers in JSON, but texts that PostgreSQL reads: "nan", "inf", "-inf".
    return f'"{float(value)!r}"'


def _bytes_json(value: bytes) -> str:
    return f'"\\\\x{bytes(value).hex()}"'


def _date_json(value: date) -> str:
    return f'"{value.isoformat()}"'


def _plain_json(value: object) -> str:
    return f'"{value}"'


_Form = tuple[str, ToJson]
_BIGINT: Final[_Form] = ("bigint", _int_json)
_NUMERIC: Final[_Form] = ("numeric", _numeric_json)
_TEXT: Final[_Form] = ("text", text_json)
FORMS: Final[dict[str, _Form]] = {
    "int": _BIGINT,
    "float": ("double precision", _float_json),
    "bool": ("boolean", _bool_json),
    "str": _TEXT,
    "bytes": ("bytea", _bytes_json),
    "decimal": _NUMERIC,
    "datetime": ("timestamp with time zone", _time_json),
    "date": ("date", _date_json),
    "uuid": ("uuid", _plain_json),
}
"""Kind of a type, as `kind_of` names it -> type of its column, and how a value becomes JSON."""

_BY_FIELD: Final[dict[FieldKind, _Form]] = {
    "bool": FORMS["bool"],
    "int32": _BIGINT,
    "int64": _BIGINT,
    "uint32": _BIGINT,
    "uint64": _NUMERIC,
    "float32": FORMS["float"],
    "float64": FORMS["float"],
    "text": _TEXT,
    "bytes": FORMS["bytes"],
    "enum": _TEXT,
}


@lru_cache(maxsize=256)
def columns_of(codec: Codec[Any]) -> tuple[SqlColumn, ...]:
    """The columns of a codec's states, one for each field.

    Raises:
        ValueError: the fields are not known, or have names that columns cannot have; the text goes into an error.
    """
    fields = codec.fields()
    if not fields:
        raise ValueError(
            f"the fields of {codec.python_type.__qualname__} are not known. Expected a struct, a dataclass, a protobuf message, or "
            'declared aggregates. Name such a type, or show JSON with view="json"'
        )
    if len(fields) > _MOST_COLUMNS:
        raise ValueError(f"{len(fields)} fields. Expected at most {_MOST_COLUMNS}. Nest some of them")
    for field in fields:
        if (
            field.name in _RESERVED
            or field.name.startswith("sqe_")
            or len(field.name.encode()) > _LONGEST_NAME
        ):
            raise ValueError(
                f"field {field.name!r} cannot be a column. Expected at most {_LONGEST_NAME} bytes, and none of sqe_…, "
                f"{', '.join(sorted(_RESERVED))}. Give it another name"
            )
    known = _infos_of(codec)
    return tuple(_column(field, known.get(field.name)) for field in fields)


def _infos_of(codec: Codec[Any]) -> dict[str, Info]:
    """The descriptions of a class's fields by name; of protobuf and other codecs, none."""
    if codec.name != "json":
        return {}
    from sqe_chain.codecs.type_walk import describe, fields_of  # noqa: PLC0415 - it needs msgspec, which protobuf's users need not have

    return {field.name: field.type for field in fields_of(describe(codec.python_type))}


def _column(field: Field, info: Info | None) -> SqlColumn:
    form = _form_of(info) if info is not None else _BY_FIELD.get(field.kind)
    if form is None:
        return SqlColumn(field.name, "jsonb", field.of, _nested_json)
    of = field.of if info is None else attrgetter(field.name)
    return SqlColumn(field.name, form[0], of, form[1])


def _form_of(info: Info) -> _Form | None:
    """The column of a type; None: it is neither flat nor known, and becomes JSON."""
    from sqe_chain.codecs.type_walk import kind_of  # noqa: PLC0415 - the same

    kinds = [part for part in getattr(info, "types", (info,)) if kind_of(part) != "none"]
    if {kind_of(part) for part in kinds} == {"int", "float"}:
        return _NUMERIC
    if len(kinds) != 1:
        return None
    (only,) = kinds
    kind = kind_of(only)
    if kind == "metadata":
        return _form_of(only.type)
    if kind == "enum":
        return _form_of_choices([member.value for member in only.cls], of=lambda member: member.value)
    if kind == "literal":
        return _form_of_choices(list(only.values), of=lambda value: value)
    return FORMS.get(kind)


def _form_of_choices(choices: list[Any], of: Callable[[Any], Any]) -> _Form | None:
    kinds = {type(choice) for choice in choices}
    if kinds == {str}:
        return "text", lambda value: text_json(of(value))
    return ("bigint", lambda value: _int_json(of(value))) if kinds == {int} else None


def row_json(columns: tuple[SqlColumn, ...], key: bytes, state: object) -> str:
    """The row of a state, as the text of a JSON object.

    Args:
        columns: of its type.
        key: of the state.
        state: decoded.

    Raises:
        ValueError: a value does not fit its column.
    """
    parts = [f'"{KEY}":{text_json(key.decode())}']
    for column in columns:
        value = column.of(state)
        if value is None:
            continue
        try:
            parts.append(f"{json.dumps(column.name)}:{column.to_json(value)}")
        except (ValueError, OverflowError, ArithmeticError) as error:
            raise ValueError(f"{column.name}: {error}") from error
    return f"{{{','.join(parts)}}}"


def error_row_json(key: bytes, reason: str) -> str:
    """The row of a state that cannot be shown; a key that is no text is not shown either."""
    row = {ERROR: reason.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")}
    try:
        text_json(key.decode())
    except ValueError:
        return json.dumps(row)
    return json.dumps({KEY: key.decode(), **row})
