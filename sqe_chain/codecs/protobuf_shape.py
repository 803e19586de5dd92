"""The shape of a protobuf type on the wire, as a short text, and whether another type can read what it wrote.

A shape has one text for each message in the type, itself included, and for each enum. That of a message names field numbers
with their kinds, such as ``1:int64= 2:*string 3:.pkg.Other 4:map<string,int32> 5:enum.pkg.Phase=1``. ``*`` is repeated, ``!``
required, ``=`` comes before the default (nothing: zero or empty). Fields with the same ``|0`` at their end are alternatives (a
oneof). That of an enum names its numbers: ``0 1 2``. Names of fields are not on the wire, and not in a shape.

Two shapes are compared strictly: a type has to read each value that the other one may have written, as it was. Protobuf itself
cuts off an int64 that is read as an int32. It reads as its default what is not there: a total would start again at zero.
Shapes of older releases name neither defaults nor enums: what they lack is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, unquote

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from sqe_chain.codecs.codec import Shape

LENGTH_LIMIT = 8_000
"""Length of a shape, in characters. Beyond it a message or enum has a digest in place of its text, and any change is refused."""

_KINDS = {
    getattr(FieldDescriptor, f"TYPE_{kind.upper()}"): kind
    for kind in (
        *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes"),
        *("uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
    )
}
_WIDER: Final = {
    "bool": {"int32", "int64", "uint32", "uint64"},
    "enum": {"int32", "int64"},
    "int32": {"int64"},
    "uint32": {"int64", "uint64"},
    "sint32": {"sint64"},
    "string": {"bytes"},
}
"""Kind -> the other kinds that read each of its values as it was."""
_OLDER: Final = re.compile(r"=[^|]*|(?<=enum)(?<![.\w]enum)\.[.\w]+")
"""What shapes of older releases lack of a field."""


def shape_of(descriptor: Descriptor, known: Mapping[str, str] | None = None) -> Shape:
    """The shape of a message type.

    Fields of `known`, the shape under which values were written before, are kept: a new field of that number must fit old values.
    """
    alone = _alone(descriptor)
    return dict(alone) if not known or known == alone else _merged(descriptor, known)


@cache
def _alone(descriptor: Descriptor) -> Shape:
    return _merged(descriptor, {})


def _merged(descriptor: Descriptor, known: Mapping[str, str]) -> Shape:
    shape: Shape = {}
    length = 0
    for name, text in _texts(descriptor).items():
        before = known.get(name, "")
        merged = text if before.startswith("#") else _text(_fields(before) | _fields(text))
        length += len(name) + len(merged)
        shape[name] = merged if length <= LENGTH_LIMIT else _digest(text)
    return {**known, **shape} if length <= LENGTH_LIMIT else shape


@cache
def _texts(descriptor: Descriptor) -> Shape:
    """The whole texts of a message and of all within it, those that are met first in front."""
    texts: Shape = {}
    waiting: list[Descriptor | EnumDescriptor] = [descriptor]
    while waiting:
        kind = waiting.pop(0)
        if kind.full_name in texts:
            continue
        if isinstance(kind, EnumDescriptor):
            texts[kind.full_name] = _text({value.number: "" for value in kind.values})
            continue
        texts[kind.full_name] = _text({field.number: _kind(field) for field in kind.fields})
        waiting += [inner for field in kind.fields for inner in _inner(field)]
    return texts


def _text(fields: Mapping[int, str]) -> str:
    return " ".join(f"{number}:{kind}" if kind else f"{number}" for number, kind in sorted(fields.items()))


def _digest(text: str) -> str:
    return f"#{blake2b(text.encode(), digest_size=6).hexdigest()}"


def misread(was: Mapping[str, str], now: Descriptor, name: str) -> str:
    """Whether a type would misread what another one wrote.

    Args:
        was: the shape of the other one.
        now: the type.
        name: full name of the other one.

    Returns:
        The first difference that matters, in words; empty when there is none.
    """
    return next(_find_differences(was, _texts(now), (name, now.full_name), set()), "")


def _find_differences(
    was: Mapping[str, str], now: Mapping[str, str], names: tuple[str, str], seen: set[tuple[str, str]]
) -> Iterator[str]:
    if names in seen or names[0] not in was or names[1] not in now:
        return
    seen.add(names)
    text, own = was[names[0]], now[names[1]]
    if text.startswith("#"):
        if text != _digest(own):
            yield f"{names[1]} has changed, and of so large a type only a digest is stored"
        text = own
    before, after = _fields(text), _fields(own)
    if names[0] != names[1] and not _are_same(before, after):
        yield f"{names[0]} had the fields {text!r}, {names[1]} has {own!r}"
    for number, kind in after.items():
        at = f"field {number} of {names[1]}"
        if number in before:
            yield from _changes(at, before[number], kind)
            for enums in _references(before[number], kind, "enum."):
                yield from _lost_values(was, now, enums)
            for pair in _references(before[number], kind, "."):
                yield from _find_differences(was, now, pair, seen)
        elif kind.startswith("!"):
            yield f"{at} is required, but was never written"
    yield from _alternatives(before, after, names[1])


def _changes(at: str, was: str, now: str) -> Iterator[str]:
    """Whether a field reads what it was."""
    before, after = _bare(was), _bare(now)
    if not _reads(before, after):
        yield f"{at} was {_shown(before)}, now it is {_shown(after)}"
    default = _default(was)
    if default is not None and default != _default(now):
        yield f"the default of {at} was {unquote(default)!r}, now it is {unquote(_default(now) or '')!r}"


def _lost_values(was: Mapping[str, str], now: Mapping[str, str], names: tuple[str, str]) -> Iterator[str]:
    """Values of an enum that it has no longer."""
    before, after = was.get(names[0], ""), now[names[1]]
    if before.startswith("#"):
        if before != _digest(after):
            yield f"enum {names[1]} has changed, and of so large a type only a digest is stored"
    elif lost := sorted(_fields(before).keys() - _fields(after).keys()):
        yield f"enum {names[1]} had the value {lost[0]}, now it has not"


def _are_same(before: Mapping[int, str], after: Mapping[int, str]) -> bool:
    """Whether messages have the same fields, as far as it is known."""
    return before.keys() == after.keys() and all(
        kind in (after[number], _OLDER.sub("", after[number])) for number, kind in before.items()
    )


def _alternatives(before: Mapping[int, str], after: Mapping[int, str], name: str) -> Iterator[str]:
    """Fields that are alternatives now (only one is read), but could be set together before."""
    first: dict[str, int] = {}
    for number in sorted(before.keys() & after.keys()):
        group = after[number].partition("|")[2]
        other = first.setdefault(group, number)
        was = before[number].partition("|")[2]
        if group and other != number and (not was or was != before[other].partition("|")[2]):
            yield f"fields {other} and {number} of {name} are alternatives now, and were not before"


def _reads(was: str, now: str) -> bool:
    """Whether a field of one kind reads what another kind wrote."""
    if was.startswith("map<") and now.startswith("map<"):
        return all(map(_reads, _entry(was), _entry(now)))
    if was.startswith("*") and now.startswith("*"):
        return _reads(was[1:], now[1:])
    if was.startswith(".") and now.startswith("."):
        return True  # their fields are compared on their own
    was, now = was.partition(".")[0] or was, now.partition(".")[0] or now
    return was == now or now in _WIDER.get(was, ())


def _references(was: str, now: str, mark: str) -> Iterator[tuple[str, str]]:
    """The messages (".") or enums ("enum.") that two kinds refer to."""
    was, now = _bare(was), _bare(now)
    if was.startswith("map<") and now.startswith("map<"):
        was, now = _entry(was)[1], _entry(now)[1]
    was, now = was.lstrip("*"), now.lstrip("*")
    if was.startswith(mark) and now.startswith(mark):
        yield was.removeprefix(mark), now.removeprefix(mark)


def _bare(kind: str) -> str:
    return kind.lstrip("!").partition("|")[0].partition("=")[0]


def _shown(kind: str) -> str:
    """A kind for people: of enums the names are of no interest here."""
    return _OLDER.sub("", kind)


def _default(kind: str) -> str | None:
    """The default of a field; None: not known, or it has none."""
    _, known, default = kind.partition("|")[0].partition("=")
    return default if known else None


def _entry(kind: str) -> tuple[str, str]:
    """Key and value of a map's kind."""
    key, _, value = kind.removeprefix("map<").removesuffix(">").partition(",")
    return key, value


