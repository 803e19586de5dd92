"""Revisions of what a flow with stages publishes itself: each is whole, and begins with a rebuild that publishes everything again.

States mix roots of both sides of any seam, so a revision in the middle has no meaning for them. The plan begins it: the first one,
or the one that a rebuild cuts over to. From then on no code publishes the one before. A start writes the record of the revision into
``<topic>.revisions`` before it publishes. So readers that are rebuilt follow what is published, or do not know it at all.
"""

from __future__ import annotations

from functools import partial

from sqe_chain.envelope.revisions import FIRST, Revision, RevisionRecord, revisions_topic
from sqe_chain.errors import ConfigurationError, UnknownRevision
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.look import Infos
from sqe_chain.plans.own_revisions import OwnRevisions, declared_revision, family
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.ports import Log, Output


def check_may_be_revised(flow: CompiledFlow) -> None:
    """Refuse a revision of a flow that keeps plans without stages: neither a rebuild begins it, nor `sqe-chain correct`.

    Raises:
        ConfigurationError: it is declared.
    """
    declared = declared_revision(flow)
    if declared != FIRST and flow.keeps_plans and not flow.stages:
        raise ConfigurationError(
            f"flow {flow.name!r} reads files, or is transactional without a stage, and declares revision {declared}. Expected revision 1: what it has "
            "published is not corrected under its name. Give its outputs new names"
        )


def check_own_revision(flow: CompiledFlow, last: Plan) -> None:
    """Check that a flow with stages publishes under the revision of its plan.

    Raises:
        UnknownRevision: a newer one is declared, which no rebuild has begun.
        ConfigurationError: an older one is declared.
    """
    own, declared = Revisions.of(last).own, declared_revision(flow)
    if not flow.stages or not flow.outputs or own == declared:
        return
    name = family(flow, flow.outputs[0])
    if declared > own:
        raise UnknownRevision(
            f"{name} is declared with revision {declared}, which has no beginning: the flow publishes revision {own}. Expected a rebuild, "
            "which begins it. Run sqe-chain rebuild first"
        )
    raise ConfigurationError(
        f"{name} is declared with revision {declared}, and has published revision {own}. Expected revision={own}, or a later one"
    )


def record_own_revision(env: Environment, last: Plan, infos: Infos) -> None:
    """Make sure that the declared revision of each output has its record, which readers follow; the first one needs none.

    Only if the last plan publishes under it: a record alone would replace what the flow goes on to publish.

    Args:
        env: the flow, which this run has claimed, and its ports.
        last: its last plan.
        infos: the output topics.

    Raises:
        UnknownRevision: a record cannot be understood.
        ConfigurationError: an output that the revision began without is declared again.
    """
    number, flow = declared_revision(env.flow), env.flow
    if number == FIRST or not flow.stages or env.role.refold is not None:
        return
    known = _read(env)
    if not known.short(number):
        return
    if known.record(number) is not None and last.number > Revisions.of(last).since:
        # Else a start was killed between two records.
        env.retry.call("read outputs", partial(known.check_added, env.ports.log, number, "sqe-chain rebuild"))
    for node in flow.outputs:
        env.log.create_topic(revisions_topic(node.topic), 1, kept=True)
    tps = inputs.partitions_of({node.topic: infos[node.topic] for node in flow.outputs}.values())
    bounds = env.log.bounds(tps)
    ends = {
        node.topic: tuple(bounds[tp].stable_end for tp in tps if tp[0] == node.topic) for node in flow.outputs
    }
    if known.record(number) is None:
        # An attempt without an answer may have written it: of two records of a revision the first holds.
        _append(env, [known.begin(RevisionRecord("", Revision(number), by=env.new_run_id()), ends)])
        known = _read(env)
    _append(env, known.missing(ends, [number]))


def recorded_revision(env: Environment) -> int:
    """The newest revision of any output that has a record, whether it was begun or not."""
    return max(_read(env).records, default=FIRST)


def _read(env: Environment) -> OwnRevisions:
    return env.retry.call("read revisions", partial(OwnRevisions.read, env.flow, env.ports.log))


def _append(env: Environment, records: list[Output]) -> None:
    if records:
        env.retry.call("write a revision", partial(_publish, env.ports.log, records))


def _publish(log: Log, records: list[Output]) -> None:
    writer = log.writer()
    try:
        writer.write(records)
        writer.flush()
    finally:
        writer.close()
