"""Goal: records that wait for event time are handled like all others: exact, skipped when they fail, bounded, released by a rule."""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.chain import Coordinates, read_lane
from sqe_chain.envelope.message import parse_head, republish
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import ConfigurationError, LostOffsets, PoisonError
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.settings import settings_of
from sqe_chain.features.waiting import Holder, WaitingInputs
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.rehearsal import Rehearsal

MINUTE_MS = 60_000


def add(total: Int64Value, value: dict[str, Any]) -> None:
    if value.get("bad"):
        raise ValueError("a bad value")
    total.value += 1


def service_of(*, poison: Literal["stop", "skip", "dead_letter"] = "stop", **settings: Any) -> Rehearsal:
    flow = Flow("minutes", state_partitions=3, poison=poison)
    windows = flow.source("in", dict, raw=True).windowed(
        "windows",
        Tumbling(MINUTE_MS),
        key=lambda value: value["key"],
        state=Int64Value,
        fold=add,
        retention_ms=10**12,
    )
    windows.to("results", partitions=1)
    windows.dropped().to("late", partitions=1)
    return Rehearsal(flow, partitions={"in": 2}, settings=Settings(**settings), max_rows_per_write=2)


def feed(service: Rehearsal, partition: int, minute: float, key: str = "a", **value: Any) -> int:
    at_ms = int(minute * MINUTE_MS)
    return service.feed("in", {"key": key, **value}, partition=partition, timestamp_ms=at_ms)


def held(service: Rehearsal) -> int:
    assert service.service is not None
    last: Any = service.service
    waiting: int = EventTime.of(last.last).waiting
    return waiting


