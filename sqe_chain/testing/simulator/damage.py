"""Logs that lose what they had acknowledged: the service that reads them has to notice, and to stop by name.

Each step puts the log back as it was when the service has stopped, which is the documented way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqe_chain.envelope.message import Envelope, is_enveloped, read
from sqe_chain.errors import ChainError, GapError, TruncatedInput
from sqe_chain.logs.memory import MemoryMessage
from sqe_chain.testing.simulator.invariants import Violation

if TYPE_CHECKING:
    from sqe_chain.testing.simulator.run import Simulation

MOST_BATCHES = 20
ANOTHER_HISTORY = b"of another history"


def cut_off(simulation: Simulation, topic: str, partition: int, back: int, *, rewritten: bool) -> None:
    """An unclean election loses records that `totals` has read; others may be written at their offsets.

    Args:
        simulation: at rest.
        topic: an input of `totals`.
        partition: of its partitions, modulo their number.
        back: how many records are lost, if there are so many.
        rewritten: whether others are written then, up to beyond what was read.
    """
    log = simulation.log
    partition %= log.describe([topic])[topic].partitions
    stop = simulation.invariants.expected().ends.get((topic, partition), 0)
    had = [message.offset() for message in log.records(topic) if message.partition() == partition]
    had = [offset for offset in had if offset < stop]
    if not had:
        return
    before = log.snapshot()
    log.truncate_after(topic, partition, had[-back:][0])
    while rewritten and log.bounds([(topic, partition)])[topic, partition].stable_end <= stop:
        log.append(topic, partition, ANOTHER_HISTORY, b"a", timestamp_ms=simulation.clock.now_ms())
    simulation.fired["log cut off"] += 1
    where = f"{topic}[{partition}] was cut off at {had[-back:][0]} of {stop}, {rewritten=}"
    _must_stop(simulation, TruncatedInput, before, where)


def lose(simulation: Simulation) -> None:
    """A message is missing that its writer's next one names as the one before, and `totals` has read neither.

    Args:
        simulation: republishers have published what `totals` has not read.
    """
    log = simulation.log
    kept = [message for message in log.records("far") if message.value() is not None]
    if any(not is_enveloped(message.value()) or message.value() in simulation.strange for message in kept):
        return  # what cannot be read excuses gaps
    ends = simulation.invariants.expected().ends
    fresh = {message for message in kept if message.offset() >= ends.get(message.coordinates[:2], 0)}
    lost = next((one for one in _named_by_the_next(kept) if one in fresh), None)
    if lost is None:
        return
    before = log.snapshot()
    log.lose(*lost.coordinates)
    simulation.fired["record lost"] += 1
    _must_stop(simulation, GapError, before, f"{lost.coordinates} is missing")


def _named_by_the_next(messages: list[MemoryMessage]) -> Iterator[MemoryMessage]:
    """The messages that were published once, and that the next one on their lane names as the one before."""
    envelopes = [(message, read(message.value(), headers=message.headers())) for message in messages]
    published = Counter(_place(message, envelope) for message, envelope in envelopes)
    named = {
        (message.partition(), envelope.lane, envelope.previous)
        for message, envelope in envelopes
        if published[_place(message, envelope)] == 1
    }
    for message, envelope in envelopes:
        if published[_place(message, envelope)] == 1 and _place(message, envelope) in named:
            yield message


def _place(message: MemoryMessage, envelope: Envelope) -> tuple[int, int, bytes]:
    return message.partition(), envelope.lane, envelope.position


def _must_stop(simulation: Simulation, kind: type[ChainError], before: object, what: str) -> None:
    """Run `totals` until it stops with this error; then the log is what it was before."""
    totals, noticed = simulation.services["totals"], list[bool]()

    def remedy() -> None:
        noticed.append(True)
        simulation.restore_log(before)

    def run() -> None:
        for _ in range(MOST_BATCHES):
            if not totals.batch() and not totals.batch(at_end=True):
                return

    simulation.expect(kind, remedy)
    simulation.attempt("totals", run)
    if not noticed:
        raise Violation("sound", f"{what}, and totals has not noticed it")
    simulation.expect(None)
