"""Goal: what is known of one partition is used for another exactly where it holds."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.features.event_times import (
    NOTHING,
    KnownTimes,
    Seen,
    progress_of,
    seen_after,
    seen_by,
    watermarks_of,
)
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.task.event_times import EventTimes, Frontier, PartitionProgress

CLOCK_MS = 1_000
HERE, THERE, ELSEWHERE = ("mid", 0), ("mid", 1), ("other", 0)


def known(**stated: int) -> EventTimes:
    """What is known where these writers have stated watermarks."""
    times = EventTimes(0).copy(clock_ms=CLOCK_MS)
    for name, stated_ms in stated.items():
        times.observe(f"up/{name}", (stated_ms + 50,), stated_ms)
    return times.settled()


def test_what_a_writer_states_elsewhere_holds_where_everything_has_been_read() -> None:
    there = {("mid", 1): known(a=700)}
    read = KnownTimes(there, 0).at(HERE, {HERE: {}}, CLOCK_MS)
    assert read.progress(*HERE) == PartitionProgress(*HERE, waited_for=True, watermark_ms=700, latest_ms=700)
    unread = KnownTimes(there, 0).at(HERE, {}, CLOCK_MS)
    assert unread.progress(*HERE) == PartitionProgress(
        *HERE, waited_for=True, watermark_ms=None, latest_ms=None
    )


def test_a_partition_with_more_to_read_may_hold_messages_of_a_writer_that_is_known_elsewhere_only() -> None:
    both = {("mid", 0): known(a=900), ("mid", 1): known(b=700)}
    assert KnownTimes(both, 0).at(HERE, {}, CLOCK_MS).progress(*HERE).watermark_ms is None
    assert KnownTimes(both, 0).at(HERE, {HERE: {}}, CLOCK_MS).progress(*HERE).watermark_ms == 700
    same = {("mid", 0): known(a=900), ("mid", 1): known(a=950)}
    assert KnownTimes(same, 0).at(HERE, {}, CLOCK_MS).progress(*HERE).watermark_ms == 900
    assert KnownTimes(same, 0).at(HERE, {HERE: {}}, CLOCK_MS).progress(*HERE).watermark_ms == 950


def test_another_topic_gives_no_event_time() -> None:
    found = KnownTimes({("other", 0): known(a=700)}, 0).at(HERE, {HERE: {}}, CLOCK_MS)
    assert found.progress(*HERE) == PartitionProgress(
        *HERE, waited_for=True, watermark_ms=None, latest_ms=None
    )


def test_what_is_known_is_not_changed() -> None:
    before = {("mid", 0): known(a=900), ("mid", 1): known(b=700)}
    KnownTimes(before, 0).at(HERE, {HERE: {"up/a": None}}, CLOCK_MS)
    assert before == {("mid", 0): known(a=900), ("mid", 1): known(b=700)}


def test_every_writer_is_marked_idle_where_nothing_more_comes() -> None:
    both = {("mid", 0): known(a=900), ("mid", 1): known(b=700)}
    ended = KnownTimes(both, 0).everybody_in([HERE, ELSEWHERE], CLOCK_MS)
    assert ended == {HERE: {"up/a": None, "up/b": None}, ELSEWHERE: {"": None}}
    (here,) = progress_of(KnownTimes(both, 0).all_at([HERE], ended, CLOCK_MS))
    assert here == PartitionProgress(*HERE, waited_for=False, watermark_ms=None, latest_ms=950)


def flow_with_outputs() -> Flow:
    flow = Flow("promises", state_partitions=2)
    first, second = flow.source("mid", dict), flow.source("other", dict)
    first.to("plain", partitions=1)
    first.merge(second).to("both", partitions=1)
    first.windowed(
        "windows", Tumbling(10), key=lambda _: "k", state=Int64Value, fold=lambda _state, _value: None
    ).to("results", partitions=1)
    return flow


def progress(topic: str, partition: int, watermark_ms: int | None) -> PartitionProgress:
    return PartitionProgress(topic, partition, waited_for=True, watermark_ms=watermark_ms, latest_ms=None)


def test_an_output_promises_no_more_than_its_inputs_and_the_stages_before_it() -> None:
    flow = flow_with_outputs()
    found = [progress("mid", 0, 500), progress("mid", 1, 400), progress("other", 0, 300)]
    # All of `mid` is taken in the order of times, also what comes to an output at once.
    assert watermarks_of(flow.compile(), found, Frontier(350, "mid", 0)) == {
        "plain": 350,
        "both": 300,
        "results": 350,
    }
    assert watermarks_of(flow.compile(), found, None) == {
        "plain": NOTHING,
        "both": NOTHING,
        "results": NOTHING,
    }
    found[2] = progress("other", 0, None)
    assert watermarks_of(flow.compile(), found, Frontier(350, "mid", 0))["both"] == NOTHING


def test_of_each_clock_the_latest_time_is_remembered_that_was_known_by_then_or_a_little_earlier() -> None:
    seen: Seen = ()
    for clock_ms in range(0, 100_000, 37):
        seen = seen_after(seen, clock_ms, [progress("mid", 0, 1)._replace(latest_ms=1_000 + clock_ms)], 5_000)
        assert len(seen) < 20
        known_ms = seen_by(seen, clock_ms - 5_000)
        if clock_ms < 5_000:
            assert known_ms is None
        elif clock_ms > 6_000:
            assert known_ms is not None
            assert clock_ms - 6_000 < known_ms - 1_000 <= clock_ms - 5_000
