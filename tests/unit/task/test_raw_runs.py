"""Goal: runs of raw messages, and of messages with keys of their own, give what record by record gives.

Method: raw records of all kinds, and envelopes with and without keys, in blocks that end anywhere. Codecs and decoders, each
way to a key; once in runs, once one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.chain import root_position
from sqe_chain.envelope.carrier import CHAIN_HEADER
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import wrap
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ChainError
from sqe_chain.flow import Flow
from sqe_chain.ports import Header
from sqe_chain.stages import Tumbling
from sqe_chain.task.event_times import EventTimes, Taking
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import Sections, Units
from sqe_chain.task.shuffling import in_order
from tests.support.block_ways import NEVER, one_by_one, taken_as
from tests.support.read_in_blocks import EVERYTHING, Store, cut, read_blocks
from tests.support.records import Record as PlainRecord

TYPE = StringValue.DESCRIPTOR.full_name


@dataclass
class Record(PlainRecord):
    """A message, and whether a plan leaves it out."""

    out: bool = False


class Odd:
    """A type without a codec."""


def decoded(payload: bytes) -> object:
    text = payload.decode()
    if text == "fails":
        raise ValueError(text)
    return Odd() if text == "odd" else {"odd": 1} if text == "map" else StringValue(value=text)


def with_context(payload: bytes, context: Any) -> object:
    return StringValue(value=f"{payload.decode()}{context.offset}")


def text_of(value: Any) -> str:
    return value.value if isinstance(value, StringValue) else "other"


def note(state: dict[str, Any], value: Any) -> None:
    if text_of(value) == "refused":
        raise ValueError("no")
    state["texts"] = [*state.get("texts", []), text_of(value)]


def refuse_or_text(value: Any) -> str:
    if text_of(value) == "refused":
        raise ValueError("no")
    return text_of(value)


Sources: dict[str, dict[str, Any]] = {
    "codec": {},
    "decoder": {"decoder": decoded},
    "decoder with context": {"decoder": with_context},
    "nulls skipped": {"decoder": decoded, "nulls": "skip"},
    "time of values": {"decoder": decoded, "timestamp": lambda value: 5 + len(text_of(value))},
    "envelopes": {},
}


def flow_of(source: str, key: str, *, changes: bool, poison: Any = "stop") -> Flow:
    flow = Flow("notes", state_partitions=1, poison=poison)
    how = Sources[source]
    decoder = how.get("decoder", StringValue)
    settings: dict[str, Any] = {name: how[name] for name in how if name != "decoder"}
    stream: Any = flow.source("words", decoder, raw=source != "envelopes", **settings)
    given: dict[str, Any] = {}
    if key == "outputs":  # a republisher
        stream.filter(lambda value: text_of(value) != "bee").to("notes", key=refuse_or_text, partitions=2)
        return flow
    if key == "windows":
        stream.windowed("hours", Tumbling(2), key=text_of, state=dict, fold=note).to("notes", partitions=2)
        return flow
    if key in {"key_by", "both"}:
        stream = stream.key_by(lambda value: text_of(value)[:1])
    if key in {"key", "both"}:
        given["key"] = lambda value: text_of(value)[:1].encode() or None
    stage = stream.aggregate("letters", state=dict, fold=note, **given)
    if changes:
        stage.changes().to("notes", partitions=2)
    return flow


def outcome(flow: Flow, records: Sequence[Record], sizes: Sequence[int], marks: PartitionMarks) -> object:
    """Everything that comes of records read in blocks of these sizes."""
    # Shuffled, units carry their place in the order of times.
    in_place = all(stage.traits.order == "units" for stage in flow.compile().stages)
    job = {"in_place": in_place, "sections": Sections.of(Taking(frontier=EVERYTHING))}
    out = tuple(
        Exclusion("words", 0, record.at, "skip", "ValueError", "no") for record in records if record.out
    )
    store, times = Store(Header(1, "run", 3, "plan-3")), EventTimes(0)
    try:
        found = read_blocks(flow, cut(records, sizes), store, marks.copy(), out, times, **job)
    except ChainError as error:
        return type(error).__name__, str(error)
    # How many blocks the units of a place come in is nobody's concern: they are joined before they are folded.
    joined = [
        Units(block.level, [*in_order(block.blocks)]) if isinstance(block, Units) else block
        for block in found
    ]
    return [repr(block) for block in joined]


ENVELOPE = wrap(StringValue(value="enveloped"), key=b"k", timestamp_ms=7, event_id=b"e" * 16)


ODD = (None, ENVELOPE, b"fails", b"odd", b"map", b"refused")


def republished(offset: int, text: str, key: bytes | None) -> bytes:
    template = OutputTemplate(lane=0, topic="raw", topic_id=bytes(16), partition=0, output="up/words")
    payload: list[bytes | None] = [StringValue(value=text).SerializeToString()]
    return template.encode(b"", offset, 1, 0, 1, root_position(1, offset), 5, key, TYPE, payload, b"")[0]


KINDS = len(ODD) + 8


def make_odd(record: Record, kind: int) -> None:
    """One of the ways to be no ordinary message."""
    if kind < len(ODD):
        record.data = ODD[kind]
        return
    match kind - len(ODD):
        case 0:
            record.heads = [(CHAIN_HEADER, b"x")]
        case 1:
            record.heads = [("other", b"x")]
        case 2:
            record.at_ms = -2
        case 3:
            record.at_ms = 1 << 60
        case 4:
            record.own_key = None
        case 5:
            record.at = max(0, record.at - 1)
        case 6:
            record.out = True
        case _:
            record.at = max(0, record.at - 400)


@st.composite
def raw_records(draw: st.DrawFn, source: str) -> list[Record]:
    """Mostly sound records, and at most two that are not."""
    texts = st.sampled_from(["ant", "asp", "bee", ""])
    keys = st.sampled_from([b"a", b"b", b"\xffc", b""])
    records, offset = list[Record](), draw(st.integers(0, 600))
    odd = draw(st.sets(st.integers(0, 25), max_size=2))
    for number in range(draw(st.integers(2, 25))):
        offset += draw(st.sampled_from([1, 1, 1, 2, 250]))
        text, key = draw(texts), draw(keys)
        if source == "envelopes":
            records.append(
                Record(
                    offset, republished(offset, text, draw(st.sampled_from([None, b"", key]))), key, at_ms=5
                )
            )
        else:
            value = StringValue(value=text).SerializeToString() if source == "codec" else text.encode()
            epoch, at_ms = draw(st.sampled_from([0, 0, 0, 1])), draw(st.sampled_from([5, 5, 6, 9, 4]))
            records.append(Record(offset, value, key, at_ms=at_ms, epoch=epoch))
        if number in odd:
            make_odd(records[-1], draw(st.integers(0, KINDS - 1)))
    return records


def is_odd(record: Record) -> bool:
    return (
        record.data in ODD or record.heads is not None or not 0 <= record.at_ms < 99 or record.own_key is None
    )


def compare(
    make: Callable[[], Flow], records: Sequence[Record], sizes: Sequence[int], *, known: bool
) -> None:
    marks = PartitionMarks("words", bytes(16), 0)
    if known and records[0].at:
        marks.accept_raw(records[0].at - 1)
    with one_by_one():
        found = outcome(make(), records, sizes, marks)
    for block, run in ((NEVER, NEVER), (1, NEVER), (3, NEVER), (1, 1), (1, 2), (3, 3)):
        with taken_as(block=block, run=run):
            assert outcome(make(), records, sizes, marks) == found


@pytest.mark.parametrize("key", ["key_by", "key", "own", "both", "outputs", "windows"])
@pytest.mark.parametrize("source", sorted(Sources))
def test_runs_give_what_single_records_give(source: str, key: str) -> None:
    @settings(max_examples=25)
    @given(
        raw_records(source),
        st.lists(st.integers(1, 12), max_size=4),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["stop", "skip", "dead_letter"]),
    )
    def check(records: list[Record], sizes: list[int], changes: bool, known: bool, poison: str) -> None:
        compare(lambda: flow_of(source, key, changes=changes, poison=poison), records, sizes, known=known)

    check()


@pytest.mark.parametrize("key", ["key_by", "key", "own", "both", "outputs", "windows"])
@pytest.mark.parametrize("source", sorted(Sources))
def test_ordinary_records_are_decided_about_in_runs(source: str, key: str) -> None:
    """So that the comparison above compares something."""
    plain = StringValue(value="ant").SerializeToString() if source == "codec" else b"ant"
    records = [
        Record(at, republished(at, "ant", b"a") if source == "envelopes" else plain, b"a", at_ms=5)
        for at in range(20)
    ]
    with taken_as() as taken:
        outcome(flow_of(source, key, changes=True), records, [5], PartitionMarks("words", bytes(16), 0))
    assert sum(taken) == 15, "all but the first block, with which the lane begins"


@pytest.mark.parametrize("source", sorted(Sources))
@pytest.mark.parametrize("kind", range(KINDS))
def test_one_odd_message_in_a_run_is_seen(kind: int, source: str) -> None:
    for key in ("own", "key", "outputs", "windows"):
        plain = StringValue(value="ant").SerializeToString() if source == "codec" else b"ant"
        enveloped = source == "envelopes"
        records = [
            Record(at, republished(at, "ant", b"a") if enveloped else plain, b"a", at_ms=5)
            for at in range(500, 510)
        ]
        make_odd(records[5], kind)
        for sizes in ([], [1], [5, 1]):
            compare(partial(flow_of, source, key, changes=True), records, sizes, known=True)
