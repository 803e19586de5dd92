"""Flows that had no stages once, and go on where their group's commits were; see `Begun`."""

from __future__ import annotations

from collections.abc import Mapping

from sqe_chain.plans.feature import Feature
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.plan import Plan


class FirstStage(Feature):
    """Such flows, in the steps of a run."""

    name = Begun.name

    def commit(self, plan: Plan) -> Mapping[str, object]:
        """A rebuild without the store's plans has no marks of what was read before, which do not fit here."""
        return {"begun": len(Begun.of(plan).marks)}
