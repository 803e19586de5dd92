"""The fast path of ordinary messages gives what record by record gives, also where the two meet in one block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.chain import root_position
from sqe_chain.envelope.carrier import in_headers
from sqe_chain.envelope.message import wrap
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ChainError, EnvelopeError, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, TopicInfo
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.results import ChangedStates, Report
from tests.support.block_ways import NEVER, one_by_one, taken_as
from tests.support.read_in_blocks import cut, read_blocks
from tests.support.records import Record

BEFORE = Header(1, "run", 3, "plan-3")
TYPE = StringValue.DESCRIPTOR.full_name
Told = tuple[int, str, list[str]]
"""Which republisher, what it does, the words of its outputs."""


@pytest.fixture(autouse=True)
def _short_runs() -> Iterator[None]:
    with taken_as():
        yield


class Store:
    """Gives every key the state "old " and always the same header."""

    def __init__(self, header: Header) -> None:
        self.header = header

    def read(self, *where: Any) -> tuple[Header, list[bytes], Header]:
        state = StringValue(value="old ").SerializeToString()
        return self.header, [state for _ in where[-1]], self.header


def words(texts: Iterable[str]) -> list[Record]:
    """Each word in an envelope wrapped at the origin."""
    return [
        Record(at, wrap(StringValue(value=text), key=None, timestamp_ms=1)) for at, text in enumerate(texts)
    ]


def note(ledger: StringValue, word: StringValue) -> None:
    ledger.value += f"{word.value} "


def states_after(blocks: Sequence[list[Record]], header: Header = BEFORE, key: Any = None) -> dict[str, str]:
    """Changed states, when a flow with one state partition reads these blocks without a shuffle."""
    flow = Flow("notes", state_partitions=1)
    flow.source("words", StringValue).aggregate(
        "letters", key=key or (lambda word: word.value[0]), state=StringValue, fold=note
    )
    found = read_blocks(flow, blocks, Store(header))
    assert isinstance(found[-1], Report)
    rows = [row for block in found if isinstance(block, ChangedStates) for row in block.rows]
    return {key.decode(): StringValue.FromString(state or b"").value.strip() for key, state in rows}


def test_what_comes_first_and_what_follows_are_folded_in_order() -> None:
    read = words(["ant", "bee", "asp", "auk", "boa"])
    expected = {"a": "old ant asp auk", "b": "old bee boa"}
    assert states_after([read]) == expected
    assert states_after([[one] for one in read]) == expected


def test_a_replay_is_ignored_at_any_place_in_a_block() -> None:
    read = words(["ant", "bee", "asp"])
    assert states_after([read, [read[1]], [*read, *words(["", "", "", "auk"])[3:]]]) == {
        "a": "old ant asp auk",
        "b": "old bee",
    }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_redo_within_a_persist_skips_the_keys_before_its_cursor(size: int) -> None:
    """The first message of the lane loads the key's state; those that follow find it there."""
    begun = Header(1, "run", 3, "plan-3", begun_id="plan-4", cursor=b"a")
    read = words(["ant", "asp", "bee", "auk"])
    blocks = [read[start : start + size] for start in range(0, len(read), size)]
    assert states_after(blocks, begun) == {"b": "old bee"}


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, bytes.decode])
def test_a_key_may_be_bytes_or_text(make: Any) -> None:
    read = words(["ant", "asp", "auk"])
    blocks = [[one] for one in read]
    assert states_after(blocks, key=lambda word: make(word.value[:1].encode())) == {"a": "old ant asp auk"}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("second", "reported"), [("bad", r"words\[0\]@1 .*no word"), ("asp", "was declared raw")]
)
def test_a_failure_before_a_message_that_stops_the_service_is_reported_first(
    second: str, reported: str, size: int
) -> None:
    def checked(word: StringValue) -> StringValue:
        if word.value == "bad":
            raise ValueError("no word")
        return word

    flow = Flow("notes")
    flow.source("words", StringValue, raw=True).map(checked).to("copies", partitions=1)
    read = [
        Record(at, StringValue(value=text).SerializeToString()) for at, text in enumerate(("ant", second))
    ]
    read.append(Record(2, wrap(StringValue(value="bee"), key=None, timestamp_ms=1)))
    topics = {"copies": TopicInfo("copies", bytes(16), 1)}
    blocks = [read[start : start + size] for start in range(0, len(read), size)]
    with pytest.raises(ChainError, match=reported):
        read_blocks(flow, blocks, None, topics=topics, in_place=False)


