"""What each kind of filter remembers can be read, in plain objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.chain import Coordinates
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Filter, Flow, Stream
from sqe_chain.stages import (
    FirstSeen,
    ProducerMark,
    Record,
    RootReplays,
    RootSeen,
    SequenceSeen,
    Sighting,
    Span,
    SqeKey,
    Tumbling,
    Verdict,
    records_of,
    root_replays,
)
from sqe_chain.testing import Rehearsal

BEGIN = 4_102_444_800_000
Declare = Callable[[Stream[Int64Value]], Filter[Int64Value]]


def rehearsed(declare: Declare) -> Rehearsal:
    flow = Flow("f", state_partitions=1)
    declare(flow.source("numbers", Int64Value)).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for value in (3, 4):
        rehearsal.feed("numbers", Int64Value(value=value), key="robot", timestamp_ms=BEGIN + value)
    rehearsal.run_until_caught_up()
    return rehearsal


def test_sightings() -> None:
    def declare(stream: Stream[Int64Value]) -> Filter[Int64Value]:
        return stream.deduplicate("once", lambda n: str(n.value), 1_000)

    assert rehearsed(declare).remembered("once") == [Sighting(b"3", BEGIN + 3), Sighting(b"4", BEGIN + 4)]


def test_first_records_of_windows() -> None:
    def declare(stream: Stream[Int64Value]) -> Filter[Int64Value]:
        return stream.distinct("once", Tumbling(60_000))

    assert rehearsed(declare).remembered("once") == [FirstSeen(b"robot", Span(BEGIN, BEGIN + 60_000))]


def test_sequence_numbers() -> None:
    def declare(stream: Stream[Int64Value]) -> Filter[Int64Value]:
        return stream.drop_stale("once", sequence=lambda n: n.value, scope="key")

    assert rehearsed(declare).remembered("once") == [SequenceSeen(b"robot", 0, 4)]


def test_sequence_numbers_of_producers() -> None:
    def declare(stream: Stream[Int64Value]) -> Filter[Int64Value]:
        return stream.drop_stale(
            "once", sequence=lambda n: n.value, scope="key", producer=lambda n: f"p{n.value % 2}"
        )

    assert rehearsed(declare).remembered("once") == [
        SequenceSeen(b"robot", 0, 4, b"p0"),
        SequenceSeen(b"robot", 0, 3, b"p1"),
    ]


def test_roots() -> None:
    def declare(stream: Stream[Int64Value]) -> Filter[Int64Value]:
        return stream.drop_replays("once", by="key")

    assert rehearsed(declare).remembered("once") == [RootSeen(b"robot", "numbers", 0, 1, 1)]


def test_producers() -> None:
    flow = Flow("f", state_partitions=1)
    flow.source("numbers", Int64Value).drop_replays("once").to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for offset in (5, 6):
        rehearsal.feed("numbers", Int64Value(value=offset), key=SqeKey(-7, 2, offset).to_bytes(), partition=0)
    rehearsal.run_until_caught_up()
    (mark,) = rehearsal.remembered("once")
    assert isinstance(mark, ProducerMark)
    assert mark[1:] == (-7, 2, 6)


def test_records_are_those_that_a_flow_gives_its_filters() -> None:
    """Two payloads of one envelope that was republished: compared with what a flow makes of them."""
    hop = Flow("hop")
    hop.source("numbers", Int64Value).flat_map(lambda n: [n, Int64Value(value=n.value)]).to(
        "mid", partitions=1
    )
    upstream = Rehearsal(hop)
    upstream.feed("numbers", Int64Value(value=3), key="robot", timestamp_ms=BEGIN)
    upstream.run_until_caught_up()
    seen: list[Record] = []

    class Noting(RootReplays):
        def accept(self, record: Record) -> Verdict:
            seen.append(record)
            return super().accept(record)

    flow = Flow("f", state_partitions=1)
    flow.source("mid", Int64Value).drop_replays("once", by="key").to("out", partitions=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(root_replays.RootsKind, "rule", Noting)
        Rehearsal(flow, log=upstream.log).run_until_caught_up()
    (message,) = upstream.log.records("mid")
    info = upstream.log.describe(["mid"])["mid"]
    at = Coordinates(
        topic="mid", topic_id=info.topic_id, partition=0, offset=message.offset(), leader_epoch=1
    )
    made = records_of(message.value() or b"", Int64Value, at, key=message.key())
    plain = [Record(*(getattr(record, field.name) for field in fields(Record))) for record in seen]
    # Where it belongs in the order of times, the flow decides.
    assert made == [replace(record, place_ms=None) for record in plain]


def test_a_stage_that_is_no_filter_is_refused() -> None:
    flow = Flow("g", state_partitions=1)
    stage = flow.source("numbers", Int64Value).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=lambda total, n: None
    )
    stage.changes().to("out", partitions=1)
    with pytest.raises(ConfigurationError, match="not a filter"):
        Rehearsal(flow).remembered("sum")
