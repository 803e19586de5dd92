"""Checks of positions: the plan's and the group's, against what the logs hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.ext.doctor.finding import Finding
from sqe_chain.protocol.inputs import parse_metadata

_LATE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


def positions(facts: Facts) -> Iterator[Finding]:
    """Positions of the last plan that the logs do not hold."""
    plan = facts.plan
    if plan is None:
        return
    for planned in plan.ranges:
        info, bounds = facts.topics.get(planned.topic), facts.bounds.get(planned.tp)
        where = f"{planned.topic}[{planned.partition}]"
        if info is not None and info.topic_id.hex() != planned.topic_id:
            yield Finding(
                "recreated-input",
                "error",
                planned.topic,
                "it was deleted and created again since the last plan",
                "see the runbook: RecreatedTopic",
            )
            continue
        if bounds is None:
            continue
        if bounds.begin > planned.stop:
            yield Finding(
                "lost-records",
                "error",
                where,
                f"retention has deleted offsets {planned.stop} to {bounds.begin - 1}, which are not counted",
                "see the runbook: LostOffsets",
            )
        if bounds.stable_end < planned.stop:
            yield Finding(
                "truncated-input",
                "error",
                where,
                f"the log ends at {bounds.stable_end}, and the flow has read up to {planned.stop}: records were lost on the broker",
                "see the runbook: TruncatedInput",
            )
        if planned.last_timestamp_ms > facts.now_ms + _LATE_MS:
            yield Finding(
                "clock-ahead",
                "warning",
                where,
                f"its newest record lies {(planned.last_timestamp_ms - facts.now_ms) // 1_000} s in the future: a clock is wrong, here or at the "
                f"{'broker' if info is not None and info.append_time else 'producer'}",
                "chronyc tracking",
            )


def group(facts: Facts) -> Iterator[Finding]:
    """Commits of the group that do not agree with the last plan."""
    if facts.plan is None or "brokers" in facts.errors or not facts.topics:
        return
    stops = {tp: planned.stop for tp, planned in facts.plan.ends().items() if planned.stop > 0}
    ours = {tp: commit for tp, commit in facts.commits.items() if "plan" in parse_metadata(commit)}
    group = facts.flow.declared_name
    if stops and not facts.commits:
        yield Finding(
            "no-commits",
            "warning",
            group,
            "the group has no committed offsets: they have expired, or were deleted. The store still knows the positions",
            "start the service: it commits again",
        )
    for tp in sorted(facts.commits.keys() - ours.keys()):
        yield Finding(
            "foreign-commit",
            "error",
            f"{tp[0]}[{tp[1]}]",
            f"another program commits offsets to the group {group!r}",
            f"kafka-consumer-groups.sh --describe --group {group}",
        )
    for tp, commit in ours.items():
        if commit.offset > stops.get(tp, 0):
            yield Finding(
                "store-behind",
                "error",
                f"{tp[0]}[{tp[1]}]",
                f"the group has committed {commit.offset}, and the store's last plan ends at {stops.get(tp, 0)}: the store went back in time",
                "restore the newest backup, or sqe-chain rebuild",
            )


def expiry(facts: Facts) -> Iterator[Finding]:
    """Commits that the broker forgets, or has forgotten, while the flow does not run.

    The broker does not report when a group has committed. So the time of the last plan is the evidence, where there is one.
    """
    kept_ms, name = facts.commits_kept_ms, facts.flow.declared_name
    kept = f"offsets.retention.minutes={kept_ms // 60_000}"
    if facts.flow.keeps_plans:
        down_ms = 0 if facts.plan is None or facts.alive else facts.now_ms - facts.plan.clock_ms
        if facts.commits and 0 <= kept_ms < 2 * down_ms:
            yield Finding(
                "commits-expire",
                "note",
                name,
                f"the last batch was {down_ms / _HOUR_MS:,.1f} h ago, no run is at work, and {kept}: lag monitors lose the group. "
                "The store still knows the positions",
                "start the service: it commits again",
            )
        return
    if facts.published and not facts.commits:
        yield Finding(
            "place-lost",
            "warning",
            name,
            "the group has no commits, and the outputs have records: Kafka has forgotten the flow's place, unless others publish there. "
            f"The flow begins again, and receivers ignore the replays ({kept})",
            "see production: Topics",
        )
    if 0 <= kept_ms < _DAY_MS:
        yield Finding(
            "short-commits",
            "warning",
            name,
            f"{kept}: if the flow is down for {kept_ms / _HOUR_MS:.1f} h, Kafka forgets its place, and it reads from the beginning",
            "offsets.retention.minutes=10080 in the brokers' server.properties",
        )


def lag(facts: Facts) -> Iterator[Finding]:
    """Records that wait."""
    if facts.plan is None:
        return
    lag = sum(
        max(0, bounds.stable_end - planned.stop)
        for tp, planned in facts.plan.ends().items()
        if (bounds := facts.bounds.get(tp)) is not None
    )
    if lag and not facts.alive:
        yield Finding(
            "behind",
            "note",
            f"flow {facts.flow.name}",
            f"{lag:,} offsets are not counted, and no run is at work",
            "start the service",
        )
    if facts.waiting and facts.now_ms - facts.plan.clock_ms > _LATE_MS:
        yield Finding(
            "held-back",
            "warning",
            facts.holder,
            f"{facts.waiting:,} records wait for event time; this partition holds them back",
            "sqe-chain state FLOW STAGE --waiting",
        )
