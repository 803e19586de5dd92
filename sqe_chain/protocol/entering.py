"""What enters a flow with a plan of its own that reads nothing: the flow itself, partitions, sources, stages, outputs, and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sqe_chain.envelope.revisions import FIRST
from sqe_chain.errors import ServiceStopped
from sqe_chain.features.file_inputs import FileSettings, news_of_files, read_files, with_entered
from sqe_chain.features.lanes import lanes_entering
from sqe_chain.features.parking import parked_of_gone
from sqe_chain.features.readers import notice_unread
from sqe_chain.features.rebuilding import Rebuilding, needs_as_it_was
from sqe_chain.features.timing import lost_waiting
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.finding_revisions import find_revisions
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.layout import layout_of
from sqe_chain.plans.own_revisions import declared_revision
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.plans.planning import birth_plan, layout_plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.ports import TopicInfo
from sqe_chain.protocol.committed import check_first_stage, enter, take_over, tell_entered
from sqe_chain.protocol.finish import OwnedFlow
from sqe_chain.protocol.whole_revisions import record_own_revision
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]


def first_plan(env: Environment, claim: Claim, infos: Infos) -> Plan:
    """The plan with which a flow begins: where each input partition is read from.

    Raises:
        ServiceStopped: an input does not hold what is to be read first.
    """
    tps = inputs.input_partitions(env.flow, infos)
    refold = env.role.refold
    if refold is None:
        commits = inputs.group_commits(env.flow, env.log, infos)
        if any("outputs" in parse_metadata(commit) for commit in commits.values()):
            return _plan_of_republisher(env, claim, infos)
    bounds = env.log.bounds(tps)
    if refold is not None:
        starts = {tp: (refold.starts.get(tp, 0), tp in refold.starts) for tp in tps}
        for tp, (offset, _) in starts.items():
            inputs.check_bounds(tp, offset, bounds[tp])
    else:
        starts = inputs.first_offsets(env.flow, bounds, env.settings.start)
    newest = None if refold is not None else newest_revisions(env, infos)
    return birth_plan(env.flow, claim, env.clock.now_ms(), infos, starts, refold, revisions=newest)


def newest_revisions(env: Environment, infos: Infos) -> Revisions:
    """The revisions that a flow follows which begins now.

    One of several readers follows the first one of everything: all of them must follow the same, whenever they begin.

    Raises:
        UnknownRevision: a record of one cannot be understood.
    """
    own = declared_revision(env.flow) if env.flow.stages else FIRST
    if not env.flow.stages or env.flow.partitions is not None:
        return Revisions(own=own)
    return replace(Revisions.of_records(find_revisions(env.flow, env.log, infos).records), own=own)


def _plan_of_republisher(env: Environment, claim: Claim, infos: Infos) -> Plan:
    """The first plan of a flow that had no stages until now: it goes on where its group's commits are.

    Raises:
        ServiceStopped: see `enter`; and see `check_first_stage`.
    """
    commits = take_over(env, infos)
    entered = enter(env, infos, inputs.input_partitions(env.flow, infos), commits)
    check_first_stage(env, infos, entered, commits)
    tell_entered(env, entered, infos)
    starts = {tp: (entering.offset, entering.offset > 0) for tp, entering in entered.inputs.items()}
    marks = {tp: entering.marks for tp, entering in entered.inputs.items()}
    return birth_plan(
        env.flow,
        claim,
        env.clock.now_ms(),
        infos,
        starts,
        known=marks,
        revisions=newest_revisions(env, infos),
    )


def bring_up_to_date(owned: OwnedFlow, infos: Infos) -> None:
    """Let new partitions, sources, stages, outputs and files enter, with an empty plan of their own.

    A topic without envelopes that was created again enters in the same way: it is another root.

    Raises:
        ServiceStopped: an input is not what was read, or does not hold what is to be read next.
        ConfigurationError: a new stage cannot enter.
    """
    last, env = owned.last, owned.env
    files = news_of_files(env.flow, env.settings.of(FileSettings), last, infos)
    gone = [
        planned
        for planned in last.ranges
        if same_inputs.is_new_root(env.flow, planned.topic, planned.topic_id, infos.get(planned.topic))
    ]
    for planned in gone:
        known_ids = last.layout.past.get(planned.topic, ())
        same_inputs.check_never_read(planned.topic, known_ids, infos[planned.topic].topic_id)
    left = {planned.tp for planned in gone if not needs_as_it_was(last, planned)}
    kept = [
        planned for planned in last.ranges if planned.topic not in files.leaving and planned.tp not in left
    ]
    ended = read_files(last)
    for planned in kept:
        if planned.topic not in ended:
            same_inputs.check_same(planned, infos.get(planned.topic))
    layout = layout_of(env.flow, infos, last.number + 1, last.layout)
    if layout == last.layout and not files.needed:
        owned.entered = None if gone else (infos, last.layout)
        return
    check_new_stages(env, last)
    known = {planned.tp for planned in kept}
    tps = inputs.input_partitions(env.flow, infos)
    starts = {tp: (0, False) for tp in tps if tp not in known}
    sources = [tp for tp in starts if tp[0] not in last.layout.sources]
    if sources:
        bounds = env.log.bounds(sources)
        starts.update(inputs.first_offsets(env.flow, bounds, env.settings.start))
    starts |= {(info.name, 0): (0, False) for info in files.entering}
    # What was read of a topic that was created again cannot be read again: a rebuild has to know.
    recreated = {planned.topic for planned in gone if planned.topic in files.leaving or planned.tp in left}
    layout = replace(layout, gone=tuple(sorted({*layout.gone, *recreated})))
    plan = layout_plan(last, kept, owned.claim, env.clock.now_ms(), layout, infos, starts)
    plan = plan.with_sections(*sections_entering(env, last, plan))
    plan = with_entered(plan, [infos[topic] for topic, _ in starts]).with_id(last)
    notice_unread(env, infos)
    texts = [*news_of(env.flow, last, plan, infos)]
    texts += [parked_of_gone(last, planned) for planned in gone]
    texts += [lost_waiting(last, planned) for planned in gone]
    owned.apply_empty(plan, filter(None, [*texts, *files.texts]))
    if plan.layout.outputs != last.layout.outputs:
        record_own_revision(env, owned.last, infos)


def sections_entering(env: Environment, last: Plan, plan: Plan) -> Iterator[Section]:
    """What a plan keeps because a layout enters with it, beside what is carried over from the plan before. Pure.

    Args:
        env: the flow, and what the run is there for.
        last: the plan before.
        plan: with what is carried over.

    Raises:
        PlanMismatch: outputs would move that are still to be published again.
    """
    refold = env.role.refold
    if refold is not None:  # the attempt at folding again seals it
        yield replace(Rebuilding.of(plan), attempt=refold.number)
        yield from refold.notes
    lanes = lanes_entering(env.flow, last)
    if lanes is not None:
        yield lanes


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


def news_of(flow: CompiledFlow, last: Plan, plan: Plan, infos: Mapping[str, TopicInfo]) -> Iterator[str]:
    """The texts of the notices that a plan brings in a new layout."""
    for topic, (known_id, _) in last.layout.sources.items():
        if same_inputs.is_new_root(flow, topic, known_id, infos.get(topic)):
            read = {tp: planned.stop for tp, planned in last.ends().items() if tp[0] == topic}
            yield f"plan {plan.number}: {same_inputs.recreation_text(topic, known_id, infos[topic], read)}"
    if news := plan.layout.changes_since(last.layout):
        yield f"plan {plan.number} brings in {', '.join(news)}"
