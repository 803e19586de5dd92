"""Goal: flows read and publish records with schemas, through crashes and outages of the registry, and a redo gives the same bytes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from sqe_chain.codecs import Codec, Place
from sqe_chain.engines.packing import PackedFlow
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ChangedType, ConfigurationError
from sqe_chain.ext.registry import Avro, ProtobufSchema
from sqe_chain.ext.registry.address import parse_registry
from sqe_chain.ext.registry.avro_types import avro_schema_of
from sqe_chain.ext.registry.client import forget_registries
from sqe_chain.features.noting import CodecNotes
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.protocol.committed import InputProgress, commit_of, noted_in
from sqe_chain.testing import Rehearsal
from tests.support.certificates import Authority
from tests.support.schema_registry import TestRegistry, serving


@dataclass
class Order:
    shop: str
    amount: float = 0.0


@dataclass
class Total:
    shop: str = ""
    amount: float = 0.0


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with serving() as served:
        served.register("orders-value", avro_schema_of(Order))
        served.register("totals-value", avro_schema_of(Total))
        yield served


def add(total: Total, order: Order) -> None:
    total.shop = order.shop
    total.amount += order.amount


def totals(poison: PoisonPolicy = "stop") -> Flow:
    flow = Flow("totals", state_partitions=2, poison=poison)
    orders = flow.source("orders", Avro(Order), raw=True)
    by_shop = orders.aggregate("by-shop", key=lambda order: order.shop, state=Total, fold=add)
    by_shop.changes().to("totals", partitions=1, codec=Avro(Total), carrier="headers")
    return flow


def republisher() -> Flow:
    flow = Flow("copies")
    orders = flow.source("orders", Avro(Order), raw=True)
    orders.map(lambda order: Total(order.shop, order.amount)).to(
        "totals", partitions=1, codec=Avro(Total), carrier="headers"
    )
    return flow


def feed(rehearsal: Rehearsal, registry: TestRegistry, *orders: Order) -> None:
    codec = Avro(Order).at(Place("orders", registry=parse_registry(registry.address)))
    for order in orders:
        rehearsal.feed("orders", codec.encode(order))


def another_process(rehearsal: Rehearsal, flow: Flow, registry: TestRegistry) -> None:
    """Go on without anything that the process had looked up."""
    forget_registries()
    rehearsal.flow = flow.compile().asking(parse_registry(registry.address))
    rehearsal.service = None


def values_in(rehearsal: Rehearsal, topic: str = "totals") -> list[bytes]:
    return [payload for envelope in rehearsal.published(topic) for payload in envelope.payloads if payload]


@pytest.mark.parametrize("declare", [totals, republisher])
def test_records_with_schemas_are_read_and_published(declare: Any, registry: TestRegistry) -> None:
    rehearsal = Rehearsal(declare(), registry=registry.address)
    feed(rehearsal, registry, Order("a", 1.5), Order("b", 2.0))
    rehearsal.run_until_caught_up()
    codec = Avro(Total).at(Place("totals", registry=parse_registry(registry.address)))
    read = sorted((codec.decode(data) for data in values_in(rehearsal)), key=lambda total: total.shop)
    assert read == [Total("a", 1.5), Total("b", 2.0)]
    assert {data[:5] for data in values_in(rehearsal)} == {b"\0\0\0\0\2"}


def test_a_redo_gives_the_ids_of_its_plan_though_the_registry_has_others_now(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(totals(), registry=registry.address)
    feed(rehearsal, registry, Order("a", 1.5))
    rehearsal.run_until_caught_up()
    feed(rehearsal, registry, Order("a", 2.0))
    rehearsal.crash(step=5)
    rehearsal.run_until_crash()
    feed_with_old_ids = values_in(rehearsal)
    another_process(rehearsal, totals(), registry)
    registry.renumber(by=40)
    registry.schemas[1] = registry.schemas[41]  # of the records that are in the topic
    registry.asked.clear()
    rehearsal.run_until_caught_up()
    assert feed_with_old_ids == values_in(rehearsal)[:1]
    assert {data[:5] for data in values_in(rehearsal)} == {b"\0\0\0\0\2"}
    assert not [asked for asked in registry.asked if asked.startswith("POST")], (
        "what is noted is not asked for"
    )


def copies(outputs: int) -> Flow:
    flow = Flow("copies")
    orders = flow.source("orders", Avro(Order), raw=True).map(lambda order: Total(order.shop, order.amount))
    for number in range(outputs):
        orders.to(f"copy-{number}", partitions=1, codec=Avro(Total, subject="record"), carrier="headers")
    return flow


@pytest.mark.parametrize("outputs", [1, 8])
def test_a_flow_without_stages_gives_the_ids_of_its_commits_again(
    outputs: int, registry: TestRegistry
) -> None:
    registry.register("Total", avro_schema_of(Total))
    rehearsal = Rehearsal(copies(outputs), registry=registry.address)
    feed(rehearsal, registry, Order("a", 1.5), Order("b", 1.5))
    rehearsal.crash(step=7)
    rehearsal.run_until_crash()
    published = values_in(rehearsal, "copy-0")
    assert len(published) == 2
    another_process(rehearsal, copies(outputs), registry)
    registry.renumber(by=40)
    registry.schemas[1] = registry.schemas[41]  # of the records that are in the topic
    registry.asked.clear()
    feed(rehearsal, registry, Order("c", 1.5))
    rehearsal.run_until_caught_up()
    assert "POST /subjects/Total" not in registry.asked
    assert {data[:5] for data in values_in(rehearsal, "copy-0")} == {published[0][:5]}


def test_ids_that_do_not_fit_into_a_commit_are_asked_for(registry: TestRegistry) -> None:
    registry.register("Total", avro_schema_of(Total))
    address = registry.address + "/" + "a" * 4_000
    flow = copies(1).compile().asking(parse_registry(address))
    flow.notes.update({f"avro {address}": "1"})
    progress = InputProgress(5, bytes(16), 0, PartitionMarks("orders", bytes(16), 0))
    assert noted_in([commit_of(flow, progress)]) == {}
    assert parse_metadata(commit_of(flow, progress))["marks"]


def test_the_id_is_noted_in_the_plan_before_anything_is_published(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(totals(), registry=registry.address)
    feed(rehearsal, registry, Order("a", 1.5))
    rehearsal.crash(step=5)
    rehearsal.run_until_crash()
    plan = read_last_plan(rehearsal.stores[""], "totals")
    assert plan is not None
    assert [*CodecNotes.of(plan).notes.values()] == [f"2 {registry.schemas[2]['guid']}", "1"], (
        "written, and read"
    )


def test_another_schema_of_the_code_has_another_id(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(totals(), registry=registry.address)
    feed(rehearsal, registry, Order("a", 1.5))
    rehearsal.run_until_caught_up()
    changed = Flow("totals", state_partitions=2)
    by_shop = changed.source("orders", Avro(Order), raw=True).aggregate(
        "by-shop", key=lambda order: order.shop, state=Total, fold=add
    )
    by_shop.changes().to(
        "totals", partitions=1, codec=Avro(Total, namespace="shops", auto_register=True), carrier="headers"
    )
    another_process(rehearsal, changed, registry)
    feed(rehearsal, registry, Order("a", 1.0))
    rehearsal.run_until_caught_up()
    assert [data[:5] for data in values_in(rehearsal)] == [b"\0\0\0\0\2", b"\0\0\0\0\3"]


@dataclass
class WithCurrency:
    shop: str
    currency: str
    amount: float = 0.0


@dataclass
class WithDefault:
    shop: str
    currency: str = "EUR"


def reading(codec: Codec[Any], poison: PoisonPolicy = "stop") -> Flow:
    flow = Flow("totals", state_partitions=2, poison=poison)
    orders = flow.source("orders", codec, raw=True)
    orders.map(lambda order: Order(order.shop)).aggregate(
        "by-shop", key=lambda order: order.shop, state=Total, fold=add
    )
    return flow


@pytest.mark.parametrize("poison", ["stop", "dead_letter"])
@pytest.mark.parametrize("step", [None, 5])
def test_a_class_that_does_not_read_what_was_read_ends_the_start(
    poison: PoisonPolicy, step: int | None, registry: TestRegistry
) -> None:
    """Also after a crash: the batch that is redone has such records."""
    rehearsal = Rehearsal(reading(Avro(Order), poison), registry=registry.address)
    feed(rehearsal, registry, Order("a"), Order("b"))
    if step is None:
        rehearsal.run_until_caught_up()
    else:
        rehearsal.crash(step=step)
        rehearsal.run_until_crash()
    feed(rehearsal, registry, Order("a"))
    another_process(rehearsal, reading(Avro(WithCurrency), poison), registry)
    expected = (
        r"source 'orders': topic 'orders' has records of schema 1, which WithCurrency does not read any more: Object missing required "
        r"field `currency`.*Give a new field a default"
    )
    with pytest.raises(ChangedType, match=expected) as raised:
        rehearsal.run_until_caught_up()
    assert raised.value.topic == "orders"
    assert rehearsal.published("totals.dead-letters") == []
    another_process(rehearsal, reading(Avro(WithDefault), poison), registry)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("by-shop").keys() == {b"a", b"b"}


def test_what_was_met_is_kept_over_batches_and_starts(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(reading(Avro(dict)), registry=registry.address)
    feed(rehearsal, registry, Order("a"))
    flow = Flow("totals", state_partitions=2)
    flow.source("orders", Avro(dict), raw=True).aggregate(
        "by-shop", key=lambda order: order["shop"], state=Total, fold=lambda total, order: None
    )
    newer = registry.register("orders-value", avro_schema_of(WithDefault))
    for feeding in (Order("a"), WithDefault("b"), WithDefault("c")):
        another_process(rehearsal, flow, registry)
        codec = Avro(type(feeding)).at(Place("orders", registry=parse_registry(registry.address)))
        rehearsal.feed("orders", codec.encode(feeding))
        rehearsal.run_until_caught_up()
    plan = read_last_plan(rehearsal.stores[""], "totals")
    assert plan is not None
    assert sorted(CodecNotes.of(plan).notes.values()) == ["1", str(newer)]


def test_what_another_worker_has_met_is_kept(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(reading(Avro(Order)), registry=registry.address)
    feed(rehearsal, registry, Order("a"))
    rehearsal.run_until_caught_up()
    rehearsal.flow.codec_of.clear()  # as in a process that has taken the place of another one
    newer = registry.register("orders-value", avro_schema_of(WithDefault))
    codec = Avro(WithDefault).at(Place("orders", registry=parse_registry(registry.address)))
    rehearsal.feed("orders", codec.encode(WithDefault("b")))
    rehearsal.run_until_caught_up()
    plan = read_last_plan(rehearsal.stores[""], "totals")
    assert plan is not None
    assert sorted(CodecNotes.of(plan).notes.values()) == ["1", str(newer)]


def test_records_that_were_never_read_do_not_end_a_start(registry: TestRegistry) -> None:
    """They may be in the topic for other readers."""
    for _ in range(2):
        rehearsal = Rehearsal(reading(Avro(WithCurrency), "skip"), registry=registry.address)
        feed(rehearsal, registry, Order("a"))
        rehearsal.run_until_caught_up()
        another_process(rehearsal, reading(Avro(WithCurrency), "skip"), registry)
        rehearsal.run_until_caught_up()


def test_a_schema_that_the_registry_has_no_more_ends_no_start(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(reading(Avro(Order)), registry=registry.address)
    feed(rehearsal, registry, Order("a"))
    rehearsal.run_until_caught_up()
    del registry.schemas[1]
    another_process(rehearsal, reading(Avro(WithCurrency)), registry)
    rehearsal.run_until_caught_up()


def test_another_name_of_the_class_is_no_change(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(reading(Avro(Order)), registry=registry.address)
    feed(rehearsal, registry, Order("a"))
    rehearsal.run_until_caught_up()
    another_process(rehearsal, reading(Avro(WithDefault)), registry)
    rehearsal.run_until_caught_up()


def bolt(kind: int) -> Any:
    """A generated class whose one field has a type of protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="bolt.proto", package="plant", syntax="proto3")
    file.message_type.add(name="Bolt").field.add(name="torque", number=1, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Bolt"))


def test_a_message_whose_field_has_another_type_ends_the_start(registry: TestRegistry) -> None:
    """Of protobuf the bytes would be read, as another value."""
    was, now = (bolt(kind) for kind in (FieldDescriptorProto.TYPE_SINT32, FieldDescriptorProto.TYPE_INT32))

    def flow(kind: Any) -> Flow:
        declared = Flow("totals", state_partitions=2)
        bolts = declared.source("bolts", ProtobufSchema(kind), raw=True)
        bolts.map(lambda value: Order(str(value.torque))).aggregate(
            "by-shop", key=lambda order: order.shop, state=Total, fold=add
        )
        return declared

    rehearsal = Rehearsal(flow(was), registry=registry.address)
    codec = ProtobufSchema(was, auto_register=True).at(
        Place("bolts", writes=True, registry=parse_registry(registry.address))
    )
    rehearsal.feed("bolts", codec.encode(was(torque=-7)))
    rehearsal.run_until_caught_up()
    another_process(rehearsal, flow(now), registry)
    with pytest.raises(ChangedType, match=r"field 1 of plant\.Bolt was sint32, now it is int32"):
        rehearsal.run_until_caught_up()


@pytest.mark.parametrize("declare", [totals, republisher])
def test_a_schema_that_is_not_registered_ends_the_start(declare: Any) -> None:
    with serving() as served:
        rehearsal = Rehearsal(declare(), registry=served.address)
        with pytest.raises(
            ConfigurationError, match=r"(?s)output to 'totals': subject 'totals-value'.*schemas register"
        ):
            rehearsal.run_until_caught_up()
        assert not served.schemas


@pytest.mark.parametrize("declare", [totals, republisher])
def test_a_login_that_is_refused_ends_the_start(declare: Any, registry: TestRegistry) -> None:
    registry.login = "ann:secret"
    with pytest.raises(ConfigurationError, match=r"source 'orders': schema registry .*Unauthorized"):
        Rehearsal(declare(), registry=registry.address).run_until_caught_up()
    address = registry.address.replace("//", "//ann:secret@")
    Rehearsal(declare(), registry=address).run_until_caught_up()


OUTAGES: dict[str, tuple[int, Any]] = {
    "too many requests": (429, {"error_code": 429, "message": "slow down"}),
    "an error of its own": (500, {"error_code": 50001, "message": "Error in the backend data store"}),
    "a proxy's page": (502, b"<html>bad gateway</html>"),
    "another server": (404, b"<html>not here</html>"),
    "no JSON": (200, b"<html>please log in</html>"),
    "the login was changed": (401, {"error_code": 40101, "message": "Unauthorized"}),
}


# A login that is wrong from the beginning ends the start.
@pytest.mark.parametrize(
    ("when", "outage"),
    [
        *(("between two batches", outage) for outage in OUTAGES),
        *(("at the start", outage) for outage in OUTAGES if "login was changed" not in outage),
    ],
)
@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_registry_that_does_not_answer_is_waited_for(
    when: str, outage: str, poison: PoisonPolicy, registry: TestRegistry
) -> None:
    """Nothing is skipped meanwhile, though a record cannot be decoded."""
    rehearsal = Rehearsal(totals(poison), registry=registry.address)
    if when == "between two batches":
        rehearsal.run_until_caught_up()
    feed(rehearsal, registry, Order("a", 1.5))
    registry.answer = OUTAGES[outage]

    def repair() -> None:
        if rehearsal.clock.waits == 3:
            registry.answer = None

    rehearsal.clock.while_waiting = repair
    rehearsal.run_until_caught_up()
    assert rehearsal.clock.waits == 3
    assert rehearsal.states("by-shop") == {b"a": Total("a", 1.5)}


def test_a_registry_that_is_away_is_waited_for(registry: TestRegistry) -> None:
    with serving() as second:
        second.schemas, second.subjects = registry.schemas, registry.subjects
    rehearsal = Rehearsal(totals(), registry=second.address)
    feed(rehearsal, registry, Order("a", 1.5))
    back = serving(second)

    def repair() -> None:
        if rehearsal.clock.waits == 2:
            back.__enter__()

    rehearsal.clock.while_waiting = repair
    rehearsal.run_until_caught_up()
    back.__exit__(None, None, None)
    assert rehearsal.states("by-shop") == {b"a": Total("a", 1.5)}


def test_an_unknown_id_is_poison(registry: TestRegistry) -> None:
    rehearsal = Rehearsal(totals("dead_letter"), registry=registry.address)
    feed(rehearsal, registry, Order("a", 1.5))
    rehearsal.feed("orders", b"\0\0\0\0\x63x")
    feed(rehearsal, registry, Order("a", 1.0))
    rehearsal.run_until_caught_up()
    assert rehearsal.states("by-shop") == {b"a": Total("a", 2.5)}
    (letter,) = rehearsal.log.records("totals.dead-letters")
    assert any(
        "schema id 99" in (content or b"").decode(errors="replace") for _, content in letter.headers() or ()
    )


def test_a_worker_has_the_registry_with_its_login(registry: TestRegistry) -> None:
    registry.login = "ann:secret"
    address = parse_registry(registry.address.replace("//", "//ann:secret@"))
    flow = PackedFlow.of(totals().compile().asking(address)).unpack()
    codec = Avro(Order).at(Place("orders", registry=address))
    assert flow.codec_of["orders"].decode(codec.encode(Order("a"))) == Order("a")  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("registry"), "registry")


