"""Goal: a codec knows the topic that it is used for, sees headers if it wants them, and keeps its settings in every process.

The codec of these tests reads as one of a schema registry does: the first byte names a schema of the topic's subject.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import cloudpickle
import msgspec
import pytest

from sqe_chain.codecs import Codec, Place, RecordHeaders, register, registry
from sqe_chain.codecs.json_codec import Json
from sqe_chain.engines.packing import PackedFlow
from sqe_chain.errors import ConfigurationError, FlowError, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal

SCHEMAS = {"one-value": b"1", "two-value": b"2", "out-value": b"9", "other-value": b"7"}
HEADER = "schema"


@dataclass
class Reading:
    robot: str = ""
    screws: int = 0


class Subjects(Codec[Any]):
    """JSON after a byte, the number of the subject's schema; the subject is that of the place."""

    name = "subjects"

    def __init__(self, python_type: type, *, registry: str = "default", subject: str = "") -> None:
        super().__init__(python_type)
        self.registry, self.subject = registry, subject
        self.asked = 0

    def at(self, place: Place) -> Self:
        if place.topic.startswith("_"):
            raise ConfigurationError(f"topic {place.topic!r} has no subject")
        return type(self)(self.python_type, registry=self.registry, subject=f"{place.topic}-{place.role}")

    def schema(self) -> bytes:
        self.asked += 1
        if DOWN:
            raise DOWN.pop()
        return SCHEMAS[self.subject]

    def encode(self, value: Any) -> bytes:
        return self.schema() + msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        if data[:1] != self.schema():
            raise ValueError(f"schema {data[:1]!r} is not of {self.subject}")
        return msgspec.json.decode(data[1:], type=self.python_type)


class InHeaders(Subjects):
    """The number is in a header instead."""

    name = "in-headers"
    wants_headers = True

    def decode_with(self, data: bytes, headers: RecordHeaders) -> Any:
        return super().decode((dict(headers)[HEADER] or b"") + data)


class WithHeader(Subjects):
    """The number is written into a header."""

    name = "with-header"
    writes_headers = True

    def encode(self, value: Any) -> bytes:
        return super().encode(value)[1:]

    def decode_own(self, data: bytes) -> Any:
        return self.decode(self.schema() + data)

    def headers(self) -> RecordHeaders:
        return [(HEADER, self.schema())]


class ByType(Subjects):
    """The codec of `Reading`, wherever none is named."""

    name = "by-type"

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is Reading


class Short(Subjects):
    """Of many payloads it decodes all but the last, as `map` does where a function raises `StopIteration`."""

    name = "short"

    def decode_all(self, payloads: Sequence[bytes]) -> list[Any]:
        return [self.decode(payload) for payload in payloads[:-1]]


