"""Plans as the metadata store keeps them: reading them disturbs nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sqe_chain.errors import RESTORE_OR_REBUILD, ConfigurationError, StoreInconsistent
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.ports import Home, Locations


class StoredPlans(Protocol):
    """What holds plans: a `StateStore`, or one that retries."""

    def home(self, flow: str) -> tuple[Home | None, int]:
        """See `StateStore.home`."""

    def plan(self, flow: str, number: int) -> bytes | None:
        """See `StateStore.plan`."""

    def locations(self, flow: str) -> Locations | None:
        """See `StateStore.locations`."""


def read_plan(store: StoredPlans, flow: str, number: int) -> Plan | None:
    """A plan of a flow by its number; None when the store does not keep it."""
    data = store.plan(flow, number) if number >= 0 else None
    return None if data is None else Plan.from_bytes(data)


def read_last_plan(store: StoredPlans, flow: str) -> Plan | None:
    """The last plan of a flow; None when the store knows none."""
    home, _ = store.home(flow)
    return None if home is None else read_plan(store, flow, home.number)


def never_run(flow: str) -> ConfigurationError:
    """The error that a store knows nothing of a flow."""
    return ConfigurationError(
        f"the store has no flow {flow!r}: it has not run with this store. Run it, or give the right store"
    )


def plan_of_a_run(store: StoredPlans, flow: str) -> Plan:
    """The last plan of a flow that has run. Reading it disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store.
        StoreInconsistent: its last plan is missing, or what names it.
        Unavailable: the store does not answer.
    """
    stored, _ = store.home(flow)
    if stored is None and store.locations(flow) is not None:
        raise StoreInconsistent(
            f"flow {flow!r}: the metadata store has no record of its last plan, though it has states of it. It has lost that record: "
            f"{RESTORE_OR_REBUILD}"
        )
    if stored is None or stored.number < 0:
        raise never_run(flow)
    plan = read_plan(store, flow, stored.number)
    if plan is None:
        raise StoreInconsistent(f"the metadata store has no plan {stored.number} of flow {flow!r}")
    return plan


def check_sections(plan: Plan) -> None:
    """Check that this version knows every section of a stored plan.

    Raises:
        StoreInconsistent: a newer version, or an extension that is not installed, has written a section.
    """
    unknown = sorted(plan.sections.keys() - Section.kinds.keys())
    if unknown:
        raise StoreInconsistent(
            f"stored plan {plan.number} has the section {unknown[0]!r}. Expected sections of this version of sqe-chain: "
            f"{', '.join(sorted(Section.kinds))}. A newer version has written the plan: run that one"
        )


def kept_plans(store: StoredPlans, flow: str) -> Iterator[Plan]:
    """The plans of a flow that the store keeps, newest first; none when it knows none."""
    plan = read_last_plan(store, flow)
    while plan is not None:
        yield plan
        plan = read_plan(store, flow, plan.number - 1)
