"""The last plan of a flow, which tests look into."""

from __future__ import annotations

from sqe_chain.ports import StateStore
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.stored_plans import read_last_plan


def last_plan(store: StateStore, flow: str) -> Plan:
    """The last plan; there must be one."""
    plan = read_last_plan(store, flow)
    assert plan is not None
    return plan
