"""Goal: whether a value is a heartbeat is asked once, with the stream's own key, and means the same on every way."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.flow import Flow
from sqe_chain.flow.context import Context
from sqe_chain.stages import Tumbling, WindowResult
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import add

EVENTS = [
    (0, "robot", 1),
    (30_000, "beat", 7),
    (61_000, "robot", 2),
    (90_000, "beat", 7),
    (130_000, "robot", 4),
    (200_000, "beat", 7),
    (300_000, "beat", 7),
]
WINDOWS = [(b"robot", 0, 1), (b"robot", 60_000, 2), (b"robot", 120_000, 4)]


def rehearsed(
    *, key: bool, context: bool, partitions: int = 2
) -> tuple[Rehearsal, list[tuple[int, bytes | None]]]:
    asked: list[tuple[int, bytes | None]] = []

    def by_context(value: Int64Value, context: Context) -> bool:
        asked.append((value.value, context.key))
        return context.key == b"beat"

    def by_value(value: Int64Value) -> bool:
        asked.append((value.value, None))
        return value.value == 7

    flow = Flow("beats", state_partitions=partitions, poison="skip")
    own_key: dict[str, Any] = {"key": lambda _: "robot"} if key else {}
    flow.source("screws", Int64Value).windowed(
        "per-minute",
        Tumbling(60_000),
        state=Int64Value,
        fold=add,
        heartbeat=by_context if context else by_value,
        **own_key,
    ).to("out", partitions=1)
    return Rehearsal(flow), asked


def feed(rehearsal: Rehearsal) -> None:
    for at_ms, key, number in EVENTS:
        rehearsal.feed("screws", Int64Value(value=number), key=key, timestamp_ms=at_ms, partition=0)


def results(rehearsal: Rehearsal) -> list[tuple[bytes, int, int]]:
    given: dict[tuple[int, bytes], tuple[bytes, int, int]] = {}
    for envelope in rehearsal.published("out"):
        window = envelope.payload_as(WindowResult)
        state = Int64Value.FromString(window.state)
        given[envelope.lane, envelope.position] = window.key, window.start_ms, state.value
    return sorted(given.values())


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("crash", [None, 4, 5, 6])
def test_a_heartbeat_is_folded_nowhere_and_closes_windows(
    key: bool, context: bool, partitions: int, crash: int | None
) -> None:
    found, asked = rehearsed(key=key, context=context, partitions=partitions)
    if crash is not None:
        found.crash(step=crash, when="after")
    feed(found)
    found.feed("screws", b"rubbish")
    found.run_until_caught_up()
    assert results(found) == WINDOWS
    assert found.windows("per-minute") == []
    if context:
        assert set(asked) == {(number, name.encode()) for _, name, number in EVENTS}, "the stream's own key"
    assert len(asked) == len(EVENTS) * (2 if crash in (4, 5) else 1), "once for each attempt at the batch"


@pytest.mark.parametrize("key", [True, False])
def test_it_is_asked_with_the_streams_own_key_also_where_a_long_block_is_read_side_by_side(key: bool) -> None:
    found, asked = rehearsed(key=key, context=True, partitions=1)
    for _ in range(30):
        found.feed("screws", Int64Value(value=1), key="robot", timestamp_ms=0, partition=0)
    found.run_until_caught_up()
    for _ in range(30):
        found.feed("screws", Int64Value(value=7), key="beat", timestamp_ms=200_000, partition=0)
    found.run_until_caught_up()
    assert {own for _, own in asked} == {b"robot", b"beat"}
    assert results(found) == [(b"robot", 0, 30)]


def test_a_heartbeat_is_known_by_its_key_in_large_blocks_too() -> None:
    """Ordinary messages are read without their keys, unless a function looks at these."""
    found, asked = rehearsed(key=True, context=True)
    for number in range(40):
        name = "beat" if number % 2 else "robot"
        found.feed("screws", Int64Value(value=1), key=name, timestamp_ms=number * 1_000, partition=0)
    found.feed("screws", Int64Value(value=1), key="beat", timestamp_ms=60_000, partition=0)
    found.run_until_caught_up()
    assert [key for _, key in asked] == [b"robot", b"beat"] * 20 + [b"beat"]
    assert results(found) == [(b"robot", 0, 20)]
