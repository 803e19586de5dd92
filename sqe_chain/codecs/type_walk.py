"""Types as msgspec describes them, and the one walk over these descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec.inspect as mi

Info = Any
"""A description: one of the classes of `msgspec.inspect`, which have no base class with attributes."""

LISTS: Final = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType, mi.CollectionType)
"""Descriptions of what is a list in JSON."""
RECORDS: Final = (mi.StructType, mi.DataclassType)
CLASSES: Final = (*RECORDS, mi.TypedDictType, mi.NamedTupleType)
"""Descriptions with `cls` and `fields`."""
BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
"""Attributes that limit the values of a type."""


def form_of(python_type: type) -> Any:  # noqa: ANN401 - a type
    """The type as msgspec takes it: its name for `object` is Any."""
    return Any if python_type is object else python_type


def describe(python_type: type) -> Info:
    """The description of a type."""
    return mi.type_info(form_of(python_type))


def fields_of(info: Info) -> tuple[Any, ...]:
    """The fields of a class; none: it is no class."""
    return getattr(info, "fields", ())


def _parts(info: Info) -> tuple[Info, ...]:
    """What a description consists of: alternatives, items, keys and values; of a class nothing."""
    if isinstance(info, mi.UnionType):
        return info.types
    if isinstance(info, mi.TupleType):
        return info.item_types
    if isinstance(info, mi.DictType):
        return info.key_type, info.value_type
    if isinstance(info, LISTS):
        return (info.item_type,)
    return (info.type,) if isinstance(info, mi.Metadata) else ()


def inside(info: Info) -> Iterator[Info]:
    """A description and all in it, without the fields of classes."""
    yield info
    for part in _parts(info):
        yield from inside(part)


def walk(info: Info) -> Iterator[Info]:
    """A description and all in it, the fields of classes too; each class once, those that are nearer first."""
    waiting, seen = [*inside(info)], set[type]()
    while waiting:
        info = waiting.pop(0)
        if isinstance(info, CLASSES):
            if info.cls in seen:
                continue
            seen.add(info.cls)
        yield info
        waiting += [part for field in fields_of(info) for part in inside(field.type)]


def kind_of(info: Info) -> str:
    """The kind of a description: "int", "float", "any", ..."""
    return type(info).__name__.removesuffix("Type").lower()


def kinds_of(python_type: type) -> set[str]:
    """All kinds that occur anywhere in a type.

    "custom.X" is a class that JSON cannot express, "key" a dict whose keys are not text.
    """
    kinds = set()
    for info in walk(describe(python_type)):
        kinds.add(kind_of(info))
        if isinstance(info, mi.CustomType):
            kinds.add(f"custom.{info.cls!r}")
        elif isinstance(info, mi.DictType) and not isinstance(info.key_type, mi.StrType | mi.AnyType):
            kinds.add("key")
    return kinds


def runs_code(python_type: type) -> bool:
    """Whether decoding runs code of a class, ``__post_init__``, which may change a value each time."""
    infos = walk(describe(python_type))
    return any(hasattr(getattr(info, "cls", None), "__post_init__") for info in infos)


def nests_freely(python_type: type) -> bool:
    """Whether its values may be nested to any depth: it has a field of any type, or a class that refers to itself."""
    info = describe(python_type)
    return "any" in kinds_of(python_type) or _recurs(info, (getattr(info, "cls", None),))


def _recurs(info: Info, above: tuple[type | None, ...]) -> bool:
    parts = [part for field in fields_of(info) for part in inside(field.type) if isinstance(part, CLASSES)]
    return any(part.cls in above or _recurs(part, (*above, part.cls)) for part in parts)
