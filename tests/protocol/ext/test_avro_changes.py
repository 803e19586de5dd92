"""Goal: change events in Avro count as those in JSON do, through crashes and outages of the registry, and columns keep their values.

Method: a naive database; Confluent's own serializer writes its events as Debezium's do; the service dies after each of its writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Flow
from sqe_chain.codecs import Codec, Place
from sqe_chain.codecs.debezium import EventCodec
from sqe_chain.errors import FlowError, PoisonError, Unavailable
from sqe_chain.ext.registry import Avro, JsonSchema, ProtobufSchema
from sqe_chain.ext.registry.address import parse_registry
from sqe_chain.ext.registry.client import forget_registries
from sqe_chain.ext.registry.schemas import UnknownSchema
from sqe_chain.flow import Change
from sqe_chain.testing import Rehearsal
from tests.support.databases import Row, world
from tests.support.schema_registry import TestRegistry, serving
from tests.support.spent import TOPIC, Order, Spent, add, customer_of, spent
from tests.support.suites import points

KEY = {"type": "record", "name": "Key", "namespace": TOPIC, "fields": [{"name": "id", "type": "int"}]}
SOURCE = {"connector": "postgresql", "ts_ms": 5, "snapshot": "false", "sequence": '["70","90"]', "lsn": 90}
ORDER = [
    {"name": "id", "type": "int"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "int"},
]


def envelope(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a table's events, as the converters of Confluent and Apicurio derive it."""
    row = {"type": "record", "name": "Value", "fields": columns}
    optional = [
        {"name": name, "type": ["null", of], "default": None}
        for name, of in (("snapshot", "string"), ("sequence", "string"), ("lsn", "long"), ("txId", "long"))
    ]
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            *({"name": name, "type": "string"} for name in ("connector", "version")),
            {"name": "ts_ms", "type": "long"},
            *optional,
        ],
    }
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": "Envelope", "namespace": TOPIC, "fields": fields}


class Converter:
    """Writes keys and events as Debezium's converters do."""

    def __init__(self, registry: TestRegistry, columns: list[dict[str, Any]]) -> None:
        client = SchemaRegistryClient({"url": registry.url})
        self._key = AvroSerializer(client, json.dumps(KEY))
        self._value = AvroSerializer(client, json.dumps(envelope(columns)))

    def record(self, key: dict[str, Any], event: dict[str, Any]) -> tuple[bytes, bytes]:
        event = event | {"source": {"version": "3.6.1.Final"} | event["source"]}
        return (
            self._key(key, SerializationContext(TOPIC, MessageField.KEY)),
            self._value(event, SerializationContext(TOPIC, MessageField.VALUE)),
        )


def sums(codec: Any) -> Flow:
    flow = Flow("sums", state_partitions=2)
    orders = flow.changes_of(TOPIC, Order, key="id", codec=codec)
    orders.deltas().aggregate("spent", key=customer_of, state=Spent, fold=add)
    return flow


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with serving() as served:
        yield served
    forget_registries()


def reader(registry: TestRegistry) -> Codec[Any]:
    codec = EventCodec(Avro(dict), ("id",))
    return codec.at(Place(TOPIC, registry=parse_registry(registry.address)))


def inserted(row: Row | None, **source: Any) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": row, "source": SOURCE | source}


def test_sums_are_those_of_a_query_wherever_the_service_dies(registry: TestRegistry) -> None:
    database, connector = world(4)
    convert = Converter(registry, ORDER)
    events = [[json.loads(part) for part in record] for record in connector.topic]
    records = [convert.record(*(part.get("payload", part) for part in event)) for event in events]
    crashes = 0
    for write in points("changes in Avro"):
        flow = sums(Avro(dict, registry=registry.address))
        service = Rehearsal(flow, partitions={TOPIC: 3}, max_rows_per_write=2)
        for key, value in records:
            service.feed(TOPIC, value, key=key)
            service.feed(TOPIC, None, key=key)  # a tombstone
        service.crash_at_write(write, "after")
        service.run_until_caught_up()
        assert spent(service) == database.total()
        crashes += service.crashes
        if not service.crashes:
            break
    assert crashes


