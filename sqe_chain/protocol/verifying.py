"""Checks of what a service relies on: durable stores, unchanged inputs, redos that end where their plans say."""

from __future__ import annotations

from collections.abc import Sequence

from sqe_chain.errors import ConfigurationError, PlanMismatch, ServiceStopped, WeakDurability
from sqe_chain.protocol import inputs, same_inputs
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Notice
from sqe_chain.protocol.feature import Features
from sqe_chain.protocol.layout import mark_name
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.planning import marks_after
from sqe_chain.protocol.recover import Redo
from sqe_chain.task.results import Report


def check_stores(env: Environment) -> list[str]:
    """Check that all stores and tables of the flow keep what they acknowledge, and that stores can write the views of their stages.

    Returns:
        What is weak and accepted, and what is worth knowing: said once, when the flow begins.

    Raises:
        WeakDurability: one may lose acknowledged writes, and that is not accepted.
        ConfigurationError: a stage names a store that is not there, or one that cannot write its view.
    """
    for stage in env.flow.stages:
        if stage.view is not None and stage.view not in env.store(stage).views:
            known = " and ".join(sorted(env.store(stage).views))
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} wants a view as {stage.view!r}; {env.store(stage)!r} writes {known}"
            )
    stores = {stage.store or "": env.store(stage) for stage in env.flow.stages} | {"": env.home}
    said = []
    for name, store in sorted(stores.items()):
        said += _checked(env, f"store {name or 'default'!r}", store.check(), store.remarks())
    for stage in env.flow.stages:
        sink = env.ports.sink(stage)
        if sink is not None:
            weak = env.retry.call("check a table", sink.check)
            remarks = env.retry.call("check a table", sink.remarks)
            said += _checked(env, f"the table of stage {stage.name!r}", weak, remarks)
    return said


def _checked(env: Environment, what: str, weak: Sequence[str], remarks: Sequence[str]) -> list[str]:
    """What is known of the durability of a store or table; what is weak is refused, unless that is accepted."""
    if weak and not env.settings.allow_weak_durability:
        raise WeakDurability(
            f"{what} may lose acknowledged writes: {'; '.join(weak)}. Change that, or accept it with --allow-weak-durability"
        )
    return [*(f"weak durability accepted: {text}" for text in weak), *remarks]


def check_new_stages(env: Environment, last: Plan) -> None:
    """Check that no new stage has the name of one that was dropped: its states have missed what came since.

    Raises:
        ServiceStopped: one has.
    """
    for stage in env.flow.stages:
        if stage.name in last.layout.stages:
            continue
        cells = env.flow.cells[stage.index]
        if any(env.store(stage).headers(env.flow.name, stage.name, cells)):
            raise ServiceStopped(
                f"{stage.declared_at}: the store holds states of a stage {stage.name!r} that was dropped; it has missed what "
                "came since: give the new stage another name"
            )


def check_plan_size(env: Environment, plan: Plan, size: int) -> None:
    """Check before the seal that the home store takes a plan of this size.

    Args:
        env: the flow and its ports.
        plan: about to be sealed.
        size: its bytes.

    Raises:
        ConfigurationError: it is too large.
        Unavailable: asked to stop while waiting for the store.
    """
    most = env.home.max_plan_bytes
    if size <= most:
        return
    lanes = sum(len(marks) for marks in plan.marks.values())
    raise ConfigurationError(
        f"flow {env.flow.name!r}: plan {plan.number} has {size} bytes, the home store takes {most}; nothing was sealed. "
        f"It names {len(plan.ranges)} input partitions, {lanes} lanes in their marks, and {len(plan.exclusions)} inputs "
        "left out. Many lanes: republish with fewer partitions and shards upstream. Many inputs left out: correct what "
        "they fail on, choose poison='stop', or make batches smaller (--max-records). Else take a home store with more "
        "room (Cassandra: commitlog_segment_size, of which a plan takes half)"
    )


def verify_records(env: Environment, last: Plan, features: Features, *, unfinished: bool) -> None:
    """Check that the inputs are still what the last plan has read: read the last record of each range again.

    Args:
        env: the flow and its ports.
        last: the last plan.
        features: of the run.
        unfinished: the plan has to be redone, so all of its records are needed.

    Raises:
        RecreatedTopic, TruncatedInput, LostOffsets, PartitionsMismatch: they are not.
    """
    infos = env.log.describe({planned.topic for planned in last.ranges})
    unneeded = features.unneeded(last, infos)
    ranges = []
    for planned in last.ranges:
        if planned.topic in unneeded and not (unfinished and planned.reads):
            continue
        if not unfinished and same_inputs.is_new_root(
            env.flow, planned.topic, planned.topic_id, infos.get(planned.topic)
        ):
            continue
        same_inputs.check_same(planned, infos.get(planned.topic))
        ranges.append(planned)
    bounds, needed = env.log.bounds([planned.tp for planned in ranges]), features.needed(last)
    for planned in ranges:
        first = planned.begin if unfinished else needed[planned.tp]
        inputs.check_bounds(planned.tp, first, bounds[planned.tp])
    compacted = inputs.compacted_topics(infos)
    kept = [planned for planned in ranges if planned.topic not in compacted]
    for planned in same_inputs.check_last_records(env.log, kept, bounds):
        where = f"{planned.topic}[{planned.partition}]"
        env.emit(Notice(f"{where}: the last record read has aged out, it could not be compared"))


def check_redone(redo: Redo, report: Report) -> None:
    """Check that a redo ends at the marks of its plan.

    Raises:
        PlanMismatch: it does not, or user code fails that did not fail before the seal.
    """
    plan = redo.plan
    if report.failed or report.excluded:
        raise PlanMismatch(
            f"plan {plan.number}: user code fails on {(report.failed + report.excluded)[0]}, on which it did not fail "
            "when the plan was sealed; run the code that sealed it until it has finished"
        )
    if report.broken:
        raise PlanMismatch(
            f"plan {plan.number} was sealed, and its redo fails where it did not fail before: {report.broken[0]}. Run the code "
            "that sealed it until it has finished"
        )
    marks = marks_after(redo.before, report)
    off = [mark_name(*tp) for tp, one in plan.marks.items() if marks.get(tp) != one]
    if off:
        raise PlanMismatch(
            f"plan {plan.number}: its redo ends at other marks in {', '.join(off)}: the input or the code changed; run the code "
            "that sealed it, or restore the input"
        )
