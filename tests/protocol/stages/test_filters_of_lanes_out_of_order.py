"""Filters by event time forward each id once, from lanes that are not in order, wherever batches end.

The reference keeps all that it has forwarded, and never forgets any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqe_chain import Flow
from sqe_chain.flow import Stream
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal

INTERVAL_MS, GRACE_MS = 10, 4


class Sent(NamedTuple):
    """A message: its id and its event time."""

    id: str
    at_ms: int


Batches = list[list[Sent]]


def firsts_within_the_interval(sent: list[Sent]) -> list[Sent]:
    """What `deduplicate` with `late="drop"` forwards."""
    forwarded: list[Sent] = []
    latest_ms = 0
    for each in sent:
        latest_ms = max(latest_ms, each.at_ms)
        near = [one for one in forwarded if one.id == each.id and abs(one.at_ms - each.at_ms) <= INTERVAL_MS]
        if not near and each.at_ms >= latest_ms - INTERVAL_MS:
            forwarded.append(each)
    return forwarded


def firsts_of_sessions(sent: list[Sent]) -> list[Sent]:
    """What `distinct` with sessions forwards: a session is the times of its records."""
    forwarded: list[Sent] = []
    sessions: dict[str, list[set[int]]] = {}
    latest_ms = 0
    for id_of_record, at_ms in sent:
        latest_ms = max(latest_ms, at_ms)
        own = sessions.setdefault(id_of_record, [])
        touched = [times for times in own if any(abs(time - at_ms) <= INTERVAL_MS for time in times)]
        times = {at_ms}.union(*touched)
        if max(times) + INTERVAL_MS + GRACE_MS < latest_ms:
            continue
        sessions[id_of_record] = [one for one in own if one not in touched] + [times]
        if not touched:
            forwarded.append(Sent(id_of_record, at_ms))
    return forwarded


def firsts_of_windows(sent: list[Sent]) -> list[Sent]:
    """What `distinct` with tumbling windows forwards."""
    forwarded: list[Sent] = []
    latest_ms = 0
    for each in sent:
        latest_ms = max(latest_ms, each.at_ms)
        window = each.at_ms // INTERVAL_MS
        known = any(one.id == each.id and one.at_ms // INTERVAL_MS == window for one in forwarded)
        if not known and (window + 1) * INTERVAL_MS + GRACE_MS > latest_ms:
            forwarded.append(each)
    return forwarded


def id_of(value: dict[str, Any]) -> str:
    return str(value["id"])


FILTERS: dict[str, tuple[Callable[[Stream[Any]], Stream[Any]], Callable[[list[Sent]], list[Sent]]]] = {
    "deduplicate": (
        lambda stream: stream.deduplicate("once", id_of, INTERVAL_MS, late="drop"),
        firsts_within_the_interval,
    ),
    "deduplicate_by_key": (
        lambda stream: stream.key_by(id_of).deduplicate_by_key("once", INTERVAL_MS, late="drop"),
        firsts_within_the_interval,
    ),
    "sessions": (
        lambda stream: stream.key_by(id_of).distinct("once", Sessions(INTERVAL_MS), grace_ms=GRACE_MS),
        firsts_of_sessions,
    ),
    "windows": (
        lambda stream: stream.key_by(id_of).distinct("once", Tumbling(INTERVAL_MS), grace_ms=GRACE_MS),
        firsts_of_windows,
    ),
}

sent = st.builds(Sent, st.sampled_from("ab"), st.integers(0, 50))


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(sent, max_size=6), max_size=4))
@example([[Sent("a", 0), Sent("b", 15)], [Sent("a", 8)]])
@example([[Sent("a", 0), Sent("b", 15), Sent("a", 8)]])
@example([[Sent("a", 0), Sent("b", 20)], [Sent("a", 10)]])
def test_each_id_is_forwarded_once(name: str, batches: Batches) -> None:
    declare, reference = FILTERS[name]
    flow = Flow("f", state_partitions=1)
    declare(flow.source("in", dict, raw=True)).to("out", partitions=1)
    rehearsal = Rehearsal(flow, partitions={"in": 1})
    for batch in batches:
        for id_of_record, at_ms in batch:
            rehearsal.feed("in", {"id": id_of_record}, timestamp_ms=at_ms)
        rehearsal.run_until_caught_up()
    published = [
        Sent(envelope.payload_as(dict)["id"], envelope.timestamp_ms)
        for envelope in (rehearsal.published("out") if any(batches) else ())
    ]
    assert published == reference([each for batch in batches for each in batch])
