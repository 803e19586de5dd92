"""What a block shows of event time by columns is what its records show one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.envelope.carrier import in_headers
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import parse_head
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import ChainError
from sqe_chain.flow import Flow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.flow.event_time import NO_TIMES
from sqe_chain.stages import JumpGuard
from sqe_chain.task.event_times import EventTimes, TimesRecord
from sqe_chain.task.gate import SourceTimes
from sqe_chain.task.records import Deciding
from tests.support.block_ways import one_by_one, taken_as
from tests.support.read_in_blocks import Scripted, cut, records_of
from tests.support.records import Record

CLOCK_MS = 5_000
PLAIN = Scripted(0, "plain", "ant", 0, 0)

ordinary = st.builds(
    Scripted,
    st.integers(0, 2),
    st.just("plain"),
    st.just("ant"),
    st.integers(0, 199) | st.just(0),
    st.sampled_from([0, 0, 0, 5, 250]),
)
kinds = st.sampled_from(["replay", "root", "far", "other type", "no chain", "cut short"])


@st.composite
def blocks_of(draw: st.DrawFn) -> list[list[Scripted]]:
    """Blocks whose times are near to each other; those of two blocks are as a rule far apart. Few have anything special."""
    blocks = []
    stated = draw(st.booleans())
    for _ in range(draw(st.integers(1, 5))):
        begin_ms = draw(st.sampled_from([0, 100, 300, 1_000, CLOCK_MS - 100, CLOCK_MS + 1_000]))
        block = [
            one._replace(at_ms=begin_ms + one.at_ms)
            for one in draw(st.lists(ordinary, min_size=1, max_size=6))
        ]
        if not stated:
            block = [one._replace(watermark_ms=0) for one in block]
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(block) - 1))
            block[at] = block[at]._replace(kind=draw(kinds))
        blocks.append(block)
    return blocks


def given_by(script: Sequence[Scripted], carrier: str) -> list[Record]:
    """The records: `raw` ones have times alone."""
    if carrier == "raw":
        return [
            Record(at, b"ant", at_ms=one.at_ms - 10_000 * (one.kind == "cut short"))
            for at, one in enumerate(script)
        ]
    records = records_of([one._replace(kind="plain") if one.kind == "no chain" else one for one in script])
    for record, one in zip(records, script, strict=True):
        if one.kind == "no chain":
            head = parse_head(record.data)
            head.chain = (
                b"\xff" * (len(head.chain) - 5) + head.chain[-5:]
            )  # the last five are read without parsing
            record.data = sealed(head.SerializeToString(deterministic=True))
    if carrier == "headers":
        for record, one in zip(records, script, strict=True):
            if record.data is not None and one.kind != "cut short":
                record.data, record.heads = in_headers(record.data, source="up")
    return records


def moved(
    blocks: Sequence[Sequence[Record]],
    carrier: str,
    *,
    guard: JumpGuard | None = None,
    since: int = 0,
    at_end: bool = True,
) -> list[TimesRecord]:
    """Event time after each block; of `static` sources nobody asks for times."""
    flow = Flow("notes")
    flow.source("words", StringValue, raw=carrier == "raw").to("copies", partitions=1)
    compiled = flow.compile()
    node = compiled.source_of["words"]
    assert node is not None
    tp, marks = TopicIdPartition("words", bytes(16), 0), PartitionMarks("words", bytes(16), 0)
    deciding = Deciding(compiled, node, tp, marks, {}, int, retried_alone=False)
    times = EventTimes(0).copy(clock_ms=CLOCK_MS)
    if carrier == "static":
        node = replace(node, timestamp=NO_TIMES)
    source, found = SourceTimes(times, node, guard, since, at_end=at_end), list[TimesRecord]()
    for block in blocks:
        records = deciding.records_of(block)
        shown = source.shown(records, deciding)
        with suppress(ChainError):  # of a lane that cannot be read on; a service stops there
            deciding.decide(records)
        source.observe(shown)
        found.append(times.to_json())
    return found


@settings(max_examples=250)
@given(
    blocks_of(),
    st.sampled_from(["value", "value", "value", "headers", "raw", "static"]),
    st.sampled_from([None, JumpGuard(200, 1), JumpGuard(200, 2), JumpGuard(200, 4), JumpGuard(1_000, 3)]),
    st.sampled_from([0, 0, 0, 4]),
    st.booleans(),
)
def test_columns_show_what_single_records_show(
    script: list[list[Scripted]], carrier: str, guard: JumpGuard | None, since: int, at_end: bool
) -> None:
    records = given_by([one for block in script for one in block], carrier)
    blocks = cut(records, [len(block) for block in script[:-1]])
    with one_by_one():
        expected = moved(blocks, carrier, guard=guard, since=since, at_end=at_end)
    with taken_as():
        assert moved(blocks, carrier, guard=guard, since=since, at_end=at_end) == expected


@pytest.mark.parametrize("carrier", ["value", "headers", "raw"])
def test_ordinary_records_are_not_looked_at_one_by_one(carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the comparison above compares something."""
    looked_at: list[int] = []
    facts = SourceTimes.facts

    def noted(own: Any, records: Any, given_ms: Any) -> Any:
        looked_at.append(records.messages[0].offset())
        return facts(own, records, given_ms)

    monkeypatch.setattr(SourceTimes, "facts", noted)
    script = [PLAIN._replace(lane=number % 3, at_ms=100 + number) for number in range(30)]
    script[15] = script[15]._replace(at_ms=2_000)
    with taken_as():
        moved(cut(given_by(script, carrier), [10, 10]), carrier, guard=JumpGuard(1_000, 2))
    assert looked_at == [10], "a block in which a clock may be wrong"


@pytest.mark.parametrize("way", [one_by_one, taken_as])
def test_each_lane_shows_its_own_times_and_watermark(way: Any) -> None:
    """Lanes 0 and 1 are of one writer, who states watermarks."""
    script = [
        PLAIN._replace(lane=0, at_ms=500, watermark_ms=40),
        PLAIN._replace(lane=1, at_ms=100, watermark_ms=60),
        PLAIN._replace(lane=2, at_ms=50),
        PLAIN._replace(lane=1, at_ms=600, watermark_ms=20),
        PLAIN._replace(lane=2, at_ms=30),
    ]
    with way():
        (found,) = moved([given_by(script, "value")], "value", guard=JumpGuard(1_000, 1), at_end=False)
    writers = found["writers"]
    assert {name: (one["latest"], one.get("watermark")) for name, one in writers.items()} == {
        "up-0/words": (600, 60),
        "up-1/words": (50, None),
    }


@pytest.mark.parametrize("way", [one_by_one, taken_as])
def test_the_first_time_after_one_that_is_not_believed_decides_about_it(way: Any) -> None:
    """Of the last block 120 ms alone would confirm 310 ms, but 50 ms comes before."""
    script = [PLAIN._replace(at_ms=at_ms) for at_ms in (100, 100, 100, 310, 50, 120)]
    blocks = cut(given_by(script, "raw"), [3, 1])
    with way():
        found = moved(blocks, "raw", guard=JumpGuard(200, 3), at_end=False)
    assert [one["writers"][""]["latest"] for one in found] == [100, 100, 120]
    assert "ahead" in found[1]["writers"][""]
