"""The last plan of a flow, which tests look into, or exchange for one that an older version would have sealed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import StateStore
from sqe_chain.testing import Rehearsal


def last_plan(store: StateStore, flow: str) -> Plan:
    """The last plan; there must be one."""
    plan = read_last_plan(store, flow)
    assert plan is not None
    return plan


def stored_in(rehearsal: Rehearsal, stage: str) -> str:
    """The name under which the states of a stage are now; each rebuild gives them another one."""
    plan = read_last_plan(rehearsal.stores[""], rehearsal.flow.name)
    return rehearsal.flow.name if plan is None else plan.layout.stages[stage].flow


def reseal_last_plan(store: StateStore, flow: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON of the last plan, as if it had been sealed so: its id, the claim's record and headers follow.

    Args:
        store: in memory, with all states of the flow.
        flow: its name.
        change: gets the plan, and changes it.
    """
    assert isinstance(store, MemoryStore)
    everything = store.copy_all()
    home = everything.homes[flow]
    assert home.home is not None
    record = json.loads(home.plans[home.home.number])
    before = record.pop("plan_id")
    change(record)
    plan_id = blake2b(_dump(record | {"plan_id": ""}), digest_size=16).hexdigest()
    home.plans[home.home.number] = _dump(record | {"plan_id": plan_id})
    home.home = replace(home.home, plan_id=plan_id)
    for part in everything.parts.values():
        if part.header is not None and part.header.plan_id == before:
            part.header = replace(part.header, plan_id=plan_id)
    store.restore_all(everything)


def _dump(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
