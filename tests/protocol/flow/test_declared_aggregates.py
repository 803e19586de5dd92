"""Goal: declared aggregates are folded into windows as into keys, and change while a service lives.

Method: rehearsals; Hypothesis for windows, against a computation from the list of each window's values.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain import Flow
from sqe_chain.errors import ChangedType
from sqe_chain.flow import Aggregation, count, first, last, max_, mean, min_, sum_
from sqe_chain.stages import Hopping, Sessions, Tumbling, Window
from sqe_chain.testing import Rehearsal
from tests.support.naive_aggregates import expected

SIZE_MS = 10
AGGREGATES: dict[str, Any] = {
    "events": count(),
    "known": count("n"),
    "total": sum_("n"),
    "least": min_("n"),
    "most": max_("n"),
    "average": mean("n"),
}
IN_ORDER = AGGREGATES | {"earliest": first("n"), "latest": last("n")}
RECORDS = st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(-9, 9)), max_size=15)
Value = dict[str, Any]


class Total(msgspec.Struct):
    events: int = 0
    screws: int | float = 0


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary records take the fast path, however few they are."""
    monkeypatch.setattr("sqe_chain.task.records.WORTHWHILE_RUN", 1)


def windows_of(kind: Any, aggregates: dict[str, Any], values: list[Value]) -> Rehearsal:
    """A flow with windows that has folded these values, and closed them by a much later one."""
    flow = Flow("windows", state_partitions=1)
    source = flow.source("values", dict)
    source.windowed("all", kind, key="key", lateness_ms=1_000, guard=None, **aggregates).to(
        "closed", partitions=1
    )
    rehearsal = Rehearsal(flow)
    for value in [*values, {"key": "end", "n": 0, "at": 100_000}]:
        rehearsal.feed("values", value, timestamp_ms=value["at"])
    rehearsal.run_until_caught_up()
    return rehearsal


def closed(rehearsal: Rehearsal) -> dict[tuple[str, int, int], dict[str, Any]]:
    results: list[Any] = [
        payload for envelope in rehearsal.published("closed") for payload in envelope.payloads_as(dict)
    ]
    return {(result["key"], result["start_ms"], result["end_ms"]): result["state"] for result in results}


@settings(max_examples=60)
@given(RECORDS, st.sampled_from([Tumbling(SIZE_MS), Hopping(2 * SIZE_MS, SIZE_MS)]))
def test_each_window_has_what_its_values_at_once_give(
    records: list[tuple[int, int | None]], kind: Tumbling | Hopping
) -> None:
    values: list[Value] = [{"key": "k", "n": number, "at": at_ms} for at_ms, number in records]
    found = closed(windows_of(kind, IN_ORDER, values))
    held: dict[tuple[str, int, int], list[Value]] = defaultdict(list)
    for value in values:
        for start_ms, end_ms in kind.spans(value["at"]):
            held["k", start_ms, end_ms].append(value)
    assert found == {span: expected(IN_ORDER, inside) for span, inside in held.items()}


@settings(max_examples=60)
@given(RECORDS)
def test_so_has_each_session_also_where_two_become_one(records: list[tuple[int, int | None]]) -> None:
    values: list[Value] = [{"key": "k", "n": number, "at": at_ms} for at_ms, number in records]
    found = closed(windows_of(Sessions(gap_ms=5), AGGREGATES, values))
    sessions: list[list[Value]] = []
    for value in sorted(values, key=lambda value: int(value["at"])):
        if not sessions or value["at"] - sessions[-1][-1]["at"] > 5:
            sessions.append([])
        sessions[-1].append(value)
    assert found == {
        ("k", inside[0]["at"], inside[-1]["at"]): expected(AGGREGATES, inside) for inside in sessions
    }


def test_joined_sessions_keep_the_first_of_the_earlier_and_the_last_of_the_later_one() -> None:
    records = [(10, 3), (0, 1), (0, 2), (5, None), (10, 4)]
    values: list[Value] = [{"key": "k", "n": number, "at": at_ms} for at_ms, number in records]
    found = closed(windows_of(Sessions(gap_ms=5), IN_ORDER, values))
    (state,) = found.values()
    assert (state["earliest"], state["latest"], state["total"]) == (1, 4, 10)


def test_null_is_neither_the_first_nor_the_last_of_joined_sessions() -> None:
    for records in ([(10, 3), (0, None), (5, None)], [(10, None), (0, 3), (5, None)]):
        values: list[Value] = [{"key": "k", "n": number, "at": at_ms} for at_ms, number in records]
        (state,) = closed(windows_of(Sessions(gap_ms=5), IN_ORDER, values)).values()
        assert (state["earliest"], state["latest"], state["events"]) == (3, 3, 3)


