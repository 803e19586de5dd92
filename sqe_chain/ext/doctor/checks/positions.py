"""Checks of positions: the plan's and the group's, against what the logs hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqe_chain.errors import AnotherCluster
from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.layout import check_cluster
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import PlannedRange
from sqe_chain.plans.same_inputs import is_new_root
from sqe_chain.ports import TopicPartition

_LATE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


def cluster(facts: Facts) -> Iterator[Diagnostic]:
    """Brokers of another cluster than the one that the last plan names."""
    if why := _elsewhere(facts):
        yield report("another-cluster", "brokers", why=why)


def _elsewhere(facts: Facts) -> str:
    if facts.elsewhere or facts.plan is None:
        return facts.elsewhere
    try:
        by_ids = Mirrors.name not in facts.plan.sections
        check_cluster(facts.flow, facts.plan.layout, facts.topics, by_ids=by_ids)
    except AnotherCluster as error:
        return str(error)
    return ""


def positions(facts: Facts) -> Iterator[Diagnostic]:
    """Positions that the logs do not hold: where a start begins to read, and up to where was read."""
    if _elsewhere(facts):  # offsets mean nothing there
        return
    first_of, plan = _first_offsets(facts), facts.plan
    # Of a raw topic that was created again, the old one, too: a start reads it again.
    needs_old = bool(facts.redone) or (plan is not None and Rebuilding.name in plan.sections)
    for planned in _ranges(facts):
        info, bounds = facts.topics.get(planned.topic), facts.bounds.get(planned.tp)
        where = f"{planned.topic}[{planned.partition}]"
        if info is not None and info.topic_id.hex() != planned.topic_id:
            if needs_old or not is_new_root(facts.flow, planned.topic, planned.topic_id, info):
                yield report("recreated-input", planned.topic)
            continue
        if bounds is None:
            continue
        first = first_of.get(planned.tp, planned.stop)
        if bounds.begin > first:
            yield report("lost-records", where, first=first, last=bounds.begin - 1)
        if bounds.stable_end < planned.stop:
            yield report("truncated-input", where, end=bounds.stable_end, stop=planned.stop)
        if planned.last_timestamp_ms > facts.now_ms + _LATE_MS:
            seconds = (planned.last_timestamp_ms - facts.now_ms) // 1_000
            writer = "broker" if info is not None and info.append_time else "producer"
            yield report("clock-ahead", where, seconds=seconds, writer=writer)


def _ranges(facts: Facts) -> Sequence[PlannedRange]:
    """Up to where each partition was read: by the last plan, or by the commits of a flow without plans."""
    if facts.plan is not None or facts.flow.keeps_plans:
        return () if facts.plan is None else facts.plan.ranges
    return [
        PlannedRange(topic, str(known), partition, commit.offset, commit.offset)
        for (topic, partition), commit in facts.commits.items()
        if (known := parse_metadata(commit).get("topic_id"))
    ]


def _first_offsets(facts: Facts) -> dict[TopicPartition, int]:
    """What a start reads first: plans that are not finished, or what waits, or what comes next."""
    first_of = {} if facts.plan is None else dict(needed_offsets(facts.plan))
    for plan in facts.redone:
        for planned in plan.ranges:
            if planned.reads:
                first_of[planned.tp] = min(planned.begin, first_of.get(planned.tp, planned.begin))
    return first_of


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
