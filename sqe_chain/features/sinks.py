"""Stages that write their rows into sinks. A run claims these after it has stamped all headers, and before it reads anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from sqe_chain.errors import ConfigurationError, Superseded
from sqe_chain.features.events import TableFlushed
from sqe_chain.features.overwrite import Overwrite
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import mark_name
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import SinkClaim
from sqe_chain.task.flushing import FLUSHED
from sqe_chain.task.states import Claim


def epochs_of_sinks(env: Environment) -> list[int]:
    """The largest epoch that each sink knows: a store that was restored must not give one out again."""
    epochs = []
    for stage in env.flow.stages:
        sink = env.ports.sink(stage)
        if sink is not None:
            look = partial(sink.look, env.flow.name, stage.name, env.flow.cells[stage.index])
            epochs.append(env.retry.call("look at a table", look).epoch)
    return epochs


def claim_sinks(env: Environment, claim: Claim, last: Plan, fetch: Callable[[int], Plan | None]) -> None:
    """Step 1, once all headers have the claim: claim the sinks of all stages, also of those that the last plan does not know yet.

    Args:
        env: the flow and its ports.
        claim: the run.
        last: the last plan.
        fetch: gives a plan by its number; None when it is no longer kept.

    Raises:
        Superseded: a newer run has claimed a sink.
    """
    stored_in = last.layout.stored_in()
    for stage in env.flow.stages:
        if env.ports.sink(stage) is not None:
            flow = stored_in.get(stage.name, env.flow.name)
            # Repeated as one: a claim that was made is made again.
            env.retry.call("claim a table", partial(_claim, env, stage, flow, claim, fetch))


def report_flushed(env: Environment, plan: Plan, stages: Iterable[StageNode]) -> None:
    """Report that the rows of a plan are in the sinks of stages. While an overwrite is under way they are not: they are staged."""
    for stage in stages:
        if stage.stage_kind.sink is None or Overwrite.of(plan).under_way:
            continue
        topics = env.flow.topics_before[stage.index]
        offsets = {
            mark_name(*planned.tp): planned.stop
            for planned in plan.ranges
            if env.flow.declared_topic[planned.topic] in topics
        }
        env.emit(TableFlushed(plan.number, stage.name, offsets))


def check_no_sinks(flow: CompiledFlow, what: str) -> None:
    """Check that no stage writes into a sink, which cannot be taken back.

    Raises:
        ConfigurationError: one does.
    """
    for stage in flow.stages:
        if stage.stage_kind.sink is not None:
            raise ConfigurationError(
                f"{stage.declared_at}: {what} is not possible for flow {flow.name!r}: the rows that stage {stage.name!r} has written stay "
                "where they are. Read the topics again with another flow, into another table"
            )


def _claim(
    env: Environment, stage: StageNode, flow: str, mine: Claim, fetch: Callable[[int], Plan | None]
) -> None:
    sink, store, cells = env.ports.sink(stage), env.ports.store(stage), env.flow.cells[stage.index]
    if sink is None:
        return
    state = sink.look(flow, stage.name, cells)
    if state.epoch > mine.epoch:
        raise Superseded(
            f"flow {env.flow.name!r}: a run with epoch {state.epoch} has claimed the table of stage {stage.name!r}, this one has {mine.epoch}"
        )
    known = {cell: store.read(flow, stage.name, cell, [FLUSHED])[1][0] for cell in cells}
    plans = {number: plan.plan_id for number in state.plans if (plan := fetch(number)) is not None}
    sink.claim(SinkClaim(flow, stage.name, mine.epoch, mine.run_id, plans, known))
