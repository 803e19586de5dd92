"""The rule of marks for a run of messages at once, case by case: which runs may be taken, and where marks are then.

The tables have what is expected. Where a run is taken, marks are those of the same messages one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Coordinates, read, republish
from sqe_chain.chain import ORDINAL_LENGTH, root_position
from sqe_chain.envelope.block import Block, EnvelopeBlock, RawBlock
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import parse_head
from sqe_chain.envelope.runs import accept_run
from tests.support.records import Record

TYPE = StringValue.DESCRIPTOR.full_name.encode()
EPOCH = 3


def _at(topic: str, offset: int) -> Coordinates:
    return Coordinates(topic=topic, topic_id=b"t" * 16, partition=0, offset=offset, leader_epoch=EPOCH)


@dataclass(frozen=True)
class Sent:
    """What republishers make from a raw message.

    Attributes:
        root: offset of the raw message.
        ordinal: which of its outputs.
        of: how many outputs it has.
        previous: root of the one before on the lane; None: not stated.
        shard: each is a lane of its own.
    """

    root: int
    ordinal: int = 0
    of: int = 1
    previous: int | None = None
    shard: int = 0

    def value(self, hops: int) -> bytes:
        """What the last of several republishers gives; each before it has one output."""
        at, value = _at("raw", self.root), b""
        for hop in range(1, hops + 1):
            last, stated = hop == hops, b""
            if last and self.previous is not None:
                stated = root_position(EPOCH, self.previous) + bytes(ORDINAL_LENGTH * hops)
            value = republish(
                read(value) if value else None,
                at,
                StringValue(value="x"),
                output=f"hop{hop}/ok",
                key="k",
                shard=self.shard,
                ordinal=self.ordinal if last else 0,
                of=self.of if last else 1,
                previous=stated,
                timestamp_ms=5,
            )
            at = _at(f"t{hop}", self.root)
        return value


MARK = [Sent(10)]
TWO_LANES = [Sent(10), Sent(10, shard=1)]
HALF = [Sent(10, of=2)]

# Name -> what was accepted before, the run, and whether it may be taken.
ENVELOPES: dict[str, tuple[Sequence[Sent], Sequence[Sent], bool]] = {
    "rising": (MARK, [Sent(11), Sent(12), Sent(17)], True),
    "rising, each names the one before": (MARK, [Sent(11, previous=10), Sent(13, previous=11)], True),
    "some name the one before": (MARK, [Sent(11), Sent(13, previous=11)], True),
    "names one that is older": (MARK, [Sent(11, previous=5), Sent(13, previous=10)], True),
    "one alone": (MARK, [Sent(11)], True),
    "the first is a replay": (MARK, [Sent(10), Sent(11)], False),
    "one comes twice": (MARK, [Sent(11), Sent(11)], False),
    "one comes too late": (MARK, [Sent(11), Sent(13), Sent(12)], False),
    "one is missing before the first": (MARK, [Sent(12, previous=11), Sent(13)], False),
    "one is missing within": (MARK, [Sent(11), Sent(13, previous=12)], False),
    "siblings": (MARK, [Sent(11, 0, 3), Sent(11, 1, 3), Sent(11, 2, 3), Sent(12)], True),
    "siblings of the mark": (HALF, [Sent(10, 1, 2), Sent(11)], True),
    "a sibling of the mark has another of": (HALF, [Sent(10, 1, 3), Sent(11)], False),
    "a sibling within has another of": (MARK, [Sent(11, 0, 2), Sent(11, 1, 3)], False),
    "the last sibling has another of": (MARK, [Sent(11, 0, 3), Sent(11, 1, 3), Sent(11, 2, 4)], False),
    "of changes, but not of siblings": (MARK, [Sent(11, 0, 2), Sent(12, 0, 3)], True),
    "roots that are alike in their last byte": (MARK, [Sent(11, of=2), Sent(11 + 256, of=3)], True),
    "a lane is not known": (MARK, [Sent(11), Sent(11, shard=1)], False),
    "two lanes": (TWO_LANES, [Sent(12), Sent(11, shard=1), Sent(13), Sent(12, shard=1)], True),
    "a replay on the second lane": (TWO_LANES, [Sent(11), Sent(10, shard=1), Sent(12)], False),
    "one is missing on the second lane": (TWO_LANES, [Sent(11), Sent(12, previous=11, shard=1)], False),
    "a lane is judged by its own mark": ([Sent(10), Sent(90, shard=1)], [Sent(11), Sent(91, shard=1)], True),
}

# Name -> the mark, None: there is none; offsets of the run, with epochs where these change; whether it may be taken.
RAW: dict[str, tuple[int | None, Sequence[tuple[int, int]], bool]] = {
    "rising": (10, [(11, EPOCH), (12, EPOCH), (15, EPOCH)], True),
    "one alone": (10, [(11, EPOCH)], True),
    "a newer epoch": (10, [(11, EPOCH), (12, EPOCH + 1)], True),
    "nothing is known": (None, [(11, EPOCH)], False),
    "the first is a replay": (10, [(10, EPOCH), (11, EPOCH)], False),
    "an older epoch within": (10, [(11, EPOCH + 1), (12, EPOCH)], False),
    "the last one has an older epoch": (10, [(11, EPOCH), (12, EPOCH), (13, EPOCH - 1)], False),
}


def fresh() -> PartitionMarks:
    return PartitionMarks("in", b"i" * 16, 0)


def record(offset: int, value: bytes, epoch: int = EPOCH) -> Record:
    # Clients report the epoch itself; positions have one more.
    return Record(offset, value, b"k", None, 5, epoch - 1, ("in", 0))


def check(marks: PartitionMarks, one_by_one: PartitionMarks, block: Block, *, taken: bool) -> None:
    """One answer, and marks that have moved over all of the block or not at all."""
    before = marks.to_json()
    assert block.ordinary.all()
    assert accept_run(marks, block, 0, len(block.messages)) is taken
    assert marks.to_json() == (one_by_one.to_json() if taken else before)
    assert {lane: mark.of for lane, mark in marks if taken} == {
        lane: mark.of for lane, mark in one_by_one if taken
    }


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("case", ENVELOPES)
def test_a_run_of_envelopes(case: str, hops: int) -> None:
    known, run, taken = ENVELOPES[case]
    marks, one_by_one = fresh(), fresh()
    for offset, sent in enumerate(known):
        for each in (marks, one_by_one):
            assert each.accept(parse_head(sent.value(hops)), offset, EPOCH)
    values = [sent.value(hops) for sent in run]
    if taken:
        for offset, value in enumerate(values, 100):
            assert one_by_one.accept(parse_head(value), offset, EPOCH)
    block = EnvelopeBlock([record(offset, value) for offset, value in enumerate(values, 100)], TYPE)
    check(marks, one_by_one, block, taken=taken)


@pytest.mark.parametrize("case", RAW)
def test_a_run_without_envelopes(case: str) -> None:
    known, run, taken = RAW[case]
    marks, one_by_one = fresh(), fresh()
    for each in (marks, one_by_one):
        assert known is None or each.accept_raw(known, EPOCH)
    if taken:
        for offset, epoch in run:
            assert one_by_one.accept_raw(offset, epoch)
    check(marks, one_by_one, RawBlock([record(offset, b"x", epoch) for offset, epoch in run]), taken=taken)


def test_positions_of_several_lengths_are_looked_at_one_by_one() -> None:
    """A topic that two republishers of different depth write to: what is compared as columns has one width."""
    marks = fresh()
    for offset, hops in enumerate((1, 2)):
        assert marks.accept(parse_head(Sent(10).value(hops)), offset, EPOCH)
    records = [record(100, Sent(11).value(1)), record(101, Sent(11).value(2))]
    check(marks, fresh(), EnvelopeBlock(records, TYPE), taken=False)
