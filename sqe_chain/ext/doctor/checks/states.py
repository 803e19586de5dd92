"""Checks of stores: claims, headers, declaration, durability."""

from __future__ import annotations

from collections.abc import Iterator

from sqe_chain.errors import ChainError
from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.layout import check_layout
from sqe_chain.protocol.claim import is_being_forgotten


def claims(facts: Facts) -> Iterator[Diagnostic]:
    """A home record that is lost, a flow that is half forgotten, and a claim of a run that has died."""
    home = facts.home
    if home is None:
        if facts.flow.keeps_plans and any(
            "plan" in parse_metadata(known) for known in facts.commits.values()
        ):
            yield report("store-empty", "home store")
        return
    if facts.plan is None and home.number >= 0 and "store" not in facts.errors:
        yield report("plan-lost", "home store", number=home.number)
    if is_being_forgotten(home):
        yield report("half-forgotten", f"flow {facts.flow.name}")
    elif home.run_id and not facts.alive:
        yield report("stale-claim", "claim", run=home.run_id)


def headers(facts: Facts) -> Iterator[Diagnostic]:
    """States that are lost, or of another time than the home record or than each other."""
    plan = facts.plan
    if facts.inconsistent:
        yield report("inconsistent", f"flow {facts.flow.name}", why=facts.inconsistent)
    for (stage, cell), header in facts.headers.items():
        subject = f"stage {stage!r}, state partition {cell}"
        if header is None:
            if plan is not None and plan.number > 0 and stage in plan.layout.stages:
                yield report("cell-lost", subject)
            continue
        if header.lost:
            yield report("states-lost", subject, why=header.lost)
        if plan is not None and header.number > plan.number:
            yield report("home-behind", subject, number=header.number, last=plan.number)
        if plan is not None and header.begun_id and not facts.alive:
            yield report("open-plan", subject)


def declaration(facts: Facts) -> Iterator[Diagnostic]:
    """A declaration that does not fit what is stored."""
    plan, flow = facts.plan, facts.flow
    if plan is None:
        return
    try:
        check_layout(flow, plan.layout, ())
    except ChainError as error:
        what_to_do = "declare it as before, or see the runbook"
        yield Diagnostic(type(error).__name__, "error", f"flow {flow.name}", str(error), what_to_do)
    for stage in flow.stages:
        if plan.number > 0 and stage.name in plan.layout.stages and stage.name not in facts.located:
            yield report("not-located", f"stage {stage.name!r}")


def stores(facts: Facts) -> Iterator[Diagnostic]:
    """What stores report of themselves."""
    for check, known in (("weak-store", facts.weak), ("store-remark", facts.remarks)):
        for name, texts in known.items():
            for text in texts:
                yield report(check, f"store {name or 'default'}", why=text)
    for name, why in facts.refused.items():
        yield report("no-writes", f"store {name or 'default'}", why=why)
    for name, untried in facts.untried.items():
        for why in untried:
            yield report("not-tried", f"store {name or 'default'}", why=why, action="see stores: Rights")
