"""The sealed plans of a flow, as its home store keeps them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqe_chain.errors import StoreInconsistent, Superseded
from sqe_chain.ports import Home
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.verifying import check_plan_size


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
