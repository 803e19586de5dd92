"""Events of services keep their names and fields, for users parse them; the typed results hold the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import Unavailable
from sqe_chain.features import events as feature_events
from sqe_chain.flow import Flow
from sqe_chain.plans import events
from sqe_chain.plans.events import Event, Recovered
from sqe_chain.plans.results import BatchResult, StartResult
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.trace_report import TraceReport
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word, words_by_first_letter

LINES: dict[str, list[tuple[str, ...]]] = {
    "standby": [("epoch", "owner", "holder")],
    "claimed": [("epoch", "run_id", "plan")],
    "recovered": [("partitions", "inputs"), ("partitions", "plan", "redone", "inputs")],
    "ready": [("waited_ms",)],
    "rebuilt": [("plan", "stored_in")],
    "announced": [("plan", "outputs", "known")],
    "stopped": [("reason",)],
    "failed": [("attempt", "inputs", "first")],
    "shuffled": [("stages", "keys")],
    "sealed": [("plan", "id")],
    "published": [("outputs",), ("plan", "outputs")],
    "persisted": [("plan", "level", "rows")],
    "flushed": [("plan", "table", "offsets")],
    "replaced": [("plan", "table", "mode", "files")],
    "committed": [
        ("inputs", "replays", "excluded", "outputs", "lag", "lag_by_partition", "event_time_ms", "batch_ms"),
        (
            *(
                "plan",
                "inputs",
                "replays",
                "excluded",
                "excluded_errors",
                "excluded_sample",
                "outputs",
                "lag",
            ),
            *("lag_by_partition", "event_time_ms", "batch_ms"),
        ),
    ],
    "filtered": [("plan", "counts")],
    "newer_revision": [("output", "revision", "follows")],
    "ignored": [("plan", "superseded", "newer")],
    "files": [("files", "files_left", "rows", "rows_left")],
    "windows_closed": [("plan", "outputs", "event_ms")],
    "traces": [("links", "outputs")],
    "caught_up": [(), ("plan",)],
    "waiting": [("what", "reason", "wait_ms")],
    "notice": [("text",), ("text", "logger")],
}
"""Event -> its fields in order: as few, and as many as there may be. This is what users' tools read."""

SKIPPED = (Exclusion("t", 0, 7, "skip", "ValueError", "x" * 500),)
WHOLE = BatchResult(worked=True, plan=8, inputs=5, exclusions=SKIPPED, lag_by_partition={"t/0": 3, "t/1": 4})
EVENTS: list[Event] = [
    events.Standby(1, "{}"),
    events.Claimed(1, "ab", 7),
    Recovered.of(StartResult(3)),
    Recovered.of(StartResult(3, 7, ())),
    events.Ready(1200),
    feature_events.Rebuilt(7, {"stage": "flow.again-2"}),
    feature_events.Announced(7, {"stage": 3}, ("other",)),
    events.Stopped("once"),
    events.Failed(1, 2, "t[0]@7"),
    events.Shuffled(("stage",), 3),
    events.Sealed(8, "cd"),
    events.Published(outputs=0),
    events.Published(plan=8, outputs=0),
    events.Persisted(8, 1, 0),
    events.Committed.of(BatchResult(worked=True)),
    events.Committed.of(WHOLE),
    feature_events.Filtered(8, {"stage/replay": 1}),
    feature_events.NewerRevision("up/out", 3, 2),
    feature_events.Ignored(8, superseded=1, newer=2),
    feature_events.TableFlushed(plan=3, table="readings", offsets={"t/0": 7}),
    feature_events.TableReplaced(plan=3, table="readings", mode="table", files=2),
    feature_events.FilesSeen(files=3, files_left=1, rows=20, rows_left=5),
    feature_events.WindowsClosed(8, 3, 5),
    feature_events.TracesSeen(TraceReport()),
    events.CaughtUp(),
    events.CaughtUp(8),
    events.Waiting("commit", "no broker", 100),
    events.Notice("news"),
    events.Notice("news", "some.library"),
]


def test_events_keep_their_names_and_fields() -> None:
    found: dict[str, list[tuple[str, ...]]] = {}
    for event in EVENTS:
        found.setdefault(event.name, []).append(tuple(event.fields()))
    assert found == LINES


def test_every_kind_of_event_is_among_them() -> None:
    known = [*vars(events).values(), *vars(feature_events).values()]
    kinds = {one for one in known if isinstance(one, type) and issubclass(one, Event)}
    assert {type(event) for event in EVENTS} == kinds - {Event}


def test_skipped_records_are_reported_in_short() -> None:
    fields = events.Committed.of(WHOLE).fields()
    assert (fields["excluded"], fields["lag"]) == (1, 7)
    assert fields["excluded_errors"] == {"ValueError": 1}
    assert fields["excluded_sample"] == [{"input": "t[0]@7", "error": "ValueError", "text": "x" * 200}]


def noting(name: str = "noting") -> Flow:
    flow = Flow(name, state_partitions=1)
    words_by_first_letter(flow)
    return flow


def republishing() -> Flow:
    flow = Flow("republishing")
    flow.source("words", type(word(""))).to("copies", partitions=1)
    return flow


@pytest.mark.parametrize("flow", [noting(), republishing()], ids=["aggregation", "republish"])
def test_a_batch_returns_what_it_reports(flow: Flow) -> None:
    rehearsal = Rehearsal(flow, partitions={"words": 2})
    rehearsal.settings = replace(rehearsal.settings, max_records=2)
    for text in ("ant", "ape", "asp"):
        rehearsal.feed("words", word(text), partition=0)
    run = rehearsal.start()
    full, rest, nothing = run.batch(), run.batch(), run.batch()
    assert [result.worked for result in (full, rest, nothing)] == [True, True, False]
    assert [result.inputs for result in (full, rest, nothing)] == [2, 1, 0]
    assert [result.lag for result in (full, rest, nothing)] == [1, 0, 0]
    expected = [events.Committed.of(result).fields() for result in (full, rest)]
    assert rehearsal.events("committed") == expected
    assert {result.plan for result in (full, rest, nothing)} == ({1, 2} if flow.compile().stages else {None})


@pytest.mark.parametrize("flow", [noting(), republishing()], ids=["aggregation", "republish"])
def test_a_start_returns_what_it_reports(flow: Flow) -> None:
    rehearsal = Rehearsal(flow, partitions={"words": 2})
    rehearsal.start()
    of_plans = {"plan": 0, "redone": []} if flow.compile().stages else {}
    assert rehearsal.events("recovered") == [{"partitions": 2, **of_plans, "inputs": 0}]


def test_a_plan_is_open_from_its_seal_to_its_commit_and_no_longer() -> None:
    """A layout's plan too, for which the service emits no `committed`."""
    flow = Flow("growing", state_partitions=1)
    numbers = flow.source("numbers", Int64Value)
    numbers.aggregate("sum", key=lambda _: "all", state=Int64Value, fold=lambda _, __: None)
    rehearsal = Rehearsal(flow)
    run = rehearsal.start()
    assert opened(run) is None
    rehearsal.log.grow("numbers", 2)
    run.batch()
    assert rehearsal.events("sealed")[-1]["plan"] == 1
    assert opened(run) is None
    rehearsal.feed("numbers", Int64Value(value=1))
    rehearsal.clock.waits = 0
    rehearsal.outage("broker", when="before", writes=True, calls=200)
    with pytest.raises(Unavailable):
        run.batch()
    assert opened(run) == 2


def opened(run: FlowRun) -> int | None:
    return run.open_plan
