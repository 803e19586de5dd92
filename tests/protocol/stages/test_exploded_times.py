"""Goal: rows of one input are counted each at its own time, while inputs keep their places in the order of times.

The oracle is plain Python over the uploads.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow, count, sum_
from sqe_chain.stages import Hopping, JumpGuard, Sessions, Tumbling
from sqe_chain.testing import Rehearsal

HOUR_MS = 3_600_000
LONG_MS = 1_000 * HOUR_MS
APPENDED_MS = 100 * HOUR_MS
Row = dict[str, Any]


def at(hour: int, minute: int) -> int:
    return hour * HOUR_MS + minute * 60_000


def rows_of(upload: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = upload["rows"]
    return rows


def earliest(upload: Mapping[str, Any]) -> int:
    return min(int(row["at"]) for row in rows_of(upload))


def append(rehearsal: Rehearsal, rows: Sequence[Row], at_ms: int, topic: str = "uploads") -> None:
    """An upload; its place is where its device writes."""
    partitions = rehearsal.log.describe([topic])[topic].partitions
    rehearsal.feed(topic, {"rows": list(rows)}, partition=len(rows) % partitions, timestamp_ms=at_ms)


EXAMPLE = (
    [("A", at(10, 0)), ("A", at(10, 59)), ("B", at(12, 50))],
    [("A", at(11, 5)), ("B", at(10, 10))],
    [("A", at(13, 0))],
)


def example(topic: str, rehearsal: Rehearsal) -> None:
    for upload in EXAMPLE:
        rows = [{"robot": robot, "at": at_ms} for robot, at_ms in upload]
        rehearsal.feed(topic, {"rows": rows}, timestamp_ms=APPENDED_MS)


def hours(rehearsal: Rehearsal, stage: str = "hours") -> dict[tuple[str, int], int]:
    """(robot, hour) -> rows, of results and of windows that are open."""
    final = {
        (window["key"], window["start_ms"] // HOUR_MS): window["state"]["rows"]
        for window in objects(rehearsal, stage)
    }
    still = {
        (window.key.decode(), window.span.start_ms // HOUR_MS): window.state.rows
        for window in rehearsal.windows(stage)
    }
    assert not final.keys() & still.keys()
    return final | still


def counting(flow: Flow, rows: Any, **settings: Any) -> None:
    rows.windowed("hours", Tumbling(HOUR_MS), key="robot", time="at", rows=count(), **settings).to(
        "hours", partitions=1
    )


WANTED = {("A", 10): 2, ("B", 12): 1, ("A", 11): 1, ("B", 10): 1, ("A", 13): 1}


@pytest.mark.parametrize("state_partitions", [1, 4])
def test_rows_of_one_upload_are_counted_each_in_its_hour(state_partitions: int) -> None:
    flow = Flow("hourly", state_partitions=state_partitions)
    counting(flow, flow.source("uploads", dict, raw=True, timestamp=earliest).flat_map(rows_of))
    rehearsal = Rehearsal(flow)
    example("uploads", rehearsal)
    rehearsal.run_until_caught_up()
    assert hours(rehearsal) == WANTED


def test_or_nothing_is_named_at_the_source_and_rows_may_be_old() -> None:
    flow = Flow("hourly")
    counting(flow, flow.source("uploads", dict, raw=True).flat_map(rows_of), lateness_ms=LONG_MS)
    rehearsal = Rehearsal(flow)
    example("uploads", rehearsal)
    rehearsal.run_until_caught_up()
    assert hours(rehearsal) == WANTED


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_behind_a_republisher_an_upload_keeps_the_place_that_its_root_has(
    named: bool, separate: bool
) -> None:
    exploding = Flow("explode")
    rows = exploding.source("uploads", dict, raw=True, timestamp=earliest).flat_map(rows_of)
    rows.to("readings", partitions=2, key=lambda row: row["robot"], separate=separate)
    flow = Flow("hourly")
    # To name the rows' times here too must not give an input another place than its siblings have.
    times: dict[str, Any] = {"timestamp": lambda row: row["at"]} if named else {}
    counting(flow, flow.source("readings", dict, **times))
    upstream = Rehearsal(exploding)
    rehearsal = Rehearsal(flow, log=upstream.log)
    example("uploads", upstream)
    upstream.run_until_caught_up()
    envelopes = list(upstream.published("readings"))
    assert {envelope.timestamp_ms for envelope in envelopes} == {at(10, 0), at(10, 10), at(13, 0)}
    assert len(envelopes) == (6 if separate else 5)
    rehearsal.run_until_caught_up()
    assert hours(rehearsal) == WANTED


def test_separate_envelopes_of_an_input_are_numbered_and_one_that_is_published_again_is_a_replay() -> None:
    exploding = Flow("explode")
    rows = exploding.source("uploads", dict, raw=True, timestamp=earliest).flat_map(rows_of)
    rows.to("readings", partitions=1, key=lambda row: row["robot"], separate=True)
    flow = Flow("hourly")
    counting(flow, flow.source("readings", dict))
    upstream = Rehearsal(exploding)
    rehearsal = Rehearsal(flow, log=upstream.log)
    example("uploads", upstream)
    upstream.run_until_caught_up()
    upstream.rewind({("uploads", 0): 0})
    upstream.run_until_caught_up()
    links = [envelope.chain.links[-1] for envelope in upstream.published("readings")]
    assert [(link.ordinal, link.of) for link in links[:3]] == [(0, 3), (1, 3), (2, 3)]
    assert len(links) == 12
    rehearsal.run_until_caught_up()
    assert hours(rehearsal) == WANTED


def test_a_value_of_several_times_is_refused_only_where_a_stage_takes_it_at_one() -> None:
    exploding = Flow("explode")
    rows = exploding.source("uploads", dict, raw=True, timestamp=earliest).flat_map(rows_of)
    rows.to("readings", partitions=1, key=lambda row: row["robot"])
    flow = Flow("hourly", poison="dead_letter")
    flow.source("readings", dict, timestamp=lambda row: row["at"]).windowed(
        "plain", Tumbling(HOUR_MS), rows=count(), retention_ms=1
    )
    upstream = Rehearsal(exploding)
    rehearsal = Rehearsal(flow, log=upstream.log)
    example("uploads", upstream)
    upstream.run_until_caught_up()
    rehearsal.run_until_caught_up()
    (letter,) = rehearsal.log.records("hourly.dead-letters")
    text = (dict(letter.headers() or [])["sqe-text"] or b"").decode()
    assert "several event times" in text
    assert "stage 'plain' takes them at one" in text
    assert "Give the stage time=" in text


@pytest.mark.parametrize("through", ["windows", "filter"])
def test_what_windows_give_has_one_time_again_and_what_a_filter_passes_has_not(through: str) -> None:
    exploding = Flow("explode")
    rows = exploding.source("uploads", dict, raw=True, timestamp=earliest).flat_map(rows_of)
    rows.to("readings", partitions=1, key=lambda row: row["robot"])
    flow = Flow("hourly", poison="dead_letter")
    read = flow.source("readings", dict, timestamp=lambda row: row["at"])
    if through == "windows":
        first: Any = read.windowed("first", Tumbling(HOUR_MS), time="at", rows=count())
    else:
        first = read.deduplicate_by_key("first", 1, time="at")
    first.key_by(lambda _: "all").windowed("second", Tumbling(HOUR_MS), rows=count(), retention_ms=1)
    upstream = Rehearsal(exploding)
    rehearsal = Rehearsal(flow, log=upstream.log)
    example("uploads", upstream)
    upstream.run_until_caught_up()
    rehearsal.run_until_caught_up()
    letters = rehearsal.log.records("hourly.dead-letters")
    assert len(letters) == (through == "filter")


def test_a_late_row_is_dropped_with_what_to_do() -> None:
    flow = Flow("hourly", state_partitions=1)
    rows = flow.source("uploads", dict, raw=True).flat_map(rows_of).key_by(lambda row: row["robot"])
    windows = rows.windowed("hours", Tumbling(HOUR_MS), time="at", rows=count(), lateness_ms=HOUR_MS)
    windows.dropped().map(lambda dropped: {"detail": dropped.detail}).to("late", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("uploads", {"rows": [{"robot": "A", "at": at(9, 59)}]}, timestamp_ms=at(12, 0))
    rehearsal.run_until_caught_up()
    (late,) = objects(rehearsal, "late")
    assert f"its input has the place {at(12, 0)} ms; allow for older rows" in late["detail"]


@pytest.mark.parametrize("in_one_flow", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_days_of_hours_need_no_lateness(seed: int, in_one_flow: bool) -> None:
    """A window's result has the last millisecond of its window as its place."""
    drawn = Drawn(seed, by_record=False)
    flow, days = Flow("hours", state_partitions=3), Flow("days", state_partitions=2)
    hourly = source(flow, "uploads", by_record=False).windowed(
        "hours", Tumbling(HOUR_MS), time="at", rows=count()
    )
    if not in_one_flow:
        hourly.to("hours", partitions=2)
    given = hourly if in_one_flow else days.source("hours", dict)
    given.windowed("days", Tumbling(24 * HOUR_MS), key="key", time="start_ms", rows=sum_("state.rows")).to(
        "days", partitions=2
    )
    rehearsal = run(flow, drawn, seed)
    if not in_one_flow:
        rehearsal.close_windows()
    reader = rehearsal if in_one_flow else Rehearsal(days, log=rehearsal.log)
    reader.close_windows()
    found = {
        (day["key"], day["start_ms"] // HOUR_MS // 24): day["state"]["rows"]
        for day in objects(reader, "days")
    }
    wanted = Counter(
        (row["robot"], row["at"] // HOUR_MS // 24) for topic, row in drawn.rows if topic == "uploads"
    )
    assert found == wanted


@pytest.mark.parametrize("kind", ["hopping", "sessions"])
def test_days_of_other_windows_need_the_lateness_that_the_docs_name(kind: str) -> None:
    """Size less advance, and by `end_ms` the gap: a result may be that much later than its day ends. Less loses results."""
    size_ms, advance_ms, gap_ms = 4 * HOUR_MS, HOUR_MS, 2 * HOUR_MS
    windows: Any = Hopping(size_ms, advance_ms) if kind == "hopping" else Sessions(gap_ms)
    time, enough_ms = ("start_ms", size_ms - advance_ms) if kind == "hopping" else ("end_ms", gap_ms)
    lost = list[int]()
    for lateness_ms in (enough_ms, enough_ms - 1):
        flow = Flow("days", state_partitions=3)
        first = source(flow, "uploads", by_record=False).windowed("first", windows, time="at", rows=count())
        first.to("first", partitions=1)
        days: Any = first.windowed(
            "days",
            Tumbling(24 * HOUR_MS),
            key="key",
            time=time,
            lateness_ms=lateness_ms,
            rows=sum_("state.rows"),
        )
        days.to("days", partitions=1)
        service = Rehearsal(flow)
        # The last window of day 0 for which this can be; then others make time pass.
        last_ms = 24 * HOUR_MS - (advance_ms if kind == "hopping" else 1)
        moving = range(last_ms + enough_ms, 24 * HOUR_MS + 2 * enough_ms, enough_ms // 3)
        for robot, at_ms in (("A", 5 * HOUR_MS), ("A", last_ms), *(("B", at_ms) for at_ms in moving)):
            service.feed("uploads", {"rows": [{"robot": robot, "at": at_ms}]}, timestamp_ms=at_ms)
        service.close_windows()
        given = sum(one["state"]["rows"] for one in objects(service, "first"))
        lost.append(given - sum(day["state"]["rows"] for day in objects(service, "days")))
    assert lost[0] == 0
    assert lost[1] > 0


@pytest.mark.parametrize("policy", ["hold", "drop"])
def test_a_guard_may_drop_rows_that_are_far_ahead_of_their_upload(policy: Any) -> None:
    flow = Flow("hourly", state_partitions=1)
    rows = flow.source("uploads", dict, raw=True, timestamp=earliest).flat_map(rows_of)
    counting(flow, rows, guard=JumpGuard(2 * HOUR_MS, policy=policy))
    rehearsal = Rehearsal(flow)
    example("uploads", rehearsal)
    rehearsal.run_until_caught_up()
    far = {("B", 12)} if policy == "drop" else set[tuple[str, int]]()
    assert hours(rehearsal) == {key: number for key, number in WANTED.items() if key not in far}


# ------------------------------------------------------------------ every kind, in drawn worlds


class Drawn:
    """Uploads to two topics, and what naive code makes of them."""

    def __init__(self, seed: int, *, by_record: bool) -> None:
        rng = random.Random(seed)
        self.uploads: list[tuple[str, int, list[Row]]] = []
        base_ms, span_ms = at(5, 0), rng.choice((0, HOUR_MS, 30 * HOUR_MS))
        for number in range(rng.randrange(5, 40)):
            base_ms += rng.choice((0, 1, HOUR_MS // 3, HOUR_MS, 5 * HOUR_MS))
            times = [base_ms + rng.randrange(span_ms + 1) // 60_000 * 60_000 for _ in range(rng.randrange(6))]
            if times and not by_record:
                times[rng.randrange(len(times))] = base_ms
            rows = [
                {"robot": rng.choice("ABC"), "at": at_ms, "n": 100 * number + index}
                for index, at_ms in enumerate(times)
            ]
            topic = rng.choice(("uploads", "others"))
            if rows:
                self.uploads.append((topic, base_ms + span_ms if by_record else base_ms, rows))
        self.rows = [(topic, row) for topic, _, rows in self.uploads for row in rows]

    def numbers(self, rows: Iterable[Row]) -> list[int]:
        return sorted(row["n"] for row in rows)


def objects(rehearsal: Rehearsal, topic: str) -> Iterator[Row]:
    """The payloads of an output."""
    for envelope in rehearsal.published(topic):
        for value in envelope.payloads_as(dict):
            assert value is not None
            yield value


def add(state: Row, row: Row) -> None:
    state.setdefault("ns", []).append(row["n"])


def add_later(state: Row, later: Row) -> None:
    state["ns"] += later["ns"]


def windows_of(rehearsal: Rehearsal) -> dict[tuple[str, int, int], list[int]]:
    rehearsal.close_windows()
    return {
        (window["key"], window["start_ms"], window["end_ms"]): sorted(window["state"]["ns"])
        for window in objects(rehearsal, "out")
    }


def run(flow: Flow, drawn: Drawn, seed: int, topics: Sequence[str] = ("uploads",)) -> Rehearsal:
    rng = random.Random(seed)
    rehearsal = Rehearsal(flow, partitions=dict.fromkeys(topics, rng.randrange(1, 4)))
    for topic, at_ms, rows in drawn.uploads:
        if topic in topics:
            append(rehearsal, rows, at_ms, topic)
        if rng.random() < 0.3:
            rehearsal.batch()
    rehearsal.run_until_caught_up()
    return rehearsal


def source(flow: Flow, topic: str, *, by_record: bool) -> Any:
    times: dict[str, Any] = {} if by_record else {"timestamp": earliest}
    return flow.source(topic, dict, raw=True, **times).flat_map(rows_of).key_by(lambda row: row["robot"])


@pytest.mark.parametrize("by_record", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_windows_hold_the_rows_of_their_times(seed: int, by_record: bool) -> None:
    drawn = Drawn(seed, by_record=by_record)
    windows = Tumbling(HOUR_MS) if seed % 2 else Hopping(2 * HOUR_MS, HOUR_MS)
    flow = Flow("w", state_partitions=3)
    lateness_ms = LONG_MS if by_record else 0
    source(flow, "uploads", by_record=by_record).windowed(
        "w", windows, state=dict, fold=add, time="at", lateness_ms=lateness_ms
    ).to("out", partitions=1)
    wanted = defaultdict(list)
    for topic, row in drawn.rows:
        start_ms = row["at"] // HOUR_MS * HOUR_MS
        for begin_ms in [start_ms] if seed % 2 else [start_ms - HOUR_MS, start_ms]:
            if topic == "uploads":
                end_ms = begin_ms + (HOUR_MS if seed % 2 else 2 * HOUR_MS)
                wanted[row["robot"], begin_ms, end_ms].append(row["n"])
    assert windows_of(run(flow, drawn, seed)) == {key: sorted(ns) for key, ns in wanted.items()}


@pytest.mark.parametrize("seed", range(8))
def test_sessions_hold_the_rows_that_are_near_to_each_other(seed: int) -> None:
    drawn = Drawn(seed, by_record=False)
    flow = Flow("w", state_partitions=2)
    source(flow, "uploads", by_record=False).windowed(
        "w", Sessions(HOUR_MS), state=dict, fold=add, merge=add_later, time=lambda row: row["at"]
    ).to("out", partitions=1)
    wanted = {}
    for robot in "ABC":
        row_times = sorted(
            (row["at"], row["n"]) for topic, row in drawn.rows if topic == "uploads" and row["robot"] == robot
        )
        begin = 0
        for end in range(1, len(row_times) + 1):
            if end == len(row_times) or row_times[end][0] - row_times[end - 1][0] > HOUR_MS:
                own = row_times[begin:end]
                wanted[robot, own[0][0], own[-1][0]] = sorted(number for _, number in own)
                begin = end
    assert windows_of(run(flow, drawn, seed)) == wanted


@pytest.mark.parametrize("by_record", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_rows_of_two_streams_find_each_other_by_their_times(seed: int, by_record: bool) -> None:
    drawn = Drawn(seed, by_record=by_record)
    flow = Flow("j", state_partitions=2)
    first, second = (source(flow, topic, by_record=by_record) for topic in ("uploads", "others"))
    first.join_stream(
        "j",
        second,
        lambda row, other: {"of": row["n"], "with": other and other["n"]},
        before_ms=HOUR_MS,
        after_ms=2 * HOUR_MS,
        how="left",
        time=lambda row: row["at"],
        other_time="at",
        lateness_ms=LONG_MS if by_record else 0,
    ).to("out", partitions=1)
    rehearsal = run(flow, drawn, seed, ("uploads", "others"))
    found = Counter((pair["of"], pair["with"]) for pair in objects(rehearsal, "out"))
    pairs, alone = set(), set()
    for topic, row in drawn.rows:
        fitting = [
            other["n"]
            for of, other in drawn.rows
            if (topic, of) == ("uploads", "others")
            and row["robot"] == other["robot"]
            and -HOUR_MS <= other["at"] - row["at"] <= 2 * HOUR_MS
        ]
        pairs |= {(row["n"], number) for number in fitting}
        if topic == "uploads" and not fitting:
            alone.add((row["n"], None))
    assert {pair: times for pair, times in found.items() if pair[1] is not None} == dict.fromkeys(pairs, 1)
    assert {pair for pair in found if pair[1] is None} <= alone, "others are given when their time is over"


@pytest.mark.parametrize("seed", range(8))
def test_of_rows_near_to_each_other_the_first_one_passes_however_many_an_upload_has(seed: int) -> None:
    drawn = Drawn(seed, by_record=False)
    # The first upload has one robot at many hours, so that many sightings of one key are remembered.
    many: list[Row] = [{"robot": "A", "at": at(5, 0) + hour * 3 * HOUR_MS, "n": -hour} for hour in range(9)]
    drawn.uploads.insert(0, ("uploads", at(5, 0), many + [{**row, "n": row["n"] - 100} for row in many]))
    flow = Flow("d", state_partitions=2)
    source(flow, "uploads", by_record=False).deduplicate_by_key(
        "d", HOUR_MS, time=lambda row: row["at"], guard=JumpGuard(1)
    ).to("out", partitions=1)
    rehearsal = run(flow, drawn, seed)
    kept: dict[str, list[int]] = defaultdict(list)
    wanted = []
    # One batch in one partition takes uploads in the order of their places.
    order = sorted(
        (
            (place_ms, len(rows) % rehearsal.log.describe(["uploads"])["uploads"].partitions, number, rows)
            for number, (topic, place_ms, rows) in enumerate(drawn.uploads)
            if topic == "uploads"
        ),
        key=lambda one: one[:3],
    )
    for *_, rows in order:
        for row in rows:
            if all(abs(row["at"] - known) > HOUR_MS for known in kept[row["robot"]]):
                kept[row["robot"]].append(row["at"])
                wanted.append(row["n"])
    found = [row["n"] for row in objects(rehearsal, "out")]
    assert sorted(found) == sorted(wanted)


def test_changes_of_a_table_hold_from_their_own_times() -> None:
    flow = Flow("t")
    values = flow.source("orders", dict, raw=True, timestamp=lambda order: order["at"]).key_by(lambda _: "k")
    table = flow.source("prices", dict, raw=True, timestamp=earliest).flat_map(rows_of).key_by(lambda _: "k")
    values.join_table(
        "t", table, lambda order, price: [order["at"], price and price["price"]], how="left", table_time="at"
    ).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    prices = [{"at": at(1, 0), "price": 1}, {"at": at(3, 0), "price": 3}, {"at": at(2, 0), "price": 2}]
    rehearsal.feed("prices", {"rows": prices})
    for hour in (0, 1, 2, 3):
        rehearsal.feed("orders", {"at": at(hour, 30)})
    rehearsal.run_until_caught_up()
    joined = [pair for one in rehearsal.published("out") for pair in one.payloads_as(list)]
    assert joined == [[at(0, 30), None], [at(1, 30), 1], [at(2, 30), 2], [at(3, 30), 3]]


# ------------------------------------------------------------------ what is refused


def raw() -> Any:
    return Flow("f").source("uploads", dict, raw=True).flat_map(rows_of).key_by(lambda row: row["robot"])


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda rows: rows.windowed("w", Tumbling(1), time="at", n=count()), "Give lateness_ms= "),
        (lambda rows: rows.distinct("w", Tumbling(1), time="at"), "Give grace_ms= "),
        (lambda rows: rows.deduplicate_by_key("w", 1, time="at"), "Give timestamp= at the source"),
        (
            lambda rows: rows.aggregate("w", time="at", n=count(), expire_after_ms=1),
            "timers and expiry go by",
        ),
        (lambda rows: rows.aggregate("w", time=lambda row: row["at"], n=count()), "timers and expiry go by"),
        (
            lambda rows: rows.join_table("w", rows.map(dict), dict, time="at"),
            "a table join goes by the order",
        ),
        (
            lambda rows: rows.windowed("w", Tumbling(1), time=7, n=count(), lateness_ms=1),
            "time needs a function",
        ),
        (lambda rows: rows.windowed("w", Tumbling(1), time=count(), n=count()), "another name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(declare: Any, text: str) -> None:
    with pytest.raises(FlowError, match=text):
        declare(raw())


@pytest.mark.parametrize("poison", ["stop", "dead_letter"])
@pytest.mark.parametrize("wrong", [None, "noon", "raises"])
def test_a_row_without_a_time_fails_its_upload_as_a_whole(wrong: object, poison: Any) -> None:
    flow = Flow("hourly", poison=poison)
    rows = flow.source("uploads", dict, raw=True, timestamp=lambda upload: upload["sent"]).flat_map(rows_of)

    def time_of(row: Row) -> Any:
        if row["at"] == "raises":
            raise ValueError("no time")
        return row["at"]

    rows.windowed("hours", Tumbling(HOUR_MS), key="robot", time=time_of, rows=count()).to(
        "hours", partitions=1
    )
    rehearsal = Rehearsal(flow)
    rehearsal.feed("uploads", {"sent": 5, "rows": [{"robot": "A", "at": 5}]})
    rehearsal.feed("uploads", {"sent": 6, "rows": [{"robot": "A", "at": 6}, {"robot": "A", "at": wrong}]})
    rehearsal.feed("uploads", {"sent": 7, "rows": [{"robot": "A", "at": 7}]})
    if poison == "stop":
        with pytest.raises(Exception, match=r"no time|event time") as raised:
            rehearsal.run_until_caught_up()
        assert "uploads[0]@1" in str(raised.value)
        return
    rehearsal.run_until_caught_up()
    (letter,) = rehearsal.log.records("hourly.dead-letters")
    assert letter.value() is not None
    assert hours(rehearsal) == {("A", 0): 2}
