"""Goal: the codecs work with a real registry, Apicurio: ids, references, rules of compatibility, restarts and outages.

Its program has 159 MB and needs Java 25, so `make test-all` runs this, and `make test` a small server with the same API.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from sqe_chain.codecs import Place
from sqe_chain.errors import ChangedType, ConfigurationError, Unavailable
from sqe_chain.ext.dev import ApicurioServer
from sqe_chain.ext.dev.apicurio import newest_java
from sqe_chain.ext.registry import Avro, JsonSchema, ProtobufSchema
from sqe_chain.ext.registry.address import parse_registry
from sqe_chain.ext.registry.client import forget_registries
from sqe_chain.ext.registry.codec import RegistryCodec
from sqe_chain.ext.registry.schemas import Incompatible, UnknownSchema
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "base",
    "fields": [{"name": "cents", "type": "long"}],
}


@dataclass
class Order:
    shop: str
    amount: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass
class Total:
    shop: str = ""
    amount: float = 0.0


@pytest.fixture(scope="module")
def server() -> Iterator[ApicurioServer]:
    try:
        newest_java()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with ApicurioServer() as started:
        yield started


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    forget_registries()


def at(server: ApicurioServer, codec: RegistryCodec[Any], topic: str) -> RegistryCodec[Any]:
    writes = not codec.can_write()
    return codec.at(Place(topic, writes=writes, registry=parse_registry(server.url)))


@pytest.fixture
def client(server: ApicurioServer) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": parse_registry(server.url).url}) as opened:
        yield opened


def test_avro_is_registered_written_and_read_by_both_sides(
    server: ApicurioServer, client: SchemaRegistryClient
) -> None:
    codec, value = at(server, Avro(Order), "avro"), Order("ü", 1.5, ["a"])
    with pytest.raises(ConfigurationError, match="subject 'avro-value' does not have the schema"):
        codec.prepare({})
    assert codec.why_incompatible() == ""
    number = codec.register().number
    assert codec.register().number == codec.registered().number == number
    data, where = codec.encode(value), SerializationContext("avro", MessageField.VALUE)
    assert data[:5] == b"\0" + number.to_bytes(4, "big")
    assert AvroDeserializer(client)(data, where) == asdict(value)
    theirs = AvroSerializer(client, codec.written_schema().text, lambda order, _: asdict(order))(value, where)
    assert codec.decode(theirs or b"") == codec.decode(data) == value


def test_its_rule_of_compatibility_is_asked(server: ApicurioServer, client: SchemaRegistryClient) -> None:
    at(server, Avro(Order), "rules").register()
    client.set_compatibility("rules-value", "BACKWARD")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "shop", "type": "int"}]}
    changed = at(server, Avro(dict, schema=schema), "rules")
    assert "rule of compatibility" in changed.why_incompatible()
    with pytest.raises(Incompatible, match="rules-value"):
        changed.register()
    assert at(server, Avro(Total, schema={**schema, "fields": []}), "rules").why_incompatible() == ""


@dataclass
class InCents:
    shop: str
    amount: int = 0


def test_a_class_that_does_not_read_what_was_read_ends_the_start(server: ApicurioServer) -> None:
    def flow(python_type: type[Any]) -> Flow:
        declared = Flow("changed", state_partitions=1)
        orders = declared.source("changed-orders", Avro[Any](python_type), raw=True)
        orders.map(lambda order: Total(order.shop)).aggregate(
            "shops", key=lambda total: total.shop, state=Total, fold=lambda state, total: None
        )
        return declared

    writer = at(server, Avro(Order, auto_register=True), "changed-orders")
    rehearsal = Rehearsal(flow(Order), registry=server.url)
    rehearsal.feed("changed-orders", writer.encode(Order("Ulm", 1.5)))
    rehearsal.run_until_caught_up()
    forget_registries()
    rehearsal.flow, rehearsal.service = flow(InCents).compile().asking(parse_registry(server.url)), None
    with pytest.raises(ChangedType, match=r"InCents does not read any more: Expected `int`, got `float`"):
        rehearsal.run_until_caught_up()
    rehearsal.flow = flow(Total).compile().asking(parse_registry(server.url))
    rehearsal.run_until_caught_up()


def test_references_are_fetched(server: ApicurioServer) -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "base.Money"}]}
    at(server, Avro(dict, schema=MONEY), "money").register()
    named = [("base.Money", "money-value", 1)]
    codec = at(server, Avro(dict, schema=order, references=named, auto_register=True), "refs")
    data = codec.encode({"total": {"cents": 5}})
    assert at(server, Avro(dict), "refs").decode(data) == {"total": {"cents": 5}}


def slot() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="plant.proto", package="plant", syntax="proto3")
    file.message_type.add(name="Part").nested_type.add(name="Slot").field.add(
        name="width", number=1, type=5, label=1
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Part.Slot"))


def test_protobuf_is_written_as_by_confluents_serializer(
    server: ApicurioServer, client: SchemaRegistryClient
) -> None:
    kind = slot()
    codec = at(server, ProtobufSchema(kind, auto_register=True), "slots")
    theirs = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
    data = theirs(kind(width=3), SerializationContext("slots", MessageField.VALUE))
    assert codec.encode(kind(width=3)) == data
    assert codec.decode(data or b"") == kind(width=3)


def test_json_schemas_of_classes_are_taken(server: ApicurioServer) -> None:
    codec = at(server, JsonSchema(Order, validate=True, auto_register=True), "json")
    assert codec.decode(codec.encode(Order("Ulm"))) == Order("Ulm")
    with pytest.raises(ValueError, match="is not what its JSON Schema allows"):
        codec.decode(codec.encode(Order("Ulm"))[:5] + b'{"shop": 5}')


def test_what_it_does_not_know_is_an_error_in_the_record(server: ApicurioServer) -> None:
    with pytest.raises(UnknownSchema):
        at(server, Avro(Order), "unknown").decode(b"\0\0\x0f\xff\xff.")


def test_ids_are_the_same_after_a_restart_and_outages_are_waited_for(
    server: ApicurioServer, tmp_path: Path
) -> None:
    del tmp_path
    flow = Flow("totals", state_partitions=1)
    orders = flow.source("in", Avro(Order), raw=True)
    orders.map(lambda order: Total(order.shop, order.amount)).to(
        "out", partitions=1, codec=Avro(Total), carrier="headers"
    )
    at(server, Avro(Total), "out").register()
    codec = at(server, Avro(Order, auto_register=True), "in")
    data = codec.encode(Order("Ulm", 1.0))
    server.stop()
    forget_registries()
    with pytest.raises(Unavailable):
        at(server, Avro(Order), "in").decode(data)
    rehearsal = Rehearsal(flow, registry=server.url)
    rehearsal.feed("in", data)

    def repair() -> None:
        if rehearsal.clock.waits == 1:
            server.start()

    rehearsal.clock.while_waiting = repair
    rehearsal.run_until_caught_up()
    (envelope,) = rehearsal.published("out")
    assert at(server, Avro(Total), "out").decode(envelope.payloads[0] or b"") == Total("Ulm", 1.0)
