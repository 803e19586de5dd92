"""Protobuf types made at run time, each in its own descriptor pool: two types may share a name and differ in fields."""

from __future__ import annotations

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import Message

_Field = descriptor_pb2.FieldDescriptorProto
_OWN = "google.protobuf."


def message_type(messages: dict[str, str], name: str = "State", package: str = "made") -> type[Message]:
    """Make a message type from field declarations.

    Args:
        messages: name -> fields as in a .proto file, such as ``int64 miles = 2; repeated Leg legs = 3``;
            ``map<string, int64> m = 4``, ``oneof(1) int64 a = 5`` and ``google.protobuf.Timestamp t = 6`` work, too.
        name: of the message type to return.
        package: of all types.
    """
    file = descriptor_pb2.FileDescriptorProto(name="made.proto", package=package, syntax="proto2")
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for text in filter(None, (one.strip() for one in fields.split(";"))):
            _add(made, package, text, set(messages))
    pool = descriptor_pool.DescriptorPool()
    for own in (timestamp_pb2, duration_pb2, struct_pb2, wrappers_pb2) if _OWN in str(messages) else ():
        pool.AddSerializedFile(own.DESCRIPTOR.serialized_pb)
        file.dependency.append(own.DESCRIPTOR.name)
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
    return found


def _add(made: descriptor_pb2.DescriptorProto, package: str, text: str, messages: set[str]) -> None:
    declared, _, number = (part.strip() for part in text.rpartition("="))
    kind, _, name = declared.rpartition(" ")
    field = made.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    word, _, rest = kind.partition(" ")
    if word == "repeated":
        field.label, kind = _Field.LABEL_REPEATED, rest
    elif word == "required":
        field.label, kind = _Field.LABEL_REQUIRED, rest
    elif word.startswith("oneof("):
        field.oneof_index, kind = int(word[6:-1]), rest
        while len(made.oneof_decl) <= field.oneof_index:
            made.oneof_decl.add(name=f"oneof_{len(made.oneof_decl)}")
    if kind.startswith("map<"):
        entry = made.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        for at, (part, what) in enumerate(zip(kind[4:-1].split(","), ("key", "value"), strict=True), 1):
            _add(entry, package, f"{part.strip()} {what} = {at}", messages)
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{made.name}.{entry.name}"
    elif kind in messages or kind.startswith(_OWN):
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}" if kind in messages else f".{kind}"
    elif kind == "enum":
        if not made.enum_type:
            made.enum_type.add(name="Kind").value.add(name="NONE", number=0)
        field.type, field.type_name = _Field.TYPE_ENUM, f".{package}.{made.name}.Kind"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
