"""The checks: facts in, findings out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqe_chain.ext.doctor.checks import machine, positions, states, topics
from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts


def examine(facts: Facts) -> list[Diagnostic]:
    """All findings, errors first."""
    order = {"error": 0, "warning": 1, "note": 2}
    findings = [finding for check in CHECKS for finding in check(facts)]
    return sorted(findings, key=lambda finding: order[finding.severity])


def _unreachable(facts: Facts) -> Iterator[Diagnostic]:
    return (report("unreachable", what, why=why) for what, why in facts.errors.items())


def _undecided(facts: Facts) -> Iterator[Diagnostic]:
    if facts.undecided:
        yield report("failed-records", f"flow {facts.flow.name}", line=facts.undecided)


def _revisions(facts: Facts) -> Iterator[Diagnostic]:
    for output, (newest, follows) in sorted(facts.newer.items()):
        yield report("newer-revision", output, newest=newest, follows=follows)
    if facts.unknown_revisions:
        yield report("unknown-revision", f"flow {facts.flow.name}", why=facts.unknown_revisions)


CHECKS: tuple[Callable[[Facts], Iterator[Diagnostic]], ...] = (
    _unreachable,
    positions.cluster,
    topics.missing_topics,
    topics.markers,
    topics.access,
    topics.durability_of_topics,
    topics.retention,
    positions.positions,
    positions.group,
    positions.expiry,
    positions.lag,
    _undecided,
    _revisions,
    states.claims,
    states.headers,
    states.declaration,
    states.stores,
    machine.clocks,
    machine.resources,
    machine.programs,
)
"""Each looks at one subject."""
