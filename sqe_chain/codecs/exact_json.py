"""JSON read as a type, where msgspec by itself would round or guess: times finer than microseconds, decimals in text, large whole numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, time
from itertools import accumulate
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

from sqe_chain.codecs.text import check_decimal, check_time, exact_float
from sqe_chain.codecs.type_walk import LISTS, Info, describe, fields_of, form_of, kinds_of, nests_freely

_TIMES: Final = {"datetime", "time", "timedelta"}
_FINE: Final = re.compile(rb'\.[0-9]{6}[0-9]*[1-9][0-9]*["ZzDHMS+-]').search
"""What may be a time that would be rounded; nothing else is searched for it in full."""
may_be_time: Final = re.compile(rb':[0-9]{2}"').search
"""What a time in text ends with, unless it is in UTC; nothing else is searched for offsets."""
has_offset: Final = re.compile(
    rb'[T"][0-2][0-9]:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?[+-][0-9]{2}:[0-9]{2}"'
).search
"""What may have been a time with an offset that is not whole minutes, among values of any type."""
# Every whole number of up to 15 digits is a float; 2**53 has 16.
_LONG: Final = re.compile(rb"(?:[\[:, \t\n]|^)-?[0-9]{16}").search
"""What may be a whole number that no float is."""
DEEPEST: Final = 200
"""How deep lists and objects may be nested, where a type does not limit it."""
SHALLOW: Final = 2 * DEEPEST
"""Bytes up to which nothing can be nested deeper."""
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys())


def make_reader(
    python_type: type, *, whole_numbers: bool = False, deep: bool = False
) -> Callable[[bytes], Any]:
    """The function that reads JSON as a type.

    It raises `msgspec.ValidationError`, with the path, where a value would not be what is written. That is so for a time finer
    than microseconds, and for text in a decimal that is no number in JSON.

    Args:
        python_type: the type.
        deep: whether it may be nested deeper than `DEEPEST`, as nothing is that was written here.
        whole_numbers: whether a whole number in a field of floats is refused, too, if it would be rounded.
    """
    form = form_of(python_type)
    kinds = kinds_of(python_type)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(form).decode
    if not deep and nests_freely(python_type):
        decode = _bound(decode)
    searches = [_FINE] if kinds & _TIMES else []
    if whole_numbers and "float" in kinds:
        searches.append(_LONG)
    always = "decimal" in kinds
    if not searches and not always:
        return decode
    info = describe(python_type)

    def read(data: bytes) -> Any:  # noqa: ANN401 - a value of the type
        value = decode(data)
        if always or any(search(data) for search in searches):
            _check(info, msgspec.json.decode(data), "$", whole_numbers=whole_numbers)
        return value

    return read


def check_depth(data: bytes | str) -> None:
    """Check that JSON is nested no deeper than `DEEPEST`: what is deeper is read or not, depending on the stack at that moment.

    Raises:
        ValueError: it is.
    """
    text = data.encode() if isinstance(data, str) else bytes(data)
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return
    brackets = _TEXT.sub(b"", text).translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEEPEST:
        raise ValueError(
            f"JSON is nested deeper than {DEEPEST} lists and objects. Expected no more. Store a flat list"
        )


def _bound(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:  # noqa: ANN401 - a value of the type
        if len(data) > SHALLOW:
            check_depth(data)
        return decode(data)

    return read


def check_zones(value: object) -> None:
    """Check that JSON can express the offsets of all times in a value: whole minutes.

    Raises:
        ValueError: one has seconds, as those of old zones have; what is written would be another moment.
    """
    for moment in _times(msgspec.to_builtins(value, builtin_types=(datetime, time))):
        offset = moment.utcoffset()
        if offset is not None and (offset.seconds % 60 or offset.microseconds):
            raise ValueError(
                f"JSON cannot express {moment.isoformat()}: its offset has seconds. Expected whole minutes. Store it in UTC: .astimezone(UTC)."
            )


def has_times(python_type: type) -> bool:
    """Whether a type declares fields with a zone."""
    return bool(kinds_of(python_type) & {"datetime", "time"})


def _times(value: object) -> Iterator[datetime | time]:
    if isinstance(value, datetime | time):
        yield value
    elif isinstance(value, dict | list | tuple | set | frozenset):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _times(part)


def _check(info: Info, data: Any, path: str, *, whole_numbers: bool) -> None:  # noqa: ANN401 - any JSON
    """Check what was read as a type; that it fits the type is known."""
    for part, content, where in _parts(info, data, path):
        _check(part, content, where, whole_numbers=whole_numbers)
    try:
        match info:
            case mi.DecimalType() if isinstance(data, str):
                check_decimal(data)
            case mi.DateTimeType() | mi.TimeType() | mi.TimeDeltaType() if isinstance(data, str):
                check_time(data)
            case mi.FloatType() if whole_numbers and isinstance(data, int):
                exact_float(data)
    except ValueError as error:
        raise msgspec.ValidationError(f"{error} - at `{path}`") from error


def _parts(info: Info, data: Any, path: str) -> Iterable[tuple[Info, Any, str]]:  # noqa: ANN401 - as above
    if isinstance(info, mi.UnionType):
        # What a union takes as text or as an int is not a time or a float.
        plain = {str: mi.StrType, int: mi.IntType}.get(type(data))
        if plain is None or not any(isinstance(kind, plain) for kind in info.types):
            yield from ((kind, data, path) for kind in info.types if _is_tagged(kind, data))
    elif isinstance(info, mi.DictType) and isinstance(data, dict):
        yield from ((info.value_type, content, f"{path}[...]") for content in data.values())
    elif isinstance(info, LISTS) and isinstance(data, list):
        yield from ((info.item_type, content, f"{path}[{index}]") for index, content in enumerate(data))
    elif isinstance(info, mi.TupleType) and isinstance(data, list):
        yield from ((kind, content, path) for kind, content in zip(info.item_types, data, strict=False))
    elif isinstance(data, dict):
        kinds = {field.encode_name: field.type for field in fields_of(info)}
        yield from ((kinds[name], data[name], f"{path}.{name}") for name in data if name in kinds)
    elif isinstance(data, list):  # array_like
        begin = 1 if getattr(info, "tag", None) is not None else 0
        for field, content in zip(fields_of(info), data[begin:], strict=False):
            yield field.type, content, f"{path}.{field.name}"


def _is_tagged(info: Info, data: Any) -> bool:  # noqa: ANN401 - as above
    """Whether it is no struct of another tag than the value has."""
    tag = getattr(info, "tag", None)
    if tag is None or not isinstance(data, dict | list):
        return True
    return bool((data.get(info.tag_field) if isinstance(data, dict) else next(iter(data), None)) == tag)