def counts(service: Rehearsal) -> dict[tuple[str, int], int]:
    return {
        (window.key.decode(), window.span.start_ms // MINUTE_MS): window.state.value
        for window in service.windows("windows")
    }


def late(service: Rehearsal) -> int:
    return len(service.log.records("late"))


def test_records_wait_for_the_partition_that_is_behind() -> None:
    service = service_of()
    for minute in range(5):
        feed(service, 0, minute)
    service.batch()
    assert (held(service), counts(service)) == (5, {})
    feed(service, 1, 2.5)
    service.batch()
    assert (held(service), counts(service)) == (2, {("a", 0): 1, ("a", 1): 1, ("a", 2): 2})
    assert not service.batch(), "nothing new, and partition 1 has not been silent for long"
    assert late(service) == 0


def test_a_silent_partition_is_marked_idle_by_the_clock_and_a_redo_repeats_it() -> None:
    plain, crashed = service_of(idle_ms=5_000), service_of(idle_ms=5_000)
    for service in (plain, crashed):
        for minute in range(5):
            feed(service, 0, minute)
        feed(service, 1, 0.5)
        service.batch()
        assert held(service) == 4
        service.clock.jump(4_000)
        feed(service, 0, 5)  # partition 0 is alive
        service.batch()
        assert held(service) == 5
        service.clock.jump(2_000)
    for number in range(40):  # each write of the batch that marks it idle
        crashed.crash_at_write(number, "after")
        try:
            worked = crashed.batch()
        except Crash:
            crashed.service = None
            continue
        if not worked:
            break
    plain.run_until_caught_up()
    crashed.run_until_caught_up()
    assert counts(crashed) == counts(plain) == {("a", 0): 2, **{("a", minute): 1 for minute in range(1, 6)}}
    assert held(crashed) == 0


def test_a_partition_that_was_marked_idle_may_be_late_when_it_returns_and_that_is_reported() -> None:
    service = service_of()
    for minute in range(5):
        feed(service, 0, minute)
    service.run_until_caught_up()
    assert held(service) == 0
    feed(service, 1, 1)
    feed(service, 1, 6)
    service.run_until_caught_up()
    assert counts(service) == {**{("a", minute): 1 for minute in range(5)}, ("a", 6): 1}
    assert late(service) == 1
    assert service.events("filtered")[-1]["counts"] == {"windows/late": 1}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_a_record_that_fails_after_its_wait_is_skipped(
    poison: Literal["skip", "dead_letter"], *, crash: bool
) -> None:
    service = service_of(poison=poison)
    for minute in range(4):
        feed(service, 0, minute, bad=minute == 2, n=minute)
    service.batch()
    assert held(service) == 4
    feed(service, 1, 10)
    feed(service, 1, 11, bad=True)
    if crash:
        for number in range(0, 60, 3):
            service.crash_at_write(number, "after")
    service.run_until_caught_up()
    assert counts(service) == {("a", 0): 1, ("a", 1): 1, ("a", 3): 1, ("a", 10): 1}
    if poison == "dead_letter":
        dead_letters = service.log.records("minutes.dead-letters")
        found = {dict(record.headers() or [])["sqe-offset"]: record for record in dead_letters}
        first = found[b"2"]
        assert json.loads(first.value() or b"") == {"key": "a", "bad": True, "n": 2}
        assert dict(first.headers() or [])["sqe-error"] == b"ValueError"
        assert dict(first.headers() or [])["sqe-topic"] == b"in"
    assert bool(service.crashes) == crash


@pytest.mark.parametrize("crash", [False, True])
def test_a_record_that_fails_is_skipped_once_though_another_one_had_brought_its_time(*, crash: bool) -> None:
    """What fails has a time all the same, so nothing is tried at another place because of it."""
    service = service_of(poison="dead_letter")
    feed(service, 0, 2, bad=True)
    feed(service, 0, 3)
    service.batch()
    feed(service, 1, 2.5, bad=True)
    service.batch()
    assert held(service) == 1
    feed(service, 1, 10)
    if crash:
        for number in range(0, 60, 3):
            service.crash_at_write(number, "after")
    service.run_until_caught_up()
    assert counts(service) == {("a", 3): 1, ("a", 10): 1}
    dead_letters = service.log.records("minutes.dead-letters")
    headers = [dict(record.headers() or []) for record in dead_letters]
    assert {(header["sqe-partition"], header["sqe-offset"]) for header in headers} == {
        (b"0", b"0"),
        (b"1", b"0"),
    }
    assert crash or len(dead_letters) == 2


@pytest.mark.parametrize("crash", [False, True])
def test_a_record_that_fails_in_its_turn_is_skipped_and_a_later_one_with_its_id_counts(
    *, crash: bool
) -> None:
    """Without the time of the first one, the second belongs before it, where the first would be a duplicate."""
    flow = Flow("ids", poison="dead_letter")
    stream = flow.source("in", dict, raw=True).deduplicate("once", lambda value: value["id"], MINUTE_MS)
    stream.aggregate("total", key=lambda _: "all", state=Int64Value, fold=add)
    service = Rehearsal(flow, partitions={"in": 1})
    for minute, bad in ((5, True), (4.9, False)):
        at_ms = int(minute * MINUTE_MS)
        service.feed("in", {"id": "a", "bad": bad}, partition=0, timestamp_ms=at_ms)
    if crash:
        for number in range(0, 30, 2):
            service.crash_at_write(number, "after")
    service.run_until_caught_up()
    dead_letters = service.log.records("ids.dead-letters")
    assert {dict(record.headers() or [])["sqe-offset"] for record in dead_letters} == {b"0"}
    assert service.states("total")[b"all"].value == 1
    assert bool(service.crashes) == crash


@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_a_record_that_waits_and_that_kafka_has_no_longer_stops_the_service(
    poison: Literal["skip", "dead_letter"],
) -> None:
    service = service_of(poison=poison)
    feed(service, 0, 2)
    feed(service, 0, 3)
    service.batch()
    service.log.truncate_before("in", 0, 1)
    feed(service, 1, 10)
    with pytest.raises(LostOffsets, match=r"in\[0\].* begins at 1"):
        service.batch()


def test_the_group_has_committed_no_more_than_what_was_taken() -> None:
    """So a reader of what the flow gives does not take it for caught up, and Kafka's lag shows what waits."""
    service = service_of()
    for minute in range(5):
        feed(service, 0, minute)
    feed(service, 1, 2.5)
    service.batch()
    commits = service.log.committed("minutes", [("in", 0), ("in", 1)])
    assert {tp[1]: commit.offset for tp, commit in commits.items()} == {0: 3, 1: 1}
    service.run_until_caught_up()
    commits = service.log.committed("minutes", [("in", 0), ("in", 1)])
    assert {tp[1]: commit.offset for tp, commit in commits.items()} == {0: 5, 1: 1}


def test_a_redo_of_the_last_silent_batch_takes_all_that_had_been_taken() -> None:
    """What had been published before the rewind is not published again, wherever the run dies."""
    for number in itertools.count():
        service = service_of(idle_ms=5_000)
        for minute in range(5):
            feed(service, 0, minute)
        feed(service, 1, 0.5)
        service.batch()
        service.clock.jump(6_000)
        service.run_until_caught_up()
        assert held(service) == 0
        expected, published = counts(service), len(service.log.records("results"))
        service.rebuild({("in", 0): 0, ("in", 1): 0})
        service.crash_at_write(number, "after")
        service.run_until_crash()
        crashed = bool(service.crashes)
        service.script.writes.clear()
        service.run_until_caught_up()
        assert (counts(service), held(service)) == (expected, 0)
        assert len(service.log.records("results")) == published, number
        if not crashed:
            break
    assert number > 5


def test_a_dead_letter_record_of_a_republished_record_that_has_waited_names_its_lane_and_position() -> None:
    """They show, when it is sent back, whether it was counted since."""
    flow = Flow("minutes", state_partitions=3, poison="dead_letter")
    flow.source("in", dict).windowed(
        "windows",
        Tumbling(MINUTE_MS),
        key=lambda value: value["key"],
        state=Int64Value,
        fold=add,
        retention_ms=10**12,
    )
    service = Rehearsal(flow, partitions={"in": 2})
    at = Coordinates(topic="raw", topic_id=bytes(16), partition=4, offset=9, leader_epoch=1)
    value = republish(
        None,
        at,
        {"key": "a", "bad": True},
        output="up/in",
        key="a",
        timestamp_ms=2 * MINUTE_MS,
        watermark_ms=1,
    )
    service.feed("in", value, partition=0)
    service.batch()
    assert held(service) == 1
    service.feed("in", {"key": "a"}, partition=1, timestamp_ms=10 * MINUTE_MS)
    service.run_until_caught_up()
    (record,) = service.log.records("minutes.dead-letters")
    headers, head = dict(record.headers() or []), parse_head(value)
    lane = read_lane(head.lane, "in", bytes.fromhex((headers["sqe-topic-id"] or b"").decode()), 0)
    assert headers["sqe-lane"] == b"%016x" % lane
    assert headers["sqe-position"] == head.position.hex().encode()


def test_under_policy_stop_the_record_is_named() -> None:
    service = service_of()
    feed(service, 0, 2, bad=True)
    service.batch()
    feed(service, 1, 10)
    with pytest.raises(PoisonError, match=r"in\[0\]@0 .*a bad value"):
        service.batch()


def test_what_is_a_batch_ahead_is_read_no_further_while_others_have_more() -> None:
    service = service_of(max_records=4)
    for minute in range(40):
        feed(service, 0, 100 + minute)
        feed(service, 1, minute)
    for _ in range(10):
        service.batch()
        assert held(service) <= 8
    service.run_until_caught_up()
    assert counts(service) == {("a", start + minute): 1 for start in (0, 100) for minute in range(40)}
    assert late(service) == 0


def test_a_batch_reports_how_many_records_wait_and_for_which_partition() -> None:
    service = service_of()
    for minute in range(3):
        feed(service, 0, minute)
    service.batch()
    assert {
        name: service.events("committed")[-1].get(name) for name in ("held", "holder", "watermark_ms")
    } == {
        "held": 3,
        "holder": "in/1",
        "watermark_ms": None,
    }
    feed(service, 1, 0.5)
    service.batch()
    last = service.events("committed")[-1]
    assert (last["held"], last["holder"], last["watermark_ms"]) == (2, "in/1", 30_000)
    service.run_until_caught_up()
    last = service.events("committed")[-1]
    assert (last["held"], last.get("holder")) == (0, None)


def test_after_a_minute_a_notice_names_the_partition_and_the_republisher() -> None:
    log = MemoryLog("held-notice")
    relay_flow = Flow("relay")
    relay_flow.source("raw", dict, raw=True).to("mid", key=lambda value: value["key"], partitions=1)
    relay = Rehearsal(relay_flow, partitions={"raw": 1}, log=log)
    flow = Flow("minutes", state_partitions=2)
    flow.source(["mid", "other"], dict).windowed(
        "windows",
        Tumbling(MINUTE_MS),
        key=lambda value: value["key"],
        state=Int64Value,
        fold=add,
        retention_ms=1,
    )
    service = Rehearsal(flow, partitions={"other": 1}, log=log)
    relay.feed("raw", {"key": "a"}, timestamp_ms=1_000)
    relay.batch()
    relay.feed("raw", {"key": "a"}, timestamp_ms=2_000)  # not passed on: the relay is behind
    service.feed("other", {"key": "a"}, timestamp_ms=500_000)

    def notices() -> list[str]:
        found = (str(event["text"]) for event in service.events("notice"))
        return [text for text in found if "wait for event time" in text]

    for seconds in (0, 30, 31, 30, 95):
        service.clock.jump(seconds * 1_000)
        service.batch()
    assert len(notices()) == 2, "after a minute, and when three have passed"
    assert (
        "mid[0] (written by relay/mid) has not come any further for 61 s; look whether that flow runs"
        in notices()[0]
    )
    relay.run_until_caught_up()
    service.run_until_caught_up()
    assert held(service) == 0


def test_waiting_records_are_listed_by_input_partition_with_the_one_that_holds_them_back() -> None:
    service = service_of()
    for minute in range(5):
        feed(service, 0, minute, key="abc"[minute % 3])
    service.batch()
    behind = Holder("in", 1, "", None)
    assert service.waiting("windows") == [
        WaitingInputs("in", 0, 5, None, behind),
        WaitingInputs("in", 1, 0, None, None),
    ]
    feed(service, 1, 2.5)
    service.batch()
    until_ms = int(2.5 * MINUTE_MS)
    behind = Holder("in", 1, "", until_ms)
    assert service.waiting("windows") == [
        WaitingInputs("in", 0, 2, until_ms, behind),
        WaitingInputs("in", 1, 0, until_ms, None),
    ]
    service.run_until_caught_up()
    assert [(one.units, one.holder) for one in service.waiting("windows")] == [(0, None)] * 2
    service.rebuild()
    assert [one.units for one in service.waiting("windows")] == [0, 0]


@pytest.mark.parametrize("in_place", [True, False])
def test_all_input_partitions_are_waited_for_in_every_layout(*, in_place: bool) -> None:
    """A key may lie in another partition than its own at any time, and then belongs before what came elsewhere."""
    flow = Flow("in-place", state_partitions=2)
    one, two = (flow.source(topic, dict, raw=True) for topic in ("one", "two"))
    one.merge(two).windowed("windows", Tumbling(MINUTE_MS), state=Int64Value, fold=add, retention_ms=1)
    service = Rehearsal(flow, partitions={"one": 2, "two": 2}, settings=Settings(in_place=in_place))
    keys: dict[int, str] = {}
    for number in range(20):
        keys.setdefault(partition_of(str(number).encode(), 2), str(number))
    for topic, partition, minute in (("one", 0, 5), ("two", 0, 1), ("one", 1, 7)):
        service.feed(topic, {}, key=keys[partition], partition=partition, timestamp_ms=minute * MINUTE_MS)
    service.batch()
    found = service.waiting("windows")
    behind = Holder("two", 1, "", None)
    assert [(one.units, one.holder) for one in found] == [(1, behind), (1, behind), (1, behind), (0, None)]


def test_a_stage_that_takes_records_as_they_come_has_nothing_that_waits() -> None:
    flow = Flow("counts", state_partitions=1)
    numbers = flow.source("in", dict, raw=True)
    numbers.aggregate("counts", key=lambda value: value["key"], state=Int64Value, fold=add)
    numbers.windowed("windows", Tumbling(1), key=lambda _: "k", state=Int64Value, fold=add, retention_ms=1)
    service = Rehearsal(flow)
    with pytest.raises(ConfigurationError, match="has not run"):
        service.waiting("windows")
    with pytest.raises(ConfigurationError, match="as they come"):
        service.waiting("counts")


@pytest.mark.parametrize("publishes", [False, True])
def test_what_waited_is_taken_when_no_stage_takes_it_in_the_order_of_times_any_more(
    *, publishes: bool
) -> None:
    def flow_of(*, windows: bool) -> Flow:
        flow = Flow("turned", state_partitions=1)
        events = flow.source("in", dict, raw=True)
        events.aggregate("sums", key=lambda event: event["key"], state=Int64Value, fold=add)
        if windows:
            events.windowed(
                "windows", Tumbling(1), key=lambda _: "k", state=Int64Value, fold=add, retention_ms=1
            )
        if publishes:
            events.to("copy", partitions=1)
        return flow

    service = Rehearsal(flow_of(windows=True), partitions={"in": 2})
    for minute in range(3):
        feed(service, 0, minute)
    service.batch()
    assert held(service) == 3
    settings = settings_of(drop_stages=("windows",))
    service = Rehearsal(flow_of(windows=False), log=service.log, store=service.stores, settings=settings)
    feed(service, 1, 7)
    service.run_until_caught_up()
    assert service.states("sums")[b"a"].value == 4
    assert (held(service), service.batch()) == (0, False)
    assert len(service.log.records("copy") if publishes else [1] * 4) == 4