def test_columns_keep_their_values(registry: TestRegistry) -> None:
    logical = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": "int"},
        {"name": "price", "type": logical},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "share", "type": ["null", "double"]},
        {"name": "big", "type": "long"},
    ]
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    @dataclass
    class Item:
        id: int
        price: Decimal
        raw: bytes
        at: datetime
        share: float | None
        big: int

    taken: list[Item | None] = []

    def take(change: Change[Item]) -> str:
        taken.append(change.after)
        return ""

    flow = Flow("items")
    changes = flow.changes_of(TOPIC, Item, key="id", codec=Avro(dict, registry=registry.address))
    changes.map(take).to("out", partitions=1)
    convert, service = Converter(registry, columns), Rehearsal(flow)
    row = {"id": 1, "price": Decimal("12.30"), "raw": b"\0\xff", "at": at, "share": None, "big": 2**62}
    key, value = convert.record({"id": 1}, inserted(row))
    service.feed(TOPIC, value, key=key)
    service.run_until_caught_up()
    assert taken[-1] == Item(1, Decimal("12.30"), b"\0\xff", at, None, 2**62)
    # JSON has no such number, and null is another value.
    key, value = convert.record({"id": 1}, inserted(row | {"share": float("nan")}))
    service.feed(TOPIC, value, key=key)
    with pytest.raises(PoisonError, match="NaN"):
        service.run_until_caught_up()


def test_a_large_column_that_was_not_changed_is_taken_from_the_row_before(registry: TestRegistry) -> None:
    columns = [{"name": "id", "type": "int"}, {"name": "n", "type": "int"}, {"name": "raw", "type": "bytes"}]
    convert, rows = Converter(registry, columns), list[Any]()

    def take(change: Change[dict[str, Any]]) -> str:
        rows.append(change.after)
        return ""

    flow = Flow("items")
    changes = flow.changes_of(TOPIC, dict, key="id", codec=Avro(dict, registry=registry.address))
    changes.map(take).to("out", partitions=1)
    service = Rehearsal(flow)
    lacking = {"id": 1, "n": 2, "raw": b"__debezium_unavailable_value"}
    update = inserted(lacking, sequence='["70","100"]') | {"op": "u"}
    for event in (inserted({"id": 1, "n": 1, "raw": b"large"}), update):
        key, value = convert.record({"id": 1}, event)
        service.feed(TOPIC, value, key=key)
    service.run_until_caught_up()
    assert rows[-1] == {"id": 1, "n": 2, "raw": "bGFyZ2U="}


def test_a_registry_without_an_answer_is_an_outage_and_an_unknown_schema_is_not(
    registry: TestRegistry,
) -> None:
    key, value = Converter(registry, ORDER).record(
        {"id": 1}, inserted({"id": 1, "customer": "ann", "amount": 3})
    )
    registry.answer = 503, {"error_code": 50301, "message": "not now"}
    with pytest.raises(Unavailable):
        reader(registry).decode_keyed(value, key)
    registry.answer = None
    assert reader(registry).decode_keyed(value, key).key == "1"
    for damaged in ((b"\0\0\0\1\0" + value[5:], key), (value, b"\0\0\0\1\0" + key[5:])):
        with pytest.raises(UnknownSchema):
            reader(registry).decode_keyed(*damaged)


@pytest.mark.parametrize("which", ["value", "key"])
def test_json_is_refused_where_avro_is_declared(registry: TestRegistry, which: str) -> None:
    key, value = Converter(registry, ORDER).record(
        {"id": 1}, inserted({"id": 1, "customer": "ann", "amount": 3})
    )
    given = {"value": value, "key": key} | {which: b'{"id": 1}'}
    with pytest.raises(ValueError, match="Expected byte 0 and the id of a schema"):
        reader(registry).decode_keyed(given["value"], given["key"])


def test_a_record_without_key_is_refused_by_name(registry: TestRegistry) -> None:
    _, value = Converter(registry, ORDER).record(
        {"id": 1}, inserted({"id": 1, "customer": "ann", "amount": 3})
    )
    with pytest.raises(PoisonError, match="has no primary key"):
        reader(registry).decode_keyed(value, None)


@pytest.mark.parametrize(
    "codec",
    [
        Avro(Order),
        Avro(dict, framing="header"),
        Avro(dict, schema=KEY),
        JsonSchema(Order),
        ProtobufSchema(StringValue),
    ],
)
def test_codecs_that_cannot_read_events_are_refused_where_they_are_declared(codec: Any) -> None:
    with pytest.raises(FlowError, match=r"Give codec=Avro\(dict\)"):
        sums(codec)


def test_avro_where_json_is_declared_names_what_to_declare(registry: TestRegistry) -> None:
    key, value = Converter(registry, ORDER).record(
        {"id": 1}, inserted({"id": 1, "customer": "ann", "amount": 3})
    )
    service = Rehearsal(sums(None))
    service.feed(TOPIC, value, key=key)
    with pytest.raises(PoisonError, match=r"Give changes_of codec=Avro\(dict\)"):
        service.run_until_caught_up()
