"""Goal: `changes()` of windows shows those that a batch has changed and that are still open. Crashes are in `test_prove_flows.py`."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import FlowError
from sqe_chain.stages import Hopping, Sessions, Tumbling, Window, WindowResult
from sqe_chain.testing import Rehearsal

HOUR_MS = 3_600_000
KINDS: dict[str, Any] = {
    "tumbling": Tumbling(HOUR_MS),
    "hopping": Hopping(HOUR_MS, advance_ms=HOUR_MS // 2),
    "sessions": Sessions(HOUR_MS // 4),
}
NUMBERS = count()
RESULT: Any = Window[dict]  # type: ignore[type-arg]
Event = tuple[str, int]
"""Key and event time."""


def add(state: dict[str, int], event: dict[str, Any]) -> None:
    state["count"] = state.get("count", 0) + 1


def merge(state: dict[str, int], later: dict[str, int]) -> None:
    state["count"] += later["count"]


def count_up(state: Int64Value, event: dict[str, Any]) -> None:
    state.value += 1


def service_of(kind: str, *, max_rows: int = 5_000, partitions: int = 2) -> Rehearsal:
    flow = Flow("early", state_partitions=partitions)
    windows = flow.source("in", dict, raw=True).windowed(
        "hours",
        KINDS[kind],
        key=lambda event: event["key"],
        state=dict,
        fold=add,
        merge=merge if kind == "sessions" else None,
    )
    windows.to("final", partitions=1)
    windows.changes().to("early", partitions=1)
    return Rehearsal(
        flow, partitions={"in": partitions}, store=MemoryStore(f"early-{next(NUMBERS)}", max_rows=max_rows)
    )


def feed(service: Rehearsal, *events: Event) -> None:
    for key, at_ms in events:
        service.feed("in", {"key": key}, timestamp_ms=at_ms, key=key)


def shown(service: Rehearsal, topic: str, begin: int = 0) -> list[tuple[str, int, int]]:
    """Key, beginning and count of windows in a topic."""
    windows: list[Any] = []
    for envelope in service.published(topic)[begin:]:
        windows += envelope.payloads_as(RESULT)
    return [(window.key, window.start_ms, window.state["count"]) for window in windows]


def test_each_batch_shows_the_open_windows_that_it_has_changed() -> None:
    service = service_of("tumbling")
    feed(service, ("a", 1), ("a", 2))
    service.run_until_caught_up()
    assert shown(service, "early") == [("a", 0, 2)]
    feed(service, ("a", 3), ("a", HOUR_MS + 1))  # the second closes the window that the first changes
    service.run_until_caught_up()
    assert shown(service, "early", 1) == [("a", HOUR_MS, 1)]
    assert shown(service, "final") == [("a", 0, 3)]
    service.run_until_caught_up()
    assert len(service.published("early")) == 2, "nothing has changed"


def test_a_window_is_shown_under_the_last_input_that_changed_it() -> None:
    service = service_of("tumbling", partitions=1)
    feed(service, ("b", 1), ("c", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6))
    service.run_until_caught_up()
    found = [(envelope.key, envelope.chain.links[0].offset) for envelope in service.published("early")]
    assert found == [(b"a", 2), (b"c", 4), (b"b", 5)]


def test_a_session_that_was_joined_is_shown_as_one() -> None:
    service = service_of("sessions")
    step_ms = HOUR_MS // 4
    feed(service, ("a", 100), ("a", 100 + step_ms + 10))
    service.run_until_caught_up()
    early = shown(service, "early")
    assert early == [("a", 100 + step_ms + 10, 1)], "the first one is closed by the second"


def test_windows_of_protobuf_are_shown_as_messages() -> None:
    flow = Flow("early-protobuf", state_partitions=1)
    windows = flow.source("in", dict, raw=True).windowed(
        "hours", Tumbling(HOUR_MS), key=lambda event: event["key"], state=Int64Value, fold=count_up
    )
    windows.changes().to("early", partitions=1)
    service = Rehearsal(flow)
    feed(service, *[("a", at_ms) for at_ms in range(1, 80)])
    service.run_until_caught_up()
    (message,) = service.published("early")
    result = message.payload_as(WindowResult)
    assert (result.key, result.start_ms, Int64Value.FromString(result.state).value) == (b"a", 0, 79)


def test_early_results_feed_no_stage() -> None:
    flow = Flow("f", state_partitions=1)
    windows = flow.source("in", dict, raw=True).windowed(
        "hours", Tumbling(HOUR_MS), key=lambda event: event["key"], state=dict, fold=add
    )
    with pytest.raises(FlowError, match="a stage cannot follow changes"):
        windows.changes().aggregate("sums", key=str, state=Int64Value, fold=count_up)  # type: ignore[arg-type]


def test_a_heartbeat_may_be_the_first_of_a_batch() -> None:
    flow = Flow("early-beats", state_partitions=1)
    windows = flow.source("in", dict, raw=True).windowed(
        "hours",
        Tumbling(HOUR_MS),
        key=lambda event: event["key"],
        state=dict,
        fold=add,
        heartbeat=lambda event: event["key"] == "beat",
    )
    windows.to("final", partitions=1)
    windows.changes().to("early", partitions=1)
    service = Rehearsal(flow)
    feed(service, ("a", 1))
    service.run_until_caught_up()
    feed(service, ("beat", HOUR_MS))
    service.run_until_caught_up()
    assert (shown(service, "final"), shown(service, "early")) == ([("a", 0, 1)], [("a", 0, 1)])
