"""Goal: a service reports that its stages drop data: at once, and then once a minute how much. `late="stop"` drops none."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

MINUTE_MS = 60_000


def add(state: dict[str, Any], value: dict[str, Any]) -> None:
    state["n"] = state.get("n", 0) + value["n"]


def rehearsed(late: Literal["drop", "stop"] = "drop") -> Rehearsal:
    """A service with windows of a minute, in which event time has reached its third minute."""
    flow = Flow("minutes", state_partitions=1)
    by_minute = flow.source("in", dict, raw=True).windowed(
        "per-minute", Tumbling(MINUTE_MS), key=lambda value: value["k"], state=dict, fold=add, late=late
    )
    by_minute.to("out", partitions=1)
    service = Rehearsal(flow)
    feed(service, 0, 2 * MINUTE_MS)
    return service


def feed(service: Rehearsal, *times_ms: int) -> None:
    for at_ms in times_ms:
        service.feed("in", {"k": "k", "n": 1}, timestamp_ms=at_ms)
    service.run_until_caught_up()


def notices(service: Rehearsal) -> list[str]:
    """What the service reported of records that it dropped, without what to do."""
    texts = [str(event["text"]) for event in service.events("notice")]
    return [text.partition(":")[0] for text in texts if "dropped" in text]


def test_a_service_reports_at_once_and_then_once_a_minute_stage_reason_and_number() -> None:
    service = rehearsed()
    assert notices(service) == []
    feed(service, 1)
    reported = ["stage 'per-minute' has dropped 1 records as late"]
    assert notices(service) == reported
    feed(service, 2, 3)
    feed(service, 4)
    assert notices(service) == reported, "within a minute"
    service.clock.jump(MINUTE_MS)
    feed(service)  # a batch without input reports what was counted
    reported.append("stage 'per-minute' has dropped 3 records as late")
    assert notices(service) == reported
    service.clock.jump(MINUTE_MS)
    feed(service)
    assert notices(service) == reported, "nothing was dropped since"
    assert [event["counts"] for event in service.events("filtered")] == [
        {"per-minute/late": number} for number in (1, 2, 1)
    ]


def test_where_nothing_may_be_dropped_a_late_record_is_poison() -> None:
    service = rehearsed(late="stop")
    with pytest.raises(PoisonError, match=r"in\[0\]@2.*is late: every window"):
        feed(service, 1)
    assert notices(service) == []
