"""Which revision a root counts in, what is superseded, and records of revisions, against values by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from sqe_chain.chain import Coordinates, Link
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import parse_head, republish
from sqe_chain.envelope.revisions import (
    Revision,
    RevisionRecord,
    earliest,
    family_of,
    label,
    name_with,
    newer_than_known,
    records_by_family,
    shard_of,
    superseded,
    superseded_from,
    written_shard,
)
from sqe_chain.errors import OutOfBounds, UnknownRevision
from sqe_chain.ports import Headers

RAW, OTHER = b"r" * 16, b"o" * 16
SECOND = Revision(2, {RAW: {0: (3, 10)}})
THIRD = Revision(3, {RAW: {0: (3, 20), 1: (3, 5)}})


def place(epoch: int, offset: int) -> bytes:
    return epoch.to_bytes(4) + offset.to_bytes(8)


@pytest.mark.parametrize(
    ("topic_id", "partition", "epoch", "offset", "number"),
    [
        (RAW, 0, 3, 9, 1),
        (RAW, 0, 3, 10, 2),
        (RAW, 0, 3, 19, 2),
        (RAW, 0, 3, 20, 3),
        (RAW, 0, 2, 1_000, 1),  # cut off before the seam, so the log has another record there
        (RAW, 0, 4, 0, 3),
        (RAW, 1, 3, 4, 2),  # 2 names no place in this partition: from its beginning
        (RAW, 1, 3, 5, 3),
        (RAW, 7, 1, 0, 3),
        (OTHER, 0, 9, 9, 1),  # a topic that no seam names
    ],
)
def test_a_root_counts_in_the_newest_revision_that_begins_at_or_before_it(
    topic_id: bytes, partition: int, epoch: int, offset: int, number: int
) -> None:
    assert label(topic_id, partition, place(epoch, offset) + b"\0\0\0\1", [THIRD, SECOND]) == number


def test_a_revision_without_seam_counts_for_all_roots() -> None:
    assert label(OTHER, 0, place(0, 0), [SECOND, Revision(4)]) == 4
    assert label(OTHER, 0, place(0, 0), []) == 1


def link(output: str, *, offset: int = 0, partition: int = 0, shard: int | None = None) -> Link:
    return Link("raw", RAW, partition, offset, 3, output, shard)


@pytest.mark.parametrize(
    ("outputs", "known", "begins"),
    [
        (["clean/good"], {}, None),
        (["clean/good"], {"clean/bad": [SECOND]}, None),
        (["clean/good"], {"clean/good": [SECOND]}, (3, 10)),
        (["clean/good@2"], {"clean/good": [SECOND]}, None),
        # 3 begins after 2: both end 1, the earlier of them counts.
        (["clean/good"], {"clean/good": [SECOND, THIRD]}, (3, 10)),
        (["clean/good"], {"clean/good": [THIRD, Revision(2, {RAW: {0: (3, 30)}})]}, (3, 20)),
        (["clean/good@2"], {"clean/good": [SECOND, THIRD]}, (3, 20)),
        (["clean/good@3"], {"clean/good": [SECOND, THIRD]}, None),
        (["clean/good/released.9f"], {"clean/good": [SECOND]}, (3, 10)),
        (["clean/good@2/released.9f"], {"clean/good": [SECOND, THIRD]}, (3, 20)),
        # Through another republisher, which was not corrected, or was, too.
        (["clean/good", "keyed/out"], {"clean/good": [SECOND]}, (3, 10)),
        (["clean/good@2", "keyed/out"], {"clean/good": [SECOND], "keyed/out": [Revision(2)]}, (0, 0)),
    ],
)
def test_a_message_is_superseded_from_the_first_newer_seam_on(
    outputs: list[str], known: dict[str, list[Revision]], begins: tuple[int, int] | None
) -> None:
    links = [link(output) for output in outputs]
    assert superseded_from(links, known) == (None if begins is None else place(*begins))


def test_superseded_compares_the_root_of_the_message() -> None:
    known = {"keyed/out": [SECOND]}
    behind = Link("good", OTHER, 0, 99, 1, "keyed/out")
    assert not superseded([link("clean/good", offset=9), behind], known)
    assert superseded([link("clean/good", offset=10), behind], known)
    assert superseded([link("keyed/out", offset=0, partition=5)], known)
    assert not superseded([], known)


def test_what_lies_before_a_flow_with_stages_does_not_count() -> None:
    known = {"clean/good": [SECOND], "totals/lines": [Revision(2)]}
    before = link("clean/good", offset=50)
    assert superseded_from([before, link("other/lines", shard=4)], known) is None
    assert superseded_from([before, link("totals/lines", shard=4)], known) == place(0, 0)
    assert superseded_from([before, link("totals/lines@2", shard=0), link("keyed/out")], known) is None
    assert superseded_from([link("totals/lines", shard=0), before], known) == place(0, 0)


def test_a_topic_that_no_seam_names_is_never_superseded() -> None:
    gone = Link("raw", OTHER, 0, 99, 9, "clean/good")
    assert superseded_from([gone], {"clean/good": [SECOND]}) is None
    assert superseded([gone], {"clean/good": [Revision(2)]})


def test_a_revision_newer_than_all_known_ones_is_named() -> None:
    known = {"clean/good": [SECOND]}
    assert newer_than_known([link("clean/good@2"), link("keyed/out")], known) is None
    assert newer_than_known([link("clean/good"), link("keyed/out@2")], known) == ("keyed/out", 2)
    assert newer_than_known([link("clean/good@3"), link("totals/lines", shard=1)], known) is None


def test_names_of_revisions() -> None:
    assert [name_with("clean/good", number) for number in (1, 2, 12)] == [
        "clean/good",
        "clean/good@2",
        "clean/good@12",
    ]
    assert family_of("clean/good@12/released.9f") == ("clean/good", 12)
    # Names that other writers may have chosen.
    for name in ("good", "a/b/c@2", "a/b@x", "a/b@0", "a/b@02", "a/b@1x", "a@2/b", ""):
        assert family_of(name)[1] == 1, name


def test_a_link_of_a_revision_has_a_shard_that_older_versions_refuse() -> None:
    cases = [("a/b@2", None, 2**31), ("a/b@2", 0, 2**31 + 1), ("a/b@12/released.9f", 3, 2**31 + 4)]
    for output, shard, written in cases:
        assert written_shard(output, shard) == written > 2**31 - 1
        assert shard_of(output, written) == shard
    for shard in (None, 0, 2**31 - 1):
        assert written_shard("a/b", shard) == shard_of("a/b", shard) == shard


@pytest.mark.parametrize(
    ("output", "written"), [("a/b", 2**31), ("a/b@2", None), ("a/b@2", 2**31 - 1), ("a/b@1", 2**31)]
)
def test_a_mark_of_a_revision_that_does_not_fit_its_name_is_refused(output: str, written: int | None) -> None:
    with pytest.raises(OutOfBounds, match="shard of a link"):
        shard_of(output, written)
    with pytest.raises(OutOfBounds):
        written_shard("a/b@2", 2**31 - 1)


@dataclass
class Record:
    """As a log returns it."""

    content: bytes | None
    name: bytes | None = b"clean/good"
    at: int = 0

    def topic(self) -> str:
        return "good.revisions"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> Headers | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def leader_epoch(self) -> int | None:
        return 0


WRITTEN = {
    "format": 1,
    "revision": 2,
    "since": [{"topic": "raw", "id": RAW.hex(), "from": {"0": [3, 10]}}],
    "ends": [4, 0],
    "by": "run 1",
}


def test_a_record_is_json_that_people_can_read() -> None:
    record = RevisionRecord("clean/good", SECOND, {RAW: "raw"}, (4, 0), "run 1")
    assert record.key == b"clean/good"
    assert json.loads(record.to_bytes()) == WRITTEN
    assert RevisionRecord.from_record(Record(record.to_bytes())) == record


def test_a_revision_without_seam_is_written_and_read() -> None:
    record = RevisionRecord("totals/lines", Revision(7), {}, (1,), "run 2")
    assert json.loads(record.to_bytes())["since"] is None
    assert RevisionRecord.from_record(Record(record.to_bytes(), b"totals/lines")) == record


def test_the_first_record_of_a_revision_holds() -> None:
    third = WRITTEN | {"revision": 3, "by": "late"}
    values = [third, WRITTEN, WRITTEN | {"by": "second", "since": None}]
    records = [Record(json.dumps(value).encode(), at=at) for at, value in enumerate(values)]
    records.append(Record(json.dumps(WRITTEN | {"by": "of another"}).encode(), b"clean/bad"))
    known = records_by_family(records)
    assert [(own.revision.number, own.by) for own in known["clean/good"]] == [(2, "run 1"), (3, "late")]
    assert [own.by for own in known["clean/bad"]] == ["of another"]
    assert known["clean/good"][0].revision == SECOND


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"[]",
        b"{}",
        *(json.dumps(WRITTEN | {"revision": number}).encode() for number in (1, 0, True, "2", 1_000_000)),
        json.dumps(WRITTEN | {"format": 2}).encode(),
        json.dumps(WRITTEN | {"since": [{"topic": "raw"}]}).encode(),
        json.dumps(WRITTEN | {"since": 3}).encode(),
    ],
)
def test_a_record_that_cannot_be_understood_is_refused(content: bytes | None) -> None:
    with pytest.raises(UnknownRevision, match=r"good.revisions\[0\]@4: a revision that cannot be understood"):
        RevisionRecord.from_record(Record(content, at=4))


def test_several_revisions_begin_where_the_first_of_them_does() -> None:
    # The second one has all of partition 1.
    assert earliest([SECOND, THIRD]) == Revision(3, {RAW: {0: (3, 10)}})
    other = Revision(4, {OTHER: {0: (1, 1)}})
    assert earliest([SECOND, other]) == Revision(4, {RAW: {0: (3, 10)}, OTHER: {0: (1, 1)}})
    assert earliest([SECOND, Revision(5)]) == Revision(5)


def test_a_mark_that_was_moved_back_compares_no_siblings() -> None:
    def made(root: int, of: int) -> bytes:
        at = Coordinates(topic="raw", topic_id=RAW, partition=0, offset=root, leader_epoch=1)
        return republish(None, at, b"x", output="up/out", key=None, of=of, timestamp_ms=1, codec="bytes")

    marks = PartitionMarks("mid", OTHER, 0)
    heads = [parse_head(made(root, of)) for root, of in ((1, 2), (2, 1), (3, 1))]
    assert [marks.accept(head, offset) for offset, head in enumerate(heads)] == [True, True, True]
    last = place(1, 1) + b"\xff" * 4
    marks[heads[0].lane].move_to(last, 0)
    assert [marks.accept(head, offset) for offset, head in enumerate(heads)] == [False, True, True]
