"""What enters a flow with a plan of its own that reads nothing: the flow itself, partitions, sources, stages, outputs, and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqe_chain.features.event_times import EventTime
from sqe_chain.features.file_inputs import abandonment_text, entered_files, file_news
from sqe_chain.features.readers import notice_unread
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.ports import Commit, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs, same_inputs
from sqe_chain.protocol.commit_metadata import parse_metadata
from sqe_chain.protocol.committed import enter, tell_entered
from sqe_chain.protocol.declared import news_of
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.owned_flow import OwnedFlow
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.protocol.planning import birth_plan, layout_of, layout_plan
from sqe_chain.protocol.verifying import check_new_stages
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]


def first_plan(env: Environment, claim: Claim, infos: Infos) -> Plan:
    """The plan with which a flow begins: where each input partition is read from.

    Args:
        env: the flow and its ports.
        claim: this run's.
        infos: the flow's topics.

    Raises:
        ServiceStopped: an input does not hold what is to be read first.
    """
    tps = inputs.input_partitions(env.flow, infos)
    spec = env.role.rebuild
    if spec is None:
        commits = inputs.group_commits(env.flow, env.log, infos)
        if any("outputs" in parse_metadata(commit) for commit in commits.values()):
            return _plan_of_republisher(env, claim, infos, commits)
    bounds = env.log.bounds(tps)
    if spec is not None:
        starts = {tp: (spec.starts.get(tp, 0), tp in spec.starts) for tp in tps}
        for tp, (offset, _) in starts.items():
            inputs.check_bounds(tp, offset, bounds[tp])
    else:
        starts = inputs.first_offsets(env.flow, bounds, env.settings.start)
    return birth_plan(env.flow, claim, env.clock.now_ms(), infos, starts, spec)


def _plan_of_republisher(
    env: Environment, claim: Claim, infos: Infos, commits: Mapping[TopicPartition, Commit]
) -> Plan:
    """The first plan of a flow that had no stages until now: it goes on where its group's commits are."""
    entered = enter(env, infos, inputs.input_partitions(env.flow, infos), commits)
    tell_entered(env, entered, infos)
    starts = {tp: (one.offset, one.offset > 0) for tp, one in entered.inputs.items()}
    marks = {tp: one.marks for tp, one in entered.inputs.items()}
    return birth_plan(env.flow, claim, env.clock.now_ms(), infos, starts, known=marks)


def bring_up_to_date(owned: OwnedFlow, infos: Infos) -> None:
    """Let new partitions, sources, stages, outputs and files enter, with an empty plan of their own.

    A topic without envelopes that was created again enters in the same way: it is another root.

    Args:
        owned: the flow.
        infos: its topics.

    Raises:
        ServiceStopped: an input is not what was read, or does not hold what is to be read next.
        ConfigurationError: a new stage cannot enter.
    """
    last, env = owned.last, owned.env
    gone = [
        planned
        for planned in last.ranges
        if same_inputs.is_new_root(env.flow, planned.topic, planned.topic_id, infos.get(planned.topic))
    ]
    files, kept = file_news(env.flow, last, infos, env.settings), list(last.ranges)
    if gone:
        # An unfinished batch needs its inputs as they were, and so does a flow that has to read again what it had published: then
        # nothing may be gone.
        behind = Rebuilding.of(last)
        missing = [one for one in gone if one.stop < behind.silent_until.get(one.tp, 0)]
        kept = [one for one in kept if behind.unfinished or one not in gone or one in missing]
    kept = [planned for planned in kept if planned.topic not in files.left]
    for planned in kept:
        if planned.topic not in files.read:
            same_inputs.check_same(planned, infos.get(planned.topic), entered_files(last))
    layout = layout_of(env.flow, infos, last.number + 1, last.layout)
    if layout == last.layout and not files.changed:
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
    spec = env.role.rebuild
    plan = layout_plan(last, kept, owned.claim, env.clock.now_ms(), layout, infos, starts, spec)
    notice_unread(env, infos)
    news = [*news_of(env.flow, last, plan, infos), *_lost(last, gone)]
    owned.apply_empty(plan, [*news, abandonment_text(last, files.abandoned)] if files.abandoned else news)


def _lost(last: Plan, gone: Sequence[PlannedRange]) -> Iterator[str]:
    """What waited for event time in topics that were created again: it was in Kafka alone, and was never taken."""
    for planned in gone:
        times = EventTime.of(last).times.get(planned.tp)
        if times is not None and times.waiting is not None:
            yield (
                f"{planned.topic}[{planned.partition}] was created again while {times.waiting.inputs} of its records waited for "
                "event time: they are gone, and were not counted"
            )
