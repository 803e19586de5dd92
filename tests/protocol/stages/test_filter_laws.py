"""Laws that hold for every filter in a flow, whatever is published and however often it is published again.

A relay republishes what a producer publishes, and is killed before its commits. Then it republishes all since the last
commit, at new offsets and at its own positions. A service reads the relay, through one filter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain import Flow
from sqe_chain.flow import Filter, Stream
from sqe_chain.flow.context import Context
from sqe_chain.stages import Hopping, Sessions, SqeKey, Tumbling, WindowResult
from sqe_chain.testing import Rehearsal


def number_of(_: StringValue, context: Context) -> int:
    return context.timestamp_ms // 10


def sqe_key(_: StringValue, context: Context) -> bytes:
    return SqeKey(1, 0, context.timestamp_ms).to_bytes()


def join(state: StringValue, text: StringValue) -> None:
    state.value += text.value


FILTERS: dict[str, Callable[[Stream[StringValue]], Filter[StringValue]]] = {
    "sqe": lambda published: published.key_by(sqe_key).drop_replays("filter"),
    "root": lambda published: published.drop_replays("filter", by="key"),
    "kuka": lambda published: published.drop_replays("filter", by="key", compat="kuka"),
    "stale": lambda published: published.drop_stale("filter", sequence=number_of, scope="key"),
    "stale-window": lambda published: published.drop_stale("filter", sequence=number_of, window=8),
    "juplo": lambda published: published.drop_stale("filter", sequence=number_of, compat="juplo"),
    "by-key": lambda published: published.deduplicate_by_key("filter", 30),
    "by-key-and-value": lambda published: published.deduplicate_by_key_value(
        "filter", lambda text: text.value, 30
    ),
    "by-id": lambda published: published.deduplicate("filter", lambda text: text.value, 30, late="drop"),
    "kip655": lambda published: published.deduplicate("filter", lambda text: text.value, 30, compat="kip655"),
    "tumbling": lambda published: published.distinct("filter", Tumbling(30), grace_ms=10),
    "sessions": lambda published: published.distinct("filter", Sessions(15)),
}
WINDOWS: dict[str, Callable[[Stream[StringValue]], Filter[WindowResult]]] = {
    "hopping": lambda published: published.windowed(
        "filter", Hopping(30, 10), state=StringValue, fold=join, lateness_ms=10
    ),
    "session-windows": lambda published: published.windowed(
        "filter", Sessions(15), state=StringValue, fold=join, merge=join, retention_ms=50
    ),
}


@dataclass(frozen=True)
class Word:
    """What a producer publishes, and whether the relay is killed behind it."""

    text: str
    key: str
    at_ms: int
    relayed: bool
    killed: bool


words = st.lists(
    st.builds(
        Word, st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 120), st.booleans(), st.booleans()
    ),
    max_size=25,
)


@dataclass(frozen=True)
class Results:
    """What a service has given, by key and in order, and what it keeps."""

    kept: dict[str, list[str]]
    again: dict[str, list[str]]
    rows: list[bytes]


def results_of(
    declare: Callable[[Stream[StringValue]], Filter[Any]], published: list[Word], *, kills: bool
) -> Results:
    """Everything of a run; without kills the service reads each fact once."""
    relaying, flow = Flow("relay"), Flow("service", state_partitions=2)
    relaying.source("published", StringValue).to("relayed", partitions=1)
    kept = declare(flow.source("relayed", StringValue))
    kept.aggregate("kept", key=lambda _: "all", state=StringValue, fold=note)
    kept.dropped().aggregate("dropped", key=lambda one: one.reason, state=StringValue, fold=note)
    relay = Rehearsal(relaying)
    service = Rehearsal(flow, log=relay.log)
    for number, word in enumerate(published):
        relay.feed(
            "published",
            StringValue(value=f"{word.text}"),
            key=word.key,
            timestamp_ms=word.at_ms,
            offset=number,
        )
        if word.relayed or word.killed:
            if word.killed and kills:
                relay.crash(step=7)
                relay.run_until_crash()
                relay.restart()
            relay.run_until_caught_up()
            service.run_until_caught_up()
    relay.run_until_caught_up()
    service.run_until_caught_up()
    topic_id = relay.log.describe(["relayed"])["relayed"].topic_id  # another one in each run
    rows = [row for part in (0, 1) for row, _ in service.stores[""].scan("service", "filter", part)]
    return Results(
        noted(service, "kept"), noted(service, "dropped"), [row.replace(topic_id, b"id") for row in rows]
    )


def note(state: StringValue, value: Message, context: Context) -> None:
    """Where at the root it came from, and what it is if that is no single word."""
    what = f"={value}" if isinstance(value, WindowResult) else ""
    state.value += f"{context.root.offset}{what};"


def noted(service: Rehearsal, stage: str) -> dict[str, list[str]]:
    states = service.states(stage).items()
    return {key.decode(): state.value.split(";")[:-1] for key, state in states}


@pytest.mark.parametrize("name", [*FILTERS, *WINDOWS])
@settings(max_examples=25, deadline=None)
@given(published=words)
def test_republishing_at_the_same_positions_changes_nothing(name: str, published: list[Word]) -> None:
    declare = (FILTERS | WINDOWS)[name]
    assert results_of(declare, published, kills=True) == results_of(declare, published, kills=False)


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=25, deadline=None)
@given(published=words)
def test_what_goes_on_is_a_subsequence_and_the_rest_is_reported(name: str, published: list[Word]) -> None:
    found = results_of(FILTERS[name], published, kills=True)
    kept = [int(offset) for offset in found.kept.get("all", ())]
    dropped = [
        int(offset) for reason, offsets in found.again.items() if reason != "gap" for offset in offsets
    ]
    assert kept == sorted(set(kept))
    assert sorted(kept + dropped) == list(range(len(published)))


@pytest.mark.parametrize("name", [*FILTERS, *WINDOWS])
@settings(max_examples=25, deadline=None)
@given(published=words, cuts=st.lists(st.booleans(), min_size=25, max_size=25))
def test_where_batches_end_does_not_matter(name: str, published: list[Word], cuts: list[bool]) -> None:
    declare = (FILTERS | WINDOWS)[name]
    other = [replace(word, relayed=cut) for word, cut in zip(published, cuts, strict=False)]
    one, two = results_of(declare, published, kills=False), results_of(declare, other, kills=False)
    assert (one.kept, one.again) == (two.kept, two.again)