@pytest.mark.parametrize("run", [1, NEVER])
@pytest.mark.parametrize("block", [1, NEVER])
def test_a_failure_before_a_gap_is_reported_first_in_every_way(block: int, run: int) -> None:
    def checked(word: StringValue) -> StringValue:
        if word.value == "bad":
            raise ValueError("no word")
        return word

    flow = Flow("notes", state_partitions=1)
    flow.source("words", StringValue).map(checked).aggregate(
        "letters", key=lambda word: word.value[0], state=StringValue, fold=note
    )
    written = records_of([(0, "plain", ["ant"]), (0, "plain", ["bad"]), (0, "gap", ["bee"])])
    with taken_as(block=block, run=run), pytest.raises(PoisonError, match="no word"):
        read_blocks(flow, [written], Store(BEFORE))


def test_another_key_is_poison() -> None:
    with pytest.raises(PoisonError, match="a null key"):
        states_after([words(["ant", "asp"])], key=lambda word: None if word.value == "asp" else "a")


# --- both ways, compared -------------------------------------------------------------------------


@dataclass
class Writer:
    """A republisher of one partition: writes envelopes of one lane as a script asks, also wrongly."""

    partition: int
    epoch: int = 1
    offset: int = 0
    previous: bytes = b""

    def __post_init__(self) -> None:
        self.template = OutputTemplate(
            lane=0, topic="raw", topic_id=bytes(16), partition=self.partition, output="up/words"
        )

    def write(self, kind: str, texts: Sequence[str]) -> list[bytes]:
        """The envelopes for one input; `kind` names what is wrong about them."""
        back = {"replay": 1, "old replay": 3}.get(kind, 0)
        self.offset = max(0, self.offset + 1 - back)
        self.epoch += kind == "new leader"
        made = []
        for ordinal, text in enumerate(texts):
            payloads: list[bytes | None] = [StringValue(value=text).SerializeToString()]
            if kind == "collection":
                payloads += payloads
            of = len(texts) + (kind == "of changed" and ordinal > 0)
            previous = b"\xff" * 16 if kind == "gap" else b"" if kind == "new batch" else self.previous
            type_name = BytesValue.DESCRIPTOR.full_name if kind == "other type" else TYPE
            value, position = self.template.encode(
                b"", self.offset, self.epoch, ordinal, of, root_position(self.epoch, self.offset), 5,
                b"k", type_name, payloads, previous,
            )  # fmt: skip
            self.previous = max(self.previous, position)
            made.append(value)
        return made


BENIGN = (*["plain"] * 20, "replay", "old replay", "new leader", "new batch", "collection", "root")
EVIL = ("of changed", "gap", "other type", "damaged", "cut short", "tombstone", "empty", "bad")


def records_of(script: Sequence[Told]) -> list[Record]:
    """What three republishers write, and a producer at the origin."""
    writers = [Writer(partition) for partition in range(3)]
    values: list[bytes] = []
    for which, kind, texts in script:
        if kind in {"root", "tombstone"}:
            root = wrap(StringValue(value=texts[0]), key=b"k", timestamp_ms=7, event_id=b"e" * 16)
            values.append(root if kind == "root" else b"")
            continue
        made = writers[which].write(kind, {"empty": [""], "bad": ["bad"]}.get(kind, texts))
        if kind == "damaged":
            made[0] = made[0][:40] + bytes([made[0][40] ^ 1]) + made[0][41:]
        if kind == "cut short":
            made[-1] = made[-1][:-3]
        values += made
    return [Record(offset, value) for offset, value in enumerate(values)]


class Stopped(NamedTuple):
    """The service would end, with this error."""

    error: str
    text: str


