"""Attempts at a rebuild: which exist, which can be resumed, and how their states are deleted.

An attempt is a second flow, ``FLOW.again-EPOCH``, or a shadow, ``FLOW.shadow-NUMBER``. `Rebuilding.attempt` marks its last plan as that of an attempt. It can be
resumed while its home record names this plan, and the flow does not keep its states there. One step closes an attempt: a
plan without the mark in its home record. A rebuild takes this step

* when its states have become the flow's, before the flow leaves them for those of another attempt;
* when its states are to be deleted, before the first row is deleted.

A cell whose rows are deleted first gets a header with the number of a plan that no other run knows, its tombstone. Then no
older run can write there, and no older home record fits these headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product

from sqe_chain.errors import StoreInconsistent, Superseded
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.shadowing import Compared
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.operations.cells import Cell, delete_rows
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.retrying import RetryingStore
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import StoredPlans, read_last_plan, read_plan
from sqe_chain.ports import Header, Home, StateStore, Views
from sqe_chain.protocol.claim import check_claim
from sqe_chain.task.states import Claim, no_views

LOOK_BACK = 50
"""The number of epochs whose names are looked up, the newest first."""
_CELLS = 64
Place = tuple[StateStore, Views | None]
"""A store that may hold states of a stage, and the views that are deleted with them."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A second flow that the metadata store knows."""

    name: str
    home: Home
    plan: Plan

    @property
    def open(self) -> bool:
        """Whether it is at work, or was interrupted and can be resumed."""
        return Rebuilding.of(self.plan).attempt >= 0

    @property
    def filling(self) -> bool:
        """Whether states are being copied into it, or that was interrupted: see `Compared`."""
        return Compared.of(self.plan).filling

    def records_behind(self, live: Plan) -> int:
        """How many offsets of the inputs the flow has counted at its plan, and this one has not."""
        counted = self.plan.next_offsets()
        return sum(max(0, offset - counted.get(tp, offset)) for tp, offset in live.next_offsets().items())

    def figures(self, live: Plan) -> dict[str, int]:
        """How far a shadow is, and what it has compared of outputs. `plans_left` is missing until it compares.

        Args:
            live: the flow's last plan.
        """
        compared = Compared.of(self.plan)
        left = {"plans_left": compared.plans_left(live.number)} if compared.since >= 0 else {}
        counts = {
            name: getattr(compared, name) for name in ("equal", "different", "missing", "added", "gaps")
        }
        return {"records_behind": self.records_behind(live), **left, **counts}


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at rebuilding one flow."""

    env: Environment
    mine: Claim

    def known(self) -> Iterator[Attempt]:
        """All attempts at a rebuild that the metadata store knows, the newest first.

        Raises:
            Superseded: a newer run has claimed the flow.
        """
        epochs = range(self.mine.epoch, max(0, self.mine.epoch - LOOK_BACK), -1)
        return self._found(name_of(self.env.flow, epoch) for epoch in epochs)

    def with_shadows(self) -> Iterator[Attempt]:
        """The same, then the shadows, which no rebuild continues, and the record of the states before the last switch."""
        yield from self.known()
        yield from self._found(shadow_names(self.env.home, self.env.flow.name))
        yield from self._found([kept_name(self.env.flow)])

    def find(self, name: str) -> Attempt | None:
        """An attempt by its name; None: the metadata store does not know it, or it was deleted.

        Raises:
            Superseded: a newer run has claimed the flow.
        """
        attempt = find_attempt(self.env.home, name)
        if attempt is not None:
            check_claim(
                self.env, self.mine
            )  # else it may be one that a newer run has made the flow's states of
        return attempt

    def close(self, names: Collection[str]) -> None:
        """Make sure that none of these attempts can be resumed; the flow's own name is none.

        Raises:
            Superseded: a newer run has claimed the flow.
        """
        for name in sorted(names):
            attempt = self.find(name) if name != self.env.flow.name else None
            if attempt is not None and attempt.open:
                self.close_attempt(attempt)

    def close_at(self, name: str, plan: Plan) -> None:
        """Close the attempt whose states are about to become the flow's, and hold its claim: nobody deletes them from then on.

        Raises:
            Superseded: it was ended meanwhile, or another run has folded further; or a newer run has claimed the flow.
        """
        attempt = self.find(name)
        if attempt is None or not attempt.open or attempt.plan.plan_id != plan.plan_id:
            raise Superseded(
                f"{name}: it was ended, or another process works there. This one changes nothing more"
            )
        self.close_attempt(attempt, self.mine.run_id)

    def delete(self, attempt: Attempt, but: Collection[str] = ()) -> None:
        """Close an attempt, delete its states, and forget it.

        Args:
            attempt: as it was read.
            but: names of flows under which nothing is deleted.
        """
        if attempt.open or attempt.filling:
            attempt = self.close_attempt(attempt)
        home, plan = attempt.home, attempt.plan
        # The flow itself may have written there later, with epochs of its own.
        epoch = max(home.epoch, self.mine.epoch)
        tombstone = Header(epoch, self.mine.run_id, plan.number, plan.plan_id)
        for name in plan.layout.stages:
            self.clear(name, attempt.name, cells_of(plan.layout, name), tombstone)
        self.clear_undeclared(attempt, but)
        gone = replace(home, run_id="", number=-1, plan_id="")
        self._set_home(attempt.name, home, gone, None, plan.number + 1)

    def delete_leftovers(self, now: Layout, kept: Layout | None, tombstone: Header) -> None:
        """Delete what is stored under the flow's own name, which it leaves with its first rebuild.

        Args:
            now: where the flow keeps its states now.
            kept: nothing of this one is deleted either.
            tombstone: the header that cleared cells get.
        """
        name, current = self.env.flow.name, now.stored_in()
        before = kept.stored_in() if kept is not None else {}
        for stage in self.env.flow.stages:
            if name in {current.get(stage.name, name), before.get(stage.name)}:
                continue
            store, first = self.env.ports.store(stage), 0
            # Ends at the first block of cells without a header: older layouts may have had more cells than today's.
            while _has_headers(self.env, name, stage, range(first, first + _CELLS)):
                for cell in range(first, first + _CELLS):
                    # Repeated as one: a scan is many calls.
                    look = partial(_has_rows, store, name, stage, cell)
                    if self.env.retry.call("look for old states", look):
                        self.clear(stage.name, name, range(cell, cell + 1), tombstone)
                first += _CELLS

    def clear_layout(self, layout: Layout, tombstone: Header, but: Collection[str] = ()) -> None:
        """Delete the states of all stages of a layout, also of those that are no longer declared.

        Args:
            layout: names the stages, and where they are stored.
            tombstone: the header that cleared cells get.
            but: names of flows under which nothing is deleted.
        """
        for name, stored in layout.stages.items():
            if stored.flow not in but:
                self.clear(name, stored.flow, cells_of(layout, name), tombstone)

    def clear_undeclared(self, attempt: Attempt, but: Collection[str]) -> None:
        """Delete states of before a switch, of stages that the code no longer has: no other record will name them.

        Args:
            attempt: the record of these states; another one has none.
            but: names of flows under which nothing is deleted.
        """
        # By such a header nobody takes them for whole who goes back.
        tombstone = Header(self.mine.epoch, self.mine.run_id, attempt.plan.number + 1, self.mine.run_id)
        declared = {stage.name for stage in self.env.flow.stages}
        for name, stored in attempt.plan.layout.stages.items():
            if name not in declared and stored.flow not in {attempt.name, *but}:
                self.clear(name, stored.flow, cells_of(attempt.plan.layout, name), tombstone)

    def clear(self, stage: str, flow: str, cells: range, tombstone: Header) -> None:
        """Delete states of a stage, stored under a flow's name, that are no longer needed. First each cell gets the tombstone as its header."""
        for place, cell in product(self._places(stage), cells):
            # Repeated as one: it scans, and begins with the header that it finds.
            clear = partial(self._clear_cell, place, (flow, stage, cell), tombstone)
            self.env.retry.call("delete old states", clear)

    def _places(self, name: str) -> list[Place]:
        """Where states of a stage may be. No plan names its store, and other code may have declared another one: so any store may have them."""
        ports, declared = self.env.ports, [stage for stage in self.env.flow.stages if stage.name == name]
        own: list[Place] = [(ports.store(stage), no_views(stage)) for stage in declared]
        known = [store for store, _ in own]
        return own + [(store, Views("hash", {})) for store in ports.stores.values() if store not in known]

    # ------------------------------------------------------------------ small parts

    def _found(self, names: Iterable[str]) -> Iterator[Attempt]:
        return (attempt for attempt in map(self.find, names) if attempt is not None)

    def close_attempt(self, attempt: Attempt, run_id: str = "") -> Attempt:
        """In one step, fence off every run that works on an open attempt, and take the mark away.

        Args:
            attempt: as it was read.
            run_id: who holds the attempt's own claim from then on; by default nobody.

        Raises:
            Superseded: another run works on it since it was read.
        """
        home, last = attempt.home, attempt.plan
        ranges = last.ended_ranges()
        plan = replace(
            last,
            number=last.number + 1,
            previous_id=last.plan_id,
            claim=Claim(home.epoch + 1, self.mine.run_id),
            ranges=ranges,
            exclusions=(),
        )
        compared = replace(Compared.of(last), filling=False)
        plan = plan.with_sections(replace(Rebuilding.of(last), attempt=-1), compared).with_id()
        after = Home(home.epoch + 1, run_id, "", plan.number, plan.plan_id)
        self._set_home(attempt.name, home, after, plan.stored(), plan.number)
        return Attempt(attempt.name, after, plan)

    def _set_home(self, name: str, before: Home, after: Home, plan: bytes | None, drop_below: int) -> None:
        stored = self.env.home.set_home(name, before, after, plan, drop_below)
        if stored != after:
            raise Superseded(f"{name}: another run works there: {stored}. This one changes nothing more")

    def _clear_cell(self, place: Place, cell: Cell, tombstone: Header) -> None:
        """Give a cell the tombstone, and delete all of its rows."""
        (store, views), (flow, stage, number) = place, cell
        header = store.headers(flow, stage, [number])[0]
        # Not bounded: each further round means that an older run has stamped the header, or written there, in between.
        while header is not None:
            # Else the header may be that of a newer run, whose epoch this one must not take.
            check_claim(self.env, self.mine)
            # Never older than what is stored: the flow itself may have written here, after a switch to this attempt, and
            # have begun the next plan.
            after = replace(
                tombstone,
                epoch=max(tombstone.epoch, header.epoch),
                number=max(tombstone.number, header.number + bool(header.begun_id)),
            )
            stored = after if header == after else store.write(*cell, header, after, ())
            if stored == after:
                stored = delete_rows(store, cell, after, views)
                if stored == after:
                    return
            elif stored not in {None, header} and stored.epoch <= after.epoch:
                header = stored
                continue
            raise StoreInconsistent(
                f"{flow}/{stage}/{number}: is at {stored}. Expected {after}: no other run works there. The flow "
                "itself is intact. Start this command again"
            )


