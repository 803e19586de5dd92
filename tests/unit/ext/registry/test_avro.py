"""Goal: what Confluent's own serializers write is read, and what is written here they read; evolution follows names and defaults.

The oracle is Confluent's serializer and deserializer for Avro, against a registry over HTTP.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.codecs import Place
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry import Avro
from sqe_chain.ext.registry.address import parse_registry
from sqe_chain.ext.registry.avro_types import avro_schema_of
from sqe_chain.ext.registry.schemas import UnknownSchema
from tests.support.schema_registry import TestRegistry, serving


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
    lines: list[Line] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    raw: bytes = b""


class Small(msgspec.Struct):
    id: str
    amount: float = 0.0


orders = st.builds(
    Order,
    st.text(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none() | st.text(),
    st.none()
    | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),  # noqa: DTZ001
    st.lists(st.builds(Line, st.text(), st.integers(-(2**63), 2**63 - 1))),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1)),
    st.binary(),
)
FULL = Order(
    "7",
    2.5,
    paid=True,
    note="ü",
    at=datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    lines=[Line("a", 3)],
    tags={"b": 1, "a": 2},
    raw=b"\0",
)
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with serving() as served:
        yield served


def theirs(registry: TestRegistry, schema: object = None, **conf: Any) -> Any:
    text = json.dumps(avro_schema_of(Order) if schema is None else schema)
    client = SchemaRegistryClient({"url": registry.url})
    return AvroSerializer(
        client, text, lambda value, _: value if isinstance(value, dict) else asdict(value), conf
    )


def ours(registry: TestRegistry, codec: Avro[Any], topic: str = "orders") -> Avro[Any]:
    return codec.at(Place(topic, writes=not codec.can_write(), registry=parse_registry(registry.address)))


def test_what_confluents_serializer_writes_is_read(registry: TestRegistry) -> None:
    write, codec = theirs(registry), ours(registry, Avro(Order))

    @settings(max_examples=100, deadline=None)
    @given(orders)
    def check(order: Order) -> None:
        assert codec.decode(write(order, VALUE)) == order

    check()


def test_confluents_deserializer_reads_what_is_written(registry: TestRegistry) -> None:
    registry.register("orders-value", avro_schema_of(Order))
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}), json.dumps(avro_schema_of(Order)))
    codec = ours(registry, Avro(Order))

    @settings(max_examples=100, deadline=None)
    @given(orders)
    def check(order: Order) -> None:
        data = codec.encode(order)
        assert read(data, VALUE) == asdict(order)
        assert codec.decode(data) == codec.decode_own(data) == codec.copy(order) == order

    check()


def test_equal_values_have_equal_bytes_whatever_the_order_of_their_keys(registry: TestRegistry) -> None:
    registry.register("orders-value", avro_schema_of(Order))
    codec = ours(registry, Avro(Order))
    assert codec.encode(Order("1", tags={"a": 1, "b": 2})) == codec.encode(Order("1", tags={"b": 2, "a": 1}))


def test_a_schema_is_asked_for_once(registry: TestRegistry) -> None:
    write, codec = theirs(registry), ours(registry, Avro(Order))
    data = write(FULL, VALUE)
    registry.asked.clear()
    for _ in range(5):
        assert codec.decode(data) == FULL
    assert registry.asked == ["GET /schemas/ids/1"]


@pytest.mark.parametrize("kind", [Small, Order, dict])
def test_older_and_newer_writers_are_read_by_names_and_defaults(registry: TestRegistry, kind: type) -> None:
    old = {"type": "record", "name": "Old", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
    extra = {"name": "unknown", "type": {"type": "array", "items": "int"}}
    new = {**old, "fields": [extra, {"name": "amount", "type": "float"}, *old["fields"]]}
    first = theirs(registry, old)({"id": "1"}, VALUE)
    second = theirs(registry, new)(
        {"unknown": [1], "amount": 1.5, "id": "2"}, SerializationContext("new", MessageField.VALUE)
    )
    codec = ours(registry, Avro(kind))
    values = [codec.decode(data) for data in (first, second)]
    if kind is dict:
        assert values == [{"id": "1"}, {"unknown": [1], "amount": 1.5, "id": "2"}]
    else:
        assert values == [kind("1"), kind("2", 1.5)]


def test_a_readers_schema_resolves_by_avros_rules(registry: TestRegistry) -> None:
    """Another name by an alias, a wider number, and a default that the class does not have."""
    written = {"type": "record", "name": "O", "fields": [{"name": "nr", "type": "int"}]}
    wanted = {
        "type": "record",
        "name": "O",
        "fields": [
            {"name": "number", "aliases": ["nr"], "type": "double"},
            {"name": "country", "type": "string", "default": "DE"},
        ],
    }
    data = theirs(registry, written)({"nr": 5}, VALUE)
    assert ours(registry, Avro(dict, schema=wanted)).decode(data) == {"number": 5.0, "country": "DE"}


def test_a_missing_field_without_default_is_poison(registry: TestRegistry) -> None:
    data = theirs(registry, {"type": "record", "name": "O", "fields": []})({}, VALUE)
    with pytest.raises(msgspec.ValidationError, match="missing required field `id`"):
        ours(registry, Avro(Order)).decode(data)


def test_referenced_schemas_are_fetched(registry: TestRegistry) -> None:
    money = {
        "type": "record",
        "name": "Money",
        "namespace": "base",
        "fields": [{"name": "cents", "type": "long"}],
    }
    line = {
        "type": "record",
        "name": "Line",
        "namespace": "base",
        "fields": [{"name": "price", "type": "base.Money"}],
    }
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "line", "type": "base.Line"}, {"name": "total", "type": "base.Money"}],
    }
    to_money = {"name": "base.Money", "subject": "money", "version": 1}
    to_line = {"name": "base.Line", "subject": "line", "version": 1}
    registry.register("money", money)
    registry.register("line", line, references=[to_money])
    registry.register("orders-value", order, references=[to_line, to_money])
    named = [("base.Line", "line", 1), ("base.Money", "money", 1)]
    codec = ours(registry, Avro(dict, schema=order, references=named))
    value = {"line": {"price": {"cents": 5}}, "total": {"cents": 7}}
    data = codec.encode(value)
    assert data[:5] == b"\0\0\0\0\3"
    assert ours(registry, Avro(dict)).decode(data) == value
    assert AvroDeserializer(SchemaRegistryClient({"url": registry.url}))(data, VALUE) == value


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("topic", "orders-value"), ("record", "shop.Order"), ("topic-record", "orders-shop.Order")],
)
def test_subjects_are_named_by_topic_or_record(registry: TestRegistry, subject: Any, expected: str) -> None:
    registry.register("another", {"type": "record", "name": "X", "fields": []})
    registry.register(expected, avro_schema_of(Order, "shop"))
    codec = ours(registry, Avro(Order, namespace="shop", subject=subject))
    assert codec.subject() == expected
    assert codec.encode(Order("1"))[:5] == b"\0\0\0\0\2"


def test_a_header_with_a_guid_names_the_schema(registry: TestRegistry) -> None:
    """As Confluent's serializer writes it; and what is written here has the same bytes."""
    headers: Any = []
    context = SerializationContext("orders", MessageField.VALUE, headers)
    write = theirs(registry, **{"schema.id.serializer": header_schema_id_serializer})
    payload = write(FULL, context)
    codec = ours(registry, Avro(Order, framing="header"))
    assert codec.wants_headers
    assert codec.decode_with(payload, headers) == FULL
    assert codec.encode(FULL) == payload or codec.decode_own(codec.encode(FULL)) == FULL
    assert list(codec.headers()) == headers
    assert headers[0][1] == b"\1" + uuid.UUID(registry.schemas[1]["guid"]).bytes
    with pytest.raises(ValueError, match="no header __value_schema_id"):
        codec.decode_with(payload, [])


