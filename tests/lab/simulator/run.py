"""Execute a schedule: services, faults, operators and supervisors, step by step, in virtual time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.adapters.memory.store import StoreCopy
from sqe_chain.errors import (
    ChainError,
    ConfigurationError,
    MarkersLost,
    NotCaughtUp,
    PlanMismatch,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
    TableInconsistent,
    Unavailable,
)
from sqe_chain.features.settings import settings_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.plan import Plan
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault, Port
from sqe_chain.testing.faulty_ports import FaultyStorage
from sqe_chain.testing.invariants import Violation
from sqe_chain.testing.rehearsal import Rehearsal, Zombie
from tests.lab.reference.world import World
from tests.lab.simulator import damage, end_to_end, standby
from tests.lab.simulator.coverage import features_of, reached_by
from tests.lab.simulator.flows import Makes, totals_of
from tests.lab.simulator.schedule import Schedule, Step, count_faults
from tests.lab.simulator.system import BETWEEN, SimulatedSystem

if TYPE_CHECKING:
    from sqe_chain.ext.tables.memory import TableCopy

NAME = "simulation"
OF_PORTS: Final[Mapping[str, Port]] = {"table ": "table", "store ": "store"}
"""How the name of a fault begins that is for calls of one port."""
MOST_BATCHES = 60
MOST_WAITS = 60


class Simulation(SimulatedSystem):
    """One execution of a schedule.

    Args:
        schedule: the world and its steps.

    Attributes:
        fired: fault -> how often it happened; also how often services ended or stopped because of one.
        invariants: the checks after every write.
        reached: features of the world, kinds of facts and steps -> how often; see `coverage`.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule.world)
        self.steps = schedule.steps
        self.reached = Counter(features_of(schedule.world))
        self._copies: Mapping[str, StoreCopy] | None = None
        self._table_copy: TableCopy | None = None
        self._changes: set[str] = set()
        self.rolled_back = False
        self._handled: set[type[ChainError]] = set()

    def run(self) -> None:
        """Execute all steps, then run every service until nothing is left to do.

        Raises:
            Violation: an invariant does not hold.
        """
        for step in self.steps:
            self.do(step)
            # Others are still to come: code that was changed is found out only when the markers are there again.
            for kind in self._handled:
                self._expected_errors.pop(kind, None)
            self._handled.clear()
        self.do(["settle"])
        end_to_end.check(self)

    def do(self, step: Step) -> None:
        """Execute one step, given as its name and arguments; tests may execute a schedule step by step."""
        self.reached.update(reached_by(step))
        getattr(self, f"_do_{step[0].replace(' ', '_')}")(*step[1:])

    # ------------------------------------------------------------------ services

    def _do_run(self, name: str, batches: int, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Run batches of the present run, or of a new one."""
        found = self.services[name]

        def run() -> None:
            for _ in range(batches):
                if not found.batch():
                    return

        self._with_faults(name, run, faults)

    def _do_kill(self, name: str) -> None:
        self.services[name].service = None
        self.fired["kill"] += 1

    def _do_start(self, name: str) -> None:
        """Start another run; the present one is paused."""
        found = self.services[name]
        if found.service is not None:
            self.zombies[name].append(Zombie(found.service))
            found.service = None
        self._with_faults(name, found.start, ())
        self.fired["takeover"] += 1

    def _do_wake(self, name: str, batches: int, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Resume the run that has been paused longest."""
        if not self.zombies[name]:
            return
        zombie = self.zombies[name][0]
        self.fired["zombie"] += 1

        def wake() -> None:
            for _ in range(batches):
                if not zombie.wake():
                    return

        if not self._with_faults(name, wake, faults, present=False):
            self.zombies[name].remove(zombie)

    def _do_standby(self, signs: int, every: int, end: standby.End) -> None:
        """Another run waits until the present one has ended."""
        standby.run_standby(self, signs, every, end)

    def attempt(self, name: str, act: Callable[[], object]) -> bool:
        """Do something with a service as a supervisor would, without faults; returns whether it completed."""
        return self._with_faults(name, act, ())

    def expect(self, kind: type[ChainError] | None, remedy: Callable[[], None] = lambda: None) -> None:
        """From now on `totals` may stop with this error, for which there is a remedy; None: with none."""
        self._expected_errors.clear()
        if kind is not None:
            self._expected_errors[kind] = remedy

    def _with_faults(
        self, name: str, act: Callable[[], object], faults: Sequence[Sequence[Any]], *, present: bool = True
    ) -> bool:
        """Do something with injected faults, as a supervisor would; returns whether it completed."""
        found, script = self.services[name], self.services[name].script
        for fault in faults:
            what = fault[0].removeprefix("between ")
            if what != fault[0]:
                self.writes_left |= {kind: fault[1] for kind, name in BETWEEN.items() if name == what}
            else:
                script.injected.append(self._injected_fault(name, fault))
        self.clock.waits = 0
        self.invariants.checked["sound"] += 1
        try:
            act()
        except Crash:
            self.fired["crash"] += 0  # was counted where it was raised
        except (Superseded, Unavailable):
            self.fired["ended"] += 1
        except ChainError as error:
            self._handle_stop(name, error)
        except Violation:
            raise
        except Exception as error:
            raise Violation(
                "sound", f"{name} ended with a raw {type(error).__name__}: {error!r}"[:600]
            ) from error
        else:
            return True
        finally:
            script.cancel()
            self.writes_left.clear()
        if present:
            found.service = None
        return False

    def _injected_fault(self, name: str, fault: Sequence[Any]) -> InjectedFault:
        what, at, when, writes, *rest = fault
        prefix, of = next((item for item in OF_PORTS.items() if what.startswith(item[0])), ("", None))
        where = f" of the {of}" if of else ""

        def crash() -> None:
            self.fired[f"crash {when} a {'write' if writes else 'call'}{where}"] += 1
            raise Crash

        def silence() -> None:
            self.fired[f"no answer {when} the effect{where}"] += 1
            raise Unavailable("no answer at this call")

        def meanwhile() -> None:
            self.fired["others meanwhile" + (f", at the {of}" if of else "")] += 1
            found = self.services[name]
            mine, found.service = found.service, None
            for step in rest[0]:
                self.do(step)
            if found.service is None:
                found.service = mine

        what = what.removeprefix(prefix)
        action = {"crash": crash, "silence": silence, "meanwhile": meanwhile}[what]
        return InjectedFault(action, of, when, writes, at, rest[0] if what == "silence" else 1)

    def _handle_stop(self, name: str, error: ChainError) -> None:
        """A service stopped by itself: that must have a reason and a remedy."""
        self.services[name].script.cancel()
        self.writes_left.clear()  # no faults during the remedy
        for kind, remedy in [*self._expected_errors.items()] if name == "totals" else ():
            if isinstance(error, kind):
                self._expected_errors[kind] = lambda: (
                    None
                )  # runs that were paused in the meantime may stop with the same error
                self._handled.add(kind)
                self.services[name].service = None
                self.fired[f"{type(error).__name__}, handled"] += 1
                remedy()
                return
        text = f"{name} stopped: {type(error).__name__}: {error}"
        raise Violation("sound", text[:900]) from error

    def _do_trouble(self, least: int) -> None:
        """Crash services until this many faults have happened, because injected faults may not have been reached."""
        for at in range(least):
            for name in self.services:
                if count_faults(self.fired) >= least:
                    return
                self._do_run(name, 1, [["crash", at, "after", False]])

    def _do_settle(self) -> None:
        """Without further faults, run everything until there is no new input; then check."""
        self._do_abort()
        for name, found in self.services.items():
            self.zombies[name].clear()
            if name == "reader" and self.rolled_back:
                continue
            for _ in range(MOST_BATCHES):
                if self._with_faults(name, partial(self._run_batch, found), ()) and self._caught_up:
                    break
            else:
                waits = found.events("waiting")[-1:]
                raise Violation(
                    "rest", f"{name} has not caught up after {MOST_BATCHES} batches; last waits {waits}"
                )
        self.invariants.ordered = True
        self._expected_errors.clear()
        self.invariants.check_at_rest(self.store)

    def _run_batch(self, rehearsal: Rehearsal) -> None:
        self._caught_up = False
        self._caught_up = not rehearsal.batch() and not rehearsal.batch(at_end=True)

    # ------------------------------------------------------------------ brokers and stores

    def _do_cut(self, topic: str, partition: int, back: int, rewritten: bool) -> None:
        """A log loses what was read of it."""
        damage.cut_off(self, topic, partition, back, rewritten=rewritten)

    def _do_lose(self) -> None:
        """A message between two others of its writer is missing."""
        damage.lose(self)

    def _do_change_mind(self, makes: Makes) -> None:
        """A republisher repeats its last input by other code."""
        damage.change_mind(self, makes)

    def _do_come_back(self, back: int) -> None:
        """What was counted comes back through a topic that was created again."""
        damage.come_back(self, back)

    def _do_rewind(self, name: str, back: int) -> None:
        """A republisher publishes the same output again."""
        found = self.services[name]
        if found.flow.file_sources:
            return  # what was read of files is not read again

        def rewind() -> None:
            if found.service is None:
                found.start()
            commits = found.commits()
            found.rewind({tp: max(0, commit.offset - back) for tp, commit in commits.items()})

        self._with_faults(name, rewind, ())
        self.fired["rewind"] += 1

    def _do_copy(self) -> None:
        self._copies = self.services["totals"].copy_stores()
        self._table_copy = self.table.table.copy_all() if self.table is not None else None

    def _do_roll_back(self, stage: str | None, cells: Sequence[int] | None) -> None:
        """Roll the store back to the copy, as a whole or in part."""
        totals = self.services["totals"]
        if self._copies is None or self.invariants.expected().ends == {}:
            return
        if stage is None and self.world.transactional:
            return  # it stops, and there is no way on but the store's newer copy
        if stage is not None and self._copies[""].homes.keys() != self.store.copy_all().homes.keys():
            return  # rebuilt since: the copy has other states
        totals.service = None
        self.zombies["totals"].clear()
        present = totals.copy_stores()
        totals.roll_back(self._copies, stage=stage, cells=cells)
        if stage is None:
            # Outputs published since then may be repeated with other content, even if no commit shows them.
            self.invariants.outputs_repeat, self.rolled_back = False, True
        self.invariants.reset_observations()
        self.fired["store went back" if stage is None else "state partition went back"] += 1
        remedy = self._accept_rollback if stage is None else partial(self._rebuild_or_restore, present)
        self._expected_errors[StoreInconsistent] = remedy
        if self.table is not None:
            if stage is None:
                self._expected_errors[TableInconsistent] = self._roll_back_table_too
            else:  # what is in a table cannot be folded again: a newer copy of the store is found
                self._expected_errors[StoreInconsistent] = partial(self._restore, present)

    def _restore(self, copies: Mapping[str, StoreCopy]) -> None:
        self.services["totals"].roll_back(copies)
        self.invariants.reset_observations()

    def _roll_back_table_too(self) -> None:
        """The fix when store and table are of different moments: the table as it was then."""
        if self.table is not None:
            self.table.table.restore_all(self._table_copy)
        self.invariants.reset_observations()
        self._accept_rollback()

    def _do_table_back(self) -> None:
        """The table goes back in time, or is gone, and comes back when the service has noticed that."""
        checks = self.invariants.table
        if self.table is None or checks is None or self._table_copy is None:
            return
        table, noticed = self.table.table, list[bool]()
        present = table.copy_all()
        table.restore_all(self._table_copy)
        self.invariants.reset_observations()
        checks.is_back = True
        self.fired["table went back"] += 1

        def remedy() -> None:
            noticed.append(True)
            table.restore_all(present)
            checks.is_back = False
            self.invariants.reset_observations()

        self.expect(TableInconsistent, remedy)
        self.attempt("totals", self.services["totals"].restart)
        self.expect(None)
        if not noticed and self.table.lacks(present):
            raise Violation("sound", "rows of a table are gone, and the service has not noticed it")
        checks.is_back = False

    def _do_markers(self) -> None:
        """The topic that shows what is published is deleted and created again; an operator looks into the outputs if it is missed."""
        topic = self.services["totals"].flow.marker_topic
        self.log.delete(topic)
        self.log.create_topic(topic, 1, compacted=True)
        self.fired["markers lost"] += 1
        self._expected_errors.setdefault(MarkersLost, self._write_marker)

    def _write_marker(self) -> None:
        last, checks = self.services["totals"], self.invariants
        home, _ = self.store.home("totals")
        found = Plan.from_bytes(self.store.plan("totals", home.number) or b"") if home else None
        if found is None or found.marker is None:
            raise AssertionError("it has stopped for a plan that notes its marker")
        known: dict[str, object] = {"plan": found.number, "id": found.plan_id}
        if checks.committed != found.plan_id:
            known = {"plan": found.marker.number, "id": found.marker.plan_id, "unpublished": found.plan_id}
        self.log.append(last.flow.marker_topic, 0, json.dumps(known).encode(), b"totals")

    def _do_compact(self, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Somebody compacts the table, and may die meanwhile."""
        if self.table is None or self.table.snapshot() is None:
            return
        from sqe_chain.ext.tables.reading import Table  # noqa: PLC0415 - needs pyarrow

        script = FaultScript(watch=self.see)
        script.injected += [self._injected_fault("totals", fault) for fault in faults]
        left, self.writes_left = self.writes_left, {}  # those are for the service
        try:
            Table(FaultyStorage(self.table.table, script)).compact()
        except Crash:
            pass
        finally:
            self.writes_left = left
        self.fired["compaction"] += 1

    def _do_vacuum(self) -> None:
        """Files that the table does not need are deleted, as old as they are."""
        if self.table is not None:
            self.table.vacuum()
            self.fired["vacuum"] += 1

    def _accept_rollback(self) -> None:
        totals = self.services["totals"]
        settings = settings_of(
            max_records=self.world.records, takeover=True, accept_rollback=True, allow_weak_durability=True
        )
        self._with_faults("totals", partial(totals.start, settings), ())

    # ------------------------------------------------------------------ operators

    def _rebuild_or_restore(self, copies: Mapping[str, StoreCopy]) -> None:
        """What to do when a state partition went back; records of a topic that is gone cannot be folded again."""
        refused = self.fired["rebuild, refused"]
        self._do_rebuild(resume=False)
        if self.fired["rebuild, refused"] > refused:
            self._restore(copies)

    def _do_rebuild(self, resume: bool, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Rebuild all states."""
        totals = self.services["totals"]
        self.fired["rebuild --resume" if resume else "rebuild"] += 1

        def rebuild() -> None:
            try:
                totals.rebuild(resume=resume)
            except ConfigurationError:
                return  # nothing to resume, or nothing to rebuild yet
            except Superseded:
                self.fired["rebuild, overtaken"] += 1
                raise
            except ServiceStopped as error:
                unfinished = self.world.transactional and "is not finished" in str(error)
                if not unfinished and "created again" not in str(error):
                    raise
                self.fired["rebuild, refused"] += 1

        self._with_faults("totals", rebuild, faults)

    def _do_decide(self, releases: bool, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Release or discard what the service has skipped. What is released fails again, since no code can read it."""
        totals = self.services["totals"]
        self.fired["failed release" if releases else "failed discard"] += 1

        def decide() -> None:
            totals.service = None
            operator = FailedInPlans(totals._environment(None))
            try:
                if releases:
                    self.fired["failed again"] += operator.release().again
                else:
                    self.fired["discarded"] += operator.discard().discarded
            except ConfigurationError:
                return  # it has not run yet
            except NotCaughtUp:
                self.fired["failed, not caught up"] += 1

        self._with_faults("totals", decide, faults)

    def _do_move(self, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Export the states, and import them into an empty store."""
        totals = self.services["totals"]
        self._do_settle()
        if not isinstance(totals.service, StagedService) or self.invariants.expected().ends == {}:
            return
        lines = totals.exported()
        self.fired["export and import"] += 1
        self.store.restore_all()
        self.zombies["totals"].clear()
        self.invariants.reset_observations()
        totals.script.watch = None
        for injected in (faults, ()):
            home, _ = self.store.home("totals")
            if (home and home.number >= 0) or self._with_faults(
                "totals", partial(totals.imported, lines), injected
            ):
                break
        totals.script.watch = self.see
        self.invariants.ordered = True
        self._copies = None

    def _do_change(self, what: str) -> None:
        """The service's code changes, and it is restarted."""
        totals = self.services["totals"]
        if what == "functions":  # which nothing can notice: so only while nothing is unfinished
            self._do_settle()
            self._copies, self.model.changed = None, True
        totals.service = None
        self.zombies["totals"].clear()
        if what == "sources":
            self.log.create_topic("extra", self.world.partitions)
            self._archive.add_topic("extra")
        old = totals.flow
        self._changes.add(what)
        totals.flow = totals_of(
            self.world,
            more_stages="stages" in self._changes,
            more_sources="sources" in self._changes,
            changed="functions" in self._changes,
        )
        self.fired["other functions" if what == "functions" else f"code with more {what}"] += 1
        self._expected_errors[PlanMismatch] = partial(self._finish_with_old_code, old, totals.flow)

    def _finish_with_old_code(self, old: CompiledFlow, new: CompiledFlow) -> None:
        """Let the old code finish the plan that it began."""
        totals = self.services["totals"]
        totals.flow = old
        for _ in range(2):  # the first start may end with what else an operator has to answer
            self._with_faults("totals", totals.start, ())
        totals.flow, totals.service = new, None


def simulate(schedule: Schedule) -> Simulation:
    """Execute a schedule.

    Raises:
        Violation: an invariant does not hold.
    """
    simulation = Simulation(schedule)
    simulation.run()
    return simulation


def replay(world: World, steps: Sequence[Step]) -> Simulation:
    """Execute steps in a world; printed tests call this."""
    return simulate(Schedule(world, tuple(steps)))
