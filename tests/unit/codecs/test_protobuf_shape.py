"""Goal: a type that would misread another one's bytes is detected, and no other type is.

Method: types made at run time; where the check finds two compatible, one type reads what the other wrote.
"""

from __future__ import annotations

import json
from typing import cast

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from sqe_chain.codecs.protobuf_shape import LENGTH_LIMIT, misread, shape_of
from tests.support.dynamic_messages import message_type

NUMBERS = ("int32", "int64", "uint32", "uint64", "bool", "enum")
ALIKE = [
    *((was, now) for was in NUMBERS for now in NUMBERS),
    ("sint32", "sint64"),
    ("sint64", "sint32"),
    ("fixed32", "sfixed32"),
    ("sfixed64", "fixed64"),
    ("string", "bytes"),
    ("repeated int32", "repeated uint64"),
    ("required int64", "int64"),
    ("int64", "required int64"),
    ("map<string, int32>", "map<string, uint64>"),
    ("map<string, string>", "map<string, bytes>"),
    ("Leg", "Leg"),
    ("repeated Leg", "repeated Leg"),
    ("map<int32, Leg>", "map<uint64, Leg>"),
]
UNLIKE = [
    ("uint64", "double"),
    ("int64", "sint64"),
    ("sint32", "int32"),
    ("int32", "fixed32"),
    ("fixed32", "fixed64"),
    ("fixed32", "float"),
    ("fixed64", "double"),
    ("float", "double"),
    ("bytes", "string"),
    ("string", "Leg"),
    ("Leg", "bytes"),
    ("Leg", "int64"),
    ("int64", "repeated int64"),
    ("repeated string", "string"),
    ("repeated Leg", "Leg"),
    ("map<string, int64>", "map<int64, int64>"),
    ("map<string, int64>", "map<string, double>"),
    ("map<string, int64>", "repeated int64"),
    ("map<string, Leg>", "repeated Leg"),
]


def described(kind: type[Message]) -> Descriptor:
    """The stubs give it as one of two classes with the same methods."""
    return cast("Descriptor", kind.DESCRIPTOR)


def difference(was: dict[str, str], now: dict[str, str], names: tuple[str, str] = ("State", "State")) -> str:
    one, other = (message_type(fields, name) for fields, name in zip((was, now), names, strict=True))
    stored = json.loads(json.dumps(shape_of(described(one))))
    return misread(stored, shape_of(described(other)), (one.DESCRIPTOR.full_name, other.DESCRIPTOR.full_name))


def state(kind: str, leg: str = "int64 miles = 1") -> dict[str, str]:
    return {"State": f"string name = 1; {kind} value = 2", "Leg": leg}


@pytest.mark.parametrize(("was", "now"), ALIKE)
def test_kinds_that_read_each_other_are_compatible(was: str, now: str) -> None:
    assert difference(state(was), state(now)) == ""


@pytest.mark.parametrize(("was", "now"), [pair for pair in ALIKE if set(pair) <= set(NUMBERS)])
def test_numbers_that_are_compatible_are_read_as_they_were_written(was: str, now: str) -> None:
    one, other = (message_type(state(kind)) for kind in (was, now))
    written = one(name="a", value=0 if "enum" in (was, now) else 1)
    read = other.FromString(written.SerializeToString())
    assert (read.value, read.HasField("value")) == (written.value, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("was", "now"), UNLIKE)
def test_kinds_that_would_be_misread_are_reported(was: str, now: str) -> None:
    found = difference(state(was), state(now))
    for part in ("field 2", "made.State"):
        assert part in found
    for kind in (was, now):
        bare = kind.replace("repeated ", "*").replace(", ", ",").replace("Leg", ".made.Leg")
        assert bare in found


def test_fields_may_come_and_go_and_change_their_names() -> None:
    assert difference({"State": "int64 a = 1; string b = 2"}, {"State": "int64 z = 1; double c = 3"}) == ""


def test_a_new_required_field_was_never_written() -> None:
    assert "field 3" in difference({"State": "int64 a = 1"}, {"State": "int64 a = 1; required int64 c = 3"})


def test_messages_within_are_compared_however_deep() -> None:
    was = {"State": "repeated Leg legs = 1", "Leg": "map<string, Stop> stops = 1", "Stop": "int64 at = 4"}
    assert difference(was, was) == ""
    found = difference(was, was | {"Stop": "double at = 4"})
    assert found == "field 4 of made.Stop was int64, now it is double"


def test_types_that_refer_to_themselves_are_compared_to_an_end() -> None:
    tree = {"State": "State left = 1; repeated State more = 2; int64 value = 3"}
    assert difference(tree, tree) == ""
    assert "field 3" in difference(
        tree, {"State": "State left = 1; repeated State more = 2; float value = 3"}
    )


def test_a_type_of_another_name_must_have_the_same_fields() -> None:
    was = {"State": "int64 a = 1; Leg leg = 2", "Leg": "int64 b = 1"}
    same = {"Other": "int64 a = 1; Leg leg = 2", "Leg": "int64 b = 1"}
    assert difference(was, same, ("State", "Other")) == ""
    for other in ("int64 a = 1; Leg leg = 2; int64 c = 3", "uint64 a = 1; Leg leg = 2", "int64 a = 1"):
        found = difference(was, same | {"Other": other}, ("State", "Other"))
        assert "made.State" in found
        assert "made.Other" in found


def test_fields_that_become_alternatives_are_reported_and_others_may_join() -> None:
    both = "int64 a = 1; int64 b = 2"
    oneof = "oneof(0) int64 a = 1; oneof(0) int64 b = 2"
    assert "fields 1 and 2" in difference({"State": both}, {"State": oneof})
    assert difference({"State": oneof}, {"State": both}) == ""
    assert difference({"State": oneof}, {"State": oneof + "; oneof(0) int64 c = 3"}) == ""
    assert difference({"State": "int64 a = 1"}, {"State": "oneof(0) int64 a = 1; oneof(0) int64 c = 3"}) == ""


def test_the_kind_of_a_removed_field_is_remembered() -> None:
    first, second, third = (
        described(message_type({"State": f"string name = 1{more}"}))
        for more in ("; int64 miles = 2", "", "; double miles = 2")
    )
    stored = shape_of(second, shape_of(first))
    assert stored == shape_of(first)
    assert "field 2" in misread(stored, shape_of(third), ("made.State", "made.State"))


def test_a_shape_does_not_change_when_it_is_made_again() -> None:
    descriptor = described(message_type({"State": "Leg leg = 1", "Leg": "int64 a = 1"}))
    assert shape_of(descriptor, shape_of(descriptor)) == shape_of(descriptor)


@pytest.mark.parametrize("within", [True, False])
def test_shapes_are_bounded_and_what_is_met_first_is_compared(within: bool) -> None:
    messages = {f"Leg{number}": f"int64 {'x' * 20} = 1" for number in range(2_000)}
    fields = "; ".join(f"Leg{number} leg{number} = {number + 1}" for number in range(2 if within else 2_000))
    shape = shape_of(described(message_type({"State": fields, **messages})))
    assert len(json.dumps(shape)) < (200 if within else 2_000 * 30 + LENGTH_LIMIT)
    assert len(shape) == (3 if within else 1)
    assert shape_of(described(message_type({"State": fields, **messages})), shape) == shape
