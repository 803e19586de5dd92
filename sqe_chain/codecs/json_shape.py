"""The shape of a type in JSON, as a short text; `json_changes` decides whether another type can read what it wrote.

A shape has one text for each struct or dataclass in the type, itself included. It names fields with their kinds, such as
``events:int !robot:str parts:array<.Part> note:none|str -screws:int``. With ``!`` a field is required. With ``-`` it was
removed from the type, but may still be in values written before. More where it matters:

* ``int{ge=0}``: bounds; ``.Hot{tag=type:Hot}``: the tag of a class in a union.
* ``oneof<"wait","old">``: the values of an enum or Literal.
* ``0:int@n``: where fields are an array, the name of the field at that place.
* ``factor:int~1``: values written before may lack the field (``omit_defaults``, or it was added later), and mean this default.
* ``^forbid``: fields that the type does not have are refused.

In such a detail all but letters and digits is escaped with ``%``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

import msgspec
import msgspec.inspect as mi

from sqe_chain.codecs.codec import Shape
from sqe_chain.codecs.type_walk import BOUNDS, CLASSES, LISTS, Info, describe, fields_of, kind_of, walk

_FORBIDS, _OMITS = "^forbid", "^omit"
"""Flags of a class; the second one is in a whole shape only."""
_LONGEST: Final = 64
"""Characters of a detail; of longer ones there is a checksum."""
LENGTH_LIMIT = 8_000
"""Maximum length of a shape, in characters; classes beyond it are not part of the shape, and not compared."""


class FieldShape(NamedTuple):
    """A field in a shape.

    Attributes:
        name: in JSON; where fields are an array, its place.
        kind: what it holds.
        mark: ``!`` it is required, ``-`` it was removed.
        at: the name of the field at that place; None: its name is its own.
        default: what values that lack it mean, as escaped JSON; None: none lacks it, or it is not known.
    """

    name: str
    kind: str
    mark: str = ""
    at: str | None = None
    default: str | None = None

    def text(self, *, default: bool = True) -> str:
        """As it is in a shape, without its default if that is not wanted."""
        place = "" if self.at is None else f"@{self.at}"
        lacking = "" if self.default is None or not default else f"~{self.default}"
        return f"{self.mark}{self.name}:{self.kind}{place}{lacking}"


def fields_in(text: str) -> dict[str, FieldShape]:
    """The fields of a class by their names."""
    fields = {}
    for token in text.split():
        if token.startswith("^"):
            continue
        name, _, rest = token.partition(":")
        rest, lacking, default = rest.partition("~")
        kind, place, at = rest.partition("@")
        bare = name.lstrip("!-")
        fields[bare] = FieldShape(
            bare, kind, name[: -len(bare)], at if place else None, default if lacking else None
        )
    return fields


def forbids(text: str) -> bool:
    """Whether a class refuses fields that it does not have."""
    return _FORBIDS in text.split()


def shape_of(python_type: type, type_name: str, known: Mapping[str, str] | None = None) -> Shape:
    """The shape of a type.

    Args:
        python_type: a struct, a dataclass, or a plain type.
        type_name: the key of its fields in the shape.
        known: the shape under which values were written before. Its fields that the type no longer has are kept,
            marked as removed: a new field of that name must fit old values. Of new fields the default is noted: old
            values lack them.
    """
    shape = {}
    for name, text in whole_shape(python_type, type_name).items():
        now, before = fields_in(text), fields_in((known or {}).get(name, ""))
        always = _OMITS not in text.split()
        kept = [field.text(default=not always or _may_lack(before, field)) for field in now.values()]
        gone = [field._replace(mark="-").text() for field in before.values() if field.name not in now]
        shape[name] = " ".join([*(flag for flag in (_FORBIDS,) if flag in text.split()), *kept, *gone])
    return shape


def _may_lack(before: Mapping[str, FieldShape], field: FieldShape) -> bool:
    """Whether values written before may lack a field."""
    known = before.get(field.name)
    return bool(before) and (known is None or known.mark == "-" or known.default is not None)


@cache
def whole_shape(python_type: type, type_name: str) -> Shape:
    """The shape of a type, with the defaults of all fields."""
    shape: Shape = {}
    length = 0
    root = describe(python_type)
    for info in (root, *(info for info in walk(root) if info is not root and isinstance(info, CLASSES))):
        name = _class_name(info) if shape else type_name
        if name in shape:  # a class of another module, with the same name
            continue
        text = f"value:{_kind(info)}"
        if isinstance(info, CLASSES):
            text = " ".join([*_flags(info), *(field.text() for field in _field_shapes(info))])
        length += len(_class_name(info)) + len(text)
        if length > LENGTH_LIMIT:
            break
        shape[name] = text
    return shape


def _flags(info: Info) -> Iterator[str]:
    if getattr(info, "forbid_unknown_fields", False):
        yield _FORBIDS
    config = getattr(getattr(info, "cls", None), "__struct_config__", None)
    if config is not None and config.omit_defaults:
        yield _OMITS


def _field_shapes(info: Info) -> Iterator[FieldShape]:
    by_place = isinstance(info, mi.NamedTupleType) or getattr(info, "array_like", False)
    for index, field in enumerate(fields_of(info)):
        name, at = (str(index), field.encode_name) if by_place else (field.encode_name, None)
        yield FieldShape(name, _kind(field.type), "!" if field.required else "", at, _default(field))


def _default(field: Any) -> str | None:  # noqa: ANN401 - msgspec's description
    """What a value means that lacks the field; None: that is not known."""
    default = field.default
    try:
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        return None if default is msgspec.NODEFAULT else _detail(default)
    except Exception:  # noqa: BLE001 - a factory of the user's may raise anything; JSON may not take what it gives
        return None


def _detail(value: object) -> str:
    """A value as escaped JSON, or a checksum of it."""
    text = _escaped(msgspec.json.encode(value, order="deterministic").decode())
    return text if len(text) <= _LONGEST else f"crc32-{crc32(text.encode()):08x}"


def _escaped(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _class_name(info: Info) -> str:
    return info.cls.__name__ if isinstance(info, CLASSES) else ""


def _kind(info: Info) -> str:
    """A kind as text, without spaces: they separate the fields of a shape."""
    match info:
        case mi.Metadata():
            return _kind(info.type)
        case _ if isinstance(info, CLASSES):
            text = f".{_class_name(info)}"
        case mi.UnionType():
            text = "|".join(sorted(map(_kind, info.types)))
        case mi.TupleType():
            text = f"tuple<{','.join(map(_kind, info.item_types))}>"
        case mi.DictType():
            text = f"dict<{_kind(info.value_type)}>"
        case mi.EnumType():
            text = f"oneof<{','.join(sorted(_detail(member.value) for member in info.cls))}>"
        case mi.LiteralType():
            text = f"oneof<{','.join(sorted(map(_detail, info.values)))}>"
        case mi.SetType() | mi.FrozenSetType():
            text = f"set<{_kind(info.item_type)}>"
        case _ if isinstance(info, LISTS):
            text = f"array<{_kind(info.item_type)}>"
        case _:
            text = kind_of(info)
    limits = ";".join(_limits(info))
    return f"{text}{{{limits}}}" if limits else text


def _limits(info: Info) -> Iterator[str]:
    for name in BOUNDS:
        if (bound := getattr(info, name, None)) is not None:
            yield f"{name}={_escaped(str(bound))}"
    if getattr(info, "tag", None) is not None:
        yield f"tag={_escaped(str(info.tag_field))}:{_escaped(str(info.tag))}"
