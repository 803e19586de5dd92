"""Checks of stores: claims, headers, declaration, durability."""

from __future__ import annotations

from collections.abc import Iterator

from sqe_chain.errors import ChainError
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.ext.doctor.finding import Finding
from sqe_chain.protocol.declared import check_layout
from sqe_chain.protocol.inputs import parse_metadata


def claims(facts: Facts) -> Iterator[Finding]:
    """A home record that is lost, and a claim of a run that has died."""
    home = facts.home
    if home is None:
        if facts.flow.keeps_plans and any(
            "plan" in parse_metadata(commit) for commit in facts.commits.values()
        ):
            yield Finding(
                "store-empty",
                "error",
                "home store",
                "Kafka has commits of plans, and the store has no plan",
                "restore the store, or sqe-chain rebuild",
            )
        return
    if facts.plan is None and home.number >= 0 and "store" not in facts.errors:
        yield Finding(
            "plan-lost",
            "error",
            "home store",
            f"plan {home.number} is gone",
            "restore the store, or sqe-chain rebuild",
        )
    if home.run_id and not facts.alive:
        yield Finding(
            "stale-claim",
            "note",
            "claim",
            f"run {home.run_id} has not released its claim, and its heartbeat has stopped: it was killed",
            "start the service: it takes over",
        )


def headers(facts: Facts) -> Iterator[Finding]:
    """States that are lost, or of another time than the home record."""
    plan = facts.plan
    for (stage, cell), header in facts.headers.items():
        subject = f"stage {stage!r}, cell {cell}"
        if header is None:
            if plan is not None and plan.number > 0 and stage in plan.layout.stages:
                yield Finding(
                    "cell-lost",
                    "error",
                    subject,
                    "its header is gone: its states are lost",
                    "restore the store, or sqe-chain rebuild",
                )
            continue
        if header.lost:
            yield Finding(
                "states-lost", "error", subject, header.lost, "restore the store, or sqe-chain rebuild"
            )
        if plan is not None and header.number > plan.number:
            yield Finding(
                "home-behind",
                "error",
                subject,
                f"it is at plan {header.number}, and the home store at plan {plan.number}: stores were restored apart",
                "restore both from one backup",
            )
        if plan is not None and header.begun_id and not facts.alive:
            yield Finding(
                "open-plan",
                "note",
                subject,
                "a plan is written in part, and no run is at work",
                "start the service: it finishes the plan",
            )


def declaration(facts: Facts) -> Iterator[Finding]:
    """A declaration that does not fit what is stored."""
    if facts.plan is None:
        return
    try:
        check_layout(facts.flow, facts.plan.layout, ())
    except ChainError as error:
        yield Finding(
            type(error).__name__,
            "error",
            f"flow {facts.flow.name}",
            str(error),
            "declare it as before, or see the runbook",
        )
    for stage in facts.flow.stages:
        if (
            facts.plan.number > 0
            and stage.name in facts.plan.layout.stages
            and stage.name not in facts.located
        ):
            yield Finding(
                "not-located",
                "warning",
                f"stage {stage.name!r}",
                "readers cannot find its states",
                "start the service: it writes the locations",
            )


def stores(facts: Facts) -> Iterator[Finding]:
    """What stores report of themselves."""
    for name, texts in facts.weak.items():
        for text in texts:
            yield Finding(
                "weak-store", "error", f"store {name or 'default'}", text, "sqe-chain store check URL"
            )
    for name, texts in facts.remarks.items():
        for text in texts:
            yield Finding("store-remark", "note", f"store {name or 'default'}", text)
