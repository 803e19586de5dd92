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
from sqe_chain.plans.feature import Feature
from sqe_chain.plans.layout import mark_name
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import SinkClaim
from sqe_chain.task.flushing import FLUSHED
from sqe_chain.task.states import Claim


class Tables(Feature):
    """Stages that write their rows into sinks, in the steps of a run."""

    name = "tables"

    @property
    def declared(self) -> bool:
        """A stage writes its rows into a sink."""
        return any(stage.stage_kind.sink is not None for stage in self.env.flow.stages)

    def epochs(self) -> list[int]:
        """The largest that sinks know: a store that was restored must not give one out again."""
        env, epochs = self.env, []
        for stage in env.flow.stages:
            sink = env.ports.sink(stage)
            if sink is not None:
                look = partial(sink.look, env.flow.name, stage.name, env.flow.cells[stage.index])
                epochs.append(env.retry.call("look at a table", look).epoch)
        return epochs

    def stamped(self, claim: Claim, last: Plan, fetch: Callable[[int], Plan | None]) -> None:
        """Claim the sinks of all stages, also of those that the last plan does not know yet."""
        env, stored_in = self.env, last.layout.stored_in()
        for stage in env.flow.stages:
            if env.ports.sink(stage) is not None:
                flow = stored_in.get(stage.name, env.flow.name)
                # Repeated as one: a claim that was made is made again.
                env.retry.call("claim a table", partial(_claim, env, stage, flow, claim, fetch))

    def recovered(self, last: Plan) -> None:
        """Report that the rows of the last plan are in the sinks."""
        _tell_flushed(self.env, last, self.env.flow.stages)

    def persisted(self, plan: Plan, level: int) -> None:
        """Report that the rows of a plan are in the sinks of a level's stages."""
        if not plan.empty:
            _tell_flushed(self.env, plan, self.env.flow.levels[level - 1])


def _tell_flushed(env: Environment, plan: Plan, stages: Iterable[StageNode]) -> None:
    if Overwrite.of(plan).under_way:
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
