"""Which service runs a flow: one with plans, or one that has its group's commits alone."""

from __future__ import annotations

from sqe_chain.plans.environment import Environment
from sqe_chain.protocol.aggregation import StagedService
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.protocol.republish import Republisher


def aggregation_of(env: Environment) -> StagedService:
    """A run of a flow that keeps plans."""
    return StagedService(env)


def service_of(env: Environment) -> FlowRun:
    """A run of any flow."""
    return aggregation_of(env) if env.flow.keeps_plans else Republisher(env)
