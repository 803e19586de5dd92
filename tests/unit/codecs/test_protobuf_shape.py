"""Goal: a type that would misread another one's bytes is detected, and no other type is.

Method: types made at run time; where the check finds two compatible, one type reads what the other wrote.
"""

from __future__ import annotations

import json
from typing import cast

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from sqe_chain.codecs.protobuf_shape import LENGTH_LIMIT, misread, shape_of
from tests.support.dynamic_messages import message_type

EXTREMES: dict[str, tuple[int, ...]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "sint64": (-(2**63), 2**63 - 1),
    "fixed32": (1, 2**32 - 1),
    "sfixed32": (-(2**31), 2**31 - 1),
    "fixed64": (1, 2**64 - 1),
    "sfixed64": (-(2**63), 2**63 - 1),
    "bool": (0, 1),
}
ALIKE = [
    ("int32", "int64"),
    ("bool", "int32"),
    ("sint32", "sint64"),
    ("enum", "int32"),
    ("enum", "enum"),
    ("string", "bytes"),
    ("repeated int32", "repeated int64"),
    ("required int64", "int64"),
    ("int64", "required int64"),
    ("map<string, int32>", "map<string, int64>"),
    ("map<string, string>", "map<string, bytes>"),
    ("Leg", "Leg"),
    ("repeated Leg", "repeated Leg"),
    ("map<int32, Leg>", "map<int64, Leg>"),
]
UNLIKE = [
    ("uint64", "double"),
    ("int64", "int32"),
    ("enum", "bool"),
    ("int32", "enum"),
    ("repeated int64", "repeated int32"),
    ("map<string, int64>", "map<string, int32>"),
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
    return misread(stored, described(other), one.DESCRIPTOR.full_name)


def state(kind: str, leg: str = "int64 miles = 1") -> dict[str, str]:
    return {"State": f"string name = 1; {kind} value = 2", "Leg": leg}


@pytest.mark.parametrize(("was", "now"), ALIKE)
def test_kinds_that_read_each_other_are_compatible(was: str, now: str) -> None:
    assert difference(state(was), state(now)) == ""


@pytest.mark.parametrize("now", EXTREMES)
@pytest.mark.parametrize("was", EXTREMES)
def test_of_numbers_those_are_compatible_that_protobuf_reads_as_they_were(was: str, now: str) -> None:
    """Protobuf itself is asked: with the least and greatest values, and without one."""
    one, other = (message_type(state(kind)) for kind in (was, now))

    def reads(value: int) -> bool:
        read = other.FromString(one(name="a", value=value).SerializeToString())
        return bool(read.HasField("value")) and int(read.value) == value  # type: ignore[attr-defined]

    assert (difference(state(was), state(now)) == "") == all(map(reads, EXTREMES[was]))


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
    assert "field 2" in misread(stored, third, "made.State")


def test_a_shape_does_not_change_when_it_is_made_again() -> None:
    descriptor = described(message_type({"State": "Leg leg = 1", "Leg": "int64 a = 1"}))
    assert shape_of(descriptor, shape_of(descriptor)) == shape_of(descriptor)


@pytest.mark.parametrize("within", [True, False])
def test_shapes_are_bounded(within: bool) -> None:
    messages = {f"Leg{number}": f"int64 {'x' * 20} = 1" for number in range(2_000)}
    fields = "; ".join(f"Leg{number} leg{number} = {number + 1}" for number in range(2 if within else 2_000))
    shape = shape_of(described(message_type({"State": fields, **messages})))
    assert len(json.dumps(shape)) < (200 if within else 2_000 * 40 + LENGTH_LIMIT)
    assert len(shape) == (3 if within else 2_001)
    assert shape_of(described(message_type({"State": fields, **messages})), shape) == shape


@pytest.mark.parametrize("last", [299, 899])
def test_what_lies_beyond_the_bound_is_compared_by_its_digest(last: int) -> None:
    """A new field in front of it changes none of it."""
    was = {f"Leg{number}": "int64 miles = 1" for number in range(last + 1)}
    was["State"] = "; ".join(f"Leg{number} leg{number} = {number + 1}" for number in range(last + 1))
    assert difference(was, was) == ""
    if last < 800:
        assert difference(was, was | {"Leg0": "int64 miles = 1; string more = 2"}) == ""
    found = difference(was, was | {f"Leg{last}": "int32 miles = 1"})
    assert f"made.Leg{last} has changed" in found


def test_another_default_is_reported() -> None:
    """What a state lacks would be read as another value."""
    kinds = {
        "int64": ("", "0", "20", "30"),
        "string": ("", "a b|c=d", "%20"),
        "bool": ("", "false", "true"),
        "double": ("", "0.0", "0.5"),
        "bytes": ("", "x"),
    }
    for kind, defaults in kinds.items():
        for was in defaults:
            for now in defaults:
                one, other = (with_default(kind, default) for default in (was, now))
                read = other.FromString(one().SerializeToString())
                same = read.value == one().value  # type: ignore[attr-defined]
                found = misread(shape_of(described(one)), described(other), "made.State")
                assert (found == "") == same, (kind, was, now)
                assert same or "the default of field 1 of made.State" in found


def test_another_first_value_of_an_enum_is_another_default() -> None:
    one, other = (with_enum(*numbers) for numbers in ((0, 1), (1, 0)))
    assert "the default of field 1" in misread(shape_of(described(one)), described(other), "made.State")


def test_an_enum_may_get_values_and_lose_none() -> None:
    one, more = with_enum(0, 1), with_enum(0, 1, 2)
    assert misread(shape_of(described(one)), described(more), "made.State") == ""
    found = misread(shape_of(described(more)), described(one), "made.State")
    assert found == "enum made.Phase had the value 2, now it has not"


def test_shapes_of_older_releases_are_compared_by_what_they_hold() -> None:
    """They named neither defaults nor enums."""
    was = {"made.State": "1:enum"}
    assert misread(was, described(with_enum(1, 0)), "made.State") == ""
    assert misread({"made.Other": "1:enum"}, described(with_enum(1, 0)), "made.Other") == ""
    assert misread({"made.State": "1:int64"}, described(with_default("int64", "20")), "made.State") == ""
    assert "was double, now it is enum" in misread(
        {"made.State": "1:double"}, described(with_enum(0)), "made.State"
    )
    assert shape_of(described(with_enum(0, 1)), was)["made.State"] == "1:enum.made.Phase="


def with_default(kind: str, default: str) -> type[Message]:
    """A type with one field; with "" the default is protobuf's own."""
    file = descriptor_pb2.FileDescriptorProto(name="made.proto", package="made", syntax="proto2")
    field = file.message_type.add(name="State").field.add(name="value", number=1, label=1)
    field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    if default:
        field.default_value = default
    return made_of(file)


def with_enum(*numbers: int) -> type[Message]:
    """A type with a field of an enum that has these values."""
    file = descriptor_pb2.FileDescriptorProto(name="made.proto", package="made", syntax="proto2")
    kind = file.enum_type.add(name="Phase")
    for number in numbers:
        kind.value.add(name=f"PHASE_{number}", number=number)
    file.message_type.add(name="State").field.add(
        name="phase", number=1, label=1, type=14, type_name=".made.Phase"
    )
    return made_of(file)


def made_of(file: descriptor_pb2.FileDescriptorProto) -> type[Message]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("made.State"))
    return found
