"""The short way of ordinary messages gives what the general way gives, where the two meet in one block.

A message fed alone after another lane's first one takes the general way; the rest of the block the
short one. Both must agree on what a redo within a chunked persist has to leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope import wrap
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.marks import PartitionMarks
from sqe_chain.ports import Header, Range
from sqe_chain.segment.reading import Reading
from sqe_chain.segment.results import Job, Portion, Report, States
from sqe_chain.states import Claim, Step

BEFORE = Header(1, "run", 3, "plan-3")


@dataclass
class Record:
    """A message as a log gives it."""

    at: int
    data: bytes

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return self.data

    def key(self) -> None:
        return None

    def leader_epoch(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


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
    """Changed states, when these blocks are read in place by a flow with one state partition."""
    flow = Flow("notes", state_partitions=1)
    flow.source("words", StringValue).aggregate(
        "letters", key=key or (lambda word: word.value[0]), state=StringValue, fold=note
    )
    job = Job(Step("notes", Claim(1, "run"), 3, "plan-3"), 1, in_place=True)
    store: Any = Store(header)
    reading = Reading(flow, job, lambda _: store)
    portion = Portion(Range("words", bytes(16), 0, 0, 100), PartitionMarks("words", bytes(16), 0).to_json())
    found: list[Any] = [*reading.read(portion, blocks), *reading.finish()]
    assert isinstance(found[-1], Report)
    rows = [row for block in found if isinstance(block, States) for row in block.rows]
    return {key.decode(): StringValue.FromString(state or b"").value.strip() for key, state in rows}


def test_what_comes_first_and_what_follows_are_folded_in_order() -> None:
    read = words(["ant", "bee", "asp", "auk", "boa"])
    expected = {"a": "old ant asp auk", "b": "old bee boa"}
    assert states_after([read]) == expected
    assert states_after([[one] for one in read]) == expected


def test_a_replay_is_ignored_wherever_it_stands() -> None:
    read = words(["ant", "bee", "asp"])
    assert states_after([read, [read[1]], [*read, *words(["", "", "", "auk"])[3:]]]) == {
        "a": "old ant asp auk",
        "b": "old bee",
    }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_redo_within_a_persist_leaves_out_the_keys_before_its_cursor(size: int) -> None:
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


def test_another_key_is_poison() -> None:
    with pytest.raises(PoisonError, match="a null key"):
        states_after([words(["ant", "asp"])], key=lambda word: None if word.value == "asp" else "a")
