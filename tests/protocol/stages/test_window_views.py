"""Goal: each window is shown under its key and beginning, open or final, through crashes, and goes when it goes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.codecs import codec_for
from sqe_chain.errors import FlowError
from sqe_chain.ports import ViewKind
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.plans import stored_in

HOUR_MS = 3_600_000


class Total(msgspec.Struct):
    screws: int = 0


def add(total: Any, event: dict[str, Any]) -> None:
    if isinstance(total, Int64Value):
        total.value += event["screws"]
    else:
        total.screws += event["screws"]


def merge(total: Total, later: Total) -> None:
    total.screws += later.screws


def flow_of(view: ViewKind | None = "json", *, state: Any = Total, retention_ms: int = 2 * HOUR_MS) -> Flow:
    flow = Flow("screws", state_partitions=2)
    flow.source("in", dict, raw=True).windowed(
        "hours",
        Tumbling(HOUR_MS),
        key=lambda event: event["robot"],
        state=state,
        fold=add,
        retention_ms=retention_ms,
        view=view,
    ).to("out", partitions=1)
    return flow


def views(service: Rehearsal) -> dict[bytes, Any]:
    """All views of the stage, where its states are now."""
    store: Any = service.stores[""]
    flow = stored_in(service, "hours")
    found: dict[bytes, Any] = {}
    for part in range(2):
        found |= store.copy_part(flow, "hours", part).views
    return found


def states_shown(service: Rehearsal, view: ViewKind) -> dict[bytes, Any]:
    """The states that its views show."""
    found: dict[bytes, Any] = {}
    for name, content in views(service).items():
        if view == "json":
            found[name] = json.loads(content)["state"]
        else:
            fields = {
                key.removeprefix("state."): text for key, text in content.items() if key.startswith("state.")
            }
            found[name] = {key: json.loads(text) for key, text in fields.items()} or content["state"]
    return found


def states_of(service: Rehearsal) -> dict[bytes, Any]:
    """The states that they should show."""
    return {
        b"v%s@%d" % (key, span.start_ms): codec_for(type(state)).to_view(state)
        for key, span, state in service.windows("hours")
    }


def feed(service: Rehearsal, *events: tuple[str, int, float]) -> None:
    for robot, screws, hour in events:
        service.feed("in", {"robot": robot, "screws": screws}, timestamp_ms=round(hour * HOUR_MS))


def test_a_window_is_shown_from_its_first_record_until_it_is_no_longer_retained() -> None:
    service = Rehearsal(flow_of())
    feed(service, ("a", 1, 0), ("a", 2, 0.5))
    service.run_until_caught_up()
    row = {"key": "a", "start_ms": 0, "end_ms": HOUR_MS, "final": False, "state": {"screws": 3}}
    assert {name: json.loads(view) for name, view in views(service).items()} == {b"va@0": row}
    feed(service, ("a", 4, 1))
    service.run_until_caught_up()
    found = {name: json.loads(view) for name, view in views(service).items()}
    assert found.keys() == {b"va@0", b"va@3600000"}
    assert found[b"va@0"] == {**row, "final": True}
    assert found[b"va@3600000"]["state"] == {"screws": 4}
    feed(service, ("a", 5, 3.5))
    service.run_until_caught_up()
    assert views(service).keys() == {b"va@3600000", b"va@10800000"}, "two hours after its end"


def test_without_retention_only_open_windows_are_shown() -> None:
    service = Rehearsal(flow_of(retention_ms=0))
    feed(service, ("a", 1, 0), ("a", 2, 1.5))
    service.run_until_caught_up()
    assert views(service).keys() == {b"va@3600000"}
    feed(service, ("a", 1, 2))
    service.run_until_caught_up()
    assert views(service).keys() == {b"va@7200000"}


def test_a_hash_has_the_fields_of_the_state() -> None:
    service = Rehearsal(flow_of("hash"))
    feed(service, ("a", 1, 0))
    service.run_until_caught_up()
    fields = {"key": "a", "start_ms": "0", "end_ms": "3600000", "final": "false", "state.screws": "1"}
    assert views(service) == {b"va@0": fields}


def test_a_state_that_is_no_object_is_shown_as_it_is() -> None:
    service = Rehearsal(flow_of(state=Int64Value))
    feed(service, ("ü", 3, 0))
    service.run_until_caught_up()
    ((name, item),) = views(service).items()
    assert (name, json.loads(item)["key"], json.loads(item)["state"]) == ("vü@0".encode(), "ü", "3")


def test_a_session_that_grows_forward_backward_and_together_is_shown_once() -> None:
    flow = Flow("screws", state_partitions=2)
    flow.source("in", dict, raw=True).windowed(
        "hours",
        Sessions(HOUR_MS),
        key=lambda event: event["robot"],
        state=Total,
        fold=add,
        merge=merge,
        lateness_ms=100 * HOUR_MS,
        view="json",
    ).to("out", partitions=1)
    service = Rehearsal(flow)
    seen = []
    for hour in (5.0, 3.5, 5.5, 4.5):
        feed(service, ("a", 1, hour))
        service.run_until_caught_up()
        seen.append({name: json.loads(view)["state"]["screws"] for name, view in views(service).items()})
    first, early = b"va@18000000", b"va@12600000"
    assert seen == [{first: 1}, {first: 1, early: 1}, {first: 2, early: 1}, {early: 4}]


EVENTS = [(f"r{number % 5}", number % 4, number / 9) for number in range(120)]


@pytest.mark.parametrize("state", [Total, Int64Value], ids=["one-by-one", "in-runs"])
@pytest.mark.parametrize("view", ["json", "hash"])
def test_views_are_those_of_the_windows_through_crashes_rebuild_and_import(
    view: ViewKind, state: Any
) -> None:
    whole = Rehearsal(flow_of(view, state=state))
    feed(whole, *EVENTS)
    whole.run_until_caught_up()
    expected = views(whole)
    assert states_shown(whole, view) == states_of(whole)
    for step in range(3, 8):
        store = MemoryStore(f"window-views-{view}-{state.__name__}-{step}", max_rows=2)
        service = Rehearsal(flow_of(view, state=state), store=store)
        for begin in range(0, 120, 30):
            if begin == 60:
                service.crash(step=step, when="before")
            feed(service, *EVENTS[begin : begin + 30])
            service.run_until_caught_up()
            assert states_shown(service, view) == states_of(service), begin
        assert service.crashes == 1
        assert views(service) == expected, step
        service.rebuild()
        assert views(service) == expected, step
        other = Rehearsal(flow_of(view, state=state), log=service.log)
        other.imported(service.exported())
        assert views(other) == expected, step


@pytest.mark.parametrize("state", [Total, Int64Value], ids=["one-by-one", "in-runs"])
def test_a_crash_between_any_two_writes_leaves_the_same_views(state: Any) -> None:
    whole = Rehearsal(flow_of(state=state))
    feed(whole, *EVENTS)
    whole.run_until_caught_up()
    for write in range(1, 40, 3):
        store = MemoryStore(f"window-views-cut-{state.__name__}-{write}", max_rows=1)
        service = Rehearsal(flow_of(state=state), store=store)
        feed(service, *EVENTS[:70])
        service.run_until_caught_up()
        feed(service, *EVENTS[70:])
        service.crash_at_write(write)
        service.run_until_caught_up()
        assert service.crashes == 1, write
        assert views(service) == views(whole), write


def test_only_stages_that_show_something_take_a_view() -> None:
    words = Flow("words").source("in", dict, raw=True)
    with pytest.raises(FlowError, match="distinct has none to show"):
        words.stage("first", "distinct", windows=Tumbling(5), view="json")
