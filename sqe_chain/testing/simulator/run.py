"""A schedule executed: services, faults and what operators and supervisors do, step by step, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqe_chain.errors import (
    ChainError,
    ConfigurationError,
    PlanMismatch,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
    Unavailable,
)
from sqe_chain.flow import Flow
from sqe_chain.protocol.aggregation import Aggregation
from sqe_chain.protocol.surroundings import Settings
from sqe_chain.stores.memory import StoreCopy
from sqe_chain.testing.faults import Armed, Crash
from sqe_chain.testing.rehearsal import Rehearsal, Zombie
from sqe_chain.testing.simulator import sums
from sqe_chain.testing.simulator.invariants import Violation
from sqe_chain.testing.simulator.plant import BETWEEN, Plant
from sqe_chain.testing.simulator.schedule import Schedule, Step, faults_in
from sqe_chain.testing.simulator.world import World, totals_of

NAME = "simulation"
MOST_BATCHES = 60
MOST_WAITS = 60


class Simulation(Plant):
    """One schedule, executed once.

    Args:
        schedule: the world, and what happens in it.

    Attributes:
        fired: fault -> how often it happened; and how often a service ended or stopped for one.
        invariants: what was looked at.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule.world)
        self.steps = schedule.steps
        self._copies: Mapping[str, StoreCopy] | None = None
        self.lost = False
        self._remedied = False

    def run(self) -> None:
        """All steps, then everything until nothing is left to do.

        Raises:
            Violation: an invariant does not hold.
        """
        for step in self.steps:
            self.do(step)
            if self._remedied:
                self._excuses.clear()
                self._remedied = False
        self.do(["settle"])
        sums.check(self)

    def do(self, step: Step) -> None:
        """One step: its name and its arguments. Public, so that a test can go through a schedule."""
        getattr(self, f"_do_{step[0].replace(' ', '_')}")(*step[1:])

    # ------------------------------------------------------------------ services

    def _do_run(self, name: str, batches: int, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Batches of the present run; a new one starts where none is alive."""
        found = self.services[name]

        def run() -> None:
            for _ in range(batches):
                if not found.batch():
                    return

        self._attempt(name, run, faults)

    def _do_kill(self, name: str) -> None:
        self.services[name].service = None
        self.fired["kill"] += 1

    def _do_start(self, name: str) -> None:
        """Another run starts; the present one stands still."""
        found = self.services[name]
        if found.service is not None:
            self.zombies[name].append(Zombie(found.service))
            found.service = None
        self._attempt(name, found.start, ())
        self.fired["takeover"] += 1

    def _do_wake(self, name: str, batches: int, faults: Sequence[Sequence[Any]] = ()) -> None:
        """The run that has stood still longest goes on."""
        if not self.zombies[name]:
            return
        zombie = self.zombies[name][0]
        self.fired["zombie"] += 1

        def wake() -> None:
            for _ in range(batches):
                if not zombie.wake():
                    return

        if not self._attempt(name, wake, faults, present=False):
            self.zombies[name].remove(zombie)

    def _attempt(
        self, name: str, act: Callable[[], object], faults: Sequence[Sequence[Any]], *, present: bool = True
    ) -> bool:
        """Do something under faults, as a supervisor would; whether it came to its end."""
        found, script = self.services[name], self.services[name].script
        for fault in faults:
            what = fault[0].removeprefix("between ")
            if what != fault[0]:
                self.left |= {kind: fault[1] for kind, name in BETWEEN.items() if name == what}
            else:
                script.armed.append(self._armed(name, fault))
        self.clock.waits = 0
        self.invariants.checked["sound"] += 1
        try:
            act()
        except Crash:
            self.fired["crash"] += 0  # counted where it was raised
        except (Superseded, Unavailable):
            self.fired["ended"] += 1
        except ChainError as error:
            self._stopped(name, error)
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
            self.left.clear()
        if present:
            found.service = None
        return False

    def _armed(self, name: str, fault: Sequence[Any]) -> Armed:
        what, at, when, writes, *rest = fault

        def crash() -> None:
            self.fired[f"crash {when} a {'write' if writes else 'call'}"] += 1
            raise Crash

        def silence() -> None:
            self.fired[f"no answer {when} the effect"] += 1
            raise Unavailable("no answer at this call")

        def meanwhile() -> None:
            self.fired["others meanwhile"] += 1
            found = self.services[name]
            mine, found.service = found.service, None
            for step in rest[0]:
                self.do(step)
            if found.service is None:
                found.service = mine

        action = {"crash": crash, "silence": silence, "meanwhile": meanwhile}[what]
        return Armed(action, None, when, writes, at, rest[0] if what == "silence" else 1)

    def _stopped(self, name: str, error: ChainError) -> None:
        """A service stopped by itself: there must be a reason, and a way out."""
        self.services[name].script.cancel()
        self.left.clear()  # who helps is not disturbed
        for kind, remedy in [*self._excuses.items()] if name == "totals" else ():
            if isinstance(error, kind):
                self._excuses[kind] = lambda: None  # runs that stood still meanwhile may say the same
                self._remedied = True
                self.services[name].service = None
                self.fired[f"{type(error).__name__}, handled"] += 1
                remedy()
                return
        text = f"{name} stopped: {type(error).__name__}: {error}"
        raise Violation("sound", text[:900]) from error

    def _do_trouble(self, least: int) -> None:
        """Crashes until so many faults have happened: those that were armed may have waited for calls that did not come."""
        for at in range(least):
            for name in self.services:
                if faults_in(self.fired) >= least:
                    return
                self._do_run(name, 1, [["crash", at, "after", False]])

    def _do_settle(self) -> None:
        """No more faults: everything runs until nothing is new, then is looked at."""
        self._do_abort()
        for name, found in self.services.items():
            self.zombies[name].clear()
            if name == "reader" and self.lost:
                continue
            for _ in range(MOST_BATCHES):
                if self._attempt(name, partial(self._whether_done, found), ()) and self._done:
                    break
            else:
                waits = found.events("waiting")[-1:]
                raise Violation(
                    "rest", f"{name} has not caught up after {MOST_BATCHES} batches; last waits {waits}"
                )
        self.invariants.ordered = True
        self._excuses.clear()
        self.invariants.rest(self.store)

    def _whether_done(self, found: Rehearsal) -> None:
        self._done = False
        self._done = not found.batch()

    # ------------------------------------------------------------------ brokers and stores

    def _do_rewind(self, name: str, back: int) -> None:
        """A republisher publishes again what it has published."""
        found = self.services[name]

        def rewind() -> None:
            if found.service is None:
                found.start()
            stands = found.commits()
            found.rewind({place: max(0, commit.offset - back) for place, commit in stands.items()})

        self._attempt(name, rewind, ())
        self.fired["rewind"] += 1

    def _do_copy(self) -> None:
        self._copies = self.services["totals"].copy_stores()

    def _do_roll_back(self, stage: str | None, cells: Sequence[int] | None) -> None:
        """The store goes back to the copy, whole or in part."""
        totals = self.services["totals"]
        if self._copies is None or self.invariants.books().ends == {}:
            return
        if stage is not None and self._copies[""].homes.keys() != self.store.copy_all().homes.keys():
            return  # folded again meanwhile: the copy is of other states
        totals.service = None
        self.zombies["totals"].clear()
        totals.roll_back(self._copies, stage=stage, cells=cells)
        if stage is None:
            # What was published since may be said otherwise, also where no commit shows that it was.
            self.invariants.trusted, self.lost = False, True
        self.invariants.forget()
        self.fired["store went back" if stage is None else "state partition went back"] += 1
        self._excuses[StoreInconsistent] = self._accept_rollback if stage is None else self._rebuild

    def _accept_rollback(self) -> None:
        totals = self.services["totals"]
        settings = Settings(
            max_records=self.world.records, takeover=True, accept_rollback=True, allow_weak_durability=True
        )
        self._attempt("totals", partial(totals.start, settings), ())

    # ------------------------------------------------------------------ operators

    def _rebuild(self) -> None:
        self._do_rebuild(resume=False)

    def _do_rebuild(self, resume: bool, faults: Sequence[Sequence[Any]] = ()) -> None:  # noqa: FBT001
        """Fold everything again."""
        totals = self.services["totals"]
        self.fired["rebuild --resume" if resume else "rebuild"] += 1

        def rebuild() -> None:
            try:
                totals.rebuild(resume=resume)
            except ConfigurationError:
                return  # nothing to resume, or nothing yet to fold again
            except ServiceStopped as error:
                if "created again" not in str(error):
                    raise

        self._attempt("totals", rebuild, faults)

    def _do_move(self, faults: Sequence[Sequence[Any]] = ()) -> None:
        """Export the states, and import them into an empty store."""
        totals = self.services["totals"]
        self._do_settle()
        if not isinstance(totals.service, Aggregation) or self.invariants.books().ends == {}:
            return
        lines = totals.exported()
        self.fired["export and import"] += 1
        self.store.restore_all()
        self.zombies["totals"].clear()
        self.invariants.forget()
        totals.script.watch = None
        for armed in (faults, ()):
            home, _ = self.store.home("totals")
            if (home and home.number >= 0) or self._attempt("totals", partial(totals.imported, lines), armed):
                break
        totals.script.watch = self.see
        self.invariants.ordered = True
        self._copies = None

    def _do_change(self, what: str) -> None:
        """The service's code changes, and it is restarted."""
        totals = self.services["totals"]
        totals.service = None
        self.zombies["totals"].clear()
        if what == "sources":
            self.log.create_topic("extra", self.world.partitions)
            self._kept.note("extra")
        old = totals.flow
        totals.flow = totals_of(self.world, more_stages=what == "stages", more_sources=what == "sources")
        self.fired[f"code with more {what}"] += 1
        self._excuses[PlanMismatch] = partial(self._finish_first, old, totals.flow)

    def _finish_first(self, old: Flow, new: Flow) -> None:
        """What the old code has begun, it finishes."""
        totals = self.services["totals"]
        totals.flow = old
        self._attempt("totals", totals.start, ())
        totals.flow, totals.service = new, None


def simulate(schedule: Schedule) -> Simulation:
    """Execute a schedule.

    Raises:
        Violation: an invariant does not hold.
    """
    found = Simulation(schedule)
    found.run()
    return found


def replay(world: World, steps: Sequence[Step]) -> Simulation:
    """Execute steps in a world: what a printed test does."""
    return simulate(Schedule(world, tuple(steps)))
