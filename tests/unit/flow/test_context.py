"""Goal: the context of a user's function describes its input rightly in every step, also behind a shuffle."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.chain import read_lane
from sqe_chain.envelope.message import read, wrap
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.context import Context
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import (
    append_word,
    first_letter,
    same_key,
    stored_words,
    word,
    words_by_first_letter,
    words_in,
)

HEADERS = [("trace", b"7"), ("trace", None)]


def fields_of(context: Context) -> dict[str, Any]:
    """All fields of a context but the key and the clock."""
    names = "topic partition offset headers timestamp_ms event_id chain root lane position"
    return {name: getattr(context, name) for name in names.split()}


class Listener:
    """A flow with a context in every function; `heard` is what the functions were given."""

    def __init__(self, *, state_partitions: int, raw: bool = False) -> None:
        self.heard: list[tuple[str, bytes | None, dict[str, Any], int]] = []
        flow = Flow("listener", state_partitions=state_partitions)
        source = flow.source("words", self.decode, raw=True) if raw else flow.source("words", StringValue)
        stream = source.filter(self.hears("filter")).map(self.hears("map")).flat_map(self.all)
        first = stream.aggregate("first", key=self.key("first"), state=StringValue, fold=self.folds("first"))
        second = first.map(self.hears("between")).aggregate(
            "second", key=self.key("second"), state=StringValue, fold=self.folds("second")
        )
        second.map(self.hears("behind")).to("out", partitions=1, key=self.key("out"))
        self.flow = flow

    def note(self, where: str, context: Context) -> None:
        self.heard.append((where, context.key, fields_of(context), context.now_ms))

    def decode(self, data: bytes, context: Context) -> StringValue:
        self.note("decode", context)
        return word(data.decode())

    def hears(self, where: str) -> Any:
        def step(value: StringValue, context: Context) -> StringValue:
            self.note(where, context)
            return value

        return step

    def all(self, value: StringValue, context: Context) -> list[StringValue]:
        self.note("flat_map", context)
        return [value]

    def key(self, where: str) -> Any:
        def key(value: StringValue, context: Context) -> str:
            self.note(f"key of {where}", context)
            return f"{where}-key"

        return key

    def folds(self, where: str) -> Any:
        def fold(state: StringValue, value: StringValue, context: Context) -> list[StringValue]:
            self.note(f"fold {where}", context)
            return append_word(state, value)

        return fold


@pytest.mark.parametrize("state_partitions", [pytest.param(1, id="in-place"), pytest.param(2, id="shuffled")])
@pytest.mark.parametrize("kind", ["republished", "origin", "raw"])
def test_every_field_is_right_in_every_step(state_partitions: int, kind: str) -> None:
    listener = Listener(state_partitions=state_partitions, raw=kind == "raw")
    rehearsal = Rehearsal(listener.flow)
    if kind == "republished":
        flow = Flow("upstream")
        flow.source("raw", StringValue).to("words", partitions=1)
        upstream = Rehearsal(flow, log=rehearsal.log)
        upstream.log.append("raw", 0, b"x")
        upstream.log.truncate_before("raw", 0, 1)
        upstream.settings = Settings(allow_weak_durability=True, start="earliest")
        value = wrap(word("ant"), key=b"k", timestamp_ms=5)
        upstream.log.append("raw", 0, value, key=b"k", headers=HEADERS, timestamp_ms=99)
        upstream.run_until_caught_up()
    else:
        value = b"ant" if kind == "raw" else wrap(word("ant"), key=b"k", timestamp_ms=5)
        rehearsal.log.append("words", 0, value, key=b"k", headers=HEADERS, timestamp_ms=5, leader_epoch=3)
    rehearsal.run_until_caught_up()

    (message,) = rehearsal.log.records("words")
    topic_id = rehearsal.log.describe(["words"])["words"].topic_id
    steps = [
        "filter",
        "map",
        "flat_map",
        "key of first",
        "fold first",
        "between",
        "key of second",
        "fold second",
    ]
    wanted = [*(["decode"] if kind == "raw" else []), *steps, "behind", "key of out"]
    assert [where for where, *_ in listener.heard] == wanted
    keys = {where: key for where, key, *_ in listener.heard}
    assert keys["map"] == keys["key of first"] == b"k"
    assert keys["fold first"] == keys["between"] == keys["key of second"] == b"first-key"
    assert keys["fold second"] == keys["behind"] == b"second-key"
    facts = listener.heard[0][2]
    assert all(heard == facts for _, _, heard, _ in listener.heard), "the same in every step"
    assert len({clock for *_, clock in listener.heard}) == 1
    assert (facts["topic"], facts["partition"], facts["offset"]) == ("words", 0, 0)
    assert (facts["headers"], facts["timestamp_ms"]) == (HEADERS, 5)
    if kind == "republished":
        envelope = read(message.value() or b"")
        assert facts["chain"] == envelope.chain
        assert facts["root"].topic == "raw"
        assert facts["root"].offset == 1
        assert facts["position"] == envelope.position
        assert facts["lane"] == read_lane(envelope.lane, "words", topic_id, 0)
        assert facts["event_id"] == envelope.event_id
    else:
        assert len(facts["chain"]) == 0
        assert (facts["root"].topic, facts["root"].offset, facts["root"].leader_epoch) == ("words", 0, 4)
        assert facts["lane"] == read_lane(0, "words", topic_id, 0)
        assert len(facts["event_id"]) == 16


def test_the_clock_and_the_event_id_are_the_same_in_a_redo() -> None:
    for step in (4, 5, 6):
        listener = Listener(state_partitions=2)
        rehearsal = Rehearsal(listener.flow)
        rehearsal.feed("words", word("ant"))
        rehearsal.crash(step=step, when="after")
        rehearsal.run_until_caught_up()
        folds = [(clock, heard) for where, _, heard, clock in listener.heard if where == "fold first"]
        assert len(folds) == 2
        assert folds[0] == folds[1]


# ---------------------------------------------------------------------------- deleted states


def forgetful(state: StringValue, value: StringValue, context: Context) -> list[StringValue]:
    """A word that ends in ! deletes the state."""
    append_word(state, value)
    if value.value.endswith("!"):
        context.delete_state()
    return []


@pytest.mark.parametrize("step", [None, 4, 5, 6, 7])
@pytest.mark.parametrize("batches", [1, 9])
def test_a_deleted_state_is_gone_and_begins_again(step: int | None, batches: int) -> None:
    flow = Flow("forgetful", state_partitions=2)
    stage = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=forgetful
    )
    stage.changes().to("newest", partitions=1)
    rehearsal = Rehearsal(flow, settings=Settings(max_records=1) if batches > 1 else None)
    for text in ("ant", "bee", "ape!", "bat!", "asp"):
        rehearsal.feed("words", word(text))
    if step:
        rehearsal.crash(step=step, when="before")
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal) == {"a": "asp"}
    newest = {m.key(): read(m.value() or b"").payloads for m in rehearsal.log.records("newest")}
    assert newest[b"b"] == (None,)
    assert read(rehearsal.log.records("newest")[-1].value() or b"").type == "google.protobuf.StringValue"


@pytest.mark.parametrize(
    ("nulls", "noted"), [("skip", {"a": "ant asp"}), ("decode", {"a": "ant asp", "n": "none"})]
)
def test_tombstones_go_where_the_source_declares(nulls: Any, noted: dict[str, str]) -> None:
    """A null value of the record, and a deleted state in an envelope."""

    def decode(data: bytes | None) -> StringValue:
        return word("none") if data is None else StringValue.FromString(data)

    for raw in (True, False):
        flow = Flow("tombs")
        payload = decode if nulls == "decode" or raw else StringValue
        source = flow.source("words", payload, raw=raw, nulls=nulls)
        source.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
        rehearsal = Rehearsal(flow)
        for text in ("ant", None, "asp"):
            value = (
                None
                if text is None
                else word(text).SerializeToString()
                if raw
                else wrap(word(text), key=None, timestamp_ms=0)
            )
            rehearsal.log.append("words", 0, value, key=b"k")
        rehearsal.run_until_caught_up()
        assert stored_words(rehearsal) == noted


def test_a_tombstone_is_poison_unless_the_source_declares_otherwise() -> None:
    flow = Flow("tombs")
    words_by_first_letter(flow)
    rehearsal = Rehearsal(flow)
    rehearsal.log.append("words", 0, None, key=b"k")
    with pytest.raises(PoisonError, match="EmptyValue"):
        rehearsal.batch()


# ---------------------------------------------------------------------------- headers and keys of outputs


def test_headers_pass_through_a_republisher_unless_the_flow_declares_otherwise() -> None:
    flow = Flow("headers")
    stream = flow.source("words", StringValue)
    stream.to("with", partitions=1)
    stream.to("without", partitions=1, headers=False)
    rehearsal = Rehearsal(flow)
    rehearsal.log.append("words", 0, wrap(word("ant"), key=None, timestamp_ms=0), headers=HEADERS)
    rehearsal.run_until_caught_up()
    assert [message.headers() for message in rehearsal.log.records("with")] == [HEADERS]
    assert [message.headers() for message in rehearsal.log.records("without")] == [None]


def test_an_output_without_a_key_keeps_the_stages_else_the_messages() -> None:
    flow = Flow("keys", state_partitions=2)
    stream = flow.source("words", StringValue)
    stream.to("messages", partitions=4)
    stream.to("own", key=first_letter, partitions=4)
    stream.to("none", key=lambda _: None, partitions=4)
    stream.key_by(same_key).to("by", partitions=4)
    stage = stream.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    stage.to("stages", partitions=4)
    stage.changes().to("changed", partitions=4)
    rehearsal = Rehearsal(flow, partitions={"words": 3})
    rehearsal.feed("words", word("ant"), key="k", partition=2)
    rehearsal.feed("words", word("bee"), partition=1)
    rehearsal.run_until_caught_up()
    keys = {
        topic: {words_in(message)[0].strip(): message.key() for message in rehearsal.log.records(topic)}
        for topic in ("messages", "own", "none", "by", "stages", "changed")
    }
    assert keys == {
        "messages": {"ant": b"k", "bee": None},
        "own": {"ant": b"a", "bee": b"b"},
        "none": {"ant": None, "bee": None},
        "by": {"ant": b"all", "bee": b"all"},
        "stages": {"ant": b"a", "bee": b"b"},
        "changed": {"ant": b"a", "bee": b"b"},
    }
    places = {words_in(message)[0]: message.partition() for message in rehearsal.log.records("none")}
    assert places == {"ant": 2, "bee": 1}, "without a key: input partition modulo N"
