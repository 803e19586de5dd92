"""The shape of a type in JSON, as a short text, and whether another type can read what it wrote.

A shape has one text for each struct or dataclass that the type refers to, itself included: fields with their
kinds, such as ``events:int !robot:str parts:list<.Part> note:none|str -screws:int``; ``!`` is required, ``-`` was
removed from the type, but may still be in values written before.

The rules (also in docs/payloads.md): a field may be added if it has a default, and removed; its type may become
wider (int to float, more alternatives). A field removed *together with* a new one looks like a renamed field,
which would start at its default again, so that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec.inspect as mi

from sqe_chain.codecs.codec import Shape

LENGTH_LIMIT = 8_000
"""Maximum length of a shape, in characters; classes beyond it are left out and not compared."""
_TEXT = ("datetime", "date", "time", "timedelta", "uuid", "decimal", "bytes")
"""Kinds that are text in JSON."""
_COLLECTIONS = (mi.CollectionType, mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType)


def shape_of(python_type: type, type_name: str, known: Mapping[str, str] | None = None) -> Shape:
    """The shape of a type.

    Args:
        python_type: a struct, a dataclass, or a plain type.
        type_name: the key of its fields in the shape.
        known: the shape under which values were written before. Its fields that the type no longer has are kept,
            marked as removed: old values still hold them, so a new field of that name must fit them.

    Returns:
        Classes in the order in which they are found.
    """
    found = dict(_alone(python_type, type_name))
    for name, text in found.items():
        now, before = _fields(text), _fields((known or {}).get(name, ""))
        gone = [
            f"-{field.lstrip('!-')}:{kind}"
            for field, kind in before.items()
            if _bare(field) not in _names(now)
        ]
        found[name] = " ".join([*text.split(), *gone])
    return found


def form_of(python_type: type) -> Any:  # noqa: ANN401 - a type
    """The type as msgspec takes it: its name for `object` is Any."""
    return Any if python_type is object else python_type


def kinds_of(python_type: type) -> set[str]:
    """All kinds that occur anywhere in a type: "int", "float", "any", ...

    "custom.X" is a class that JSON cannot express, "key" a dict whose keys are not text.
    """
    return {kind for _, info in _classes(python_type) for kind in _kinds(info)}


def runs_code(python_type: type) -> bool:
    """Whether decoding runs code of a class, ``__post_init__``, which may change a value each time."""
    return any(hasattr(getattr(info, "cls", None), "__post_init__") for _, info in _classes(python_type))


def nests_freely(python_type: type) -> bool:
    """Whether its values may be nested to any depth: it has a field of any type, or a class that refers to itself."""
    info = mi.type_info(form_of(python_type))
    return "any" in kinds_of(python_type) or _recurs(info, (getattr(info, "cls", None),))


def _recurs(info: Any, above: tuple[type | None, ...]) -> bool:  # noqa: ANN401 - msgspec's description
    below = (one for field in getattr(info, "fields", ()) for one in _inner(field.type))
    return any(one.cls in above or _recurs(one, (*above, one.cls)) for one in below)


def misread(was: Mapping[str, str], now: Mapping[str, str], names: tuple[str, str]) -> str:
    """Whether a type would misread what another one wrote.

    Args:
        was: the shape under which values were written.
        now: the shape by which they would be read.
        names: names of both types.

    Returns:
        The first difference that matters, in words; empty when there is none.
    """
    return next(_differences(was, now, names, set()), "")


def _differences(
    was: Mapping[str, str], now: Mapping[str, str], names: tuple[str, str], seen: set[tuple[str, str]]
) -> Iterator[str]:
    if names in seen or names[0] not in was or names[1] not in now:
        return
    seen.add(names)
    before, after = _fields(was[names[0]]), _fields(now[names[1]])
    known = {_bare(field): kind for field, kind in before.items()}
    present = {_bare(field): kind for field, kind in after.items() if not field.startswith("-")}
    added = [field for field in present if field not in known]
    gone = [_bare(field) for field in before if not field.startswith("-") and _bare(field) not in present]
    for field, kind in present.items():
        if field not in known:
            if f"!{field}" in after:
                yield f"field {field!r} is new and has no default"
        elif not _reads(known[field], kind):
            yield f"field {field!r} was {known[field]}, now it is {kind}"
        else:
            for pair in zip(_references(known[field]), _references(kind), strict=False):
                yield from _differences(was, now, pair, seen)
    if added and gone:
        yield (
            f"{_subject(gone)} gone and {_subject(added)} new: if a field was renamed, keep its old name in JSON with "
            f"msgspec.field(name={gone[0]!r}); if not, remove and add in two releases"
        )


def _subject(fields: list[str]) -> str:
    """The names of fields, with the verb."""
    names = ", ".join(map(repr, fields))
    return f"field {names} is" if len(fields) == 1 else f"fields {names} are"


@cache
def _alone(python_type: type, type_name: str) -> Shape:
    shape: Shape = {}
    length = 0
    for name, info in _classes(python_type):
        if shape and name in shape:  # one of another module, with the same name
            continue
        text = " ".join(
            _written(index, field, info) for index, field in enumerate(getattr(info, "fields", ()))
        )
        text = text if hasattr(info, "fields") else f"value:{_kind(info)}"
        length += len(name) + len(text)
        if length > LENGTH_LIMIT:
            break
        shape[type_name if not shape else name] = text
    return shape


def _written(index: int, field: Any, info: Any) -> str:  # noqa: ANN401 - msgspec's descriptions
    name = str(index) if getattr(info, "array_like", False) else field.encode_name
    return f"{'!' if field.required else ''}{name}:{_kind(field.type)}"


def _classes(python_type: type) -> Iterator[tuple[str, Any]]:
    """The type, and every struct or dataclass below it, with msgspec's description."""
    waiting: list[Any] = [mi.type_info(form_of(python_type))]
    seen: set[type | None] = set()
    while waiting:
        info = waiting.pop(0)
        cls = getattr(info, "cls", None)
        if cls in seen:
            continue
        seen.add(cls)
        yield _class_name(info), info
        waiting += [one for field in getattr(info, "fields", ()) for one in _inner(field.type)]


