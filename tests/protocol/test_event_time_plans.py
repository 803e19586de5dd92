"""Goal: what is known of one partition is used for another exactly where it holds."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.flow import Flow
from sqe_chain.protocol.event_times import NOTHING, KnownTimes, progress_of, watermarks_of
from sqe_chain.segment.event_times import WHOLE, EventTimes, Frontier, Progress, WaitingUnits
from sqe_chain.stages import Tumbling

CLOCK_MS = 1_000
HERE, THERE, ELSEWHERE = ("mid", 0), ("mid", 1), ("other", 0)


def known(**stated: int) -> EventTimes:
    """What is known where these writers have stated watermarks."""
    times = EventTimes(0).copy(clock_ms=CLOCK_MS)
    for lane, (name, stated_ms) in enumerate(stated.items(), 1):
        times.observe(f"up/{name}", lane, stated_ms + 50, stated_ms)
    return times.settled()


def test_what_a_writer_states_elsewhere_holds_where_everything_has_been_read() -> None:
    there = {"mid/1": known(a=700)}
    read = KnownTimes(there, 0).at(HERE, {"mid/0": ()}, CLOCK_MS).believe()
    assert read.progress(*HERE) == Progress(*HERE, waited_for=True, watermark_ms=700, latest_ms=700)
    unread = KnownTimes(there, 0).at(HERE, {}, CLOCK_MS)
    assert unread.progress(*HERE) == Progress(*HERE, waited_for=True, watermark_ms=None, latest_ms=None)


def test_a_partition_with_more_to_read_may_hold_messages_of_a_writer_that_is_known_elsewhere_only() -> None:
    both = {"mid/0": known(a=900), "mid/1": known(b=700)}
    assert KnownTimes(both, 0).at(HERE, {}, CLOCK_MS).progress(*HERE).watermark_ms is None
    assert KnownTimes(both, 0).at(HERE, {"mid/0": ()}, CLOCK_MS).believe().progress(*HERE).watermark_ms == 700
    same = {"mid/0": known(a=900), "mid/1": known(a=950)}
    assert KnownTimes(same, 0).at(HERE, {}, CLOCK_MS).progress(*HERE).watermark_ms == 900
    assert KnownTimes(same, 0).at(HERE, {"mid/0": ()}, CLOCK_MS).believe().progress(*HERE).watermark_ms == 950


def test_what_is_still_to_be_read_was_written_before_what_its_writer_states_elsewhere() -> None:
    here = KnownTimes({"mid/0": known(a=100), "mid/1": known(a=700)}, 0).at(HERE, {"mid/0": ()}, CLOCK_MS)
    here.begin()
    assert here.observe("up/a", 99, timestamp_ms=200, stated_ms=100) == 200, "not 700"
    assert here.believe().observe("up/a", 98, timestamp_ms=200, stated_ms=100) == 700


def test_another_topic_says_nothing() -> None:
    found = KnownTimes({"other/0": known(a=700)}, 0).at(HERE, {"mid/0": ()}, CLOCK_MS).believe()
    assert found.progress(*HERE) == Progress(*HERE, waited_for=True, watermark_ms=None, latest_ms=None)


def test_what_is_known_is_not_changed() -> None:
    before = {"mid/0": known(a=900), "mid/1": known(b=700)}
    KnownTimes(before, 0).at(HERE, {"mid/0": ("up/a",)}, CLOCK_MS)
    assert before == {"mid/0": known(a=900), "mid/1": known(b=700)}


def test_everybody_is_let_go_where_nothing_more_comes() -> None:
    both = {"mid/0": known(a=900), "mid/1": known(b=700)}
    ended = KnownTimes(both, 0).everybody_in([HERE, ELSEWHERE], CLOCK_MS)
    assert ended == {"mid/0": ("up/a", "up/b"), "other/0": ("",)}
    (here,) = progress_of(KnownTimes(both, 0).all_at([HERE], ended, CLOCK_MS))
    assert here == Progress(*HERE, waited_for=False, watermark_ms=None, latest_ms=950)


def flow_with_outputs() -> Flow:
    flow = Flow("promises", state_partitions=2)
    first, second = flow.source("mid", dict), flow.source("other", dict)
    first.to("plain", partitions=1)
    first.merge(second).to("both", partitions=1)
    first.windowed(
        "windows", Tumbling(10), key=lambda _: "k", state=Int64Value, fold=lambda _state, _value: None
    ).to("results", partitions=1)
    return flow


def progress(topic: str, partition: int, watermark_ms: int | None) -> Progress:
    return Progress(topic, partition, waited_for=True, watermark_ms=watermark_ms, latest_ms=None)


def test_an_output_promises_no_more_than_its_inputs_and_the_stages_before_it() -> None:
    flow = flow_with_outputs()
    found = [progress("mid", 0, 500), progress("mid", 1, 400), progress("other", 0, 300)]
    assert watermarks_of(flow, found, {}) == {"plain": 400, "both": 300, "results": 400}
    waiting = {
        "windows/0": WaitingUnits(0, Frontier(350, "mid", 0)),
        f"windows/{WHOLE}": WaitingUnits(0, Frontier(360, "mid", 0)),
    }
    assert watermarks_of(flow, found, waiting)["results"] == 350
    waiting["windows/1"] = WaitingUnits(3, None)
    assert watermarks_of(flow, found, waiting)["results"] == NOTHING
    found[1] = progress("mid", 1, None)
    assert watermarks_of(flow, found, {}) == {"plain": NOTHING, "both": NOTHING, "results": NOTHING}
