"""`prove`: runs a flow through faults and replays, and compares with the undisturbed run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from sqe_chain.errors import ChainError, ConfigurationError, NotDeterministic, NotExact
from sqe_chain.flow import Flow
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing.proving.drawing import drawn, replayed, single_faults
from sqe_chain.testing.proving.other_process import Calls, Work
from sqe_chain.testing.proving.progress import Progress
from sqe_chain.testing.proving.proof import Proof, by_step, told
from sqe_chain.testing.proving.schedule import (
    STEPS,
    Inputs,
    Schedule,
    fed_records,
    fewer,
    given_feeds,
)
from sqe_chain.testing.proving.suspects import finding_of
from sqe_chain.testing.proving.trial import Bench, Trial
from sqe_chain.testing.proving.watching import Observation, Watch
from sqe_chain.testing.shrinking import smallest

_MOST_ATTEMPTS = 300
"""Schedules that are tried to find a shorter one."""
_SIDES: Final = frozenset({5, 6})
"""Steps that some flows do not have."""


def prove(  # noqa: PLR0913 - limits of a proof, by their names
    flow: Flow,
    inputs: Inputs,
    *,
    partitions: Mapping[str, int] | None = None,
    settings: Settings | None = None,
    seconds: float = 10.0,
    schedules: int = 1_000,
    seed: int = 0,
    other_processes: bool = True,
    progress: bool | None = None,
) -> Proof:
    """Run a flow through every single fault, and compare with the undisturbed run.

    Faults are crashes, calls without an answer, and runs that take over while the one before goes on as a zombie: at each call
    of broker, store and table, before it has had its effect, and after it, when its reply is lost. Then everything is published
    again by a service upstream, which crashes and is rewound; then come pairs of faults, and schedules drawn from the seed.
    After each write the invariants of the protocol are looked at; in the end states, outputs as a reader sees them, tables and
    dead letters.

    The flow's functions are watched meanwhile: each is called twice with copies of the same arguments, the second time a year
    later, and must give the same, in every run, and in other processes with other hashes.

    Everything is in memory, or in a temporary directory: tables are not written where the flow says. Files are read where they are.

    Args:
        flow: the flow; it is not changed, and nothing of it is run elsewhere.
        inputs: topic -> payloads, fed in turns; or a list of `Feed`, whose arguments are those of `Rehearsal.feed`. Twenty
            records that reach every branch are better than a thousand that do not.
        partitions: input topic -> partitions, 1 where absent.
        settings: how the service runs.
        seconds: time after which no schedule is begun. What is found then is made as small as it can be, however long it takes.
        schedules: schedules at most. The same number and seed run the same schedules.
        seed: of the schedules that are drawn.
        other_processes: whether functions are called in other processes, too; a flow in a module that cannot be imported there
            cannot be sent.
        progress: whether a bar is shown; by default if there is a terminal.

    Returns:
        What was run, and what was not reached.

    Raises:
        NotDeterministic: functions of the flow are to blame: which ones, where, and for which inputs.
        NotExact: the results differ, or an invariant does not hold; with the shortest schedule that shows it.
        ConfigurationError: inputs that the flow does not read.
        ChainError: the flow stops for an input without any fault: see its poison policy.
    """
    if not seconds > 0 or type(schedules) is not int or schedules < 1:
        raise ConfigurationError(f"seconds={seconds!r}, schedules={schedules!r}; both more than 0")
    with _prover(flow, inputs, partitions, settings, seed) as prover:
        prover.until, prover.most = time.monotonic() + seconds, schedules
        with Progress(f"prove {flow.name}", schedules, progress) as bar:
            return prover.run(bar.advance, other_processes=other_processes)


def prove_schedule(
    flow: Flow,
    inputs: Inputs,
    schedule: Schedule,
    *,
    partitions: Mapping[str, int] | None = None,
    settings: Settings | None = None,
) -> None:
    """Run a flow through one schedule, such as `prove` has printed it, or Hypothesis has drawn it.

    Args:
        flow: see `prove`.
        inputs: see `prove`.
        schedule: which of them are fed, and what happens.
        partitions: see `prove`.
        settings: see `prove`.

    Raises:
        NotDeterministic: functions of the flow are to blame.
        NotExact: the results differ from those of the undisturbed run, or an invariant does not hold.
        ConfigurationError: inputs that the flow does not read, or that there are not.
        ChainError: the flow stops for an input without any fault.
    """
    with _prover(flow, inputs, partitions, settings, 0) as prover:
        if not set(schedule.inputs) <= set(range(len(prover.bench.records))):
            raise ConfigurationError(
                f"inputs={schedule.inputs!r}; numbers of the {len(prover.bench.records)} records, from 0"
            )
        try:
            prover.attempt(schedule)
        except _Found as found:
            found.shrunk = True
            raise prover.error(found) from None


@contextmanager
def _prover(
    flow: Flow,
    inputs: Inputs,
    partitions: Mapping[str, int] | None,
    settings: Settings | None,
    seed: int,
) -> Iterator[_Prover]:
    """What runs the schedules of a flow, and forgets everything afterwards."""
    flow.check()
    known, own = partitions or {}, settings or Settings()
    records = fed_records(flow, given_feeds(inputs), known)
    with TemporaryDirectory(prefix="sqe-chain-prove-") as directory:
        watch = Watch()
        bench = Bench(flow, records, known, own, watch, Path(directory))
        try:
            yield _Prover(bench, Work(flow, records, known, own), watch, seed)
        finally:
            bench.clear()


class _Found(Exception):
    """Something was found.

    Args:
        schedule: that shows it.
        why: it is not exact; empty: functions are to blame.
        observations: of those functions.
        shrunk: whether the schedule is as small as it can be.
    """

    def __init__(
        self,
        schedule: Schedule,
        why: str,
        observations: Mapping[int, Observation] | None = None,
        *,
        shrunk: bool = False,
    ) -> None:
        super().__init__(why)
        self.schedule = schedule
        self.why = why
        self.observations = observations or {}
        self.shrunk = shrunk


@dataclass(slots=True)
class _Prover:
    """One proof."""

    bench: Bench
    work: Work
    watch: Watch
    seed: int
    until: float = 0.0
    most: int = 0
    begun: float = field(default_factory=time.monotonic)
    schedules: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    reached: set[tuple[str, int]] = field(default_factory=set)
    not_reached: list[str] = field(default_factory=list)
    references: dict[Schedule, Trial] = field(default_factory=dict)

    def run(self, advance: Callable[[], None], *, other_processes: bool) -> Proof:
        """Run all there is time for."""
        base = Schedule(tuple(range(len(self.bench.records))))
        try:
            self.reference(base)
            if other_processes:
                self._compare_processes(base)
            for schedule in self._schedules(base):
                if time.monotonic() >= self.until or self.schedules >= self.most:
                    break
                self.attempt(schedule)
                advance()
        except _Found as found:
            raise self.error(found) from None
        return self._proof(self.reference(base), other_processes=other_processes)

    def reference(self, schedule: Schedule) -> Trial:
        """The undisturbed run; the first time it is run twice, and both are compared."""
        schedule = schedule.undisturbed
        known = self.references.get(schedule)
        if known is None:
            known = self.references[schedule] = self.bench.run(schedule)
            self._blame(schedule)
            again = self.bench.run(schedule, known)
            self._blame(schedule)
            why = _why(known, known) or _why(known, again)
            if why:
                raise _Found(schedule, why)
        return known

    def _schedules(self, base: Schedule) -> Iterator[Schedule]:
        points = self.reference(base).points
        republishes = not self.bench.flow.keeps_plans
        up = replace(base, upstream=True) if self.bench.upstream else None
        upstream = [one for one in self.reference(up).points if one.service == "upstream"] if up else []
        yield from replayed(up) if up else replayed(base) if republishes else ()
        yield from single_faults(base, points, writes=True)
        yield from single_faults(up, upstream, writes=True) if up else ()
        yield from single_faults(base, points, writes=False)
        calls = sum(one.when == "before" for one in points)
        random = Random(self.seed)  # noqa: S311 - no secret
        yield from drawn(base, random, calls, upstream=len(upstream), rewinds=republishes)

    def attempt(self, schedule: Schedule) -> None:
        """Run one schedule, and compare.

        Raises:
            _Found: something was found.
        """
        reference = self.reference(schedule)
        trial = self.bench.run(schedule, reference)
        self.schedules += 1
        self.checked.update(trial.checked)
        self.faults.update(trial.happened)
        self.counts["several"] += len(schedule.faults) > 1
        self.counts["replays"] += bool(schedule.upstream or schedule.rewinds)
        if len(schedule.faults) == 1 and trial.fired and not schedule.upstream:
            self.reached.add((schedule.faults[0].when, schedule.faults[0].call))
        self._blame(schedule)
        why = _why(reference, trial)
        if why:
            raise _Found(schedule, why)

    def _blame(self, schedule: Schedule) -> None:
        """Raise if a function has shown that it is not deterministic."""
        if self.watch.observations:
            raise _Found(schedule, "", dict(self.watch.observations))

    # ------------------------------------------------------------------ other processes

    def _compare_processes(self, base: Schedule) -> None:
        try:
            answers = self.work.calls([base.inputs])
        except ConfigurationError as error:
            self.not_reached.append(f"other processes: {error}")
            return
        self.counts["processes"] = len(answers)
        found = self._others(base, [runs[0] for runs in answers])
        if not found:
            return
        alone = [(number,) for number in base.inputs]
        singles = self.work.calls(alone)
        for index, inputs in enumerate(alone):
            schedule = replace(base, inputs=inputs)
            less = self._others(schedule, [runs[index] for runs in singles])
            if less.keys() & found.keys():
                raise _Found(schedule, "", less, shrunk=True)
        raise _Found(base, "", found, shrunk=True)

    def _others(self, schedule: Schedule, answers: Sequence[Calls]) -> dict[int, Observation]:
        """The functions that give something else in another process."""
        self.watch.forget()
        self.bench.run(schedule)
        found: dict[int, Observation] = {}
        for (number, given), call in self.watch.calls.items():
            for calls in answers:
                gave, text = calls.get((number, given), (call.gave, ""))
                if gave != call.gave:
                    seen = Observation(number, "other process", call.arguments, call.given, call.text, text)
                    found.setdefault(number, seen)
        return found

    # ------------------------------------------------------------------ what was found

    def error(self, found: _Found) -> NotExact:
        """The error about it, with the shortest schedule that shows it."""
        schedule, observations, why = found.schedule, found.observations, found.why
        if not found.shrunk:
            schedule = smallest(schedule, self._smaller, self._shows(set(observations)), _MOST_ATTEMPTS)
        self.watch.forget()
        trial = self._again(schedule)
        observations = (observations if found.shrunk else self.watch.observations) or observations
        if trial is not None:
            why = _why(self.bench.run(schedule.undisturbed), trial) or why
        fired = trial.fired if trial is not None else []
        end = told(schedule, self.bench.records, fired, self.seed)
        error: NotExact
        if observations:
            functions = self.watch.functions
            findings = [finding_of(functions[number], seen) for number, seen in sorted(observations.items())]
            texts = "\n\n".join(one.text for one in findings)
            error = NotDeterministic(
                f"Flow {self.work.flow.name!r} is not deterministic.\n\n{texts}\n\n{end}"
            )
            error.findings = tuple(findings)
        else:
            error = NotExact(f"Flow {self.work.flow.name!r} is not exact.\n\n{why}\n\n{end}")
        error.schedule = schedule
        return error

    def _again(self, schedule: Schedule) -> Trial | None:
        """Run a schedule once more, after its undisturbed run; None: the flow stops without any fault."""
        try:
            reference = self.bench.run(schedule.undisturbed)
            return self.bench.run(schedule, reference)
        except ChainError:
            return None

    def _shows(self, numbers: set[int]) -> Callable[[Schedule], bool]:
        """Whether a schedule still shows that functions are to blame, or else that the flow is not exact."""

        def shows(schedule: Schedule) -> bool:
            self.watch.forget()
            try:
                reference = self.bench.run(schedule.undisturbed)
                trial = self.bench.run(schedule, reference)
            except ChainError:
                return False
            if numbers:
                return bool(numbers & self.watch.observations.keys())
            return bool(_why(reference, trial))

        return shows

    def _smaller(self, schedule: Schedule) -> Iterator[Schedule]:
        """Schedules that are a little smaller."""
        if schedule != schedule.undisturbed:
            yield schedule.undisturbed
        for index in range(len(schedule.faults)):
            yield replace(schedule, faults=(*schedule.faults[:index], *schedule.faults[index + 1 :]))
        for index in range(len(schedule.rewinds)):
            yield replace(schedule, rewinds=(*schedule.rewinds[:index], *schedule.rewinds[index + 1 :]))
        needed = bool(schedule.rewinds) or any(one.service == "upstream" for one in schedule.faults)
        plain = Schedule(
            schedule.inputs, schedule.faults, schedule.rewinds, upstream=schedule.upstream and needed
        )
        if plain != schedule:
            yield plain
        for inputs in fewer(schedule.inputs):
            less = replace(schedule, inputs=inputs)
            yield less
            if len(schedule.faults) == 1:
                yield from self._aimed(less)

    def _aimed(self, schedule: Schedule) -> Iterator[Schedule]:
        """The same fault at other calls: with fewer inputs there are fewer."""
        (fault,) = schedule.faults
        try:
            points = self.bench.run(schedule.undisturbed).points
        except ChainError:
            return
        for one in points:
            if (one.when, one.service) == (fault.when, fault.service) and one.write and one.call < fault.call:
                yield replace(schedule, faults=(replace(fault, call=one.call),))

    def _proof(self, base: Trial, *, other_processes: bool) -> Proof:
        points: dict[int, tuple[int, int]] = {}
        for one in base.points:
            if one.write or one.when == "before":
                done, there = points.get(one.step, (0, 0))
                points[one.step] = done + ((one.when, one.call) in self.reached), there + 1
        not_reached = [*self.not_reached, *self._left_out(base, points)]
        if not other_processes:
            not_reached.append("other processes: other_processes=False")
        return Proof(
            flow=self.work.flow.name,
            seed=self.seed,
            schedules=self.schedules,
            records=len(self.bench.records),
            calls=self.watch.made,
            functions=len(self.watch.functions),
            points=by_step(points),
            faults=dict(sorted(self.faults.items())),
            replays=self.counts["replays"],
            several=self.counts["several"],
            processes=self.counts["processes"],
            checked=dict(sorted(self.checked.items())),
            not_reached=tuple(not_reached),
            seconds=time.monotonic() - self.begun,
        )

    def _left_out(self, base: Trial, points: Mapping[int, tuple[int, int]]) -> Iterator[str]:
        """What was not looked at, and why."""
        missing = sum(there - done for done, there in points.values())
        if missing:
            yield f"{missing} points: no time (seconds=, schedules=)"
        called = {number for number, _ in self.watch.calls}
        for one in self.watch.functions:
            if one.number not in called:
                yield f"{one.name}, declared at {one.node.declared_at}: no record has reached it"
            elif one.number in self.watch.not_copied:
                yield f"{one.name}, declared at {one.node.declared_at}, was not called twice: its arguments cannot be copied"
        for name in _SIDES - {point.step for point in base.points}:
            yield f"step {name}, {STEPS[name]}: the flow does nothing there"
        for topic, why in self.bench.not_upstream.items():
            yield f"replays of topic {topic!r}: {why}"
        if find_spec("time_machine") is None:
            yield "a later time: needs the package 'time-machine': pip install 'sqe-chain[prove]'"


def _why(reference: Trial, trial: Trial) -> str:
    """Why a run is not exact; empty: it is."""
    if trial.violation is not None:
        return str(trial.violation)
    if reference.outcome is None or trial.outcome is None:
        return ""
    return reference.outcome.difference(trial.outcome, replays=trial.schedule.upstream) or ""