def outcome(records: Sequence[Record], sizes: Sequence[int], *, changes: bool) -> object:
    """Everything that comes of records read in blocks of these sizes."""
    flow = Flow("notes", state_partitions=1)
    stage = flow.source("words", StringValue).aggregate(
        "letters", key=lambda word: word.value[:1] or "-", state=StringValue, fold=note_strictly
    )
    if changes:
        stage.changes().to("notes", partitions=2)
    try:
        found = read_blocks(flow, cut(records, sizes), Store(BEFORE), times=EventTimes(0))
    except ChainError as error:
        return Stopped(type(error).__name__, str(error))
    return [repr(block) for block in found]


def note_strictly(ledger: StringValue, word: StringValue) -> None:
    if word.value.startswith("bad"):
        message = f"{word.value} is not for {ledger.value}"
        raise ValueError(message)
    note(ledger, word)


texts = st.lists(st.sampled_from(["ant", "asp", "bee", "boa", "x" * 150]), min_size=1, max_size=3)
lanes = st.integers(0, 2)
benign = st.lists(st.tuples(lanes, st.sampled_from(BENIGN), texts), min_size=2, max_size=30)
evil = st.lists(st.tuples(lanes, st.sampled_from(EVIL), texts), max_size=2)


@st.composite
def scripts(draw: st.DrawFn) -> list[Told]:
    """What happens, with at most two reasons to stop; the lanes are mostly known before."""
    script = draw(benign)
    known = [(lane, "plain", ["ant"]) for lane in range(draw(st.integers(0, 3)))]
    for one in draw(evil):
        script.insert(draw(st.integers(0, len(script))), one)
    return known + script


Carried = Literal["values", "headers", "mixed"]


def carried_as(records: Sequence[Record], how: Carried) -> list[Record]:
    """The same with the chain in headers, where the envelope allows it; of "mixed" every third record."""
    return [
        record if how == "values" or (how == "mixed" and index % 3) else _in_headers(record)
        for index, record in enumerate(records)
    ]


def _in_headers(record: Record) -> Record:
    try:
        value, headers = in_headers(record.data or b"", source="here")
    except (EnvelopeError, ValueError):
        return record
    return Record(record.at, value, heads=headers)


def compare(
    script: Sequence[Told], sizes: Sequence[int], worthwhile: int, *, changes: bool, how: Carried = "values"
) -> None:
    records = carried_as(records_of(script), how)
    with one_by_one():
        general = outcome(records, sizes, changes=changes)
    for block, run in ((NEVER, NEVER), (1, NEVER), (1, worthwhile)):
        with taken_as(block=block, run=run):
            assert outcome(records, sizes, changes=changes) == general


@given(
    scripts(),
    st.lists(st.integers(2, 12), max_size=5),
    st.booleans(),
    st.sampled_from([1, 2, 5]),
    st.sampled_from(["values", "headers", "mixed"]),
)
def test_all_ways_give_the_same(
    script: list[Told], sizes: list[int], changes: bool, worthwhile: int, how: Carried
) -> None:
    compare(script, sizes, worthwhile, changes=changes, how=how)


@pytest.mark.parametrize("kind", sorted({*BENIGN, *EVIL}))
@pytest.mark.parametrize("words", [["ant"], ["ant", "bee"], ["bee", "ant", "ant"]], ids=len)
@pytest.mark.parametrize("how", ["values", "headers", "mixed"])
def test_all_ways_see_one_strange_message_wherever_a_block_ends(
    kind: str, words: list[str], how: Carried
) -> None:
    script: list[Told] = [(number % 2, "plain", words) for number in range(8)]
    script[5] = 1, kind, words
    for first in range(2 * len(words), 8 * len(words)):
        compare(script, [first], 1, changes=False, how=how)
        compare(script, [2 * len(words), first - 2 * len(words), 2], 1, changes=True, how=how)


@pytest.mark.parametrize("how", ["values", "headers"])
@pytest.mark.parametrize("worthwhile", [1, NEVER])
def test_ordinary_records_are_decided_about_in_runs(worthwhile: int, how: Carried) -> None:
    """So that the comparison above compares something."""
    records = carried_as(records_of([(number % 3, "plain", ["ant", "bee"]) for number in range(30)]), how)
    with taken_as(run=worthwhile) as taken:
        outcome(records, [6], changes=False)
    assert taken == ([54] if worthwhile == 1 else [])
