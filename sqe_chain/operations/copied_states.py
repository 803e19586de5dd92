"""Begins a shadow with the states of an export of its flow, instead of where the flow once began: `operations/shadow.py`.

A plan that is not open (`Compared.filling`) takes the shadow's name. Then its cells are filled. The last step puts an open plan in its home
record. Killed before that step, no run can go on with it. The next start deletes what is there, and so does a rebuild or a switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sqe_chain.errors import (
    ChangedType,
    ConfigurationError,
    PartitionsMismatch,
    ServiceStopped,
    Superseded,
)
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.shadowing import Compared
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.attempts import Attempt, begun_at, end_attempt, find_attempt, shadow_names
from sqe_chain.operations.moving import ExportedRow, fill_states
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout, check_layout
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.ports import Home
from sqe_chain.protocol.claim import check_stores
from sqe_chain.task.states import Claim


def check_can_begin_at(env: Environment, exported: Plan, live: Plan) -> None:
    """Check that new code can go on from an export, to where the flow is now. Changes nothing.

    Args:
        env: the flow as the new code declares it, and its ports.
        exported: the plan of the export.
        live: the flow's last plan.

    Raises:
        ConfigurationError: the export is not of the flow as it is now, or the new code cannot take up its states.
        LostOffsets: an input no longer holds what comes after the export.
        RecreatedTopic: an input was created again.
    """
    name = env.flow.name
    if other := next(_other_than(env, exported, live), ""):
        raise ConfigurationError(
            f"flow {name!r}: the export, of plan {exported.number}, {other}. Expected one of the flow as it is now. Export it again, or begin "
            "where the flow once began: without --from-export"
        )
    if changed := next(_changed(env.flow, exported.layout), ""):
        raise ConfigurationError(
            f"flow {name!r}: new code cannot go on from states of other code where {changed}. Expected the stages of the export. Begin where "
            "the flow once began: without --from-export"
        )
    infos = inputs.describe(env.flow, env.log)
    for planned in exported.ranges:
        same_inputs.check_same(planned, infos.get(planned.topic))
    offsets = exported.next_offsets()
    for tp, bound in env.log.bounds(offsets).items():
        inputs.check_bounds(tp, offsets[tp], bound)


def _other_than(env: Environment, exported: Plan, live: Plan) -> Iterator[str]:
    """What shows that an export is not of this flow as it is now, in words."""
    before, now = exported.layout, live.layout
    kept = read_plan(env.home, env.flow.name, exported.number)
    if exported.number > live.number or (kept is not None and kept.plan_id != exported.plan_id):
        yield f"is not of this flow's past: the flow is at plan {live.number}, of its own"
    if before.stages != now.stages:
        yield "is of before the flow was rebuilt, rewound, switched or begun again, or of other stages"
    ids = {topic: topic_id for topic, (topic_id, _) in now.sources.items()}
    if before.cluster != now.cluster or Mirrors.of(exported).cluster != Mirrors.of(live).cluster:
        yield "is of before the flow went on in another cluster"
    if any(ids.get(topic) != topic_id for topic, (topic_id, _) in before.sources.items()):
        yield "has read inputs that the flow does not read now, or that were created again"
    if Revisions.of(exported).known != Revisions.of(live).known:
        yield "is of before the flow followed the revisions of its inputs that it follows now"
    counted = live.next_offsets()
    for tp, offset in exported.next_offsets().items():
        starts = before.starts.get(tp, 0), now.starts.get(tp, 0)
        if starts[0] != starts[1] or offset > counted.get(tp, -1):
            yield (
                f"has counted {tp[0]}[{tp[1]}] from offset {starts[0]} to {offset}, and the flow from {starts[1]} to {counted.get(tp)}"
            )


def _changed(flow: CompiledFlow, before: Layout) -> Iterator[str]:
    """What a declaration changes of what is stored, in words."""
    try:
        check_layout(flow, before, ())
    except (PartitionsMismatch, ServiceStopped, ChangedType) as error:
        yield f"a declaration has changed: {error}"
    for stage in flow.stages:
        name = f"stage/{stage.name}"
        was, now = before.ways.get(name, flow.paths[name]), flow.paths[name]
        if stage.name not in before.stages:
            yield f"stage {stage.name!r} is new: it would lack all that was counted before"
        elif was != now:
            yield f"stage {stage.name!r} came from {was}, now from {now}"


def begin_at_export(
    env: Environment,
    name: str,
    number: int,
    states: tuple[Plan, Iterable[ExportedRow]],
    live: Plan,
    known: Compared,
) -> Attempt:
    """Make an open shadow of the states of an export, or nothing.

    Args:
        env: the flow as the new code declares it, and its ports.
        name: of the shadow; nothing is stored under it.
        number: of its first plan.
        states: the plan of the export, which was checked, and its rows.
        live: the flow's last plan.
        known: what the shadow's plans keep, besides where it began.

    Raises:
        ConfigurationError: lines of the export are missing or changed.
        ServiceStopped: asked to stop while the states were read.
        Superseded: another process has begun a shadow meanwhile.
        WeakDurability: a store may lose acknowledged writes, and that is not accepted.
    """
    check_stores(env)
    exported, rows = states
    known = replace(known, copied=exported.plan_id)
    layout = exported.layout
    stages = {stage: replace(stored, flow=name) for stage, stored in layout.stages.items()}
    first = begun_at(
        replace(exported, layout=replace(layout, stages=stages), previous_id=""), live, number + 1
    )
    filling = (
        replace(first, number=number).with_sections(Rebuilding(), replace(known, filling=True)).with_id()
    )
    opened = first.with_sections(known).with_id()
    mine = Claim(1, env.new_run_id())
    home = Home(mine.epoch, mine.run_id, env.role.owner, filling.number, filling.plan_id)
    _set_home(env, name, None, home, filling)
    try:
        fill_states(replace(env, flow=env.flow.renamed(name)), mine, opened, rows)
    except (ConfigurationError, ServiceStopped):
        end_attempt(env, Attempt(name, home, filling))
        raise
    after = Home(mine.epoch, "", "", opened.number, opened.plan_id)
    _set_home(env, name, home, after, opened)
    return Attempt(name, after, opened)


def end_interrupted(env: Environment) -> str:
    """Delete shadows that were not filled to their end; gives the name of the last. A process that fills one just now changes nothing more.

    Raises:
        Superseded: such a process was faster.
    """
    ended = ""
    for name in shadow_names(env.home, env.flow.name):
        attempt = find_attempt(env.home, name)
        if attempt is not None and attempt.filling:
            end_attempt(env, attempt)
            ended = name
    return ended


def _set_home(env: Environment, name: str, before: Home | None, after: Home, plan: Plan) -> None:
    stored = env.home.set_home(name, before, after, plan.stored(), plan.number)
    if stored != after:
        raise Superseded(f"{name}: another process works there: {stored}. This one changes nothing more")