def _has_rows(store: StateStore, flow: str, stage: StageNode, cell: int) -> bool:
    return any(store.scan(flow, stage.name, cell))


def find_attempt(store: StoredPlans, name: str) -> Attempt | None:
    """An attempt by its name, also without a claim; None: the metadata store does not know it, or it was deleted."""
    home, _ = store.home(name)
    plan = None if home is None else read_plan(store, name, home.number)
    return None if home is None or plan is None else Attempt(name, home, plan)


def find_shadow(store: StoredPlans, flow: str, live: Plan) -> Attempt | None:
    """The shadow of a flow that can be gone on with, or can take its place; None: there is none.

    Args:
        store: the metadata store.
        flow: the flow's name.
        live: its last plan.
    """
    current = live.layout.stored_in().values()
    for name in shadow_names(store, flow):
        attempt = find_attempt(store, name)
        if attempt is not None and attempt.open and name not in current:
            return attempt
    return None


def shadow_figures(store: StoredPlans, flow: str) -> dict[str, int]:
    """How far a flow's shadow is, and what it has compared of outputs: figure -> value, by the last plans of both. States are not read.

    Args:
        store: the metadata store.
        flow: the flow's name.

    Returns:
        Nothing if there is no shadow; else see `Attempt.figures`.
    """
    # Most flows never had one: then this is one small read.
    live = read_last_plan(store, flow) if next(shadow_names(store, flow), None) is not None else None
    shadow = find_shadow(store, flow, live) if live is not None else None
    return {} if live is None or shadow is None else shadow.figures(live)