def _kind(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        entry = message.fields_by_number
        return f"map<{_bare(_kind(entry[1]))},{_bare(_kind(entry[2]))}>"
    plain = _KINDS.get(field.type, "")
    if field.enum_type is not None:
        plain = f"enum.{field.enum_type.full_name}"
    if message is not None:
        plain = f"{'group' if field.type == FieldDescriptor.TYPE_GROUP else ''}.{message.full_name}"
    elif not field.is_repeated:
        given = field.default_value
        plain += f"={quote(given if isinstance(given, bytes) else str(given), safe='+')}" if given else "="
    oneof = field.containing_oneof
    group = f"|{oneof.index}" if oneof is not None and len(oneof.fields) > 1 else ""
    return ("*" if field.is_repeated else "!" if field.is_required else "") + plain + group


def _inner(field: FieldDescriptor) -> Iterator[Descriptor | EnumDescriptor]:
    """The message or enum types that a field refers to."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        yield from _inner(message.fields_by_number[2])
    elif message is not None:
        yield message
    elif field.enum_type is not None:
        yield field.enum_type


def _fields(text: str) -> dict[int, str]:
    """Field numbers and kinds of a message; the values of an enum, each with an empty text."""
    pairs = (field.partition(":") for field in text.split())
    return {int(number): kind for number, _, kind in pairs}
