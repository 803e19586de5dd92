"""Avro schemas of Python types, for what is written: dataclasses and structs, as JSON and states have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from sqe_chain.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[type, Any]] = {
    inspect.BoolType: "boolean",
    inspect.IntType: "long",
    inspect.FloatType: "double",
    inspect.StrType: "string",
    inspect.BytesType: "bytes",
    inspect.NoneType: "null",
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.TimeType: {"type": "long", "logicalType": "time-micros"},
}


def avro_schema_of(python_type: type, namespace: str = "") -> dict[str, Any]:
    """The Avro schema of a dataclass or struct. The same type gives the same schema.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     id: str
    ...     amount: float = 0.0
    >>> avro_schema_of(Order, "shop")["fields"][1]
    {'name': 'amount', 'type': 'double', 'default': 0.0}

    Args:
        python_type: the class.
        namespace: of its records and enums; empty: none.

    Raises:
        ConfigurationError: a field has a type that Avro has no schema for.
    """
    try:
        info = inspect.type_info(python_type)
    except (TypeError, NameError) as error:
        raise ConfigurationError(
            f"the fields of {python_type.__qualname__} cannot be read: {error}"
        ) from error
    if not isinstance(info, inspect.DataclassType | inspect.StructType):
        raise _refused(python_type.__qualname__, "Avro records are made of dataclasses and structs")
    schema: dict[str, Any] = _Names(namespace).record(info, python_type.__qualname__)
    return schema


class _Names:
    """One schema in the making: a class that was met already is named, not described again."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._known: dict[str, type] = {}

    def record(self, info: Any, path: str) -> Any:  # noqa: ANN401 - a type of msgspec; JSON
        """A record, or its name."""
        if getattr(info, "tag", None) is not None or getattr(info, "array_like", False):
            raise _refused(path, "structs with a tag, or as arrays, have no such schema")
        if self._is_known(info.cls, path):
            return self._full(info.cls.__name__)
        fields = [self._field(field, f"{path}.{field.encode_name}") for field in info.fields]
        return self._named({"type": "record", "name": info.cls.__name__, "fields": fields})

    def _field(self, field: inspect.Field, path: str) -> dict[str, Any]:
        if not _NAME.fullmatch(field.encode_name):
            raise _refused(path, "a field's name in Avro has letters, digits and _ only")
        default = field.default
        if field.default_factory in (list, dict):
            default = field.default_factory()
        known: dict[str, Any] = {
            "name": field.encode_name,
            "type": self.of(field.type, path, null_first=default is None or default is msgspec.NODEFAULT),
        }
        # Readers with this schema need no more: others of its type, such as times, have no default.
        if default is None or type(default) in (bool, int, float, str, list, dict):
            known["default"] = default
        return known

    def of(self, info: Any, path: str, *, null_first: bool = True) -> Any:  # noqa: ANN401 - see `record`
        """The schema of a type."""
        kind = type(info)
        if kind in _PLAIN:
            return _PLAIN[kind]
        make = _MADE.get(kind)
        if make is None:
            name = kind.__name__.removesuffix("Type").lower()
            raise _refused(path, f"a {name} has no schema of its own. Give Avro(..., schema=...)")
        return (
            self._union(info, path, null_first=null_first)
            if kind is inspect.UnionType
            else make(self, info, path)
        )

    def enum(self, info: inspect.EnumType, path: str) -> Any:  # noqa: ANN401 - JSON
        """An enum of texts, or its name."""
        symbols = [member.value for member in info.cls]
        if not all(isinstance(symbol, str) and _NAME.fullmatch(symbol) for symbol in symbols):
            raise _refused(path, "values of an enum in Avro are names: letters, digits and _")
        if self._is_known(info.cls, path):
            return self._full(info.cls.__name__)
        return self._named({"type": "enum", "name": info.cls.__name__, "symbols": symbols})

    def array(self, info: Any, path: str) -> Any:  # noqa: ANN401 - see `record`
        """A list, a set, or a tuple of any length."""
        return {"type": "array", "items": self.of(info.item_type, f"{path}[...]")}

    def map(self, info: inspect.DictType, path: str) -> Any:  # noqa: ANN401 - JSON
        """A dict with texts as keys."""
        if not isinstance(info.key_type, inspect.StrType):
            raise _refused(path, "keys of a map in Avro are texts")
        return {"type": "map", "values": self.of(info.value_type, f"{path}[...]")}

    def literal(self, info: inspect.LiteralType, path: str) -> Any:  # noqa: ANN401 - JSON
        """Texts, or whole numbers."""
        kinds = {type(value) for value in info.values}
        if kinds == {str}:
            return "string"
        if kinds == {int}:
            return "long"
        raise _refused(path, "a Literal of texts or of whole numbers")

    def _union(self, info: inspect.UnionType, path: str, *, null_first: bool) -> list[Any]:
        """Alternatives; the first is that of the field's default, as Avro demands."""
        branches = [self.of(branch, path) for branch in info.types]
        kinds = [branch if isinstance(branch, str) else branch["type"] for branch in branches]
        if len(kinds) != len(set(kinds)) or kinds.count("record") > 1:
            raise _refused(path, "alternatives in Avro differ by their kinds")
        branches.sort(key=lambda branch: (branch == "null") is not null_first)
        return branches

    def _is_known(self, cls: type, path: str) -> bool:
        """Whether the class was met before; from now on it was."""
        met = cls.__name__ in self._known
        if self._known.setdefault(cls.__name__, cls) is not cls:
            raise _refused(path, f"two classes are called {cls.__name__}")
        return met

    def _full(self, name: str) -> str:
        return f"{self._namespace}.{name}" if self._namespace else name

    def _named(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self._namespace:
            return {"type": schema["type"], "name": schema["name"], "namespace": self._namespace} | schema
        return schema


_MADE: Final[dict[type, Callable[[_Names, Any, str], Any]]] = {
    inspect.DataclassType: _Names.record,
    inspect.StructType: _Names.record,
    inspect.EnumType: _Names.enum,
    inspect.ListType: _Names.array,
    inspect.SetType: _Names.array,
    inspect.FrozenSetType: _Names.array,
    inspect.VarTupleType: _Names.array,
    inspect.DictType: _Names.map,
    inspect.LiteralType: _Names.literal,
    inspect.UnionType: lambda names, info, path: names._union(info, path, null_first=True),  # noqa: SLF001
}


def _refused(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"Avro cannot express {path}: {why}")
