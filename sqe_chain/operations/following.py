"""Folds what a flow has counted, plan by plan, by code that runs beside it, and compares what both publish."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqe_chain.engines.module_sources import digests_of_modules
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.shadowing import Compared
from sqe_chain.operations.comparing_outputs import KeepingEngine, OutputComparison, comparable
from sqe_chain.plans.environment import Environment, Refold
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.plans.planning import layout_plan
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.with_plans import StagedService


@dataclass(slots=True)
class Follower:
    """A run that follows a flow.

    Args:
        env: the flow, as the new code declares it, and its stores.
        service: the run, which has begun.

    Attributes:
        compared: what was found out about outputs until now.
    """

    env: Environment
    service: StagedService
    compared: Compared = field(init=False)
    _engine: KeepingEngine = field(init=False)
    _outputs: OutputComparison | None = None
    # Number of the flow's plan at which the run is; -1: not known, until it comes to the flow's last one.
    _reached: int = -1

    def __post_init__(self) -> None:
        """Go on with the comparison where the run is at the very plan up to which all outputs are judged."""
        last, env = self.service.owned.last, self.service.env
        env.engine = self._engine = KeepingEngine(env.engine)
        self.compared = known = Compared.of(last)
        plan = read_plan(self.env.home, self.env.flow.name, known.until)
        if plan is not None and last.next_offsets().items() >= plan.next_offsets().items():
            self._reached = known.until
            self._outputs = OutputComparison(self.env, comparable(self.env.flow, plan.layout), known)

    def batch(self, live: Plan) -> bool:
        """Fold what the flow has counted, up to a plan of it, or a part of that; False: the run is where the flow is.

        Args:
            live: the flow's last plan.
        """
        service, engine, plan = self.service, self._engine, self._next(live)
        self._aim_at(plan)
        engine.kept, engine.wanted = [], self._outputs is not None
        worked = service.batch().worked
        if self._outputs is not None:
            self._outputs.compute(engine.kept)
        at_plan = service.owned.last.next_offsets().items() >= plan.next_offsets().items()
        if worked and not at_plan:  # more than one batch of a plan gives other changes
            self._outputs = None
        moved = at_plan and self._reached < plan.number
        if at_plan:
            self._reached = plan.number
            self._compare(plan, live)
        if not worked and self.compared != Compared.of(service.owned.last):
            service.owned.apply_empty(empty_plan(service, self.compared))
        return worked or (moved and plan.number < live.number)

    def _next(self, live: Plan) -> Plan:
        """The plan of the flow up to which the next batch folds: the one after that where the run is, if it is kept."""
        if not 0 <= self._reached < live.number:
            return live
        plan = read_plan(self.env.home, self.env.flow.name, self._reached + 1)
        if plan is None:  # the run fell behind: outputs of several plans at once are not those of each
            self._outputs = None
        return plan or live

    def _aim_at(self, plan: Plan) -> None:
        """Fold up to the flow's position at a plan, and nothing of what the flow does not read."""
        service, role = self.service, self.service.env.role
        until = _until(service.owned.last, plan)
        refold = replace(refold_of(service), until=until, notes=(self.compared,))
        service.env.role = replace(role, refold=refold)

    def _compare(self, plan: Plan, live: Plan) -> None:
        if self._outputs is None:
            if plan.number == live.number:
                self._outputs = OutputComparison.from_here(self.env, live, self.compared)
        else:
            self._outputs.judge(plan)
        if self._outputs is None:
            return
        known = self._outputs.known
        if not known.same and known.text() != self.compared.text():
            self.env.say([known.text()])
        self.compared = known


def _until(last: Plan, plan: Plan) -> dict[TopicPartition, int]:
    """Where a run at its last plan ends that folds up to a plan of the flow."""
    ends = plan.next_offsets()
    return {tp: ends.get(tp, offset) for tp, offset in last.next_offsets().items()} | dict(ends)


def refold_of(service: StagedService) -> Refold:
    """What a run folds again."""
    if service.env.role.refold is None:
        raise AssertionError("such a run folds again")
    return service.env.role.refold


def empty_plan(service: StagedService, *sections: Section) -> Plan:
    """A plan after the last one of a run beside a flow, which reads nothing, and keeps these sections."""
    env, owned = service.env, service.owned
    last = owned.last
    plan = layout_plan(last, last.ranges, owned.claim, env.clock.now_ms(), last.layout, {}, {})
    return plan.with_sections(
        replace(Rebuilding.of(plan), attempt=refold_of(service).number), *sections
    ).with_id(last)


def changed_code(compared: Compared) -> list[str]:
    """The modules whose source is not what it was when a shadow began. What only one of both has imported is not compared."""
    return [
        name for name, digest in digests_of_modules().items() if compared.code.get(name, digest) != digest
    ]