def _class_name(info: Any) -> str:  # noqa: ANN401 - msgspec's description
    found: type | None = getattr(info, "cls", None)
    return "" if found is None else found.__name__


def _parts(info: Any) -> tuple[Any, ...]:  # noqa: ANN401 - msgspec's description
    """The descriptions that a description consists of."""
    if isinstance(info, mi.UnionType | mi.TupleType):
        return tuple(info.types if isinstance(info, mi.UnionType) else info.item_types)
    if isinstance(info, _COLLECTIONS):
        return (info.item_type,)
    if isinstance(info, mi.DictType):
        return info.key_type, info.value_type
    return ()


def _inner(info: Any) -> Iterator[Any]:  # noqa: ANN401 - msgspec's description
    """The structs and dataclasses that a description refers to."""
    if isinstance(info, mi.StructType | mi.DataclassType):
        yield info
    for part in _parts(info):
        yield from _inner(part)


def _kinds(info: Any) -> Iterator[str]:  # noqa: ANN401 - msgspec's description
    if isinstance(info, mi.CustomType):
        yield f"custom.{info.cls!r}"
    elif isinstance(info, mi.DictType) and not isinstance(info.key_type, mi.StrType | mi.AnyType):
        yield "key"
    yield _simple(info)
    for field in getattr(info, "fields", ()):
        if not isinstance(field.type, mi.StructType | mi.DataclassType):
            yield from _kinds(field.type)
    for part in _parts(info):
        if not isinstance(part, mi.StructType | mi.DataclassType):
            yield from _kinds(part)


def _kind(info: Any) -> str:  # noqa: ANN401 - msgspec's description
    """A kind as text, without spaces: they separate the fields of a shape."""
    match info:
        case mi.StructType() | mi.DataclassType():
            text = f".{_class_name(info)}"
        case mi.UnionType():
            text = "|".join(sorted(map(_kind, info.types)))
        case mi.TupleType():
            text = f"tuple<{','.join(map(_kind, info.item_types))}>"
        case mi.DictType():
            text = f"dict<{_kind(info.value_type)}>"
        case mi.EnumType():
            text = f"enum.{info.cls.__name__}"
        case _ if isinstance(info, _COLLECTIONS):
            text = f"list<{_kind(info.item_type)}>"
        case _:
            text = _simple(info)
    return text


def _simple(info: Any) -> str:  # noqa: ANN401 - msgspec's description
    return type(info).__name__.removesuffix("Type").lower()


def _reads(was: str, now: str) -> bool:
    """Whether a field of one kind reads what another kind wrote."""
    if now in {was, "any"} or (was, now) == ("int", "float"):
        return True
    if "|" in _outside(was) or "|" in _outside(now):
        return all(any(_reads(one, other) for other in _split(now, "|")) for one in _split(was, "|"))
    if was.startswith(".") and now.startswith("."):
        return True  # their fields are compared on their own
    if was in _TEXT and now == "str":
        return True
    for kind in ("list<", "dict<"):
        if was.startswith(kind) and now.startswith(kind):
            return _reads(was.removeprefix(kind).removesuffix(">"), now.removeprefix(kind).removesuffix(">"))
    return False


def _outside(kind: str) -> str:
    """A kind without the parts in brackets."""
    while "<" in kind:
        kind = re.sub(r"<[^<>]*>", "", kind)
    return kind


def _split(kind: str, sign: str) -> list[str]:
    """The parts of a kind between signs that are outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(kind):
        depth += (letter == "<") - (letter == ">")
        if letter == sign and not depth:
            parts.append(kind[begin:index])
            begin = index + 1
    return [*parts, kind[begin:]]


def _references(kind: str) -> list[str]:
    """The classes that a kind refers to."""
    return re.findall(r"\.([\w.<>]*?\w)(?=[|,>]|$)", kind) if not kind.startswith("enum.") else []


def _bare(field: str) -> str:
    return field.lstrip("!-")


def _names(fields: Mapping[str, str]) -> set[str]:
    return {_bare(field) for field in fields}


def _fields(text: str) -> dict[str, str]:
    pairs = (field.partition(":") for field in text.split())
    return {name: kind for name, _, kind in pairs}
