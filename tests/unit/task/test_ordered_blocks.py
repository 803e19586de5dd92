"""Runs of ordinary messages give a stage that goes by event time what record by record gives, wherever batches end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.flow import Flow
from sqe_chain.stages import JumpGuard, Tumbling
from sqe_chain.stages.record_work import RecordKind, RecordWork
from sqe_chain.stages.table_join import TableJoinKind
from sqe_chain.stages.windowed import WindowsKind
from tests.support.block_ways import one_by_one, taken_as
from tests.support.read_in_blocks import Scripted, outcome, records_of
from tests.support.records import Record


def write(state: StringValue, word: StringValue) -> None:
    if word.value == "bad" and len(state.value) > 3:
        raise ValueError(f"{word.value} after {state.value}")
    state.value += word.value


def key_of(word: StringValue) -> Any:
    return None if word.value == "none" else word.value[:1]


def windows(*, lateness_ms: int) -> Flow:
    flow = Flow("notes", state_partitions=1)
    flow.source("words", StringValue).windowed(
        "letters",
        Tumbling(10, offset_ms=3),
        key=key_of,
        state=StringValue,
        fold=write,
        lateness_ms=lateness_ms,
        retention_ms=20,
        guard=JumpGuard(max_jump_ms=100, confirmations=2, policy="drop"),
    ).to("closed", partitions=2)
    return flow


def table() -> Flow:
    """Both streams are read from one partition each; keys are set before the join."""
    flow = Flow("notes", state_partitions=1)
    words = flow.source("words", StringValue).key_by(key_of)
    changes = flow.source("changes", StringValue).key_by(key_of)
    words.join_table("said", changes, pair).to("joined", partitions=2)
    return flow


def pair(word: StringValue, change: StringValue) -> StringValue | None:
    """Values that give no output lie between those that give one."""
    return None if word.value == "asp" else StringValue(value=word.value + change.value)


plain = ["plain"] * 16
scripts = st.lists(
    st.builds(
        Scripted,
        st.integers(0, 2),
        st.sampled_from([*plain, "replay", "root", "far", "other type", "cut short"]),
        st.sampled_from(["ant", "asp", "bee", "boa", "bad", ""]),
        st.integers(1, 60),
        st.sampled_from([0, 0, 0, 5, 20, 40]),
    ),
    max_size=14,
)


@st.composite
def batches(draw: st.DrawFn) -> list[list[Record]]:
    """Batches, most of them in the order of time; the lanes of most are known before."""
    found: list[Scripted] = []
    ends: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        script = draw(scripts)
        if draw(st.booleans()):
            script.sort(key=lambda one: one.at_ms)
        found += script
        ends.append(len(found))
    records = records_of([Scripted(lane, "plain", "ant", 1, 0) for lane in range(3)] + found)
    begins = [0, *(3 + end for end in ends)]
    return [records[begin:end] for begin, end in pairwise(begins)]


@settings(max_examples=150, deadline=None)
@given(
    batches(),
    st.sampled_from(["windows", "windows", "late windows", "table"]),
    st.none() | st.sampled_from([b"a", b"ja", b"r", b"wa", b"wz"]),
    st.integers(2, 9),
)
def test_all_ways_give_the_same(
    found: list[list[Record]], which: str, cursor: bytes | None, sizes: int
) -> None:
    def flow() -> Flow:
        return table() if which == "table" else windows(lateness_ms=15 * (which == "late windows"))

    with one_by_one(), pytest.MonkeyPatch.context() as patch:
        by_unit = outcome(flow(), found, cursor, sizes)
        patch.setattr(WindowsKind, "start", RecordKind.start)
        patch.setattr(TableJoinKind, "start", RecordKind.start)
        general = outcome(flow(), found, cursor, sizes)
    with taken_as():
        by_run = outcome(flow(), found, cursor, sizes)
    assert by_unit == general
    assert by_run == general


@pytest.mark.parametrize("make", [lambda: windows(lateness_ms=0), table])
def test_ordinary_records_are_decided_about_in_runs(make: Any) -> None:
    """So that the comparison above compares something."""
    records = records_of([Scripted(number % 3, "plain", "ant", number, 0) for number in range(30)])
    with taken_as() as taken:
        outcome(make(), [records[:3], records[3:]], None, 9)
    assert taken == [9, 9, 9] * len(make().compile().sources)


@pytest.mark.parametrize("make", [lambda: windows(lateness_ms=0), table])
def test_a_value_without_a_key_is_poison_in_the_same_words(make: Any) -> None:
    records = records_of([Scripted(0, "plain", word, 5, 0) for word in ("ant", "bee", "none", "boa")])
    found = []
    for way in (one_by_one(), taken_as()):
        with way:
            found.append(outcome(make(), [records[:1], records[1:]], None, 9))
    assert found[0] == found[1]
    assert "PoisonError" in cast("list[str]", found[0])


def test_what_only_changes_open_windows_is_folded_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the comparison above compares something."""
    slow: list[int] = []
    apply = RecordWork.apply

    def noted(own: Any, units: Any) -> None:
        slow.append(units[0][4].offset)
        apply(own, units)

    monkeypatch.setattr(RecordWork, "apply", noted)
    records = records_of([Scripted(number % 3, "plain", "ant", 3 + number, 0) for number in range(25)])
    outcome(windows(lateness_ms=0), [records], None, 9)
    assert slow == [0, 10, 20], "the first one, and those that close a window"