def test_both_ways_to_name_a_schema_are_read_in_one_topic(registry: TestRegistry) -> None:
    headers: Any = []
    by_prefix = theirs(registry)(FULL, VALUE)
    write = theirs(registry, **{"schema.id.serializer": header_schema_id_serializer})
    by_header = write(FULL, SerializationContext("orders", MessageField.VALUE, headers))
    codec = ours(registry, Avro(Order, framing="either"))
    assert codec.decode_with(by_prefix, []) == codec.decode_with(by_header, headers) == FULL
    assert codec.encode(FULL)[:5] == by_prefix[:5]


def test_a_registry_without_guids_is_refused_where_one_is_written(registry: TestRegistry) -> None:
    registry.guids = False
    try:
        registry.register("orders-value", avro_schema_of(Order))
        with pytest.raises(ConfigurationError, match="has no GUID for subject 'orders-value'"):
            ours(registry, Avro(Order, framing="header")).prepare({})
    finally:
        registry.guids = True


SCHEMA = {
    "type": "record",
    "name": "Times",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "ratio", "type": "float"},
        {"name": "small", "type": "int"},
    ],
}


@dataclass
class Times:
    at: datetime = datetime(2026, 1, 2, 3, 4, 5, 6_000, UTC)
    day: date = date(2026, 1, 2)
    clock: time = time(1, 2, 3)
    price: Decimal = Decimal("12.34")
    uid: UUID = UUID(int=5)  # noqa: RUF009 - it does not change
    ratio: float = 0.1
    small: int = 1


