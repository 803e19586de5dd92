"""Later versions and people read plans: a stored plan keeps its names, its order and its id."""

from __future__ import annotations

import json
import zlib
from base64 import b85encode
from dataclasses import replace
from hashlib import blake2b
from typing import cast

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.adapters.mirror import MirroredTopic
from sqe_chain.envelope.marks import MarksRecord, PartitionMarks
from sqe_chain.envelope.revisions import Revision
from sqe_chain.errors import StoreInconsistent
from sqe_chain.features.announcing import Announcing
from sqe_chain.features.closing import Closes
from sqe_chain.features.due import DueMoments
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.file_inputs import LoadedFiles
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.noting import CodecNotes
from sqe_chain.features.overwrite import Overwrite
from sqe_chain.features.parking import Parking
from sqe_chain.features.rebuilding import Reached, Rebuilding, Unfinished
from sqe_chain.features.shadowing import Compared
from sqe_chain.features.ticking import Timers
from sqe_chain.flow import Flow
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.inputs import decode_marks, parse_metadata
from sqe_chain.plans.layout import Layout, StageLayout
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan, PlannedRange, Section
from sqe_chain.plans.published import PublishedLanes
from sqe_chain.plans.revisions import Revisions, Unfollowed
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import Commit
from sqe_chain.task.event_times import EventTimes, Frontier
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.states import Claim
from sqe_chain.testing import Rehearsal
from tests.support.docs_examples import ROOT

STORED = (
    b'{"clock_ms":9,"epoch":2,"exclusions":[{"error":"ValueError","offset":1,"partition":0,"policy":"skip",'
    b'"text":"odd","topic":"t"}],"format":2,"layout":{"gone":[],"outputs":{"o":["u",2]},"sources":{"t":["00",1]},'
    b'"stages":{"s":{"birth":0,"buckets":1,"flow":"f"}},"starts":{"t/0":3},"state_partitions":8,"types":{},"ways":{}},'
    b'"number":4,"previous_id":"ab",'
    b'"ranges":[{"last_crc":-1,"last_epoch":0,"last_offset":-1,"last_timestamp_ms":-1,"partition":0,"start":0,"stop":2,"topic":"t",'
    b'"topic_id":"00"}],"run_id":"run","wakes":false,"marks":{"t/0":'
    b'{"entered_in_middle":true,"excused":["0000000000000000"],"lanes":[{"lane":"0000000000000000","of":0,"offset":7,'
    b'"path":"72d9a2cb7af6da13","position":"000000010000000000000007"}],"partition":0,'
    b'"roots":[["t",0,"00000000000000000000000000000000"]],"topic":"t","topic_id":"00000000000000000000000000000000",'
    b'"undecodable_offset":-1}},"sections":{"rebuild":{"attempt":3,"silent":true,"silent_until":{"t/0":7},'
    b'"unfinished":{"clock_ms":8,"closing":false,"exclusions":[],"frontier":null,"ranges":[]}}},"plan_id":"7934a911567f391b38f916347fbb43f5"}'
)


def test_a_plan_is_stored_under_the_names_that_it_always_had() -> None:
    marks = PartitionMarks("t", bytes(16), 0, entered_in_middle=True)
    marks.accept_raw(7, 1)
    marks[0].excused = True
    plan = Plan(
        4,
        "",
        "ab",
        Claim(2, "run"),
        9,
        Layout(8, {"s": StageLayout(0, 1, "f")}, {"o": ("u", 2)}, {"t": ("00", 1)}, {("t", 0): 3}),
        (PlannedRange("t", "00", 0, 0, 2),),
        {("t", 0): marks},
        (Exclusion("t", 0, 1, "skip", "ValueError", "odd"),),
    )
    behind = Rebuilding(silent=True, silent_until={("t", 0): 7}, unfinished=Unfinished(8, ()), attempt=3)
    plan = plan.with_sections(behind).with_id()
    assert plan.to_bytes() == STORED
    loaded = Plan.from_bytes(STORED)
    assert loaded == plan
    assert Rebuilding.of(loaded) == behind
    assert loaded.to_bytes() == loaded.with_id().to_bytes() == STORED


