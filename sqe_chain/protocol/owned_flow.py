"""A flow as the run has it that owns it: the claim, the last plan, and how the next one is sealed and finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.errors import StoreInconsistent, Superseded
from sqe_chain.ports import Header, Home
from sqe_chain.protocol.applying import Applier
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Notice, Sealed
from sqe_chain.protocol.feature import Features
from sqe_chain.protocol.interfaces import SEAL
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.verifying import check_plan_size
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim, Transition


@dataclass(slots=True)
class PlanLog:
    """Reads and writes the plans of a flow that this run has claimed.

    Args:
        env: the flow and its ports.
        home: the home record, with this run's claim and the number of the last plan.
    """

    env: Environment
    home: Home

    def write(self, plan: Plan) -> None:
        """Write the next plan, if the claim is still this run's, and the plan before is still the last one.

        Raises:
            Superseded: a newer run has claimed the flow.
            StoreInconsistent: the home record is neither as this run left it nor a newer run's.
            ConfigurationError: the home store does not take a plan of this size.
        """
        env, before = self.env, self.home
        after = replace(before, number=plan.number, plan_id=plan.plan_id)
        data, drop_below = plan.to_bytes(), max(0, plan.number - env.settings.keep_plans + 1)
        check_plan_size(env, plan, len(data))
        stored = env.home.set_home(env.flow.name, before, after, data, drop_below)
        if stored != after:
            mine = (before.epoch, before.run_id)
            if stored is not None and (stored.epoch, stored.run_id) != mine and stored.epoch >= before.epoch:
                raise Superseded(f"flow {env.flow.name!r}: run {stored.run_id} has claimed it")
            raise StoreInconsistent(
                f"flow {env.flow.name!r}: the home record is {stored or 'absent'}; {before} was expected: the home store went "
                "back in time; start again, and recovery will find out what can be done"
            )
        self.home = after

    def read(self, number: int) -> Plan | None:
        """A plan by its number; None when it is no longer kept."""
        data = self.env.home.plan(self.env.flow.name, number)
        return None if data is None else Plan.from_bytes(data)

    def read_last(self) -> Plan:
        """The last plan.

        Raises:
            StoreInconsistent: it is not there, or it is another one than the home record names.
        """
        home = self.home
        plan = self.read(home.number)
        if plan is None or plan.plan_id != home.plan_id:
            raise StoreInconsistent(f"the home store has no plan {home.number} ({home.plan_id})")
        return plan


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
