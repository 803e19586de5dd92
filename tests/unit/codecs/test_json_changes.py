"""Goal: a type reads what another one wrote with the same meaning, or the difference is named; for every pair of kinds and settings."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from sqe_chain.codecs.json_codec import Json


class Wait(Enum):
    WAIT = "wait"
    OLD = "old"


class WaitOrNew(Enum):
    WAIT = "wait"
    OLD = "old"
    NEW = "new"


class Other(Enum):
    WAIT = "wait"
    NEW = "new"


class Number(IntEnum):
    ONE = 1
    TWO = 2


class Cold(msgspec.Struct, tag=True):
    n: int = 0


class Hot(msgspec.Struct, tag=True):
    n: int = 0


class Renamed(msgspec.Struct, tag="Hot"):
    n: int = 0


class Plain(msgspec.Struct):
    n: int = 0


class ByPlace(msgspec.Struct, array_like=True):
    n: int = 0


class Point(NamedTuple):
    x: int = 0
    y: int = 0


class Turned(NamedTuple):
    y: int = 0
    x: int = 0


class Both(TypedDict):
    x: int


class Text(TypedDict):
    x: str


KINDS: dict[str, tuple[Any, list[Any]]] = {
    "int": (int, [-5, 0, 7, 2**53 + 1, -(2**63)]),
    "float": (float, [0.5, 1.0, 1e300]),
    "str": (str, ["wait", "x", "", "1", "YQ==", "1.50", "2020-01-01"]),
    "bytes": (bytes, [b"", b"a", b"wait"]),
    "byte array": (bytearray, [bytearray(b"a")]),
    "decimal": (Decimal, [Decimal("1.50"), Decimal(7)]),
    "uuid": (UUID, [UUID(int=5)]),
    "duration": (timedelta, [timedelta(days=1, microseconds=1)]),
    "time of day": (time, [time(1, 2, 3)]),
    "bool": (bool, [True]),
    "none": (None, [None]),
    "any": (Any, [1, "x", None]),
    "int or none": (int | None, [3, None]),
    "int or str": (int | str, [3, "x"]),
    "at least 0": (Annotated[int, Meta(ge=0)], [0, 7]),
    "at least 5": (Annotated[int, Meta(ge=5)], [5, 7]),
    "above 0": (Annotated[int, Meta(gt=0)], [1]),
    "at most 5": (Annotated[int, Meta(le=5)], [-9, 5]),
    "even": (Annotated[int, Meta(multiple_of=2)], [4]),
    "described": (Annotated[int, Meta(description="a number")], [-5]),
    "short": (Annotated[str, Meta(max_length=3)], ["x"]),
    "long": (Annotated[str, Meta(min_length=3)], ["wait"]),
    "letters": (Annotated[str, Meta(pattern="^[a-z|<>]+$")], ["wait"]),
    "enum": (Wait, [Wait.OLD]),
    "wider enum": (WaitOrNew, [WaitOrNew.NEW]),
    "other enum": (Other, [Other.NEW]),
    "numbers": (Number, [Number.TWO]),
    "literal": (Literal["wait", "old"], ["old"]),
    "literals": (Literal["wait", "old", 1] | None, [1, None, "old"]),
    "odd literal": (Literal["a|b", "c,>d ~@"], ["a|b", "c,>d ~@"]),
    "ints": (list[int], [[1], [], [7, 7], [3, 1]]),
    "ints of any number": (tuple[int, ...], [(7, 7), ()]),
    "three ints": (tuple[int, int, int], [(7, 7, 7)]),
    "anything": (list, [[1, 1.0, "x", [2, 2]]]),
    "by name": (dict, [{"x": [1, 1]}, {"n": 1}]),
    "positive ints": (list[Annotated[int, Meta(ge=0)]], [[1]]),
    "few ints": (Annotated[list[int], Meta(max_length=1)], [[1]]),
    "floats": (list[float], [[0.5]]),
    "set": (set[int], [{1}, {2**53, 2**53 + 1}]),
    "frozen set": (frozenset[int], [frozenset({1, 2})]),
    "set of floats": (set[float], [{0.5}]),
    "set of times": (set[datetime], [{datetime(2020, 1, 1, tzinfo=UTC)}]),
    "set of text": (set[str], [{"x", "y"}]),
    "set of anything": (set, [{1, 2}]),
    "pair": (tuple[int, str], [(1, "x")]),
    "wider pair": (tuple[int | None, str], [(None, "x")]),
    "ints by name": (dict[str, int], [{"a": 1}]),
    "floats by name": (dict[str, float], [{"a": 0.5}]),
    "time": (datetime, [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1)]),  # noqa: DTZ001 - no zone
    "time with a zone": (Annotated[datetime, Meta(tz=True)], [datetime(2020, 1, 1, tzinfo=UTC)]),
    "date": (date, [date(2020, 1, 1)]),
    "cold or hot": (Cold | Hot, [Cold(1), Hot(2)]),
    "cold or none": (Cold | None, [Cold(1), None]),
    "cold": (Cold, [Cold(1)]),
    "hot": (Hot, [Hot(1)]),
    "hot under another name": (Renamed, [Renamed(1)]),
    "cold or renamed": (Cold | Renamed, [Renamed(1)]),
    "plain": (Plain, [Plain(1)]),
    "by place": (ByPlace, [ByPlace(1)]),
    "list of hot": (list[Cold | Hot], [[Hot(1)]]),
    "point": (Point, [Point(1, 2)]),
    "turned": (Turned, [Turned(1, 2)]),
    "typed dict": (Both, [{"x": 1}]),
    "typed dict of text": (Text, [{"x": "1"}]),
}
"""Name of a kind -> the kind, and values of it."""
MAY_CHANGE = {
    ("numbers", "int"),
    ("literals", "any"),
    ("enum", "literal"),
    ("int", "float"),
    ("set", "ints"),
    ("set", "frozen set"),
    ("ints", "ints of any number"),
    ("decimal", "str"),
}
"""Some that must go, so that not everything is refused."""


def state(kind: Any, **settings: Any) -> Any:
    return msgspec.defstruct("State", [("x", kind)], **settings)


def meant(value: Any) -> Any:
    """What a value means: the same in JSON, with the names of fields that lie by place."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))