def test_marks_that_did_not_move_are_not_encoded_again() -> None:
    encoded: list[int] = []

    class CountedMarks(PartitionMarks):
        def to_text(self) -> str:
            encoded.append(self.partition)
            return super().to_text()

    first = replace(
        Plan.from_bytes(STORED),
        marks={("t", number): CountedMarks("t", bytes(16), number) for number in range(12)},
    ).with_id()
    assert encoded == list(range(12))
    encoded.clear()
    moved = CountedMarks("t", bytes(16), 7)
    moved.accept_raw(0)
    plan = replace(first, number=5, previous_id=first.plan_id, marks={**first.marks, ("t", 7): moved})
    quick = plan.with_id(first)
    assert encoded == [7]
    assert quick.to_bytes() == plan.with_id().to_bytes()
    assert quick.plan_id == plan.with_id().plan_id != first.plan_id


def test_a_layout_that_is_not_that_of_the_plan_before_is_encoded_again() -> None:
    first = Plan.from_bytes(STORED).with_id()
    kept = replace(first, number=5, previous_id=first.plan_id)
    changed = replace(kept, layout=replace(first.layout, gone=("t",)))
    for plan in (kept, changed):
        assert Plan.from_bytes(plan.with_id(first).to_bytes()).layout == plan.layout


SECTIONS: list[tuple[Section, str]] = [
    (CodecNotes({"avro orders-value": "7"}), '{"notes":{"avro orders-value":"7"}}'),
    (Announcing({"s": ("00ff", "")}), '{"announced":{"s":["00ff",""]}}'),
    (Rebuilding(published_until={("t", 0): 9}), '{"rebuild":{"published_until":{"t/0":9}}}'),
    (
        Closes((5, 9), {("t", 0): (1, 2), ("t", 1): (7,)}, done=1, published=2),
        '{"closes":[[5,9],{"t/0":[1,2],"t/1":[7]},1,2]}',
    ),
    (
        EventTime({("t", 0): EventTimes(5)}, Frontier(7, "t", 0), ((1, 2),)),
        '{"event-time":{"frontier":[7,"t",0],"seen":[[1,2]],"times":{"t/0":{"since":5}}}}',
    ),
    (
        DueMoments(by_moments=True, due={("s", 2): 9, ("s", 0): 9, ("s", 1): -4}),
        '{"due":{"stages":{"s":[[-4,[1]],[9,[0,2]]]}}}',
    ),
    (LoadedFiles({"f.00": ("a.csv", 3)}, {"f": "00"}), '{"files":[{"f.00":["a.csv",3]},{"f":"00"}]}'),
    (
        Overwrite("partitions", 3, "decided", contents={"f": "00"}),
        '{"overwrite":{"contents":{"f":"00"},"mode":"partitions","since":3,"step":"decided"}}',
    ),
    (Lanes({("t", 0): 9}), '{"lanes":{"since":{"t/0":9}}}'),
    (Lanes({("t", 0): 9}, Frontier(7, "t", 0)), '{"lanes":{"frontier":[7,"t",0],"since":{"t/0":9}}}'),
    (
        Rebuilding(heard=Reached({}, Frontier(7, "t", 0), 8)),
        '{"rebuild":{"heard":[{},[7,"t",0],8]}}',
    ),
    (
        Begun({("t", 0): PartitionMarks("t", b"\1", 0)}),
        '{"begun":{"t/0":{"entered_in_middle":false,"lanes":[],"partition":0,"roots":[],"topic":"t","topic_id":"01","undecodable_offset":-1}}}',
    ),
    (Timers(5, {("s", 1): 7}), '{"timers":[5,{"s/1":7}]}'),
    (
        Revisions(
            {"up/out": (Revision(2, {b"\1": {0: (1, 7)}}), Revision(3))},
            {b"\1": "raw"},
            {"up/out": Unfollowed(4, "t")},
            own=2,
            since=7,
        ),
        '{"revisions":{"follows":{"up/out":[{"revision":2,"since":[{"from":{"0":[1,7]},"id":"01","topic":"raw"}]},{"revision":3,"since":null}]},"newer":{"up/out":[4,"t"]},"own":[2,7]}}',
    ),
    (
        Mirrors("c2", {"t": MirroredTopic("a.t", b"\2", b"\1", {0: (9, 3)})}),
        '{"mirrors":{"cluster":"c2","topics":{"t":["a.t","02","01",{"0":[9,3]}]}}}',
    ),
    (
        Compared(
            {"m": "d1"},
            0,
            4,
            {("t", 0): 0},
            equal=2,
            different=1,
            examples=("t[0]@3",),
            copied="p7",
            filling=True,
        ),
        '{"compared":{"code":{"m":"d1"},"copied":"p7","different":1,"equal":2,"examples":["t[0]@3"],"filling":true,"offsets":{"t/0":0},"since":0,"until":4}}',
    ),
    (
        Parking(discarded=(("t", "00", 0, 3), ("t", "00", 0, 5)), counted=(("t", "00", 1, 7),)),
        '{"parked":{"counted":[["t","00",1,[7]]],"discarded":[["t","00",0,[3,5]]]}}',
    ),
]


