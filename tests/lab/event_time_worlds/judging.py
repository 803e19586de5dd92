"""Compares what the readers of a world have stored and published with the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sqe_chain import read
from sqe_chain.ports import Message
from sqe_chain.testing import Rehearsal
from tests.lab.event_time_worlds.flows import OUTPUT_PARTITIONS, STAGE
from tests.lab.event_time_worlds.running import InMemory, Run, Wrong
from tests.lab.event_time_worlds.world import FILTERS, JOINS, WINDOWED, World
from tests.lab.reference.event_times import Delivery, Reference, spread
from tests.support.receiving import received

_NUMBER: Final = re.compile(rb'"n":\s?(\d+)')
_LOST: Final = ("/late", "/malformed", "/ahead")
"""Reasons for which records are dropped that must not be."""


def judge(world: World, where: InMemory | None = None) -> None:
    """Run a world, in memory or elsewhere, and check it.

    Raises:
        Wrong: it does not give what the facts give.
    """
    run = Run(world, where)
    try:
        run.run()
        for republisher in run.republishers:
            for output in republisher.flow.compile().outputs:
                received_of(run.log, output.topic)
        deliveries = list(first_deliveries(run))
        for number, service in enumerate(run.readers):
            expected = _reference(world, number, service, deliveries)
            if world.close and world.kind in WINDOWED:
                service.close_windows()
                expected.close()
                _compare(world, service, expected, f"reader {number}, closed")
    finally:
        run.close()


def _reference(world: World, number: int, service: Rehearsal, deliveries: list[Delivery]) -> Reference:
    """What a reader must have given, which it has. Silence brings event time up to the last fact, and not beyond it."""
    parts = world.readers[number].state_partitions
    expected = Reference(world.kind, parts, deliveries, beats=world.beats)
    _compare(world, service, expected, f"reader {number}")
    return expected


def first_deliveries(run: Run) -> Iterator[Delivery]:
    """The facts that the readers get, where each comes first."""
    for way, (topic, _) in enumerate(run.sources()):
        seen = set()
        for message in run.log.records(topic):
            (found,) = _NUMBER.findall(message.value() or b"")
            number = int(found)
            if number not in seen:
                seen.add(number)
                fact = run.world.facts[number]
                second = run.world.kind in JOINS and way == 1
                yield Delivery(
                    run.times_ms[number],
                    topic,
                    message.partition(),
                    message.offset(),
                    fact.key,
                    number,
                    second,
                )


def _compare(world: World, service: Rehearsal, expected: Reference, who: str) -> None:
    if dropped := dropped_by(service):
        raise Wrong(f"dropped: {who} has dropped {dropped}")
    if world.kind not in JOINS:
        states = _states(world, service)
        if states != expected.states():
            raise Wrong(f"states: of {who} {_difference(states, expected.states())}")
    parts = len(expected.results)
    published = _published(service, parts)
    wanted = {
        (of, to): [value for key, value in results if spread(key, OUTPUT_PARTITIONS) == to]
        for of, results in enumerate(expected.results)
        for to in range(OUTPUT_PARTITIONS)
    }
    for place, values in wanted.items():
        found = published[place]
        if found != values:
            kind = "order" if sorted(map(str, found)) == sorted(map(str, values)) else "results"
            raise Wrong(f"{kind}: of {who}, state partition {place[0]}: found {found}, expected {values}")


def dropped_by(service: Rehearsal) -> list[tuple[str, int]]:
    """What a service has dropped, and must not."""
    return [
        (name, count)
        for event in service.script.events
        if event.name == "filtered"
        for name, count in dict[str, int](event.fields()["counts"]).items()  # type: ignore[call-overload]
        if name.endswith(_LOST)
    ]


def _states(world: World, service: Rehearsal) -> dict[tuple[Any, ...], Any]:
    if world.kind in WINDOWED:
        return {(window.key.decode(), *window.span): window.state["ns"] for window in service.windows(STAGE)}
    listed = sorted if world.kind in FILTERS else list
    return {(key.decode(),): listed(state["ns"]) for key, state in service.states(STAGE).items()}


def _published(service: Rehearsal, parts: int) -> dict[tuple[int, int], list[Any]]:
    """(State partition, partition of the output) -> what a reader with a replay filter gets, in order."""
    found: dict[tuple[int, int], list[Any]] = {
        (of, to): [] for of in range(parts) for to in range(OUTPUT_PARTITIONS)
    }
    for message in received_of(service.log, f"{service.flow.name}.out"):
        envelope = read(message.value(), headers=message.headers())
        of = spread((envelope.key or b"").decode(), parts)
        found[of, message.partition()] += envelope.payloads_as(dict)
    return found


def received_of(log: Any, topic: str) -> list[Message]:
    """What a reader with a replay filter gets of a topic; what it ignores has the content of what it gets."""
    try:
        return list(received(topic, log.describe([topic])[topic].topic_id, log.records(topic)))
    except AssertionError as error:
        raise Wrong(f"redo: on {topic}, {error}") from error


def _difference(found: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    keys = sorted({*found, *wanted})
    some = [
        f"{key}: {found.get(key)} for {wanted.get(key)}" for key in keys if found.get(key) != wanted.get(key)
    ]
    return f"{len(some)} of {len(keys)} are wrong: " + "; ".join(some[:4])