def end_attempt(env: Environment, attempt: Attempt) -> None:
    """Close an attempt and delete its states, without a claim of the flow.

    May be killed and repeated. Where it was killed after the first step, the next rebuild or switch deletes what is left.

    Raises:
        Superseded: another run works on it since it was read.
    """
    own = Claim(attempt.home.epoch + 1, env.new_run_id())
    attempts = Attempts(replace(env, flow=env.flow.renamed(attempt.name)), own)
    attempts.delete(attempts.close_attempt(attempt, own.run_id))


def begun_at(last: Plan, live: Plan, number: int) -> Plan:
    """The empty plan with which an attempt begins at states that are there, without an id.

    Args:
        last: the plan that the states are at.
        live: the flow's last plan.
        number: of the empty plan: beyond all that the flow makes meanwhile.
    """
    plan = replace(
        last,
        number=number,
        ranges=last.ended_ranges(),
        exclusions=(),
        wakes=False,
        layout=replace(last.layout, outputs={**live.layout.outputs, **last.layout.outputs}),
        published=None,  # the flow has published more since
    )
    return plan.with_sections(Rebuilding(attempt=number), replace(Revisions.of(last), newer={}))


def shadow_names(store: StoredPlans, flow: str) -> Iterator[str]:
    """The names of all shadows of a flow, also of those that were deleted: `operations/shadow.py`."""
    for number in count(1):  # ends at the first name that was never taken
        name = f"{flow}.shadow-{number}"
        home, _ = store.home(name)
        if home is None:
            return
        yield name


