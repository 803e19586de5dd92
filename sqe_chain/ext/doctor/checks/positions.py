"""Checks of positions: the plan's and the group's, against what the logs hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.protocol.inputs import parse_metadata

_LATE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


def positions(facts: Facts) -> Iterator[Diagnostic]:
    """Positions of the last plan that the logs do not hold."""
    for planned in () if facts.plan is None else facts.plan.ranges:
        info, bounds = facts.topics.get(planned.topic), facts.bounds.get(planned.tp)
        where = f"{planned.topic}[{planned.partition}]"
        if info is not None and info.topic_id.hex() != planned.topic_id:
            yield report("recreated-input", planned.topic)
            continue
        if bounds is None:
            continue
        if bounds.begin > planned.stop:
            yield report("lost-records", where, first=planned.stop, last=bounds.begin - 1)
        if bounds.stable_end < planned.stop:
            yield report("truncated-input", where, end=bounds.stable_end, stop=planned.stop)
        if planned.last_timestamp_ms > facts.now_ms + _LATE_MS:
            seconds = (planned.last_timestamp_ms - facts.now_ms) // 1_000
            writer = "broker" if info is not None and info.append_time else "producer"
            yield report("clock-ahead", where, seconds=seconds, writer=writer)


def group(facts: Facts) -> Iterator[Diagnostic]:
    """Commits of the group that do not agree with the last plan."""
    if facts.plan is None or "brokers" in facts.errors or not facts.topics:
        return
    stops = {tp: planned.stop for tp, planned in facts.plan.ends().items() if planned.stop > 0}
    ours = {tp: commit for tp, commit in facts.commits.items() if "plan" in parse_metadata(commit)}
    group = facts.flow.declared_name
    if stops and not facts.commits:
        yield report("no-commits", group)
    for topic, partition in sorted(facts.commits.keys() - ours.keys()):
        yield report("foreign-commit", f"{topic}[{partition}]", group=group)
    for (topic, partition), commit in ours.items():
        end = stops.get((topic, partition), 0)
        if commit.offset > end:
            yield report("store-behind", f"{topic}[{partition}]", committed=commit.offset, end=end)


def expiry(facts: Facts) -> Iterator[Diagnostic]:
    """Commits that the broker forgets, or has forgotten, while the flow does not run.

    The broker does not report when a group has committed. So the time of the last plan is the evidence, where there is one.
    """
    kept_ms, name = facts.commits_kept_ms, facts.flow.declared_name
    kept = f"offsets.retention.minutes={kept_ms // 60_000}"
    if facts.flow.keeps_plans:
        down_ms = 0 if facts.plan is None or facts.alive else facts.now_ms - facts.plan.clock_ms
        if facts.commits and 0 <= kept_ms < 2 * down_ms:
            yield report("commits-expire", name, hours=down_ms / _HOUR_MS, kept=kept)
        return
    if facts.published and not facts.commits:
        yield report("place-lost", name, kept=kept)
    if 0 <= kept_ms < _DAY_MS:
        yield report("short-commits", name, kept=kept, hours=kept_ms / _HOUR_MS)


def lag(facts: Facts) -> Iterator[Diagnostic]:
    """Records that wait."""
    if facts.plan is None:
        return
    lag = sum(
        max(0, bounds.stable_end - planned.stop)
        for tp, planned in facts.plan.ends().items()
        if (bounds := facts.bounds.get(tp)) is not None
    )
    if lag and not facts.alive:
        yield report("behind", f"flow {facts.flow.name}", lag=lag)
    if facts.waiting and facts.now_ms - facts.plan.clock_ms > _LATE_MS:
        yield report("held-back", facts.holder, waiting=facts.waiting)
