"""Goal: flows of JSON are as exact as those of protobuf, and what cannot be encoded is refused by name before it is stored.

Method: the same flow over each kind of payload and state, without a shuffle and with one, with a crash at every step. Then values
without a codec, states that would not come back, and states of a type that has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow, wrap
from sqe_chain.codecs import Codec
from sqe_chain.errors import ChangedType, FlowError, PoisonError
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.testing import Rehearsal


class Fastening(msgspec.Struct):
    robot: str
    line: str
    screws: int


class Total(msgspec.Struct):
    events: int = 0
    screws: int = 0


@dataclass
class FasteningData:
    robot: str
    line: str
    screws: int


@dataclass
class TotalData:
    events: int = 0
    screws: int = 0


def robot(fastening: Any) -> str:
    return str(fastening["robot"] if isinstance(fastening, dict) else fastening.robot)


def line(fastening: Any) -> str:
    return str(fastening["line"] if isinstance(fastening, dict) else fastening.line)


def screws_of(fastening: Any) -> int:
    return int(fastening["screws"] if isinstance(fastening, dict) else fastening.screws)


def add(total: Any, fastening: Any) -> Iterator[Any]:
    if isinstance(total, dict):
        total["events"] = total.get("events", 0) + 1
        total["screws"] = total.get("screws", 0) + screws_of(fastening)
    else:
        total.events += 1
        total.screws += screws_of(fastening)
    yield fastening


def flow_of(payload: Any, state: Any, *, raw: bool, **settings: Any) -> Flow:
    flow = Flow("fastening", state_partitions=3, **settings)
    per_robot = (
        flow.source("raw", payload, codec="json", raw=raw)
        .filter(lambda found: screws_of(found) > 0)
        .aggregate("per-robot", key=robot, state=state, fold=add)
    )
    per_robot.changes().to("robots", partitions=2)
    per_robot.aggregate("per-line", key=line, state=state, fold=add).to("lines", partitions=1)
    return flow


KINDS: dict[str, tuple[Any, Any]] = {
    "structs": (Fastening, Total),
    "dataclasses": (FasteningData, TotalData),
    "dicts": (dict, dict),
    "structs into dicts": (Fastening, dict),
}


def fastening(number: int) -> dict[str, object]:
    return {"robot": f"r{number % 5}", "line": f"l{number % 2}", "screws": number % 4}


def as_dict(state: Any) -> Any:
    return msgspec.to_builtins(state)


def expected(group: Callable[[dict[str, Any]], str], count: int) -> dict[bytes, dict[str, int]]:
    totals: dict[bytes, dict[str, int]] = {}
    for found in map(fastening, range(count)):
        if found["screws"]:
            total = totals.setdefault(group(found).encode(), {"events": 0, "screws": 0})
            total["events"] += 1
            total["screws"] += int(str(found["screws"]))
    return totals


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "enveloped"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in-place", "shuffled"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flow_is_exact_through_crashes(kind: str, *, in_place: bool, raw: bool) -> None:
    payload, state = KINDS[kind]
    rehearsal = Rehearsal(
        flow_of(payload, state, raw=raw),
        partitions={"raw": 3},
        settings=Settings(in_place=in_place, max_records=10),
    )
    for number in range(60):
        found = fastening(number)
        value = json.dumps(found).encode() if raw else msgspec.convert(found, payload)
        rehearsal.feed("raw", value, key=str(found["robot"]), timestamp_ms=number)
    for step in (2, 4, 5, 6, 7):
        for when in ("before", "after"):
            rehearsal.crash(step=step, when=when)
            rehearsal.run_until_crash()
    rehearsal.run_until_caught_up()
    assert rehearsal.crashes == 10
    for stage, group in (("per-robot", robot), ("per-line", line)):
        stored = {key: as_dict(total) for key, total in rehearsal.states(stage).items()}
        assert stored == expected(group, 60)
    names = {envelope.type for envelope in rehearsal.published("robots")}
    assert names == {"json:" if state is dict else f"json:{state.__name__}"}
    newest = {envelope.key: as_dict(envelope.payload_as(state)) for envelope in rehearsal.published("robots")}
    assert newest == expected(robot, 60)


def test_messages_grow_fields_and_are_read_on() -> None:
    rehearsal = Rehearsal(flow_of(Fastening, Total, raw=True))
    rehearsal.feed("raw", b'{"robot": "r", "line": "l", "screws": 3, "torque": 1.5}')
    rehearsal.run_until_caught_up()
    assert rehearsal.states("per-robot") == {b"r": Total(1, 3)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"no json", "JSON is malformed"),
        (b'{"robot": "r", "screws": 3}', "missing required field `line`"),
        (b'{"robot": "r", "line": "l", "screws": "3"}', r"Expected `int`, got `str` - at `\$.screws`"),
    ],
)
def test_a_message_that_is_none_is_poison(value: bytes, text: str) -> None:
    rehearsal = Rehearsal(flow_of(Fastening, Total, raw=True))
    rehearsal.feed("raw", value)
    with pytest.raises(PoisonError, match=text):
        rehearsal.run_until_caught_up()


def test_a_dead_letter_record_of_raw_json_is_sent_back_with_the_name_of_its_type() -> None:
    broken = {"r0"}

    def check(found: Fastening) -> Fastening:
        if found.robot in broken:
            raise ValueError(found.robot)
        return found

    flow = Flow("checked", poison="dead_letter", state_partitions=2)
    flow.source("raw", Fastening, raw=True).map(check).aggregate(
        "per-robot", key=robot, state=Total, fold=add
    )
    rehearsal = Rehearsal(flow)
    for number in range(8):
        rehearsal.feed("raw", json.dumps(fastening(number)).encode())
    rehearsal.run_until_caught_up()
    assert [
        parse_dead_letter(record) is not None for record in rehearsal.log.records("checked.dead-letters")
    ] == [
        True,
        True,
    ]


def word(value: Any) -> Any:
    return {1, 2}


def numbered(value: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("function", "kind"), [(word, "set"), (numbered, "NoneType")], ids=["no codec", "nothing"]
)
@pytest.mark.parametrize("into", ["output", "stage"])
def test_a_value_without_a_codec_names_function_line_and_type(function: Any, kind: str, into: str) -> None:
    flow = Flow("values", poison="stop")
    stream = flow.source("raw", dict, raw=True).map(function).filter(lambda _: True)
    if into == "output":
        stream.to("out", partitions=1)
    else:
        stream.aggregate("all", key=lambda _: "k", state=dict, fold=add)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("raw", b"{}")
    line_number = function.__code__.co_firstlineno
    text = rf"got a {kind} from map {function.__name__} at .*test_payloads.py:{line_number}: there is no codec for {kind}"
    with pytest.raises(PoisonError, match=text):
        rehearsal.run_until_caught_up()
    assert not rehearsal.log.records("out") if into == "output" else not rehearsal.states("all")


class Measured(msgspec.Struct):
    highest: float = 0.0


def keep(state: Any, value: Any) -> None:
    """Folds of users that go wrong: types are not checked when a field is set."""
    if isinstance(state, dict):
        state[value["key"]] = value["value"]
    else:
        state.highest = value["value"]


BAD = [
    (Measured, {"value": "3"}, r"Expected `float`, got `str`"),
    (dict, {"key": 3, "value": 1}, "str keys"),
]


@pytest.mark.parametrize(("state", "bad", "text"), BAD, ids=["text for number", "number as key"])
@pytest.mark.parametrize("poison", ["stop", "dead_letter", "skip"])
def test_a_state_that_would_not_come_back_is_never_stored(
    state: Any, bad: Any, text: str, poison: Any
) -> None:
    good = {"key": "a", "value": 1.5}
    flow = Flow("measured", poison=poison, state_partitions=2)
    flow.source("raw", dict, raw=True).aggregate("all", key=lambda _: "k", state=state, fold=keep)
    rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    for value in (good, bad) if poison == "stop" else (good, bad, good):
        rehearsal.feed("raw", json.dumps(value).encode())
    if poison == "stop":
        with pytest.raises(PoisonError, match=text) as caught:
            rehearsal.run_until_caught_up()
        assert "stage 'all': fold keep at" in str(caught.value)
        assert "state of key b'k'" in str(caught.value)
        assert rehearsal.states("all") == {}
        return
    rehearsal.run_until_caught_up()
    assert rehearsal.states("all") == {b"k": Measured(1.5) if state is Measured else {"a": 1.5}}
    if poison == "dead_letter":
        (record,) = rehearsal.log.records("measured.dead-letters")
        assert json.loads(record.value() or b"") == bad


def test_a_window_keeps_what_comes_back_and_nothing_else() -> None:
    flow = Flow("windows", poison="skip", state_partitions=2)
    windows = flow.source("raw", dict, raw=True).windowed(
        "hours", Tumbling(size_ms=10), key=lambda _: "k", state=Measured, fold=keep
    )
    windows.map(lambda result: result.state).to("out", partitions=1)
    rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    for at_ms, value in enumerate((1.5, "3", 2.5)):
        rehearsal.feed("raw", json.dumps({"value": value}).encode(), timestamp_ms=at_ms)
    rehearsal.run_until_caught_up()
    assert [result.state for result in rehearsal.windows("hours")] == [Measured(2.5)]
    rehearsal.feed("raw", json.dumps({"value": 9.5}).encode(), timestamp_ms=10)
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(Measured) for envelope in rehearsal.published("out")] == [Measured(2.5)]


class Wider(msgspec.Struct):
    events: int = 0
    screws: float = 0
    highest: int = 0


class Narrower(msgspec.Struct):
    events: int = 0
    screws: bool = False


class Renamed(msgspec.Struct):
    count: int = 0
    screws: int = 0


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (Wider, ""),
        (Narrower, "field 'screws' was int, now it is bool"),
        (Renamed, "field 'events' is gone and field 'count' is new"),
        (Int64Value, "it was json:Total, now it is the protobuf type google.protobuf.Int64Value"),
    ],
)
def test_a_state_of_a_changed_type_is_read_rightly_or_not_at_all(now: type[Any], text: str) -> None:
    before = Rehearsal(flow_of(Fastening, Total, raw=True))
    before.feed("raw", json.dumps(fastening(3)).encode())
    before.run_until_caught_up()
    after = Rehearsal(flow_of(Fastening, now, raw=True), log=before.log, store=before.stores[""])
    if text:
        with pytest.raises(ChangedType, match=text):
            after.run_until_caught_up()
    else:
        after.run_until_caught_up()
        assert after.states("per-robot") == {b"r3": Wider(1, 3, 0)}


class Unsteady(Codec[Total]):
    """A codec whose bytes are never the same."""

    name = "unsteady"
    deterministic = False

    def encode(self, value: Total) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes) -> Total:
        return Total(len(data))


def test_a_codec_that_is_not_deterministic_may_read_and_nothing_else() -> None:
    flow = Flow("unsteady")
    stream = flow.source("raw", Total, codec=Unsteady(Total), raw=True)
    with pytest.raises(FlowError, match="does not give the same bytes"):
        stream.aggregate("all", key=lambda _: "k", state=Total, fold=add, codec=Unsteady(Total))
    with pytest.raises(FlowError, match="does not always give the same bytes"):
        stream.to("out", partitions=1, codec=Unsteady(Total))
    stream.to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("raw", b"123")
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(Total) for envelope in rehearsal.published("out")] == [Total(3)]


def test_a_topic_may_hold_envelopes_of_several_codecs_and_a_source_takes_its_own() -> None:
    flow = Flow("mixed", poison="dead_letter")
    flow.source("in", Fastening).to("out", partitions=1)
    rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    found = Fastening("r", "l", 3)
    for payload in (found, msgspec.to_builtins(found), Int64Value(value=3), b"bytes", Total(1, 2)):
        rehearsal.feed("in", wrap(payload, key=None, timestamp_ms=0))
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(Fastening) for envelope in rehearsal.published("out")] == [found, found]
    assert len(rehearsal.log.records("mixed.dead-letters")) == 3
