"""Goal: JSON with a schema is read and written with its id, and checked by the schema on request.

The oracles are Python's own json for bytes, and another validator for schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from sqe_chain.codecs import Place
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry import JsonSchema
from sqe_chain.ext.registry.address import parse_registry
from tests.support.schema_registry import TestRegistry, serving

GUID = b"\x89\x79\x17\x62\x23\x36\x41\x86\x96\x74\x29\x9b\x90\xa8\x00\x01"


@dataclass
class Order:
    shop: str
    amount: float = 0.0
    tags: list[str] = field(default_factory=list)


SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"shop": {"type": "string", "minLength": 2}, "amount": {"type": "number", "minimum": 0}},
    "required": ["shop"],
}


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with serving() as served:
        yield served


def ours(registry: TestRegistry, codec: JsonSchema[Any], *, writes: bool = True) -> JsonSchema[Any]:
    return codec.at(Place("orders", writes=writes, registry=parse_registry(registry.address)))


def test_a_record_is_an_id_and_json(registry: TestRegistry) -> None:
    codec = ours(registry, JsonSchema(Order, auto_register=True))
    data = codec.encode(Order("Ulm", 1.5, ["a"]))
    assert data[:5] == b"\0\0\0\0\1"
    assert json.loads(data[5:]) == {"shop": "Ulm", "amount": 1.5, "tags": ["a"]}
    assert codec.decode(data) == codec.decode_own(data) == Order("Ulm", 1.5, ["a"])
    assert registry.schemas[1]["schemaType"] == "JSON"
    assert jsonschema_rs.is_valid(json.loads(registry.schemas[1]["schema"]), json.loads(data[5:]))
    assert not jsonschema_rs.is_valid(json.loads(registry.schemas[1]["schema"]), {"amount": "x"})


@pytest.mark.parametrize("kind", [Order, dict])
def test_records_of_others_are_read(registry: TestRegistry, kind: type) -> None:
    registry.register("orders-value", SCHEMA, "JSON")
    read = ours(registry, JsonSchema(kind), writes=False).decode(b'\0\0\0\0\1{"shop": "Ulm", "amount": 2}')
    assert read == (Order("Ulm", 2.0) if kind is Order else {"shop": "Ulm", "amount": 2})


@pytest.mark.parametrize(
    "value",
    [
        {"shop": "Ulm"},
        {"shop": "U"},
        {"shop": "Ulm", "amount": -1},
        {"amount": 1},
        {"shop": "Ulm", "more": 1},
    ],
)
def test_validation_agrees_with_another_validator(registry: TestRegistry, value: dict[str, Any]) -> None:
    registry.register("orders-value", SCHEMA, "JSON")
    data = b"\0\0\0\0\1" + json.dumps(value).encode()
    checked = ours(registry, JsonSchema(dict, schema=SCHEMA, validate=True))
    if jsonschema_rs.is_valid(SCHEMA, value):
        assert checked.decode(data) == value
        assert json.loads(checked.write(value)) == value
    else:
        for work in (lambda: checked.decode(data), lambda: checked.write(value)):
            with pytest.raises(ValueError, match="is not what its JSON Schema allows: rule"):
                work()
    assert ours(registry, JsonSchema(dict), writes=False).decode(data) == value, "only on request"


def test_types_are_checked_in_any_case(registry: TestRegistry) -> None:
    registry.register("orders-value", SCHEMA, "JSON")
    with pytest.raises(msgspec.ValidationError):
        ours(registry, JsonSchema(Order)).decode(b'\0\0\0\0\1{"shop": 5}')


def test_a_guid_names_the_schema_in_a_header(registry: TestRegistry) -> None:
    codec = ours(registry, JsonSchema(Order, framing="header", auto_register=True))
    data, headers = codec.encode(Order("Ulm")), codec.headers()
    assert json.loads(data) == {"shop": "Ulm", "amount": 0.0, "tags": []}
    assert list(headers) == [("__value_schema_id", b"\1" + GUID)]
    assert codec.decode_with(data, headers) == Order("Ulm")


def test_a_subject_is_named_by_the_title(registry: TestRegistry) -> None:
    codec = ours(registry, JsonSchema(dict, schema=SCHEMA, subject="topic-record"))
    assert codec.subject() == "orders-Order"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: JsonSchema(dict).at(Place("x", writes=True)), "has no schema to write by"),
        (lambda: JsonSchema(dict, schema="no json"), "cannot be read"),
        (lambda: JsonSchema(dict, schema="[]"), "is no schema"),
        (lambda: JsonSchema(dict, schema=Path("/no/such.json")), "cannot be read"),
        (
            lambda: JsonSchema(dict, schema=SCHEMA, validate=True, references=[("a", "b", 1)]),
            "Expected one without references",
        ),
    ],
    ids=["no schema", "no JSON", "no object", "no file", "references"],
)
def test_what_cannot_work_is_refused_by_name(make: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        make()