def test_logical_types_become_pythons(registry: TestRegistry, tmp_path: Path) -> None:
    """A float of four bytes keeps the digits that it has."""
    file = tmp_path / "times.avsc"
    file.write_text(json.dumps(SCHEMA))
    codec = ours(registry, Avro(Times, schema=file, auto_register=True))
    read = codec.decode(codec.encode(Times()))
    assert read == Times(ratio=read.ratio)
    assert read.ratio == pytest.approx(0.1)
    assert asdict(read) == AvroDeserializer(SchemaRegistryClient({"url": registry.url}))(
        codec.encode(Times()), VALUE
    )


@pytest.mark.parametrize(
    "value",
    [
        Times(at=datetime(2026, 1, 1)),  # noqa: DTZ001 - the mistake
        Times(at=datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)),
        Times(price=Decimal("1.234")),
        Times(small=2**31),
        Times(small="1"),  # type: ignore[arg-type]
        Times(small=1.5),  # type: ignore[arg-type]
        Order("1"),
    ],
    ids=["no zone", "microseconds", "digits", "large", "text", "fraction", "another class"],
)
def test_a_value_that_would_be_read_as_another_is_refused(registry: TestRegistry, value: Any) -> None:
    codec = ours(registry, Avro(Times, schema=SCHEMA, auto_register=True))
    with pytest.raises(Exception) as raised:  # noqa: PT011 - by Avro's library, or here
        codec.encode(value)
    assert not isinstance(raised.value, ConfigurationError)


@pytest.mark.parametrize(
    "value",
    [{"id": "1"}, {"id": "1", "amount": 1.0, "more": 2}],
    ids=["a field is missing", "one more field"],
)
def test_a_dict_has_the_fields_of_the_schema_and_no_others(
    registry: TestRegistry, value: dict[str, Any]
) -> None:
    codec = ours(registry, Avro(dict, schema=avro_schema_of(Small), auto_register=True))
    with pytest.raises(ValueError, match="would be read back as another record"):
        codec.encode(value)


def test_bytes_after_a_record_are_refused(registry: TestRegistry) -> None:
    data = theirs(registry)(FULL, VALUE)
    with pytest.raises(ValueError, match="1 bytes after an Avro record"):
        ours(registry, Avro(Order)).decode(data + b"\0")
    with pytest.raises(EOFError):
        ours(registry, Avro(Order)).decode(data[:-3])


def test_an_id_that_the_registry_does_not_know_is_an_error_in_the_record(registry: TestRegistry) -> None:
    with pytest.raises(UnknownSchema, match="schema id 99: Schema not found"):
        ours(registry, Avro(Order)).decode(b"\0\0\0\0\x63rest")


def test_a_schema_of_another_kind_is_an_error_in_the_record(registry: TestRegistry) -> None:
    registry.register("x", 'syntax = "proto3"; message X {}', "PROTOBUF")
    with pytest.raises(ValueError, match=r"is of kind PROTOBUF\. Expected AVRO"):
        ours(registry, Avro(Order)).decode(b"\0\0\0\0\1")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Avro(int), r"Avro\(int\). Expected a dataclass, a struct or dict"),
        (lambda: Avro(Order, schema="no json"), "cannot be read"),
        (lambda: Avro(Order, schema='"string"'), "is no record"),
        (lambda: Avro(Order, schema=Path("/no/such.avsc")), "cannot be read"),
        (lambda: Avro(Order, subject="name"), "Expected one of: topic, record, topic-record"),  # type: ignore[arg-type]
        (lambda: Avro(Order, framing="both"), "Expected one of: prefix, header, either"),  # type: ignore[arg-type]
        (lambda: Avro(dict).at(Place("orders", writes=True)), r"Avro\(dict\) has no schema to write by"),
        (lambda: Avro(Order).at(Place("orders")).prepare({}), "Give --registry registry://HOST:PORT"),
    ],
)
def test_what_cannot_work_is_refused_by_name(make: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        make()