def test_results_of_windows_go_on_to_the_next_stage() -> None:
    flow = Flow("chained", state_partitions=3)
    hours = flow.source("values", dict).windowed("tens", Tumbling(SIZE_MS), key="key", n=sum_("n"))
    hours.aggregate("sums", key=lambda window: window.key[:1], total=sum_("state.n"), windows=count())
    rehearsal = Rehearsal(flow)
    for at_ms, key in ((0, "a1"), (5, "a2"), (12, "a1"), (100, "a1"), (101, "a2")):
        rehearsal.feed("values", {"key": key, "n": 1}, timestamp_ms=at_ms)
    rehearsal.run_until_caught_up()
    assert asdict(rehearsal.states("sums")[b"a"]) == {"total": 3, "windows": 3}


# --- a service changes ---------------------------------------------------------------------------


def totals(**aggregates: Any) -> Flow:
    flow = Flow("totals", state_partitions=1)
    flow.source("values", dict).aggregate("totals", key="robot", **aggregates)
    return flow


def feed(rehearsal: Rehearsal, *screws: int) -> None:
    for number in screws:
        rehearsal.feed("values", {"robot": "R7", "screws": number})


def counted(**aggregates: Any) -> Rehearsal:
    rehearsal = Rehearsal(totals(**aggregates))
    feed(rehearsal, 3, 4)
    rehearsal.run_until_caught_up()
    return rehearsal


def test_an_aggregate_that_is_added_begins_with_the_next_record() -> None:
    rehearsal = counted(screws=sum_("screws"))
    rehearsal.flow = totals(
        events=count(), screws=sum_("screws"), most=max_("screws"), average=mean("screws")
    )
    rehearsal.restart()
    feed(rehearsal, 5)
    rehearsal.run_until_caught_up()
    assert asdict(rehearsal.states("totals")[b"R7"]) == {
        "screws": 12,
        "events": 1,
        "most": 5,
        "average": 5.0,
        "average_sum": 5,
        "average_count": 1,
    }
    rehearsal.flow = totals(screws=sum_("screws"))
    with pytest.raises(ChangedType, match="aggregate 'events' is gone"):
        rehearsal.restart()


def test_it_may_be_of_another_field_as_a_fold_may_change() -> None:
    rehearsal = counted(screws=sum_("screws"))
    rehearsal.flow = totals(screws=sum_("bolts", optional=True))
    rehearsal.restart()
    rehearsal.feed("values", {"robot": "R7", "bolts": 100})
    rehearsal.run_until_caught_up()
    assert rehearsal.states("totals")[b"R7"].screws == 107


@pytest.mark.parametrize(
    ("aggregates", "text"),
    [
        ({"events": count()}, r"stage 'totals' .*aggregate 'screws' is gone \(sum\).*rebuild"),
        ({"screws": max_("screws")}, "aggregate 'screws' was sum, now it is max"),
        ({"bolts": sum_("screws")}, "aggregate 'screws' is gone"),
    ],
)
def test_one_that_goes_or_becomes_another_stops_the_service_until_a_rebuild(
    aggregates: dict[str, Aggregation], text: str
) -> None:
    rehearsal = counted(screws=sum_("screws"))
    rehearsal.flow = totals(**aggregates)
    with pytest.raises(ChangedType, match=text):
        rehearsal.restart()
    rehearsal.rebuild()
    feed(rehearsal, 5)
    rehearsal.run_until_caught_up()
    assert asdict(rehearsal.states("totals")[b"R7"]) == expected(
        aggregates, [{"screws": screws} for screws in (3, 4, 5)]
    )


def add(total: Total, value: dict[str, int]) -> None:
    total.events += 1
    total.screws += value["screws"]


def test_a_fold_of_ones_own_goes_on_with_these_states() -> None:
    rehearsal = counted(screws=sum_("screws"), events=count())
    flow = Flow("totals", state_partitions=1)
    flow.source("values", dict).aggregate("totals", key=lambda value: value["robot"], state=Total, fold=add)
    rehearsal.flow = flow
    rehearsal.restart()
    feed(rehearsal, 5)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("totals") == {b"R7": Total(events=3, screws=12)}
    rehearsal.flow = totals(screws=sum_("screws"), events=count())
    with pytest.raises(ChangedType, match="another function"):
        rehearsal.restart()


def test_states_of_windows_may_get_another_aggregate_too() -> None:
    def flow_of(**aggregates: Any) -> Flow:
        flow = Flow("windows", state_partitions=1)
        flow.source("values", dict).windowed("tens", Tumbling(SIZE_MS), key="robot", **aggregates).to(
            "closed", partitions=1
        )
        return flow

    rehearsal = Rehearsal(flow_of(screws=sum_("screws")))
    rehearsal.feed("values", {"robot": "R7", "screws": 3}, timestamp_ms=1)
    rehearsal.run_until_caught_up()
    rehearsal.flow = flow_of(screws=sum_("screws"), events=count())
    rehearsal.restart()
    for at_ms in (2, 50):
        rehearsal.feed("values", {"robot": "R7", "screws": 4}, timestamp_ms=at_ms)
    rehearsal.run_until_caught_up()
    (published,) = rehearsal.published("closed")
    assert published.payload_as(Window[Total]) == Window[Total]("R7", 0, 10, Total(events=1, screws=7))
