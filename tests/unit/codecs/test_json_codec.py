"""Goal: values in JSON are read back unchanged, or are refused; and a changed type never misreads old states.

Method: values of a struct made by hypothesis; types made at run time, one as it was, one as it is now.
"""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from types import UnionType
from typing import Any, get_origin

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain import read, wrap
from sqe_chain.codecs import Codec, codec_for
from sqe_chain.codecs.json_codec import Json
from sqe_chain.codecs.json_shape import LENGTH_LIMIT
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal


class Part(msgspec.Struct):
    name: str = ""
    weight: float = 0.0


class Order(msgspec.Struct):
    robot: str
    screws: int = 0
    parts: list[Part] = []
    by_name: dict[str, Part] = {}
    note: str | None = None
    tags: set[str] = set()
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Total:
    events: int = 0
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    events: int = 0


class FrozenStruct(msgspec.Struct, frozen=True):
    events: int = 0


class Incomparable(msgspec.Struct, eq=False):
    events: int = 0


texts = st.text(st.characters(codec="utf-8"), max_size=5)
floats = st.floats(allow_nan=False, allow_infinity=False)
parts = st.builds(Part, texts, floats)
orders = st.builds(
    Order,
    texts,
    st.integers(),
    st.lists(parts, max_size=3),
    st.dictionaries(texts, parts, max_size=3),
    st.none() | texts,
    st.sets(texts, max_size=4),
    st.datetimes(timezones=st.just(UTC)),
)


@given(orders)
def test_a_value_is_read_back_unchanged(order: Order) -> None:
    codec = codec_for(Order)
    assert codec.decode(codec.encode_state(order)) == order
    assert codec.copy(order) == order
    assert codec.copy(order) is not order


@given(st.dictionaries(texts, parts, max_size=5), st.sets(texts, max_size=5))
def test_equal_values_give_equal_bytes(by_name: dict[str, Part], tags: set[str]) -> None:
    one = Order("r", by_name=by_name, tags=tags)
    other = Order("r", by_name=dict(reversed(by_name.items())), tags={*sorted(tags, reverse=True)})
    assert codec_for(Order).encode(one) == codec_for(Order).encode(other)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "value",
    [
        lambda number: Part(weight=number),
        lambda number: Order("r", parts=[Part(weight=number)], note=None),
        lambda number: {"a": [1, {"b": number}]},
        lambda number: [number],
        lambda number: number,
    ],
    ids=["field", "below", "dict", "list", "alone"],
)
def test_numbers_that_json_does_not_know_are_refused(number: float, value: Any) -> None:
    found = value(number)
    with pytest.raises(ValueError, match="JSON cannot express"):
        codec_for(type(found)).encode(found)


class Price(msgspec.Struct):
    amount: Decimal
    note: str = ""


@pytest.mark.parametrize("number", ["NaN", "-NaN", "sNaN12", "Infinity", "-Infinity"])
def test_decimals_that_readers_refuse_are_not_written(number: str) -> None:
    with pytest.raises(ValueError, match="JSON cannot express"):
        wrap(Price(Decimal(number)), key=None, timestamp_ms=0)
    price = Price(Decimal("1E+400"), note=number)
    assert read(wrap(price, key=None, timestamp_ms=0)).payload_as(Price) == price


def test_null_is_no_reason_to_refuse() -> None:
    assert codec_for(dict).encode({"a": None, "b": 1.5}) == b'{"a":null,"b":1.5}'
    assert codec_for(Order).decode(codec_for(Order).encode(Order("null"))).note is None


