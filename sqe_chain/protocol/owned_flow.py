"""A flow as the run has it that owns it: the claim, the last plan, and how the next one is sealed and finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from sqe_chain.errors import StoreInconsistent
from sqe_chain.ports import Header
from sqe_chain.protocol.applying import Applier
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Notice, Sealed
from sqe_chain.protocol.feature import Features
from sqe_chain.protocol.interfaces import SEAL
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.plan_log import PlanLog
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim, Transition

Headers = dict[tuple[int, int], Header]


@dataclass(slots=True)
class OwnedFlow:
    """What a run works with once it has claimed the flow.

    Args:
        env: the flow and its ports.
        claim: this run's.
        plans: the sealed plans.
        last: the last of them.
        features: of the run.

    Attributes:
        open_plan: number of a plan that this run has sealed and not yet finished; None when there is none.
        applier: finishes plans.
    """

    env: Environment
    claim: Claim
    plans: PlanLog
    last: Plan
    features: Features
    open_plan: int | None = None
    applier: Applier = field(init=False)

    def __post_init__(self) -> None:
        self.applier = Applier(self.env, self.claim, self.features)

    def fetch(self, number: int) -> Plan | None:
        """A plan by its number; None when it is no longer kept."""
        return self.last if self.last.number == number else self.plans.read(number)

    def must_fetch(self, number: int) -> Plan:
        """A plan by its number.

        Raises:
            StoreInconsistent: it is no longer kept.
        """
        plan = self.fetch(number)
        if plan is None:
            raise StoreInconsistent(
                f"flow {self.env.flow.name!r}: plan {number} is not in the home store any more"
            )
        return plan

    def transition_after(self, before: Plan) -> Transition:
        """The transition from a plan to the next one, as states are written."""
        stored_in = before.layout.stored_in()
        return Transition(self.env.flow.name, self.claim, before.number, before.plan_id, stored_in)

    def headers_at(self, plan: Plan) -> Headers:
        """The headers of all stages that a plan knows, when it is finished."""
        mine, known = self.claim, plan.layout.stages
        header = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        return {(stage.index, part): header for stage, part in self.env.flow.all_cells if stage.name in known}

    def seal(self, plan: Plan) -> None:
        """Step 4: from here on the batch will be finished exactly so, by this run or by the next one.

        The plan before is committed then: a rebuild of a lost store knows of one batch at most only that it was begun.

        Raises:
            Superseded, StoreInconsistent, ConfigurationError: see `PlanLog.write`.
        """
        self.env.commits.settle()
        self.plans.write(plan)
        self.last = plan
        self.open_plan = plan.number
        self.env.emit(Sealed(plan.number, plan.plan_id))

    def finish(self, plan: Plan, headers: Headers, report: Report, *, publish: bool, top_level: int) -> None:
        """Steps 5, 6 and 7, see `Applier.finish`; when the commit is acknowledged the plan is no longer open."""
        self.applier.finish(plan, headers, report, publish=publish, top_level=top_level)
        self.env.commits.then(partial(self._no_longer_open, plan.number))

    def apply_empty(self, plan: Plan, notices: Iterable[str] = ()) -> None:
        """Seal and finish a plan that reads nothing: it brings in a layout, or announces states.

        Args:
            plan: the next one.
            notices: told as soon as it is sealed.
        """
        env, headers = self.env, self.headers_at(self.last)
        with env.step(SEAL):
            self.seal(plan)
        for text in notices:
            env.emit(Notice(text))
        self.finish(plan, headers, Report(), publish=True, top_level=len(env.flow.levels))
        env.commits.settle()

    def _no_longer_open(self, number: int) -> None:
        if self.open_plan == number:  # the next one may be open already
            self.open_plan = None
