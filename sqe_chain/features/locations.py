"""Where the states of a flow are, stored under a name that never changes: the flow's own.

A rebuild leaves states and views under another stored name. Readers outside do not parse plans to find them.
Each store holds, beside the states, a small record per flow with the place of each stage (`ports.Locations`). All
stores of a flow hold the same record, so it does not matter which of them a reader asks.

When it is written:

* after a rebuild has cut over, and before it deletes the first old state. A reader in between reads the old
  states, which are all there;
* at each start, after recovery: what a crash right after a cut-over has left undone is done then, and a new stage enters;
* at the beginning of a rebuild, if the record does not lead to where the flow is. Then an earlier rebuild has crashed right
  after its cut-over, and this one deletes first what that one has left;
* after an import.

It never goes back: the store replaces it only for a later run, or for a later plan of the same run.
"""

from __future__ import annotations

from sqe_chain.errors import Superseded
from sqe_chain.features.view_tables import fill_tables
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout, TypeLayout
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.retrying import RetryingStore
from sqe_chain.ports import Location, Locations
from sqe_chain.task.states import Claim


def locations_of(
    flow: CompiledFlow, layout: Layout, epoch: int, number: int, *, complete: bool = False
) -> Locations:
    """Where the stages of a flow are, by a layout.

    Args:
        flow: the flow, which names the stores, and how states are shown.
        layout: of the plan.
        epoch: epoch of the run that writes this.
        number: number of the plan.
        complete: whether views that are tables show all states.
    """
    stored_stages = {}
    for stage in flow.stages:
        stored = layout.stages.get(stage.name)
        if stored is None:
            continue
        # After an import of an older format the types are not known; the next start notes them.
        declared = TypeLayout(stage.kind)
        known = layout.types.get(f"stage/{stage.name}", declared)
        stored_stages[stage.name] = Location(
            stored.flow,
            layout.state_partitions,
            stored.buckets,
            known.kind,
            known.name,
            stage.view if stage.table is None else stage.table.mark if complete else None,
            stage.store or "",
        )
    return Locations(epoch, number, stored_stages)


def write_locations(env: Environment, wanted: Locations) -> None:
    """Write locations into all stores of a flow. Safe to repeat.

    Raises:
        Superseded: a newer run has written its own.
    """
    if not wanted.stages:
        return
    # Store by store, not at once: a reader asks the store of its stage, and before all are written nothing old is deleted.
    for store in _stores(env):
        stored = store.set_locations(env.flow.name, wanted)
        if stored is not None and stored.age > wanted.age:
            raise Superseded(
                f"flow {env.flow.name!r}: a run with epoch {stored.epoch} has written where its states are; this one has "
                f"epoch {wanted.epoch}"
            )


def repair_locations(env: Environment, layout: Layout, epoch: int, number: int) -> None:
    """Write locations if they do not lead to where the flow is; to be called before anything is deleted.

    Otherwise they stay as they are: the code at hand may differ from that which has folded the states.
    """
    wanted = locations_of(env.flow, layout, epoch, number)
    for store in _stores(env):
        stored = store.locations(env.flow.name)
        known = stored.stages if stored is not None else {}
        if any(name in known and known[name].flow != stage.flow for name, stage in wanted.stages.items()):
            write_locations(env, wanted)
            return


def epochs_of_locations(env: Environment) -> list[int]:
    """Those of the runs that have written locations: a store that has lost its homes may still know them."""
    if not env.flow.stages:
        return []
    records = [store.locations(env.flow.name) for store in _stores(env)]
    return [record.epoch for record in records if record is not None]


def locate_states(env: Environment, claim: Claim, last: Plan) -> None:
    """Write at a start where states are, unless nobody should read them yet: they are folded again.

    Raises:
        Superseded: a newer run has written its own, or owns the flow.
        StoreInconsistent: a header is not as this run has left it.
    """
    if env.flow.stages and env.role.refold is None:
        fill_tables(env, claim, last.layout)
        write_locations(env, locations_of(env.flow, last.layout, claim.epoch, last.number, complete=True))


def _stores(env: Environment) -> list[RetryingStore]:
    return [RetryingStore(store, env.retry) for store in env.ports.stores.values()]
