"""Which service runs a flow: one with plans, or one that has its group's commits alone."""

from __future__ import annotations

from sqe_chain.plans.environment import Environment
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.protocol.without_plans import Republisher


def service_of(env: Environment) -> FlowRun:
    """A run of any flow."""
    return StagedService(env) if env.flow.keeps_plans else Republisher(env)
