"""Goal: event time is what a source's function returns, through stages, shuffles and outputs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.chain import event_id, read_lane, root_position
from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling, WindowResult
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import count

HOUR_MS = 3_600_000
LATER_MS = 1_900_000_000_000
"""The time of all records: hours and hours after the times in their values."""


def hours_of(flow: Flow, source: Any) -> None:
    source.windowed(
        "per-hour", Tumbling(HOUR_MS), key=lambda order: order["id"][:1], state=Int64Value, fold=count
    ).to("hours", partitions=1)
    source.aggregate("orders", key=lambda order: order["id"][:1], state=Int64Value, fold=count).changes().to(
        "changes", partitions=1
    )


def reasons(rehearsal: Rehearsal) -> list[str]:
    """The texts of the dead-letter records."""
    records = rehearsal.log.records("orders.dead-letters")
    return [(dict(record.headers() or [])["sqe-text"] or b"").decode() for record in records]


def counted(rehearsal: Rehearsal) -> list[tuple[int, int]]:
    results = [envelope.payload_as(WindowResult) for envelope in rehearsal.published("hours")]
    return [(result.start_ms // HOUR_MS, Int64Value.FromString(result.state).value) for result in results]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("raw", [True, False])
def test_windows_and_outputs_go_by_the_time_of_the_value(raw: bool, partitions: int) -> None:
    flow = Flow("orders", state_partitions=partitions)
    hours_of(flow, flow.source("in", dict, raw=raw, timestamp=lambda order: order["at"]))
    rehearsal = Rehearsal(flow)
    for number, at in enumerate(
        ("1970-01-01T00:10:00Z", HOUR_MS - 1, "1970-01-01T02:00:00+01:00", 2 * HOUR_MS)
    ):
        rehearsal.feed("in", {"id": f"a{number}", "at": at}, key="k", timestamp_ms=LATER_MS)
        rehearsal.run_until_caught_up()
    assert counted(rehearsal) == [(0, 2), (1, 1)]
    times = [envelope.timestamp_ms for envelope in rehearsal.published("changes")]
    assert times == [600_000, HOUR_MS - 1, HOUR_MS, 2 * HOUR_MS], "outputs keep it"


@pytest.mark.parametrize(
    "time",
    [None, "yesterday", "2026-11-22T10:00:00", datetime(2026, 11, 22), 1.5, True, -2, 1 << 48, b"1"],  # noqa: DTZ001 - one without a zone
)
@pytest.mark.parametrize("policy", ["poison", "record"])
def test_a_value_without_a_time_is_poison_or_keeps_its_records(time: object, policy: Any) -> None:
    flow = Flow("orders", state_partitions=1, poison="dead_letter")
    times: dict[str, Any] = {"a1": time, "a2": 7}
    source = flow.source(
        "in",
        dict,
        raw=True,
        timestamp=lambda order: times[order["id"]],
        no_timestamp=policy,
    )
    hours_of(flow, source)
    rehearsal = Rehearsal(flow)
    for name in times:
        rehearsal.feed("in", {"id": name}, timestamp_ms=LATER_MS)
    rehearsal.run_until_caught_up()
    texts = reasons(rehearsal)
    published = [envelope.timestamp_ms for envelope in rehearsal.published("changes")]
    if policy == "record":
        assert (texts, published) == ([], [7])  # one batch: the newest state, of the second
        assert rehearsal.states("orders")[b"a"].value == 2
    else:
        assert published == [7]
        (text,) = texts
        assert "event time" in text


@pytest.mark.parametrize("stage", [True, False])
@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_long_runs_of_ordinary_messages_have_it_too(stage: bool, carrier: Any) -> None:
    upstream = Flow("wrapped")
    upstream.source("raw", int, raw=True).to(
        "in", partitions=1, key=lambda number: f"k{number % 3}", carrier=carrier
    )
    flow = Flow("orders", state_partitions=1)
    numbers = flow.source("in", int, timestamp=lambda number: number * 7)
    if stage:
        totals = numbers.aggregate(
            "per-key", key=lambda number: f"k{number % 3}", state=Int64Value, fold=count
        )
        totals.changes().to("out", partitions=1)
    else:
        numbers.to("out", partitions=1)
    wrapped = Rehearsal(upstream)
    rehearsal = Rehearsal(flow, log=wrapped.log)
    for number in range(200):
        wrapped.feed("raw", number, timestamp_ms=LATER_MS)
        if number in (99, 199):  # lanes are known from the second batch on
            wrapped.run_until_caught_up()
            rehearsal.run_until_caught_up()
    times = [envelope.timestamp_ms // 7 for envelope in rehearsal.published("out")]
    assert sorted(times) == ([97, 98, 99, 197, 198, 199] if stage else list(range(200)))


def test_the_context_is_at_hand_and_shows_the_new_time_afterwards() -> None:
    seen: list[tuple[int, int]] = []
    ids: list[bytes] = []

    def time_of(order: dict[str, int], context: Any) -> datetime:
        seen.append((context.timestamp_ms, 0))
        return datetime.fromtimestamp(order["at"], UTC)

    def keep(order: dict[str, int], context: Any) -> bool:
        seen.append((context.timestamp_ms, order["at"]))
        ids.append(context.event_id)
        return True

    flow = Flow("orders")
    flow.source("in", dict, raw=True, timestamp=time_of).filter(keep).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", {"at": 12}, timestamp_ms=LATER_MS)
    rehearsal.run_until_caught_up()
    assert seen == [(LATER_MS, 0), (12_000, 12)]
    (output,) = rehearsal.published("out")
    assert output.timestamp_ms == 12_000
    topic_id = rehearsal.log.describe(["in"])["in"].topic_id
    assert ids == [event_id(read_lane(0, "in", topic_id, 0), root_position(1, 0))], "the same as without"


def test_a_collection_has_its_earliest_time() -> None:
    upstream = Flow("split")
    upstream.source("lists", list, raw=True).flat_map(lambda numbers: numbers).to("in", partitions=1)
    flow = Flow("orders")
    flow.source("in", int, timestamp=lambda number: number).to("out", partitions=1)
    split = Rehearsal(upstream)
    rehearsal = Rehearsal(flow, log=split.log)
    for numbers in ([5, 5], [7, 6]):
        split.feed("lists", numbers, timestamp_ms=LATER_MS)
    split.run_until_caught_up()
    rehearsal.run_until_caught_up()
    assert [envelope.timestamp_ms for envelope in rehearsal.published("out")] == [5, 6]


def test_a_policy_without_a_function_is_refused() -> None:
    with pytest.raises(FlowError, match="no_timestamp='record'"):
        Flow("orders").source("in", dict, raw=True, no_timestamp="record")


@pytest.mark.parametrize("records", [1, 50])
def test_functions_of_a_source_get_the_key_of_a_record_however_many_are_read(records: int) -> None:
    flow = Flow("orders", state_partitions=1)
    decode: Any = lambda _, context: {"id": context.key.decode()}  # noqa: E731 - checkers cannot infer it
    source = flow.source("in", decode, raw=True, timestamp=lambda _, context: int(context.key or b""))
    source.aggregate("orders", key=lambda order: order["id"], state=Int64Value, fold=count).changes().to(
        "changes", partitions=1
    )
    rehearsal = Rehearsal(flow)
    for number in range(records):
        rehearsal.feed("in", {}, key=str(number))
    rehearsal.run_until_caught_up()
    assert {envelope.timestamp_ms for envelope in rehearsal.published("changes")} == set(range(records))
