"""Goal: all that an input gives for one output has positions of its own, whatever its values have passed on their way.

Method: each input has several values, of two keys. Every kind of stage that publishes, in every way that units reach it: without
a shuffle, with one, and after waiting for another partition. A naive reader takes what comes at each lane and position once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from sqe_chain import Flow
from sqe_chain.envelope.message import read
from sqe_chain.errors import RepeatedPosition
from sqe_chain.flow import Stream, count
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.flow.context import Context, Origin
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.task.inputs import Inputs
from sqe_chain.testing import Rehearsal

HOUR_MS = 3_600_000
PARTS = "abc"
RELEASE: dict[str, Any] = {"id": ""}
Value = dict[str, Any]


def split(value: Value) -> list[Value]:
    """Three values of two keys; none of the value that only moves event time."""
    keys = {"a": "one", "b": "two", "c": "one"}
    return [{"k": keys[part], "id": value["id"] + part} for part in PARTS if value["id"]]


def key_of(value: Value) -> str:
    return str(value["k"])


def id_of(value: Value) -> str:
    return str(value["id"])


def emit(state: Value, value: Value) -> list[Value]:
    return [value]


def emit_with_context(state: Value, value: Value, context: Context) -> list[Value]:
    return [value]


def note(state: Value, value: Value) -> None:
    state["last"] = value["id"]


# Each takes lines by their key, and gives a stream that has each once.


def aggregate(lines: Stream[Any]) -> Stream[Any]:
    return lines.aggregate("stage", state=dict, fold=emit)


def aggregate_with_context(lines: Stream[Any]) -> Stream[Any]:
    return lines.aggregate("stage", state=dict, fold=emit_with_context)


def aggregate_after_a_filter(lines: Stream[Any]) -> Stream[Any]:
    return deduplicate(lines).aggregate("second", key=lambda _: "all", state=dict, fold=emit)


def changes(lines: Stream[Any]) -> Stream[Any]:
    return lines.aggregate("stage", key=id_of, state=dict, fold=note).changes()


def timers(lines: Stream[Any]) -> Stream[Any]:
    return lines.aggregate("stage", state=dict, fold=emit, expire_after_ms=HOUR_MS)


def changes_with_timers(lines: Stream[Any]) -> Stream[Any]:
    return lines.aggregate("stage", key=id_of, state=dict, fold=note, expire_after_ms=HOUR_MS).changes()


def deduplicate(lines: Stream[Any]) -> Stream[Any]:
    return lines.deduplicate("stage", id_of, HOUR_MS)


def duplicates(lines: Stream[Any]) -> Stream[Any]:
    kept = lines.flat_map(lambda value: [value, {**value}]).deduplicate("stage", id_of, HOUR_MS)
    kept.to("kept", partitions=1)
    return kept.dropped()


def distinct(lines: Stream[Any]) -> Stream[Any]:
    return lines.key_by(id_of).distinct("stage", Tumbling(HOUR_MS))


def drop_stale(lines: Stream[Any]) -> Stream[Any]:
    return lines.drop_stale("stage", sequence=lambda value: int(value["id"], 16), scope="lane")


def join_table(lines: Stream[Any]) -> Stream[Any]:
    flow: Any = lines.flow
    table = flow.source("table", dict, raw=True).key_by(lambda _: "nobody")
    return lines.join_table("stage", table, lambda value, _: value, how="left")


def join_stream(lines: Stream[Any]) -> Stream[Any]:
    flow: Any = lines.flow
    other = (
        flow.source("table", dict, raw=True).flat_map(lambda _: [{"k": "one"}, {"k": "two"}]).key_by(key_of)
    )
    return lines.join_stream("stage", other, lambda value, _: value, before_ms=HOUR_MS, after_ms=HOUR_MS)


def windows(lines: Stream[Any]) -> Stream[Any]:
    return lines.windowed("stage", Tumbling(1), key=id_of, state=dict, fold=note)


def early_results(lines: Stream[Any]) -> Stream[Any]:
    return lines.windowed("stage", Tumbling(HOUR_MS), key=id_of, state=dict, fold=note).changes()


def late(lines: Stream[Any]) -> Stream[Any]:
    found = lines.windowed("stage", Tumbling(1), key=key_of, state=dict, fold=note)
    found.to("results", partitions=1)
    return found.dropped()


def late_of_declared_aggregates(lines: Stream[Any]) -> Stream[Any]:
    found = lines.windowed("stage", Tumbling(1), key=key_of, n=count())
    found.to("results", partitions=1)
    return found.dropped()


Kind = Callable[[Stream[Any]], Stream[Any]]
KINDS: list[Kind] = [
    aggregate, aggregate_with_context, aggregate_after_a_filter, changes, timers, changes_with_timers, deduplicate, duplicates,
    distinct, drop_stale, join_table, join_stream, windows, early_results, late, late_of_declared_aggregates,
]  # fmt: skip
LATE: list[Kind] = [late, late_of_declared_aggregates]
"""Those that emit the inputs after the first."""


def service_of(
    kind: Kind, way: str, poison: PoisonPolicy = "stop", *, collections: bool = False
) -> Rehearsal:
    """A service that gets its values by `split`, or as collections of another service."""
    flow = Flow("lines", state_partitions=1, poison=poison)
    kind(flow.source("in", dict, raw=True).flat_map(split).key_by(key_of)).to("out", partitions=2)
    partitions = {"in": 2 if way == "waiting" else 1}
    return Rehearsal(
        flow, partitions=partitions, settings=Settings(in_place=way == "in place", idle_ms=10**9)
    )


def feed(service: Rehearsal, kind: Kind, way: str) -> None:
    """Three inputs of three values each; then event time moves on in all partitions."""
    for number, at_ms in enumerate((9_000, 1_000, 1_500) if kind in LATE else (1_000, 2_000, 3_000), 1):
        service.feed("in", {"id": str(number)}, partition=0, timestamp_ms=at_ms)
    if way == "waiting":
        service.batch()
    for topic in service.flow.input_topics:
        partitions = service.log.describe([topic])[topic].partitions
        for partition in range(partitions):
            service.feed(topic, RELEASE, partition=partition, timestamp_ms=20_000)


def heard(service: Rehearsal) -> int:
    """How many payloads a naive reader takes; it reads all envelopes of each input."""
    marks: dict[tuple[int, int], bytes] = defaultdict(bytes)
    ordinals: dict[tuple[int, bytes], set[int]] = defaultdict(set)
    payloads = 0
    for message in service.log.records("out"):
        envelope = read(message.value())
        lane, position, last = envelope.lane, envelope.position, envelope.chain.links[-1]
        if position > marks[message.partition(), lane]:
            marks[message.partition(), lane] = position
            payloads += len(envelope.payloads)
        of = ordinals[lane, position[:-4]]
        of.add(last.ordinal)
        assert last.of >= len(of)
    return payloads


@pytest.mark.parametrize("poison", ["stop", "skip"])
@pytest.mark.parametrize("way", ["in place", "shuffled", "waiting"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_of_one_input_never_share_a_position(kind: Kind, way: str, poison: PoisonPolicy) -> None:
    service = service_of(kind, way, poison)
    feed(service, kind, way)
    service.run_until_caught_up()
    assert heard(service) == (6 if kind in LATE else 9)


@pytest.mark.parametrize("way", ["in place", "shuffled"])
@pytest.mark.parametrize("kind", [join_table, early_results, deduplicate], ids=lambda kind: kind.__name__)
def test_neither_do_those_of_a_collection(kind: Kind, way: str) -> None:
    upstream = Flow("upstream")
    upstream.source("before", dict, raw=True).flat_map(split).to("in", key=lambda _: "all", partitions=1)
    relay = Rehearsal(upstream)
    flow = Flow("lines", state_partitions=1)
    kind(flow.source("in", dict).key_by(key_of)).to("out", partitions=2)
    service = Rehearsal(flow, log=relay.log, settings=Settings(in_place=way == "in place", idle_ms=10**9))
    for number in (1, 2, 3):
        relay.feed("before", {"id": str(number)}, timestamp_ms=1_000 * number)
    if kind is join_table:
        service.feed("table", RELEASE, timestamp_ms=20_000)
    for one in (relay, service):
        one.run_until_caught_up()
    assert heard(service) == 9


@pytest.mark.parametrize(
    "kind",
    [timers, changes_with_timers, deduplicate, duplicates, distinct, early_results],
    ids=lambda kind: kind.__name__,
)
def test_neither_do_those_of_a_topic_that_is_created_again_while_they_wait(kind: Kind) -> None:
    """Two inputs of one partition, offset and time: their topics differ by their ids alone."""
    service = service_of(kind, "waiting")
    service.feed("in", {"id": "1"}, partition=0, timestamp_ms=1_000)
    service.batch()
    service.log.recreate("in", 2)
    service.feed("in", {"id": "2"}, partition=0, timestamp_ms=1_000)
    service.feed("in", {"id": "3"}, partition=1, timestamp_ms=3_000)
    service.run_until_caught_up()
    # What waited was in the old topic alone, and was never counted.
    assert heard(service) == 6
    lost = "in[0] was created again while 1 of its records waited for event time: they are gone, and were not counted"
    assert lost in [event["text"] for event in service.events("notice")]


def each_apart(origins: Iterable[Origin]) -> tuple[Sequence[int], Inputs]:
    """As if each payload were of another input."""
    found = list(origins)
    return range(len(found)), Inputs(found)


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("kind", [join_table, early_results, duplicates], ids=lambda kind: kind.__name__)
def test_outputs_that_are_gathered_apart_are_not_published(
    kind: Kind, poison: PoisonPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the policy: no input is to blame, and without this one readers would miss a part of it."""
    service = service_of(kind, "waiting", poison)
    feed(service, kind, "waiting")
    monkeypatch.setattr(Inputs, "of", each_apart)
    with pytest.raises(RepeatedPosition, match=r"gave more after what it or a later input had given"):
        service.run_until_caught_up()
    assert not service.log.records("out")
    monkeypatch.undo()
    service.restart()
    service.run_until_caught_up()
    assert heard(service) == 9


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
def test_neither_are_those_of_a_service_without_stages(
    poison: PoisonPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow("lines", poison=poison)
    flow.source("in", dict, raw=True).flat_map(split).to("out", partitions=2)
    service = Rehearsal(flow)
    service.feed("in", {"id": "1"})
    monkeypatch.setattr(Inputs, "numbered", lambda numbers, origin_of: each_apart(map(origin_of, numbers)))
    with pytest.raises(RepeatedPosition):
        service.run_until_caught_up()
    assert not service.log.records("out")
