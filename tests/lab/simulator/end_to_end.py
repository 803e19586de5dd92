"""Checks, at rest, that every fact has arrived once from its origin to the last receiver; compares with the input alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sqe_chain.codecs.window import window_of
from sqe_chain.envelope.message import Envelope
from sqe_chain.stages import WindowResult
from sqe_chain.testing.invariants import Violation
from tests.lab.reference import facts
from tests.lab.reference.expected import Span
from tests.lab.reference.facts import unit_of, units_of
from tests.lab.reference.lanes import lane_position_of
from tests.lab.simulator import functions

if TYPE_CHECKING:
    from tests.lab.simulator.run import Simulation


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
        note.rstrip("+-?!")
        for (stage, _), notes in expected.ids.items()
        if stage == "first"
        for note in notes
    ]
    if world.kind in {"deduplicate", "distinct"}:
        must = set()
        _check_groups(groups.values(), set(found))
    simulation.invariants.check_sum(found, must, may, "the first stage")
    if world.told and not simulation.rolled_back:
        _check_passed(simulation, set(found))
    if world.table:
        _check_table(simulation, must, may)
    if world.reader == "aggregation" and not simulation.rolled_back:
        _check_reader(simulation, set(found))


def _check_groups(groups: Iterable[list[tuple[str, bool]]], found: set[str]) -> None:
    """Of facts that are the same for a filter one went on; none, if all may have been skipped."""
    for group in groups:
        passed = {name for name, _ in group} & found
        if len(passed) > 1 or (not passed and all(sound for _, sound in group)):
            raise Violation("sum", f"of {group}, which are the same, {sorted(passed)} went on")


def _check_reader(simulation: Simulation, ids: set[str]) -> None:
    """The service that reads the emissions of both stages got each id once from each stage."""
    states = simulation.services["reader"].states("heard").values()
    heard = Counter(name for state in states for name in functions.ids_of(state))
    wanted = dict.fromkeys(ids, simulation.world.stages)
    if heard != wanted:
        off = {
            name: (heard[name], wanted.get(name, 0))
            for name in {*heard, *wanted}
            if heard[name] != wanted.get(name, 0)
        }
        raise Violation("sum", f"the reader of what the stages emit: (heard, must be) {off}")


def _check_passed(simulation: Simulation, ids: set[str]) -> None:
    """A reader of what the stage before the others lets pass got each id once."""
    passed = Counter[str]()
    for envelope in _new_in(simulation, "passed"):
        values = envelope.payloads_as(simulation.text)
        passed.update(unit_of(value.value).id for value in values if value is not None)
    if passed != dict.fromkeys(ids, 1):
        off = sorted({*passed.elements()} ^ ids) or [name for name, count in passed.items() if count > 1]
        raise Violation(
            "sum", f"what passed the first stage, and the second one has counted, differ by {off}"
        )


def _new_in(simulation: Simulation, topic: str) -> Iterator[Envelope]:
    """What a reader of a topic takes."""
    seen = set()
    for envelope in simulation.services["totals"].published(topic):
        way = lane_position_of(envelope.chain.links)
        if (way.lane, way.position) not in seen:
            seen.add((way.lane, way.position))
            yield envelope


def _check_table(simulation: Simulation, must: set[str], may: set[str]) -> None:
    """Readers find each row once, and of each key the latest."""
    from sqe_chain.ext.tables.reading import open_table  # noqa: PLC0415 - needs pyarrow
    from tests.lab.simulator.table_audit import ADDRESS  # noqa: PLC0415 - needs pyarrow

    rows = open_table(ADDRESS).read(columns=["key", "slot", "id"]).to_pylist()
    found = {(row["key"], row["slot"]): row["id"] for row in rows}
    versions = simulation.invariants.expected().rows.values()
    wanted = {(row.key, row.slot): row.id for part in versions for row in part}
    if len(found) != len(rows) or found != wanted:
        raise Violation("sum", f"readers find {rows}, must be {wanted}")
    if not simulation.world.replaced:
        simulation.invariants.check_sum([*found.values()], must, may, "the table")


def _check_windows(simulation: Simulation) -> None:
    """Each window, open or emitted, holds exactly the units that belong to it."""
    found: dict[Span, list[str]] = {}
    for envelope in _new_in(simulation, "closed"):
        for span, ids in _results_in(envelope, simulation.world.form):
            found.setdefault(span, []).extend(ids)
    for window in simulation.services["totals"].windows("windows"):
        span = (window.key.decode(), window.span.start_ms)
        found.setdefault(span, []).extend(functions.ids_of(window.state))
    wanted = {span: sorted(ids) for span, ids in simulation.invariants.expected().windows.items()}
    shown = {span: sorted(ids) for span, ids in found.items()}
    if shown != wanted:
        off = {span: (shown.get(span), wanted.get(span)) for span in {*shown, *wanted}}
        off = {span: both for span, both in sorted(off.items()) if both[0] != both[1]}
        raise Violation("sum", f"windows: (found, must be) {off}")


def _results_in(envelope: Envelope, form: facts.Form) -> Iterator[tuple[Span, list[str]]]:
    """The windows in an envelope, each with its ids."""
    if form == "json":
        for window in envelope.payloads_as(window_of(functions.Text)):
            if window is not None:
                yield (window.key, window.start_ms), functions.ids_of(window.state)
        return
    for result in envelope.payloads_as(WindowResult):
        if result is not None:
            yield (
                (result.key.decode(), result.start_ms),
                functions.ids_of(functions.parsed(result.state, form)),
            )
