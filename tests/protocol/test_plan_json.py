"""Plans are read by later versions, and by people: what stands in a store keeps its names, its order and its id."""

from __future__ import annotations

import json
import zlib
from base64 import b85encode
from dataclasses import replace

import pytest

from sqe_chain.envelope.marks import MarksRecord, PartitionMarks
from sqe_chain.errors import StoreInconsistent
from sqe_chain.ports import Commit
from sqe_chain.protocol.closes import Closes
from sqe_chain.protocol.commit_metadata import decode_marks, parse_metadata
from sqe_chain.protocol.layout import Layout, StageLayout
from sqe_chain.protocol.plan import Plan, PlannedRange, Unfinished
from sqe_chain.task.exclusion import Exclusion

STORED = (
    b'{"attempt":3,"clock_ms":9,"epoch":2,"exclusions":[{"error":"ValueError","offset":1,"partition":0,"policy":"skip",'
    b'"text":"odd","topic":"t"}],"layout":{"gone":[],"outputs":{"o":["u",2]},"sources":{"t":["00",1]},'
    b'"stages":{"s":{"birth":0,"buckets":1,"flow":"f"}},"starts":{},"state_partitions":8},"marks":{"t/0":'
    b'{"entered_in_middle":true,"excused":["0000000000000000"],"lanes":[{"lane":"0000000000000000","of":0,"offset":7,'
    b'"path":"72d9a2cb7af6da13","position":"000000010000000000000007"}],"partition":0,'
    b'"roots":[["t",0,"00000000000000000000000000000000"]],"topic":"t","topic_id":"00000000000000000000000000000000",'
    b'"undecodable_offset":-1}},"number":4,"plan_id":"cbffa8991e7f7bccdbae6cced498defe","previous_id":"ab","quiet":{"t/0":7},'
    b'"ranges":[{"last_epoch":0,"last_offset":-1,"last_timestamp_ms":-1,"partition":0,"start":0,"stop":2,"topic":"t",'
    b'"topic_id":"00"}],"run_id":"run","silent":true,"unfinished":{"clock_ms":8,"exclusions":[],"ranges":[]}}'
)


def test_a_plan_is_stored_under_the_names_that_it_always_had() -> None:
    marks = PartitionMarks("t", bytes(16), 0, entered_in_middle=True)
    marks.accept_raw(7, 1)
    marks[0].excused = True
    plan = Plan(
        4,
        "",
        "ab",
        2,
        "run",
        9,
        Layout(8, {"s": StageLayout(0, 1, "f")}, {"o": ("u", 2)}, {"t": ("00", 1)}),
        (PlannedRange("t", "00", 0, 0, 2),),
        {"t/0": marks},
        (Exclusion("t", 0, 1, "skip", "ValueError", "odd"),),
        silent=True,
        silent_until={"t/0": 7},
        unfinished=Unfinished(8, ()),
        attempt=3,
    ).with_id()
    assert plan.to_bytes() == STORED
    loaded = Plan.from_bytes(STORED)
    assert loaded == plan
    assert loaded.to_bytes() == loaded.with_id().to_bytes() == STORED


def test_marks_that_did_not_move_are_not_encoded_again() -> None:
    encoded: list[int] = []

    class Told(PartitionMarks):
        def to_json(self) -> MarksRecord:
            encoded.append(self.partition)
            return super().to_json()

    first = replace(
        Plan.from_bytes(STORED), marks={f"t/{number}": Told("t", bytes(16), number) for number in range(12)}
    ).with_id()
    assert encoded == list(range(12))
    encoded.clear()
    moved = Told("t", bytes(16), 7)
    moved.accept_raw(0)
    plan = replace(first, number=5, previous_id=first.plan_id, marks={**first.marks, "t/7": moved})
    quick = plan.with_id(first)
    assert encoded == [7]
    assert quick.to_bytes() == plan.with_id().to_bytes()
    assert quick.plan_id == plan.with_id().plan_id != first.plan_id


def test_a_plan_of_an_older_version_has_no_silence_and_nothing_unfinished() -> None:
    raw = json.loads(STORED)
    for name in ("quiet", "silent", "unfinished", "attempt"):
        del raw[name]
    plan = Plan.from_bytes(json.dumps(raw).encode())
    assert (plan.silent, plan.silent_until, plan.unfinished, plan.attempt) == (False, {}, None, -1)


def test_what_few_plans_have_stands_only_in_these() -> None:
    raw = json.loads(STORED)
    assert not {"announced", "published_until", "closes", "closing"} & set(raw)
    raw |= {"announced": {"s": ["00ff", ""]}, "published_until": {"t/0": 9}}
    plan = Plan.from_bytes(json.dumps(raw).encode())
    assert (plan.announced, plan.published_until) == ({"s": ("00ff", "")}, {"t/0": 9})
    assert json.loads(plan.to_bytes()) == raw


def test_closings_of_windows_are_stored_by_partition() -> None:
    raw = json.loads(STORED)
    raw |= {"closing": True, "closes": [[5, 9], {"t/0": [1, 2], "t/1": [7]}, 1, 2]}
    raw["unfinished"]["closing"] = True
    plan = Plan.from_bytes(json.dumps(raw).encode())
    assert plan.closing
    assert not plan.empty
    assert plan.closes == Closes((5, 9), {"t/0": (1, 2), "t/1": (7,)}, done=1, published=2)
    assert plan.unfinished is not None
    assert plan.unfinished.closing
    assert {key: json.loads(plan.to_bytes())[key] for key in ("closing", "closes", "unfinished")} == {
        key: raw[key] for key in ("closing", "closes", "unfinished")
    }


def test_json_nested_without_end_is_no_plan_and_no_metadata_of_ours() -> None:
    endless = "[" * 5_000
    with pytest.raises(StoreInconsistent):
        Plan.from_bytes(endless.encode())
    assert parse_metadata(Commit(0, endless)) == {}
    assert decode_marks(b85encode(zlib.compress(endless.encode())).decode()) is None
