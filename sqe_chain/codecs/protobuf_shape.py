"""The shape of a protobuf type on the wire, as a short text, and whether another type can read what it wrote.

A shape has one text for each message in the type, itself included. It names field numbers with their kinds, such as
``1:int64 2:*string 3:.pkg.Other 4:map<string,int32>``. ``*`` is repeated, ``!`` required, and fields with the same ``|0``
at their end are alternatives (a oneof). Names of fields are not on the wire, and not in a shape.

Two shapes are compared by protobuf's own rules, strictly. Bytes may parse without an error and still lose a field: a total
would start again at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from sqe_chain.codecs.codec import Shape

LENGTH_LIMIT = 8_000
"""Maximum length of a shape, in characters; messages beyond it are not part of the shape, and not compared."""

_KINDS = {
    getattr(FieldDescriptor, f"TYPE_{kind.upper()}"): kind
    for kind in (
        *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes"),
        *("uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
    )
}
_ALIKE = (
    {"int32", "int64", "uint32", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
)
"""Kinds that can read each other's values. bytes can read strings, too, but not vice versa."""


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
    waiting, length = [descriptor], 0
    while waiting and length <= LENGTH_LIMIT:
        message = waiting.pop(0)
        if message.full_name in shape:
            continue
        fields = _fields(known.get(message.full_name, ""))
        fields |= {field.number: _kind(field) for field in message.fields}
        text = " ".join(f"{number}:{kind}" for number, kind in sorted(fields.items()))
        length += len(message.full_name) + len(text)
        shape[message.full_name] = text
        waiting += [inner for field in message.fields for inner in _inner(field)]
    return {**known, **shape} if length <= LENGTH_LIMIT else shape


def misread(was: Mapping[str, str], now: Mapping[str, str], names: tuple[str, str]) -> str:
    """Whether a type would misread what another one wrote.

    Returns:
        The first difference that matters, in words; empty when there is none.
    """
    return next(_find_differences(was, now, names, set()), "")


def _find_differences(
    was: Mapping[str, str], now: Mapping[str, str], names: tuple[str, str], seen: set[tuple[str, str]]
) -> Iterator[str]:
    if names in seen or names[0] not in was or names[1] not in now:
        return
    seen.add(names)
    before, after = _fields(was[names[0]]), _fields(now[names[1]])
    if names[0] != names[1] and before != after:
        yield f"{names[0]} had the fields {was[names[0]]!r}, {names[1]} has {now[names[1]]!r}"
    for number, kind in after.items():
        known = before.get(number)
        if known is None:
            if kind.startswith("!"):
                yield f"field {number} of {names[1]} is required, but was never written"
            continue
        old, new = _bare(known), _bare(kind)
        if not _reads(old, new):
            yield f"field {number} of {names[1]} was {old}, now it is {new}"
        for pair in _messages(old, new):
            yield from _find_differences(was, now, pair, seen)
    yield from _alternatives(before, after, names[1])


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
    if was == now or (was, now) == ("string", "bytes"):
        return True
    if was.startswith("map<") and now.startswith("map<"):
        return all(map(_reads, _entry(was), _entry(now)))
    if was.startswith("*") and now.startswith("*"):
        return _reads(was[1:], now[1:])
    if was.startswith(".") and now.startswith("."):
        return True  # their fields are compared on their own
    return any(was in alike and now in alike for alike in _ALIKE)


def _messages(was: str, now: str) -> Iterator[tuple[str, str]]:
    """The message types that two kinds refer to."""
    if was.startswith("map<") and now.startswith("map<"):
        was, now = _entry(was)[1], _entry(now)[1]
    was, now = was.lstrip("*"), now.lstrip("*")
    if was.startswith(".") and now.startswith("."):
        yield was[1:], now[1:]


def _bare(kind: str) -> str:
    return kind.lstrip("!").partition("|")[0]


def _entry(kind: str) -> tuple[str, str]:
    """Key and value of a map's kind."""
    key, _, value = kind.removeprefix("map<").removesuffix(">").partition(",")
    return key, value


def _kind(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        entry = message.fields_by_number
        return f"map<{_kind(entry[1])},{_kind(entry[2])}>"
    plain = _KINDS.get(field.type, "")
    if message is not None:
        plain = f"{'group' if field.type == FieldDescriptor.TYPE_GROUP else ''}.{message.full_name}"
    oneof = field.containing_oneof
    group = f"|{oneof.index}" if oneof is not None and len(oneof.fields) > 1 else ""
    return ("*" if field.is_repeated else "!" if field.is_required else "") + plain + group


def _inner(field: FieldDescriptor) -> Iterator[Descriptor]:
    """The message types that a field refers to."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        message = message.fields_by_number[2].message_type
    if message is not None:
        yield message


def _fields(text: str) -> dict[int, str]:
    pairs = (field.partition(":") for field in text.split())
    return {int(number): kind for number, _, kind in pairs}