def kept_name(flow: CompiledFlow) -> str:
    """The name of the record of the states that a flow had before its last switch: `operations/going_back.py`."""
    return f"{flow.name}.before-1"


def is_free(env: Environment, name: str) -> bool:
    """Whether no store holds anything under this name; also where the metadata store has lost its record."""
    home, _ = env.home.home(name)
    stages = env.flow.stages
    return home is None and not any(_has_headers(env, name, stage, range(_CELLS)) for stage in stages)


def _has_headers(env: Environment, flow: str, stage: StageNode, cells: range) -> bool:
    return any(env.store(stage).headers(flow, stage.name, cells))


def name_of(flow: CompiledFlow, epoch: int) -> str:
    """The name of the attempt that begins with this epoch of the flow's claim."""
    return f"{flow.name}.again-{epoch}"


def store_of(env: Environment, stage: StageNode, flow: str) -> StateStore:
    """The store that has states of a stage under a flow's name: its own, or the one that it had in other code."""
    own = env.ports.store(stage)
    for store in (own, *env.ports.stores.values()):
        if any(RetryingStore(store, env.retry).headers(flow, stage.name, [0])):
            return store
    return own


def cells_of(layout: Layout, stage: str) -> range:
    """The cells of a stage under a layout."""
    return range(layout.state_partitions * layout.stages[stage].buckets)