def as_floats(found: Any) -> Any:
    """Whole numbers as the nearest floats: how they are read as floats, as the project's pages document."""
    if isinstance(found, list | dict):
        pairs = found.items() if isinstance(found, dict) else enumerate(found)
        each = {name: as_floats(one) for name, one in pairs}
        return each if isinstance(found, dict) else list(each.values())
    return float(found) if type(found) is int else found


def untagged(found: Any) -> Any:
    return {name: one for name, one in found.items() if name != "type"} if isinstance(found, dict) else found


@pytest.mark.parametrize("was", KINDS)
def test_each_kind_reads_each_other_as_it_was_or_is_refused(was: str) -> None:
    kind, values = KINDS[was]
    before = Json(state(kind))
    for now, (other, _) in KINDS.items():
        after = Json(state(other))
        if after.misread(before.type_name, before.shape()):
            assert was != now
            assert (was, now) not in MAY_CHANGE
            continue
        for value in values:
            found = after.decode(before.encode(before.python_type(value))).x
            written = msgspec.json.decode(before.encode(before.python_type(value)))["x"]
            same = written if other is Any else meant(value)
            same = as_floats(same) if "float" in now else same
            assert untagged(meant(found)) == untagged(same), (was, now, value)


FIELDS: list[list[tuple[str, Any, Any]]] = [
    [],
    [("a", int, 0)],
    [("a", int, 1)],
    [("b", int, 0)],
    [("a", int, 0), ("b", int, 0)],
    [("b", int, 0), ("a", int, 0)],
    [("a", int, 0), ("b", int, 7)],
    [("a", int, 0), ("c", int, 0)],
    [("a", int, 0), ("b", int, 0), ("c", int, 0)],
    [("a", int, 0), ("b", list[int], msgspec.field(default_factory=list))],
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"omit_defaults": True},
    {"array_like": True},
    {"forbid_unknown_fields": True},
    {"array_like": True, "forbid_unknown_fields": True},
]
TYPES = [
    msgspec.defstruct("State", [("first", int, 0), *fields], **settings)
    for fields, settings in product(FIELDS, SETTINGS)
]


def drawn(kind: Any) -> list[Any]:
    """Values of a type: with its defaults, and with others."""
    names = kind.__struct_fields__
    other = {name: [5] if kind.__annotations__.get(name) == list[int] else 5 for name in names}
    return [kind(), kind(**other)]


@pytest.mark.parametrize("was", TYPES, ids=[f"struct {number}" for number in range(len(TYPES))])
def test_a_struct_reads_what_each_other_wrote_as_it_was_or_is_refused(was: Any) -> None:
    """Whatever is written by place or by name, with defaults or without, and whether unknown fields are allowed."""
    before = Json(was)
    for now in TYPES:
        after = Json(now)
        if after.misread(before.type_name, before.shape()):
            assert now is not was
            continue
        for value in drawn(was):
            found = after.decode(before.encode(value))
            for name in set(was.__struct_fields__) & set(now.__struct_fields__):
                assert getattr(found, name) == getattr(value, name), (now.__struct_fields__, name)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_types_in_turn_read_what_any_of_them_wrote_or_one_is_refused(settings: dict[str, Any]) -> None:
    """What was removed, or added with a default, is remembered: the third type meets values of the first, too."""
    types = [
        kind
        for kind in TYPES
        if kind.__struct_config__ == msgspec.defstruct("State", [], **settings).__struct_config__
    ]
    for first, second, third in product(types, repeat=3):
        one, two, three = Json(first), Json(second), Json(third)
        known = one.shape()
        if two.misread(one.type_name, known) or three.misread(two.type_name, two.shape(known)):
            continue
        for value in drawn(first):
            between, found = two.decode(one.encode(value)), three.decode(one.encode(value))
            for name in set(second.__struct_fields__) & set(third.__struct_fields__):
                assert getattr(found, name) == getattr(between, name), (value, second, third)
