"""Goal: what Confluent's own serializers write is read, what is written here they read, and a place names its message.

The oracle is Confluent's serializer and deserializer for Protobuf, against a registry over HTTP.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from sqe_chain.codecs import Place
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry import ProtobufSchema
from sqe_chain.ext.registry.address import parse_registry
from tests.support.schema_registry import TestRegistry, serving

VALUE = SerializationContext("bolts", MessageField.VALUE)
PROTO = """
syntax = "proto3";
package plant;  // "message Fake {"
option java_package = "message Other { }";
import "google/protobuf/timestamp.proto";

/* message Hidden { } */
message Part {
  enum Kind { A = 0; B = 1; }
  string name = 1;
}

enum Colour { RED = 0; }

message Bolt {
  option deprecated = true;
  message Head {
    string message = 1;
    message Slot { int32 width = 1; }
  }
  oneof what { string robot = 1; int64 torque = 2; }
  Head head = 3;
}

service Bolts { rpc Get (Part) returns (Bolt) { } }
message Last {}
"""
PLACES = {
    "plant.Part": (0,),
    "plant.Bolt": (1,),
    "plant.Bolt.Head": (1, 0),
    "plant.Bolt.Head.Slot": (1, 0, 0),
    "plant.Last": (2,),
}


def classes() -> dict[str, Any]:
    """The messages of the file, made without protoc."""
    file = descriptor_pb2.FileDescriptorProto(name="plant.proto", package="plant", syntax="proto3")
    part, bolt, _ = (file.message_type.add(name=name) for name in ("Part", "Bolt", "Last"))
    text, number, message = 9, 3, 11
    part.field.add(name="name", number=1, type=text, label=1)
    head = bolt.nested_type.add(name="Head")
    head.field.add(name="message", number=1, type=text, label=1)
    head.nested_type.add(name="Slot").field.add(name="width", number=1, type=5, label=1)
    bolt.field.add(name="robot", number=1, type=text, label=1)
    bolt.field.add(name="torque", number=2, type=number, label=1)
    bolt.field.add(name="head", number=3, type=message, label=1, type_name=".plant.Bolt.Head")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in PLACES}


CLASSES = classes()
Bolt, Slot, Part = CLASSES["plant.Bolt"], CLASSES["plant.Bolt.Head.Slot"], CLASSES["plant.Part"]
VALUES = [Bolt(robot="ü", torque=7), Slot(width=3), Part(name="p"), Part()]


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with serving() as served:
        yield served


def ours(registry: TestRegistry, codec: ProtobufSchema[Any]) -> ProtobufSchema[Any]:
    return codec.at(Place("bolts", writes=True, registry=parse_registry(registry.address)))


def theirs(registry: TestRegistry, kind: type, **conf: Any) -> Any:
    client = SchemaRegistryClient({"url": registry.url})
    return ProtobufSerializer(kind, client, {"use.deprecated.format": False, **conf})


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.DESCRIPTOR.full_name)
def test_both_sides_read_each_other(registry: TestRegistry, value: Any) -> None:
    data = theirs(registry, type(value))(value, VALUE)
    codec = ours(registry, ProtobufSchema(type(value)))
    assert codec.decode(data) == value
    assert codec.encode(value) == data
    assert codec.decode_own(data) == codec.copy(value) == value
    read = ProtobufDeserializer(
        type(value), {"use.deprecated.format": False}, SchemaRegistryClient({"url": registry.url})
    )
    assert read(codec.encode(value), VALUE) == value


def test_a_header_names_schema_and_place(registry: TestRegistry) -> None:
    headers: Any = []
    context = SerializationContext("bolts", MessageField.VALUE, headers)
    payload = theirs(registry, Slot, **{"schema.id.serializer": header_schema_id_serializer})(
        Slot(width=3), context
    )
    codec = ours(registry, ProtobufSchema(Slot, framing="header"))
    assert codec.decode_with(payload, headers) == Slot(width=3)
    assert (codec.encode(Slot(width=3)), list(codec.headers())) == (payload, headers)
    with pytest.raises(
        ValueError, match=r"is of message plant\.Bolt\.Head\.Slot of its schema\. Expected plant\.Part"
    ):
        ours(registry, ProtobufSchema(Part, framing="either")).decode_with(payload, headers)


def test_another_message_of_the_file_is_refused(registry: TestRegistry) -> None:
    """Its bytes could be read: fields have numbers alone."""
    data = theirs(registry, Part)(Part(name="p"), VALUE)
    with pytest.raises(ValueError, match=r"is of message plant\.Part of its schema\. Expected plant\.Bolt"):
        ours(registry, ProtobufSchema(Bolt)).decode(data)
    with pytest.raises(ValueError, match=r"at \[9\], which it does not have"):
        ours(registry, ProtobufSchema(Bolt)).decode(data[:5] + b"\x02\x12")


@pytest.mark.parametrize("name", PLACES)
def test_a_message_is_found_by_its_name_in_the_text_of_a_schema(registry: TestRegistry, name: str) -> None:
    """Another file order than that of the class, and words that only look like messages."""
    registry.register(
        "bolts-value",
        "syntax = 'proto3';\nmessage First {}" + PROTO.replace("syntax", "// syntax"),
        "PROTOBUF",
    )
    kind, place = CLASSES[name], (PLACES[name][0] + 1, *PLACES[name][1:])
    path = b"".join(bytes([number << 1]) for number in (len(place), *place))
    codec = ours(registry, ProtobufSchema(kind))
    assert codec.decode(b"\0\0\0\0\1" + path + kind().SerializeToString()) == kind()


def test_the_text_of_a_proto_is_registered_if_it_is_given(registry: TestRegistry, tmp_path: Path) -> None:
    file = tmp_path / "plant.proto"
    file.write_text(PROTO)
    codec = ours(registry, ProtobufSchema(Slot, schema=file, auto_register=True))
    file.unlink()
    assert (
        codec.encode(Slot(width=3)) == b"\0\0\0\0\1" + bytes([6, 2, 0, 0]) + Slot(width=3).SerializeToString()
    )
    assert registry.schemas[1]["schema"] == PROTO


def test_what_is_not_of_the_class_is_refused(registry: TestRegistry) -> None:
    with pytest.raises(TypeError, match=r"a Part\. Expected a Bolt"):
        ours(registry, ProtobufSchema(Bolt, auto_register=True)).write(Part())


def importing() -> type:
    file = descriptor_pb2.FileDescriptorProto(
        name="car.proto", package="car", syntax="proto3", dependency=["wheel.proto"]
    )
    file.message_type.add(name="Car").field.add(
        name="w", number=1, type=11, label=1, type_name=".wheel.Wheel"
    )
    wheel = descriptor_pb2.FileDescriptorProto(name="wheel.proto", package="wheel", syntax="proto3")
    wheel.message_type.add(name="Wheel").field.add(name="inches", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wheel.SerializeToString())
    pool.AddSerializedFile(file.SerializeToString())
    kind: type = message_factory.GetMessageClass(pool.FindMessageTypeByName("car.Car"))
    return kind


def test_files_that_are_imported_are_references(registry: TestRegistry) -> None:
    car: Any = importing()
    data = theirs(registry, car)(car(w={"inches": 17}), VALUE)  # registers the import under its name
    codec = ours(registry, ProtobufSchema(car, references=[("wheel.proto", "wheel.proto", 1)]))
    assert codec.encode(car(w={"inches": 17})) == data
    with pytest.raises(ConfigurationError, match=r"car\.proto imports wheel\.proto\. Expected a reference"):
        ProtobufSchema(car)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ProtobufSchema(int), "Expected a generated class"),  # type: ignore[type-var]
        (
            lambda: ProtobufSchema(Bolt, schema="message Nut {}"),
            "the schema has no message plant.Bolt.*: Nut",
        ),
        (lambda: ProtobufSchema(Bolt, schema=Path("/no/such.proto")), "cannot be read"),
        (lambda: ProtobufSchema(Bolt, schema=b64encode(b"\xff\xff").decode()), "has no message plant.Bolt"),
    ],
    ids=["no message", "another", "no file", "no descriptor"],
)
def test_what_cannot_work_is_refused_by_name(make: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        make()
