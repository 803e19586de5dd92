"""Checks, at rest, that every fact has arrived once from its origin to the last receiver; compares with the input alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.stages import WindowResult
from sqe_chain.testing.simulator import facts
from sqe_chain.testing.simulator.facts import unit_of, units_of
from sqe_chain.testing.simulator.invariants import Violation
from sqe_chain.testing.simulator.model import Span, lane_position_of

if TYPE_CHECKING:
    from sqe_chain.testing.simulator.run import Simulation


def check(simulation: Simulation) -> None:
    """Compare the end of a simulation with its input.

    Raises:
        Violation: something is missing, was counted twice, or was never fed.
    """
    must, may, groups = set[str](), set[str](), dict[str, list[tuple[str, bool]]]()
    for fed in simulation.origins.values():
        for fact, present in fed:
            units = [unit_of(text) for text in units_of(fact)]
            may.update(unit.id for unit in units)
            sound = present and all(unit.kind in facts.GOOD for unit in units)
            groups.setdefault(units[0].same, []).append((units[0].id, sound))
            if sound:
                must.update(unit.id for unit in units)
    world, expected = simulation.world, simulation.invariants.expected()
    if not expected.ends:
        return
    if world.kind == "windows":
        found = [name for ids in expected.windows.values() for name in ids]
        simulation.invariants.check_sum(found, must, may, "the inputs of windows")
        _check_windows(simulation)
        return
    found = [
        note.rstrip("+-?") for (stage, _), notes in expected.ids.items() if stage == "first" for note in notes
    ]
    if world.kind in {"deduplicate", "distinct"}:
        must = set()
        for group in groups.values():
            passed = {name for name, _ in group} & set(found)
            if len(passed) > 1 or (not passed and all(sound for _, sound in group)):
                raise Violation("sum", f"of {group}, which are the same, {sorted(passed)} went on")
    simulation.invariants.check_sum(found, must, may, "the first stage")
    if world.reader == "aggregation" and not simulation.rolled_back:
        _check_reader(simulation, set(found))


def _check_reader(simulation: Simulation, ids: set[str]) -> None:
    """The service that reads the emissions of both stages got each id once from each stage."""
    states = simulation.services["reader"].states("heard").values()
    heard = Counter(
        name for state in states if isinstance(state, StringValue) for name in state.value.split()
    )
    wanted = dict.fromkeys(ids, simulation.world.stages)
    if heard != wanted:
        off = {
            name: (heard[name], wanted.get(name, 0))
            for name in {*heard, *wanted}
            if heard[name] != wanted.get(name, 0)
        }
        raise Violation("sum", f"the reader of what the stages emit: (heard, must be) {off}")


def _check_windows(simulation: Simulation) -> None:
    """Each window, open or emitted, holds exactly the units that belong to it."""
    found: dict[Span, list[str]] = {}
    seen = set()
    totals = simulation.services["totals"]
    for envelope in totals.published("closed"):
        way = lane_position_of(envelope.chain.links)
        if (way.lane, way.position) in seen:
            continue
        seen.add((way.lane, way.position))
        for result in envelope.payloads_as(WindowResult):
            if result is not None:
                ids = StringValue.FromString(result.state).value.split()
                found.setdefault((result.key.decode(), result.start_ms), []).extend(ids)
    for window in totals.windows("windows"):
        if isinstance(window.state, StringValue):
            span = (window.key.decode(), window.span.start_ms)
            found.setdefault(span, []).extend(window.state.value.split())
    wanted = {span: sorted(ids) for span, ids in simulation.invariants.expected().windows.items()}
    shown = {span: sorted(ids) for span, ids in found.items()}
    if shown != wanted:
        off = {span: (shown.get(span), wanted.get(span)) for span in {*shown, *wanted}}
        off = {span: both for span, both in sorted(off.items()) if both[0] != both[1]}
        raise Violation("sum", f"windows: (found, must be) {off}")
