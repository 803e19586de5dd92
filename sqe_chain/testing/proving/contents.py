"""What a value contains, as data that can be compared: between two calls, two runs, and two processes."""

from __future__ import annotations

import itertools
import types
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from google.protobuf.message import Message

from sqe_chain.flow.context import Context

Content = tuple[Any, ...]
"""A type's name and what a value contains: texts, bytes, numbers and tuples of them. Hashable, the same in every process."""

SHOWN: Final = 160
"""Characters of a value in a text."""
_DEEPEST: Final = 40
_PLAIN: Final = (bool, int, str, bytes)
_BY_TEXT: Final = (float, complex, Decimal, date, time, timedelta, UUID, itertools.count, itertools.repeat)
_BY_NAME: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def content_of(value: object, depth: int = 0) -> Content:  # noqa: PLR0911 - one for each kind of value
    """What a value contains.

    Sets are equal whatever their order; dicts, lists and messages in the order that their bytes have. An object without fields
    is its type.
    """
    kind = type(value).__qualname__
    if value is None or isinstance(value, _PLAIN):
        return kind, value
    if depth > _DEEPEST:  # it may contain itself
        return kind, "..."
    if isinstance(value, _BY_TEXT):
        return kind, repr(value)
    if isinstance(value, _BY_NAME):
        return kind, getattr(value, "__qualname__", getattr(value, "__name__", ""))
    if isinstance(value, Enum):
        return kind, value.name
    if isinstance(value, Message):
        return value.DESCRIPTOR.full_name, value.SerializeToString(deterministic=True)
    if isinstance(value, bytearray | memoryview):
        return kind, bytes(value)
    return kind, *_parts(value, depth + 1)


def _parts(value: Any, depth: int) -> Content:  # noqa: ANN401, PLR0911 - one for each kind of value
    if isinstance(value, Mapping):
        return tuple((content_of(key, depth), content_of(item, depth)) for key, item in value.items())
    if isinstance(value, AbstractSet):
        return tuple(sorted((content_of(item, depth) for item in value), key=repr))
    if isinstance(value, list | tuple):
        return tuple(content_of(item, depth) for item in value)
    if isinstance(value, Context):
        return _of_context(value, depth)
    if hasattr(value, "to_pydict") and hasattr(value, "schema"):  # of Arrow
        return str(value.schema), content_of(value.to_pydict(), depth)
    names = getattr(value, "__struct_fields__", None)
    if names is None and is_dataclass(value):
        names = [attribute.name for attribute in fields(value)]
    if names is None:
        names = [name for name in _attributes(value) if not name.startswith("__")]
    if names:
        return tuple((name, content_of(getattr(value, name, None), depth)) for name in names)
    try:
        _, *state = value.__reduce_ex__(2)
    except Exception:  # noqa: BLE001 - locks, files and the like
        return ()
    return tuple(content_of(part, depth) for part in state if isinstance(part, tuple | dict | list))


def _attributes(value: object) -> list[str]:
    slots = (getattr(cls, "__slots__", ()) for cls in type(value).__mro__)
    named = [name for slot in slots for name in ([slot] if isinstance(slot, str) else slot)]
    return [*named, *getattr(value, "__dict__", {})]


def _of_context(context: Context, depth: int) -> Content:
    """What every attempt at a batch shows in it."""
    names = ("topic", "partition", "offset", "key", "now_ms", "headers", "timestamp_ms", "event_id")
    return tuple(content_of(getattr(context, name), depth) for name in names)


def shown(value: object) -> str:
    """A value as texts show it: in one line, and not long."""
    if isinstance(value, Message):
        text = f"{type(value).__name__}({str(value).strip().replace(chr(10), ', ')})"
    elif isinstance(value, Context):
        text = f"context of {value.topic}[{value.partition}]@{value.offset}"
    else:
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 - of a user's class
            text = f"a {type(value).__qualname__}"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
