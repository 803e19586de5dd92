"""Step 1 for sinks: a run claims them after it has stamped all headers, and before it reads anything. And step 6 of overwrites."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from sqe_chain.errors import ConfigurationError, Superseded
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Replacement, Rows, SinkClaim, replacing
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import TableFlushed, TableReplaced
from sqe_chain.protocol.file_inputs import finished_topics
from sqe_chain.protocol.plan import Plan, mark_name
from sqe_chain.task.flushing import FLUSHED, STAGED, staged_key
from sqe_chain.task.states import Claim


def claim_sinks(env: Environment, mine: Claim, last: Plan, fetch: Callable[[int], Plan | None]) -> None:
    """Claim the sinks of all stages, also of those that the last plan does not know yet.

    Args:
        env: the flow and its ports.
        mine: this run.
        last: the last plan.
        fetch: gives a plan by its number; None when it is not kept any more.

    Raises:
        ChainError: as `Sink.claim`.
    """
    stored_in = last.layout.stored_in()
    for stage in env.flow.stages:
        if env.ports.sink(stage) is not None:
            flow = stored_in.get(stage.name, env.flow.name)
            # Repeated as one: a claim that was made is made again.
            env.retry.call("claim a table", partial(_claim, env, stage, flow, mine, fetch))


def sink_epochs(env: Environment) -> list[int]:
    """The largest epochs that sinks know: a store that was restored must not give one out again.

    Raises:
        ChainError: as `Sink.look`.
    """
    found = []
    for stage in env.flow.stages:
        sink = env.ports.sink(stage)
        if sink is not None:
            look = partial(sink.look, env.flow.name, stage.name, env.flow.cells[stage.index])
            found.append(env.retry.call("look at a table", look).epoch)
    return found


def tell_flushed(env: Environment, plan: Plan, stages: Iterable[StageNode]) -> None:
    """Tell that the rows of a plan are in the sinks of these stages.

    Args:
        env: the flow and its ports.
        plan: its headers are persisted.
        stages: of the flow; those without a sink are passed over.
    """
    if plan.overwrite is not None and plan.overwrite.under_way:
        return  # they are staged
    for stage in stages:
        if stage.stage_kind.sink is None:
            continue
        topics = env.flow.topics_before[stage.index]
        offsets = {
            mark_name(*planned.tp): planned.stop
            for planned in plan.ranges
            if env.flow.declared_topic[planned.topic] in topics
        }
        env.emit(TableFlushed(plan.number, stage.name, offsets))


def staged_in(env: Environment, mine: Claim, plan: Plan, stage: StageNode) -> Replacement:
    """What the store knows of the overwrite that a plan speaks of. Bare: for whoever repeats calls.

    Args:
        env: the flow and its ports.
        mine: this run.
        plan: the plan.
        stage: one with a sink.

    Raises:
        Unavailable: the store does not answer.
    """
    flow, store = plan.layout.stored_in().get(stage.name, env.flow.name), env.ports.store(stage)
    since = -1 if plan.overwrite is None else plan.overwrite.since
    whole = plan.overwrite is not None and plan.overwrite.mode == "table"
    known: dict[int, bytes | None] = {}
    staged: dict[int, list[bytes]] = {}
    for cell in env.flow.cells[stage.index]:
        known[cell] = store.read(flow, stage.name, cell, [FLUSHED])[1][0]
        rows = sorted(store.scan(flow, stage.name, cell))
        staged[cell] = [told for key, told in rows if key > staged_key(since) and key.startswith(STAGED)]
    return Replacement(
        flow, stage.name, mine.epoch, mine.run_id, plan.number, plan.plan_id, since, whole, known, staged
    )


def settle_overwrite(env: Environment, mine: Claim, plan: Plan, stage: StageNode) -> dict[int, Rows]:
    """Step 6 of a plan that begins, decides or gives up an overwrite, for one stage: its table, if it has decided.

    Args:
        env: the flow and its ports.
        mine: this run.
        plan: the sealed plan.
        stage: of the flow.

    Returns:
        Cell -> what is to be written with its header, in the order of keys: what was staged is forgotten.

    Raises:
        ChainError: as `Sink.replace`.
    """
    sink, store, overwrite = env.ports.sink(stage), env.ports.store(stage), plan.overwrite
    if sink is None or overwrite is None or not overwrite.changes_tables:
        return {}
    told: list[tuple[bytes, bytes | None]] = []
    if overwrite.step == "decided":
        told.append((FLUSHED, replacing(sink, stage.name).replace(staged_in(env, mine, plan, stage))))
    flow = plan.layout.stored_in().get(stage.name, env.flow.name)
    found: dict[int, Rows] = {}
    for cell in env.flow.cells[stage.index]:
        keys = sorted(key for key, _ in store.scan(flow, stage.name, cell) if key.startswith(STAGED))
        found[cell] = [*told, *((key, None) for key in keys)]
    return found


def tell_replaced(env: Environment, plan: Plan, stages: Iterable[StageNode]) -> None:
    """Tell that the rows of an overwrite are in the sinks of these stages.

    Args:
        env: the flow and its ports.
        plan: its headers are persisted.
        stages: of the flow; those without a sink are passed over.
    """
    overwrite = plan.overwrite
    if overwrite is None or overwrite.step != "decided":
        return
    files = len(finished_topics(overwrite.contents))
    for stage in stages:
        if stage.stage_kind.sink is not None:
            env.emit(TableReplaced(plan.number, stage.name, overwrite.mode, files))


def check_no_sinks(flow: CompiledFlow, what: str) -> None:
    """Check that no stage writes into a sink, which cannot be taken back.

    Args:
        flow: the flow.
        what: what is to be done.

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