@pytest.mark.parametrize(
    "state",
    [
        Order("r", screws="3"),  # type: ignore[arg-type]
        Order("r", note=5),  # type: ignore[arg-type]
        Order("r", parts=[{"name": "a"}]),  # type: ignore[list-item]
        {1: 2},
        {"a": (1, 2)},
        [datetime(2026, 1, 1, tzinfo=UTC)],
        {"a": object()},
        {"a": "\ud800"},
    ],
    ids=[
        "number as text",
        "text as number",
        "dict for struct",
        "number as key",
        "tuple",
        "time",
        "object",
        "surrogate",
    ],
)
def test_a_state_that_would_come_back_as_another_one_is_refused(state: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec_for(type(state)).encode_state(state)


@pytest.mark.parametrize(
    ("python_type", "text"),
    [
        (int, "changes its state in place"),
        (str, "changes its state in place"),
        (bytes, "cannot be changed"),
        (object, "changes its state in place"),
        (Frozen, "it is frozen"),
        (FrozenStruct, "it is frozen"),
        (Order, r"a new key begins with Order\(\), which fails"),
        (Incomparable, "do not compare"),
    ],
)
def test_types_that_cannot_be_states(python_type: type, text: str) -> None:
    assert re.search(text, codec_for(python_type).check_state())


@pytest.mark.parametrize("python_type", [dict, list, Part, Total])
def test_types_that_can_be_states(python_type: type) -> None:
    codec: Codec[Any] = codec_for(python_type)
    assert codec.check_state() == ""
    assert codec.decode(codec.encode_state(codec.new())) == python_type()


class KeysOfNumbers(msgspec.Struct):
    found: dict[int, int] = {}


class Complex(msgspec.Struct):
    below: list[complex] = []


class Unchecked(msgspec.Struct):
    text: msgspec.Raw


class Unknown(msgspec.Struct):
    other: "NoSuchType"  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("python_type", "text"),
    [
        (KeysOfNumbers, "must be str"),
        (Unchecked, "msgspec.Raw"),
        (Complex, "cannot encode <class 'complex'>"),
        (Unknown, "NoSuchType"),
        (set, "it takes"),
    ],
)
def test_types_that_json_cannot_express(python_type: type, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Json(python_type)


def test_names_in_envelopes() -> None:
    assert codec_for(Order).type_name == "json:Order"
    assert codec_for(dict).type_name == codec_for(list).type_name == codec_for(float).type_name == "json:"
    renamed = Json(Order, type_name="shop.Order")
    assert renamed.type_name == "json:shop.Order"
    assert renamed.reads("json:shop.Order")
    assert not renamed.reads("json:Order")
    assert renamed.reads("json:")  # from a writer of plain values
    assert codec_for(dict).reads("json:Order")
    assert not codec_for(dict).reads("Order")
    assert not codec_for(dict).reads("bytes:")


def test_a_codec_can_be_pickled() -> None:
    codec = pickle.loads(pickle.dumps(Json(Order, type_name="shop.Order")))  # noqa: S301 - our own
    assert (codec.python_type, codec.type_name) == (Order, "json:shop.Order")
    assert codec.decode(codec.encode(Order("r"))) == Order("r")


Fields = dict[str, Any]


def default_of(kind: Any) -> Any:
    if kind is datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return msgspec.field(default_factory=kind)
    return (get_origin(kind) or kind)() if kind is not Any and get_origin(kind) is not UnionType else None


def type_of(fields: Fields, name: str = "State") -> type[Any]:
    """A struct: name of a field -> its type, with a default unless the name ends with "!"."""
    given = [(key.removesuffix("!"), kind) for key, kind in fields.items() if key.endswith("!")]
    rest = [(key, kind, default_of(kind)) for key, kind in fields.items() if not key.endswith("!")]
    return msgspec.defstruct(name, [*given, *rest])


def codec_of(fields: Fields) -> Json[Any]:
    return Json(type_of(fields))


COMPATIBLE: list[tuple[str, Fields, Fields]] = [
    ("same", {"a": int}, {"a": int}),
    ("another order", {"a": int, "b": str}, {"b": str, "a": int}),
    ("added", {"a": int}, {"a": int, "b": str}),
    ("removed", {"a": int, "b": str}, {"a": int}),
    ("int to float", {"a": int}, {"a": float}),
    ("wider", {"a": int}, {"a": int | str | None}),
    ("anything", {"a": int}, {"a": Any}),
    ("wider below", {"a": list[int]}, {"a": list[float]}),
    ("wider in dicts", {"a": dict[str, int]}, {"a": dict[str, int | None]}),
    ("time as text", {"a": datetime}, {"a": str}),
    ("set to list", {"a": set[int]}, {"a": list[int]}),
]
INCOMPATIBLE: list[tuple[str, Fields, Fields, str]] = [
    ("required", {"a": int}, {"a": int, "b!": str}, "field 'b' is new and has no default"),
    ("float to int", {"a": float}, {"a": int}, "was float, now it is int"),
    ("text", {"a": int}, {"a": str}, "was int, now it is str"),
    ("narrower", {"a": int | None}, {"a": int}, r"was int\|none, now it is int"),
    ("narrower below", {"a": list[float]}, {"a": list[int]}, "was array<float>"),
    ("list to dict", {"a": list[int]}, {"a": dict[str, int]}, "was array<int>"),
    ("renamed", {"a": int}, {"b": int}, "field 'a' is gone and field 'b' is new"),
    ("below", {"a": type_of({"x": int}, "Below")}, {"a": type_of({"x": str}, "Below")}, "'x' was int"),
    (
        "below in lists",
        {"a": list[type_of({"x": int}, "Below")]},  # type: ignore[misc]
        {"a": list[type_of({"x": str}, "Below")]},  # type: ignore[misc]
        "'x' was int",
    ),
]


@pytest.mark.parametrize(
    ("was", "now"), [case[1:] for case in COMPATIBLE], ids=[case[0] for case in COMPATIBLE]
)
def test_changes_that_read_what_was_written(was: Fields, now: Fields) -> None:
    before, after = codec_of(was), codec_of(now)
    assert after.misread(before.type_name, before.shape()) == ""
    value = before.new()
    after.decode(before.encode(value))


@pytest.mark.parametrize(
    ("was", "now", "text"), [case[1:] for case in INCOMPATIBLE], ids=[case[0] for case in INCOMPATIBLE]
)
def test_changes_that_would_misread_old_values(was: Fields, now: Fields, text: str) -> None:
    before, after = codec_of(was), codec_of(now)
    assert re.search(text, after.misread(before.type_name, before.shape()))


def test_a_field_with_the_name_of_a_removed_one_must_fit_it() -> None:
    first, second = codec_of({"a": int, "b": str}), codec_of({"a": int})
    known = second.shape(first.shape())
    assert codec_of({"a": int, "b": str}).misread("json:State", known) == ""
    assert "'b' was str" in codec_of({"a": int, "b": int}).misread("json:State", known)
    third = codec_of({"a": int, "c": int})
    assert third.misread("json:State", known) == ""  # b had gone in a step before
    assert third.shape(known)["json:State"] == "a:int c:int~0 -b:str"


def test_a_field_may_get_another_name_in_python() -> None:
    renamed = msgspec.defstruct("State", [("bolts", int, msgspec.field(default=0, name="screws"))])
    assert Json(renamed).misread("json:State", codec_of({"screws": int}).shape()) == ""


def test_fields_by_place_are_compared_by_place() -> None:
    was = msgspec.defstruct("State", [("a", int, 0), ("b", str, "")], array_like=True)
    now = msgspec.defstruct("State", [("b", str, ""), ("a", int, 0)], array_like=True)
    assert "place 0 of the array had field 'a', now it has 'b'" in Json(now).misread(
        "json:State", Json(was).shape()
    )


def test_a_state_of_another_codec_is_another_state() -> None:
    assert "now it is JSON" in codec_for(Part).misread("google.protobuf.Int64Value", {})
    assert "now it is the protobuf type" in codec_for(Int64Value).misread(
        "json:Part", codec_for(Part).shape()
    )


def test_types_that_refer_to_themselves_and_very_large_ones_have_a_shape() -> None:
    class Tree(msgspec.Struct):
        children: "list[Tree]" = []  # noqa: UP037

    Tree.__annotations__["children"] = list[Tree]
    assert Json(Tree).shape() == {"json:Tree": "children:array<.Tree>"}
    large = type_of({f"field{number}": int for number in range(LENGTH_LIMIT // 10)})
    assert Json(large).shape() == {}
    assert Json(large).misread("json:State", {}) == ""


def test_fields_for_tables() -> None:
    order = Order("r", 3, [Part("a", 1.5)], note=None)
    fields = {one.name: (one.kind, one.of(order)) for one in codec_for(Order).fields()}
    assert fields["robot"] == ("text", "r")
    assert fields["screws"] == ("int64", 3)
    assert fields["parts"] == ("other", '[{"name": "a", "weight": 1.5}]')
    assert fields["note"] == ("text", None)
    assert codec_for(dict).fields() == ()
    assert codec_for(Order).to_json(order)["parts"] == [{"name": "a", "weight": 1.5}]


class Odd(msgspec.Struct):
    """Its constructor refuses one number in the way that ends an iteration."""

    n: int

    def __post_init__(self) -> None:
        if self.n == 2:
            raise StopIteration


def test_a_constructor_that_ends_an_iteration_loses_no_other_value() -> None:
    codec = Json(Odd)
    with pytest.raises(RuntimeError, match="StopIteration"):
        codec.decode_all([b'{"n":1}', b'{"n":2}', b'{"n":3}'])
    assert [value.n for value in codec.decode_all([b'{"n":1}', b'{"n":3}'])] == [1, 3]
    flow = Flow("odd", poison="skip")
    flow.source("in", Odd, raw=True).to("out", key=lambda odd: b"k", partitions=1)
    service = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    for n in (1, 2, 3):
        service.feed("in", b'{"n":%d}' % n)
    service.run_until_caught_up()
    assert [message.payload_as(Odd).n for message in service.published("out")] == [1, 3]
