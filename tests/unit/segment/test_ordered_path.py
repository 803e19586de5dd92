"""Runs of ordinary messages give a stage that goes by event time what record by record gives, wherever batches end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, cast

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.chain import root_position
from sqe_chain.envelope.message import wrap
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ChainError
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Message, Range
from sqe_chain.replays.marks import PartitionMarks
from sqe_chain.segment import fast_path, source_partition
from sqe_chain.segment.event_times import EventTimes
from sqe_chain.segment.ordered_path import OrderedPath
from sqe_chain.segment.reading import Reading
from sqe_chain.segment.results import Job, Portion, Report, States
from sqe_chain.segment.states import Claim, Transition
from sqe_chain.stages import JumpGuard, Tumbling
from sqe_chain.stages.record_work import RecordKind, RecordWork
from sqe_chain.stages.window_kind import WindowsKind

NEVER = 1 << 30
TYPE = StringValue.DESCRIPTOR.full_name


class Told(NamedTuple):
    """A message: who writes it, what is special about it, its word, time, and the watermark that it bears."""

    lane: int
    kind: str
    word: str
    at_ms: int
    watermark_ms: int


@dataclass
class Record:
    """A message as a log gives it."""

    at: int
    data: bytes
    time_ms: int

    def headers(self) -> None:
        return None

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return self.data

    def key(self) -> None:
        return None

    def leader_epoch(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time_ms


def records_of(script: Sequence[Told]) -> list[Record]:
    """What two writers with three lanes write, and a producer at the origin."""
    offsets, records = [0, 0, 0], list[Record]()
    for lane, kind, word, at_ms, watermark_ms in script:
        if kind == "root":
            value = wrap(StringValue(value=word), key=None, timestamp_ms=at_ms)
        else:
            offsets[lane] += kind != "replay"
            template = OutputTemplate(
                lane=0,
                topic="raw",
                topic_id=bytes(16),
                partition=lane,
                output=f"up-{lane // 2}/words",
                watermark_ms=watermark_ms,
            )
            position = root_position(1, offsets[lane])
            value, _ = template.encode(
                b"", offsets[lane], 1, 0, 1, position, at_ms + 10_000 * (kind == "far"), b"k",
                BytesValue.DESCRIPTOR.full_name if kind == "other type" else TYPE,
                [StringValue(value=word).SerializeToString()], b"",
            )  # fmt: skip
        records.append(Record(len(records), value[:-1] if kind == "cut short" else value, at_ms))
    return records


@dataclass
class Store:
    """What is stored; the header does not move."""

    header: Header
    rows: dict[bytes, bytes | None] = field(default_factory=dict)

    def read(self, *where: Any) -> tuple[Header, list[bytes | None], Header]:
        return self.header, [self.rows.get(row) for row in where[-1]], self.header


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
    words.join_table("said", changes, lambda one, other: StringValue(value=one.value + other.value)).to(
        "joined", partitions=2
    )
    return flow


def outcome(flow: Flow, batches: Sequence[Sequence[Record]], cursor: bytes | None, sizes: int) -> object:
    """Everything that comes of batches, which are read in blocks; all topics bring the same."""
    store = Store(Header(1, "run", 3, "plan-3"))
    topics = sorted(topic for source in flow.sources() for topic in source.topics)
    marks = {topic: PartitionMarks(topic, bytes(16), 0) for topic in topics}
    times = {topic: EventTimes(0) for topic in topics}
    waiting: Any = {}
    told: list[str] = []
    for number, batch in enumerate(batches):
        if number == len(batches) - 1 and cursor is not None:
            store.header = Header(1, "run", 3, "plan-3", begun_id="plan-4", cursor=cursor)
        job = Job(Transition("notes", Claim(1, "run"), 3, "plan-3"), 1, in_place=True, waiting=waiting)
        reading = Reading(flow, job, lambda _: cast("Any", store))
        found: list[Any] = []
        blocks = [batch[begin : begin + sizes] for begin in range(0, len(batch), sizes)]
        try:
            for topic in topics:
                portion = Portion(Range(topic, bytes(16), 0, 0, 100), marks[topic], times=times[topic])
                found += reading.read(portion, cast("Sequence[Sequence[Message]]", blocks))
            found += reading.finish()
        except ChainError as error:
            return [*told, type(error).__name__, str(error)]
        report: Report = found[-1]
        waiting = report.waiting
        for end in report.ends:
            assert end.times is not None
            marks[end.topic], times[end.topic] = end.marks, end.times.settled()
        told += [repr(block) for block in found]
        for block in found:
            if isinstance(block, States):
                store.rows.update(block.rows)
    return told


plain = ["plain"] * 16
scripts = st.lists(
    st.builds(
        Told,
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
    """Batches of which most are in the order of time, and the lanes of most are known before."""
    found: list[Told] = []
    ends: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        script = draw(scripts)
        if draw(st.booleans()):
            script.sort(key=lambda one: one.at_ms)
        found += script
        ends.append(len(found))
    records = records_of([Told(lane, "plain", "ant", 1, 0) for lane in range(3)] + found)
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_path, "WORTHWHILE", NEVER)
        patch.setattr(source_partition, "WORTHWHILE", NEVER)
        by_unit = outcome(flow(), found, cursor, sizes)
        with pytest.MonkeyPatch.context() as one_by_one:
            one_by_one.setattr(WindowsKind, "start", RecordKind.start)
            general = outcome(flow(), found, cursor, sizes)
        patch.setattr(fast_path, "WORTHWHILE", 1)
        by_run = outcome(flow(), found, cursor, sizes)
    assert by_unit == general
    assert by_run == general


@pytest.mark.parametrize("make", [lambda: windows(lateness_ms=0), table])
def test_plain_messages_do_take_the_short_way(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """So that the comparison above compares something."""
    monkeypatch.setattr(fast_path, "WORTHWHILE", 1)
    taken: list[int] = []
    decoded = OrderedPath._decoded

    def noted(own: OrderedPath, block: Any, begin: int, end: int) -> Any:
        taken.append(end - begin)
        return decoded(own, block, begin, end)

    monkeypatch.setattr(OrderedPath, "_decoded", noted)
    records = records_of([Told(number % 3, "plain", "ant", number, 0) for number in range(30)])
    outcome(make(), [records[:3], records[3:]], None, 9)
    assert taken == [9, 9, 9] * len(make().sources())


@pytest.mark.parametrize("make", [lambda: windows(lateness_ms=0), table])
def test_a_value_without_a_key_is_poison_in_the_same_words(make: Any) -> None:
    records = records_of([Told(0, "plain", word, 5, 0) for word in ("ant", "bee", "none", "boa")])
    found = []
    for worthwhile in (NEVER, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_path, "WORTHWHILE", worthwhile)
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
    records = records_of([Told(number % 3, "plain", "ant", 3 + number, 0) for number in range(25)])
    outcome(windows(lateness_ms=0), [records], None, 9)
    assert slow == [0, 10, 20], "the first one, and those that close a window"