def test_every_section_is_tried_here_and_named_by_the_page() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    plans = page.partition("**Plans**")[2].partition("\n\n")[0]
    known = {kind.name for kind in Section.kinds.values() if kind.__module__.startswith("sqe_chain.")}
    assert known == {section.name for section, _ in SECTIONS}
    assert {name for name in known if f"`{name}`" not in plans} == set()


@pytest.mark.parametrize(("section", "text"), SECTIONS, ids=[one.name for one, _ in SECTIONS])
def test_what_few_plans_have_is_stored_in_sections_of_these_alone(section: Section, text: str) -> None:
    plain = Plan.from_bytes(STORED).with_sections(Rebuilding()).with_id()
    assert json.loads(plain.to_bytes())["sections"] == {}
    assert type(section).of(plain) == type(section)()
    plan = plain.with_sections(section).with_id()
    assert f'"sections":{text},"plan_id"' in plan.to_bytes().decode()
    loaded = Plan.from_bytes(plan.to_bytes())
    assert loaded == plan
    assert type(section).of(loaded) == section
    assert plan.with_sections(type(section)()).with_id() == plain
    broken = replace(plan, sections={section.name: "5"}).with_id()
    with pytest.raises(StoreInconsistent, match=f"section '{section.name}' of stored plan 4"):
        type(section).of(Plan.from_bytes(broken.to_bytes()))


def with_newer_members(data: bytes) -> bytes:
    """A plan as a newer version may seal it: with a member more, and one more in its layout."""
    text = data.replace(b'{"', b'{"a_member_of_later":[1],"', 1)
    text = text.replace(b'"layout":{', b'"layout":{"a_member_of_later":[1],', 1)
    head, old = text.rsplit(b'"plan_id":"', 1)
    digest = blake2b(head + b'"plan_id":""}', digest_size=16).hexdigest().encode()
    assert len(old) == len(digest) + 2
    return head + b'"plan_id":"' + digest + b'"}'


def test_a_plan_of_a_newer_version_is_stored_as_it_was_read() -> None:
    """Written without what this version does not know, it would be taken for a plan that was changed in the store."""
    newer = with_newer_members(STORED)
    plan = Plan.from_bytes(newer)
    assert (plan.number, plan.layout) == (4, Plan.from_bytes(STORED).layout)
    assert plan.to_bytes() == newer
    assert Plan.from_bytes(plan.to_bytes()) == plan
    after = replace(plan, number=5, previous_id=plan.plan_id).with_id(plan)
    assert b"a_member_of_later" not in after.to_bytes()
    assert Plan.from_bytes(after.to_bytes()) == after


def test_a_plan_that_was_changed_in_the_store_is_refused() -> None:
    """Of a lowered mark, a run would count replays."""
    assert STORED.count(b"00000000000007") == 1
    for changed in (
        STORED.replace(b"00000000000007", b"00000000000005"),
        STORED + b" ",
        json.dumps(json.loads(STORED)).encode(),
    ):
        with pytest.raises(StoreInconsistent, match="stored plan 4 is not what was sealed"):
            Plan.from_bytes(changed)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "plan 4 has format 1, .* an older one has written it.*export.*import"),
        (1, "plan 4 has format 1, .* an older one has written it"),
        (3, "plan 4 has format 3, .* a newer one has written it; run that one"),
        ("2", "plan 4 has format 2, "),
    ],
)
def test_plans_of_other_formats_are_refused_by_name(found: object, text: str) -> None:
    raw = json.loads(STORED) | {"format": found}
    if found is None:
        del raw["format"]
    with pytest.raises(StoreInconsistent, match=text):
        Plan.from_bytes(json.dumps(raw).encode())


