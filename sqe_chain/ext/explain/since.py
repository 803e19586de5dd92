"""What a replay begins with that does not begin where the flow began: the plan and the states of an export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.ticking import Timers
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.stored import StoredState
from sqe_chain.operations.cells import Row, write_rows
from sqe_chain.operations.moving import ExportedRow
from sqe_chain.operations.progress import reached_at
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import StoredPlans, read_plan
from sqe_chain.ports import Header, Home, StateStore
from sqe_chain.task.states import Claim


@dataclass(frozen=True, slots=True)
class Before:
    """What a replay has begun with: nobody has checked it.

    Attributes:
        plan: the plan of the export.
        states: stage -> the states that the requested keys had then.
    """

    plan: Plan
    states: Mapping[str, tuple[StoredState, ...]]


def check_continued(home: StoredPlans, flow: str, before: Plan, after: Plan) -> None:
    """Check that the plan of an export came before the last plan, in one history of the flow.

    Raises:
        ConfigurationError: the export is newer, or of another history.
    """
    what = f"the export is of plan {before.number} of flow {flow!r}"
    if before.number > after.number:
        raise ConfigurationError(
            f"{what}, and the store is at plan {after.number}. Expected an older export. Give one of this store"
        )
    kept, ends = read_plan(home, flow, before.number), after.ends()
    other = kept is not None and kept.plan_id != before.plan_id
    ahead = [tp for tp, planned in before.ends().items() if tp in ends and planned.stop > ends[tp].stop]
    topics = {topic: topic_id for topic, (topic_id, _) in before.layout.sources.items()}
    follows_other = Revisions.of(before).known != Revisions.of(after).known
    if (
        other
        or ahead
        or follows_other
        or topics != {topic: topic_id for topic, (topic_id, _) in after.layout.sources.items()}
    ):
        raise ConfigurationError(
            f"{what}, after which the flow was rewound, has got or lost an input, or began again. Expected an export of the same "
            "history. Trace without --since"
        )


def begin_after(before: Plan, after: Plan, number: int, name: str) -> Plan:
    """The plan of an export as the first one of a replay that ends at `after`, with this number and name of the flow."""
    ranges = before.ended_ranges()
    stages = {stage: replace(where, flow=name) for stage, where in before.layout.stages.items()}
    layout = replace(before.layout, stages=stages)
    plan = Plan(number, "", "", Claim(0, ""), before.clock_ms, layout, ranges, before.marks)
    return plan.with_sections(
        rebuilding_up_to(after),
        EventTime.of(before),
        Timers.of(before),
        replace(Closes.of(after), done=Closes.of(before).done),
        Revisions.of(before),
    ).with_id()


def rebuilding_up_to(plan: Plan) -> Rebuilding:
    """How a replay folds: up to this plan, and without the inputs that wait for event time there."""
    ends = {tp: planned.stop for tp, planned in plan.ends().items() if planned.stop}
    return Rebuilding(silent_until=ends, attempt=plan.number + 1, reached=reached_at(plan))


def fill(
    stores: Mapping[str, StateStore], flow: CompiledFlow, plan: Plan, rows: Iterable[ExportedRow]
) -> None:
    """Put the states of an export into empty stores: `plan` is from `begin_after`, and the rows of a cell come together."""
    header = Header(0, "", plan.number, plan.plan_id)
    store_of = {stage.name: stores[stage.store or ""] for stage in flow.stages}
    for stage in flow.stages:
        for cell in flow.cells[stage.index] if stage.name in plan.layout.stages else ():
            write_rows(store_of[stage.name], (flow.name, stage.name, cell), None, header, ())
    for (name, cell), group in groupby(rows, key=itemgetter(0, 1)):
        states: list[Row] = [(key, state) for _, _, key, state in group]
        write_rows(store_of[name], (flow.name, name, cell), header, header, states)
    stores[""].set_home(flow.name, None, Home(0, "", "", plan.number, plan.plan_id), plan.to_bytes())
