"""Goal: the Avro schema of a class is what Avro's own rules call it; what Avro cannot express is refused with its path."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import fastavro
import msgspec
import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry.avro_types import avro_schema_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    id: str
    amount: float = 0.0
    paid: bool = False
    note: str | None = None
    at: datetime | None = None
    day: date = date(2020, 1, 1)
    raw: bytes = b""
    colour: Colour = Colour.RED
    lines: list[Line] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    first: Line | None = None
    uid: UUID | None = None
    kind: Literal["a", "b"] = "a"
    size: int | None = 3


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


def test_the_fields_of_a_class_become_those_of_a_record() -> None:
    schema = avro_schema_of(Order, "shop")
    types = {known["name"]: known["type"] for known in schema["fields"]}
    defaults = {known["name"]: known["default"] for known in schema["fields"] if "default" in known}
    line = {
        "type": "record",
        "name": "Line",
        "namespace": "shop",
        "fields": [{"name": "article", "type": "string"}, {"name": "count", "type": "long", "default": 1}],
    }
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    assert (schema["type"], schema["name"], schema["namespace"]) == ("record", "Order", "shop")
    assert types == {
        "id": "string",
        "amount": "double",
        "paid": "boolean",
        "note": ["null", "string"],
        "at": ["null", micros],
        "day": {"type": "int", "logicalType": "date"},
        "raw": "bytes",
        "colour": {"type": "enum", "name": "Colour", "namespace": "shop", "symbols": ["red", "blue"]},
        "lines": {"type": "array", "items": line},
        "tags": {"type": "map", "values": "long"},
        "first": ["null", "shop.Line"],
        "uid": ["null", {"type": "string", "logicalType": "uuid"}],
        "kind": "string",
        "size": ["long", "null"],
    }
    assert defaults == {
        "amount": 0.0,
        "paid": False,
        "note": None,
        "at": None,
        "lines": [],
        "tags": {},
        "first": None,
        "uid": None,
        "kind": "a",
        "size": 3,
    }


@pytest.mark.parametrize("python_type", [Order, Tree, Line])
def test_another_library_accepts_the_schema(python_type: type) -> None:
    assert fastavro.parse_schema(json.loads(json.dumps(avro_schema_of(python_type))))
    assert avro_schema_of(python_type) == avro_schema_of(python_type)


def _class(**types: Any) -> type:
    return msgspec.defstruct("Made", [*types.items()])


@pytest.mark.parametrize(
    ("python_type", "expected"),
    [
        (_class(price=Decimal), "Made.price: a decimal has no schema of its own. Give Avro"),
        (_class(any=Any), "Made.any: a any has no schema"),
        (_class(numbers=dict[int, str]), "Made.numbers: keys of a map in Avro are texts"),
        (_class(either=Line | None, other=set[dict[int, int]]), r"Made.other\[...\]: keys of a map"),
        (msgspec.defstruct("Tagged", ["a"], tag=True), "structs with a tag"),
        (msgspec.defstruct("Odd", [("a", int, msgspec.field(name="a-b"))]), "Odd.a-b: a field's name"),
        (int, "made of dataclasses and structs"),
    ],
)
def test_what_avro_cannot_express_is_refused_with_its_path(python_type: type, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        avro_schema_of(python_type)