def test_json_nested_without_end_is_no_plan_and_no_metadata_of_ours() -> None:
    endless = "[" * 5_000
    with pytest.raises(StoreInconsistent):
        Plan.from_bytes(endless.encode())
    assert parse_metadata(Commit(0, endless)) == {}
    assert decode_marks(b85encode(zlib.compress(endless.encode())).decode()) is None


def add(total: Int64Value, word: StringValue) -> None:  # a fold's arguments
    total.value += 1


def test_a_plan_with_an_unknown_section_is_refused_by_its_name_before_anything_changes() -> None:
    flow = Flow("words", state_partitions=1)
    flow.source("words", StringValue).aggregate(
        "count", key=lambda word: word.value, state=Int64Value, fold=add
    )
    store = MemoryStore("unknown-section")
    service = Rehearsal(flow, store=store)
    service.feed("words", StringValue(value="a"))
    service.run_until_caught_up()
    home, _ = store.home("words")
    assert home is not None
    plan = read_last_plan(store, "words")
    assert plan is not None
    newer = replace(plan, sections={**plan.sections, "later-version": "{}"}).with_id()
    written = replace(home, plan_id=newer.plan_id)
    assert store.set_home("words", home, written, newer.to_bytes(), 0) == written
    before = store.copy_all()
    with pytest.raises(StoreInconsistent, match=r"later-version.*newer version"):
        Rehearsal(flow, log=service.log, store=store).run_until_caught_up()
    assert store.copy_all() == before


def lanes_plan(lanes: int) -> Plan:
    """A plan whose marks have this number of lanes."""
    known = [
        {"lane": f"{lane:016x}", "position": f"{lane:032x}", "of": 1, "offset": lane, "path": f"{lane:016x}"}
        for lane in range(lanes)
    ]
    record = PartitionMarks("in", b"t" * 16, 0).to_json() | {"lanes": known}
    marks = PartitionMarks.from_json(cast("MarksRecord", record))
    return Plan(
        0,
        "",
        "",
        Claim(1, "run"),
        5,
        Layout(1),
        (PlannedRange("in", "74" * 16, 0, 0, 0),),
        {("in", 0): marks},
    ).with_id()


def test_a_large_plan_is_packed_and_a_small_one_stays_a_text() -> None:
    small, large = lanes_plan(10), lanes_plan(5_000)
    assert small.stored() == small.to_bytes()
    assert len(large.stored()) < len(large.to_bytes()) / 3
    for plan in (small, large):
        read = Plan.from_bytes(plan.stored())
        assert read == plan
        assert read.to_bytes() == plan.to_bytes()
        assert read.stored() == plan.stored()


def test_a_packed_plan_that_was_changed_or_cut_is_refused() -> None:
    stored = lanes_plan(5_000).stored()
    changed = zlib.compress(zlib.decompress(stored).replace(b'"of":1', b'"of":2', 1))
    for data in (stored[:-9], stored[:1], changed):
        with pytest.raises(StoreInconsistent):
            Plan.from_bytes(data)


def test_where_lanes_of_outputs_end_is_a_member_that_older_plans_lack() -> None:
    """A version that does not know it ignores it, and its plans lack it: then nothing is known of what it has published."""
    old = Plan.from_bytes(STORED)
    assert old.published is None
    noted = PublishedLanes(3, {("u", 1): {10: bytes(16)}})
    plan = replace(old, published=noted).with_id()
    assert json.loads(plan.to_bytes())["published"] == {
        "since": 3,
        "ends": {"u": {"1": {"000000000000000a": 32 * "0"}}},
    }
    assert Plan.from_bytes(plan.stored()).published == noted
