"""Logs that lose what they had acknowledged, and writers that change their mind: who reads them has to notice, and to stop by name.

Each step puts the log back as it was when the service has stopped, which is what the runbook asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sqe_chain.adapters.memory import MemoryMessage
from sqe_chain.envelope.message import is_enveloped, read
from sqe_chain.errors import ChainError, ChangedRepublisher, GapError, RecreatedTopic, TruncatedInput
from sqe_chain.testing.invariants import Violation
from sqe_chain.testing.rehearsal import Rehearsal
from tests.lab.simulator.flows import Makes, changed_hop

if TYPE_CHECKING:
    from tests.lab.simulator.run import Simulation

MOST_BATCHES = 20
MOST_RECORDS = 400_000
"""In worlds with smaller batches the service may have taken a part of what is taken back."""
ANOTHER_HISTORY = b"of another history"


def cut_off(simulation: Simulation, topic: str, partition: int, back: int, *, rewritten: bool) -> None:
    """An unclean election loses records that `totals` has read; others may be written at their offsets.

    Args:
        simulation: at rest.
        topic: an input of `totals`.
        partition: of its partitions, modulo their number.
        back: how many records are lost, or fewer if there are fewer.
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

    It must stop; unless a record that cannot be read came after what it accepted last of that lane, which may have been it.

    Args:
        simulation: republishers have published what `totals` has not read.
    """
    log, ends = simulation.log, simulation.invariants.expected().ends
    partitions = range(log.describe(["far"])["far"].partitions)
    places = [place for partition in partitions for place in _named_by_the_next(simulation, partition)]
    fresh = [one for one in places if one.message.offset() >= ends.get(("far", one.message.partition()), 0)]
    if not fresh:
        return
    lost = fresh[0]
    before = log.snapshot()
    log.lose(*lost.message.coordinates)
    if not lost.excused:
        simulation.fired["record lost"] += 1
        _must_stop(simulation, GapError, before, f"{lost.message.coordinates} is missing")
        return
    simulation.fired["record lost, excused"] += 1
    simulation.forget_facts({unit.partition(".")[0] for unit in lost.units})
    simulation.attempt("totals", partial(_catch_up, simulation.services["totals"]))


def change_mind(simulation: Simulation, makes: Makes) -> None:
    """The republisher repeats its last input by other code, which makes fewer messages of it, or more.

    Args:
        simulation: its one republisher has published what it was fed; `totals` may have read that, or not.
        makes: which of them.
    """
    if simulation.world.records < MOST_RECORDS:
        return
    hop, log = simulation.services["hop1"], simulation.log
    before, published = log.snapshot(), len(log.records("far"))
    old, hop.flow, hop.service = hop.flow, changed_hop(simulation.world, makes), None
    with _unwatched(simulation):
        _repeat(simulation, back=1)
    hop.flow, hop.service = old, None
    if len(log.records("far")) == published:  # there was nothing to repeat
        simulation.restore_log(before)
        return
    simulation.fired["republisher changed"] += 1
    _must_stop(simulation, ChangedRepublisher, before, f"hop1 makes {makes} messages of an input than before")


def come_back(simulation: Simulation, back: int) -> None:
    """The topic in between is created again, and roots that were counted come back through it.

    Args:
        simulation: at rest, with two republishers.
        back: how many inputs of each partition the first one repeats.
    """
    if simulation.world.records < MOST_RECORDS:
        return
    log, hops = simulation.log, [simulation.services[name] for name in ("hop1", "hop2")]
    before, published = log.snapshot(), len(log.records("far"))
    log.recreate("mid")
    log.forget("hop2")
    for hop in hops:
        hop.service = None
    with _unwatched(simulation):
        _repeat(simulation, back)
        simulation.attempt("hop2", partial(_catch_up, hops[1]))
    for hop in hops:
        hop.service = None
    if len(log.records("far")) == published:  # nothing came through
        simulation.restore_log(before)
        return
    simulation.fired["counted roots came back"] += 1
    _must_stop(
        simulation, RecreatedTopic, before, "what was counted comes back through a topic created again"
    )


@contextmanager
def _unwatched(simulation: Simulation) -> Iterator[None]:
    """In this context nobody looks at what republishers write: it is about to be taken back."""
    scripts = [service.script for name, service in simulation.services.items() if name.startswith("hop")]
    watches = [script.watch for script in scripts]
    for script in scripts:
        script.watch = None
    yield
    for script, watch in zip(scripts, watches, strict=True):
        script.watch = watch


def _repeat(simulation: Simulation, back: int) -> None:
    """The first republisher goes back in each partition, and publishes again."""
    hop = simulation.services["hop1"]

    def repeat() -> None:
        hop.start()
        hop.rewind({tp: max(0, commit.offset - back) for tp, commit in hop.commits().items()})
        _catch_up(hop)

    simulation.attempt("hop1", repeat)


def _catch_up(service: Rehearsal) -> None:
    for _ in range(MOST_BATCHES):
        if not service.batch() and not service.batch(at_end=True):
            return


@dataclass(frozen=True, slots=True)
class _Named:
    """A message that was published once, and that the next one of its lane names as the one before.

    Attributes:
        message: it.
        units: what is in it, by their texts.
        excused: whether it may be missing.
    """

    message: MemoryMessage
    units: tuple[str, ...]
    excused: bool


def _named_by_the_next(simulation: Simulation, partition: int) -> Iterator[_Named]:
    """The messages of a partition that may be missed."""
    unreadable, accepted = -1, dict[int, tuple[bytes, int]]()
    kept = [record for record in simulation.log.records("far") if record.partition() == partition]
    sound = [one for one in kept if is_enveloped(one.value()) and one.value() not in simulation.malformed]
    envelopes = {one.offset(): read(one.value(), headers=one.headers()) for one in sound}
    published = Counter((one.lane, one.position) for one in envelopes.values())
    named = {(one.lane, one.previous) for one in envelopes.values() if published[one.lane, one.position] == 1}
    for message in kept:
        envelope = envelopes.get(message.offset())
        if envelope is None:
            unreadable = message.offset()
            continue
        lane, position = envelope.lane, envelope.position
        highest, offset = accepted.get(lane, (b"", -1))
        if published[lane, position] == 1 and (lane, position) in named:
            texts = (one.value for one in envelope.payloads_as(simulation.text) if one is not None)
            yield _Named(message, tuple(texts), offset < unreadable)
        if position > highest:
            accepted[lane] = position, message.offset()


def _must_stop(simulation: Simulation, kind: type[ChainError], before: object, what: str) -> None:
    """Run `totals` until it stops with this error; then the log is what it was before."""
    noticed = list[bool]()

    def remedy() -> None:
        noticed.append(True)
        simulation.restore_log(before)

    simulation.expect(kind, remedy)
    totals = partial(_catch_up, simulation.services["totals"])
    if not simulation.attempt("totals", totals) and not noticed:
        # That run had been superseded, and ended before it read anything.
        simulation.attempt("totals", totals)
    if not noticed:
        raise Violation("sound", f"{what}, and totals has not noticed it")
    simulation.expect(None)