@pytest.fixture
def guarded(authority: Authority) -> Iterator[TestRegistry]:
    """A registry over TLS that asks its clients for certificates."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("server").both)
    tls.load_verify_locations(authority.certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    with serving(tls=tls) as served:
        served.register("orders-value", avro_schema_of(Order))
        served.register("totals-value", avro_schema_of(Total))
        yield served
    forget_registries()


def test_a_registry_over_tls_takes_a_client_by_its_certificate(
    guarded: TestRegistry, authority: Authority
) -> None:
    own = authority.issue("client")
    address = guarded.address.replace("registry:", "registries:")
    address += f"?ca_file={authority.certificate}&cert_file={own.certificate}&key_file={own.key}"
    rehearsal = Rehearsal(totals(), registry=address)
    rehearsal.feed("orders", Order("a", 1.5))
    rehearsal.run_until_caught_up()
    assert rehearsal.states("by-shop") == {b"a": Total("a", 1.5)}
    assert "GET /schemas/ids/1" in guarded.asked


@pytest.mark.parametrize(("options", "error"), [("", "CERTIFICATE"), ("?ca_file={ca}", "certificate")])
def test_certificates_that_are_refused_end_the_start(
    guarded: TestRegistry, authority: Authority, options: str, error: str
) -> None:
    address = guarded.address.replace("registry:", "registries:") + options.format(ca=authority.certificate)
    rehearsal = Rehearsal(totals(), registry=address)
    with pytest.raises(ConfigurationError, match=f"(?i){error}.*Correct --registry"):
        rehearsal.run_until_caught_up()


def test_a_rehearsal_needs_no_registry() -> None:
    rehearsal = Rehearsal(totals())
    rehearsal.feed("orders", Order("a", 1.5))
    rehearsal.run_until_caught_up()
    assert rehearsal.states("by-shop") == {b"a": Total("a", 1.5)}
    assert rehearsal.published("totals")[0].type == "avro:Total"