DOWN: list[Exception] = []
"""What the next look-ups raise."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    for codec in (Subjects, InHeaders, WithHeader, ByType):
        register(codec)
    yield
    registry._default.cache_clear()


def encoded(robot: str, screws: int) -> bytes:
    return msgspec.json.encode(Reading(robot, screws))


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [lambda codec: pickle.loads(pickle.dumps(codec)), deepcopy])  # noqa: S301 - our own
def test_a_codec_is_created_again_with_what_it_was_given(copy: Any) -> None:
    """And without what it has looked up."""
    codec = Subjects(Reading, registry="here", subject="one-value")
    codec.encode(Reading())
    found = copy(codec)
    assert (found.registry, found.subject, found.python_type, found.asked) == (
        "here",
        "one-value",
        Reading,
        0,
    )
    assert copy(found).registry == "here"
    assert copy(Json(Reading, type_name="shop.Reading")).type_name == "json:shop.Reading"


def test_a_flow_that_was_sent_to_a_worker_has_the_settings_and_asks_for_the_places_there() -> None:
    flow = Flow("placed")
    flow.source(("one", "two"), Reading, codec=InHeaders(Reading, registry="here"), raw=True).to(
        "out", partitions=1, codec=Subjects(Reading, registry="there")
    )
    there = cloudpickle.loads(PackedFlow.of(flow.compile()).blob)[0]
    for topic in ("one", "two"):
        codec = there.codec_of[topic]
        assert (codec.registry, codec.subject) == ("here", f"{topic}-value")
        assert there.codec_of[topic] is codec
    written = there.output_codec[there.outputs[0].index, Reading]
    assert (written.registry, written.subject) == ("there", "out-value")
    assert there.output_codec[there.outputs[0].index, str] is written


# --- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{"codec": Subjects(Reading, registry="there")}, {}], ids=["a codec", "the codec of the type"]
)
def test_each_topic_of_a_source_and_each_output_has_the_codec_of_its_place(how: dict[str, Any]) -> None:
    flow = Flow("placed")
    both = flow.source(("one", "two"), Reading, codec=Subjects(Reading, registry="here"), raw=True)
    both.map(lambda reading: Reading(reading.robot, reading.screws + 1)).to("out", partitions=1, **how)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("one", b"1" + encoded("a", 1))
    rehearsal.feed("two", b"2" + encoded("b", 2))
    rehearsal.feed("two", Reading("c", 3))
    rehearsal.run_until_caught_up()
    found = {payload for envelope in rehearsal.published("out") for payload in envelope.payloads}
    assert found == {b"9" + encoded(robot, number + 2) for number, robot in enumerate("abc")}


def test_a_payload_of_another_topic_is_poison_with_its_place() -> None:
    flow = Flow("placed", poison="skip")
    flow.source(("one", "two"), Reading, codec=Subjects(Reading, registry="here"), raw=True).map(
        lambda reading: reading.robot
    ).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("one", b"2" + encoded("a", 1))
    rehearsal.feed("one", b"1" + encoded("b", 1))
    rehearsal.run_until_caught_up()
    assert [one.payload_as(str) for one in rehearsal.published("out")] == ["b"]


def test_a_codec_that_wants_headers_gets_those_of_each_record() -> None:
    flow = Flow("placed", poison="skip")
    flow.source("one", Reading, codec=InHeaders(Reading, registry="here"), raw=True).map(
        lambda reading: reading.robot
    ).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for number in range(100):  # a block by columns
        rehearsal.feed("one", encoded(f"r{number}", 1), headers=[(HEADER, b"12"[number % 2 :][:1])])
    rehearsal.feed("one", encoded("without", 1))
    rehearsal.run_until_caught_up()
    assert [one.payload_as(str) for one in rehearsal.published("out")] == [f"r{n}" for n in range(0, 100, 2)]


@pytest.mark.parametrize("count", [1, 100], ids=["one by one", "by columns"])
@pytest.mark.parametrize("carrier", ["value", "headers"])
@pytest.mark.parametrize("named", [True, False])
def test_the_headers_of_an_outputs_codec_replace_those_of_the_input(
    *, named: bool, carrier: Any, count: int
) -> None:
    flow = Flow("placed")
    codec: Any = "with-header" if named else WithHeader(Reading, registry="there")
    source = flow.source("one", Reading, codec=InHeaders(Reading, registry="here"), raw=True)
    source.to("out", partitions=1, carrier=carrier, codec=codec)
    source.to("other", partitions=1)
    rehearsal = Rehearsal(flow)
    for number in range(count):
        rehearsal.feed("one", encoded("a", number), headers=[("before", b"x"), (HEADER, b"1")])
    DOWN.extend([Unavailable("no answer")] * 5)
    rehearsal.run_until_caught_up()
    for topic, wanted in (("out", b"9"), ("other", b"1")):
        found = [message.headers() for message in rehearsal.log.records(topic)]
        assert len(found) == count
        for headers in found:
            assert [pair for pair in headers or () if pair[0] in ("before", HEADER)] == [
                ("before", b"x"),
                (HEADER, wanted),
            ]


def test_an_outage_while_the_schema_is_looked_up_is_waited_for() -> None:
    flow = Flow("placed", poison="skip")
    flow.source("one", Reading, codec=InHeaders(Reading, registry="here"), raw=True).to(
        "out", partitions=1, codec=Subjects(Reading, registry="there")
    )
    rehearsal = Rehearsal(flow)
    rehearsal.feed("one", encoded("a", 1), headers=[(HEADER, b"1")])
    DOWN.extend([Unavailable("no answer")] * 3)
    rehearsal.run_until_caught_up()
    assert not DOWN
    assert len(rehearsal.events("waiting")) == 3
    assert [one.payloads[0] for one in rehearsal.published("out")] == [b"9" + encoded("a", 1)]


def test_a_refused_place_stops_the_start_with_the_line_of_the_declaration() -> None:
    codec = Subjects(Reading, registry="here")
    flow = Flow("placed")
    flow.source("_one", Reading, codec=codec, raw=True).to("out", partitions=1, codec=codec)
    with pytest.raises(FlowError, match=r"test_codec_places\.py:\d+: .*'_one'"):
        flow.compile()
    flow = Flow("placed")
    flow.source("one", Reading, codec=codec, raw=True).to("_out", partitions=1, codec=codec)
    with pytest.raises(FlowError, match=r"test_codec_places\.py:\d+: .*'_out'"):
        flow.compile()


def test_a_place_changes_neither_class_nor_type() -> None:
    """Else what was checked of the declared codec would not hold: that its bytes are always the same, for example."""

    class Other(Subjects):
        name = "other"

        def at(self, place: Place) -> Any:
            return Json(self.python_type)

    flow = Flow("placed")
    flow.source("one", Reading, codec=Other(Reading), raw=True).to("out", partitions=1)
    with pytest.raises(FlowError, match=r"codec 'other' gives Json\(Reading\)"):
        flow.compile()


def test_a_codec_that_decodes_fewer_payloads_than_it_gets_loses_none() -> None:
    flow = Flow("short", state_partitions=1)
    flow.source("one", Reading, codec=Short(Reading), raw=True).map(lambda reading: reading).to(
        "out", partitions=1, codec=Subjects(Reading)
    )
    rehearsal = Rehearsal(flow)
    for number in range(30):
        rehearsal.feed("one", b"1" + encoded("a", number))
    rehearsal.run_until_caught_up()
    assert sum(len(envelope.payloads) for envelope in rehearsal.published("out")) == 30
