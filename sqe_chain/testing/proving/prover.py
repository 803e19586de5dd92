"""Runs a flow through faults and replays, compares with the undisturbed run, and makes what it finds as small as it can be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from random import Random
from typing import Final

from sqe_chain.errors import ChainError, ConfigurationError, NotDeterministic, NotExact
from sqe_chain.testing.proving.drawing import draw_schedules, inject_each_fault, replay_everything
from sqe_chain.testing.proving.other_process import Answer, calls_elsewhere, set_by_program
from sqe_chain.testing.proving.proof import Proof, by_step, describe_schedule
from sqe_chain.testing.proving.schedule import STEPS, Schedule, drop_pieces
from sqe_chain.testing.proving.suspects import explain
from sqe_chain.testing.proving.trial import Bench, Trial
from sqe_chain.testing.proving.watching import Observation, Watch
from sqe_chain.testing.shrinking import smallest
from sqe_chain.wings import needed

_MOST_ATTEMPTS = 300
"""Schedules that are tried to find a shorter one."""
_BATCHES: Final = 20
"""In how many batches the undisturbed run is repeated, at least."""
_SIDES: Final = frozenset({5, 6})
"""Steps that some flows do not have."""


class Found(Exception):
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
class Prover:
    """One proof."""

    bench: Bench
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

    @property
    def base(self) -> Schedule:
        """All inputs, and nothing that happens."""
        return Schedule(tuple(range(len(self.bench.records))))

    def run(self, advance: Callable[[], object], *, other_processes: bool) -> Proof:
        """Run all there is time for."""
        base = self.base
        try:
            self.reference(base)
            if other_processes:
                self._compare_processes(base)
            for schedule in self._schedules(base):
                if time.monotonic() >= self.until or self.schedules >= self.most:
                    break
                self.attempt(schedule)
                advance()
        except Found as found:
            raise self.error(found) from None
        return self._proof(self.reference(base), other_processes=other_processes)

    def reference(self, schedule: Schedule) -> Trial:
        """The undisturbed run. The first time it is run three times, and compared: after a shuffle, in blocks of one, in small batches."""
        schedule = schedule.reference
        known = self.references.get(schedule)
        if known is None:
            try:
                known = self.references[schedule] = self.bench.run(schedule)
                again = self.bench.run(other := replace(schedule, in_place=False, block=1), known)
            finally:
                self._blame(schedule)  # rather than what has come of it
            if why := _why(known, known):
                raise Found(schedule, why)
            if why := _why(known, again):
                raise Found(other, why)
            if not schedule.batch:
                self.attempt(replace(schedule, batch=1 + len(schedule.inputs) // _BATCHES), counted=False)
        return known

    def _schedules(self, base: Schedule) -> Iterator[Schedule]:
        points = self.reference(base).points
        republishes = not self.bench.flow.keeps_plans
        up = replace(base, upstream=True) if self.bench.upstream else None
        upstream = [point for point in self.reference(up).points if point.service == "upstream"] if up else []
        yield from replay_everything(up) if up else replay_everything(base) if republishes else ()
        yield from inject_each_fault(base, points, writes=True)
        yield from inject_each_fault(up, upstream, writes=True) if up else ()
        yield from inject_each_fault(base, points, writes=False)
        calls = sum(point.when == "before" for point in points)
        random = Random(self.seed)  # noqa: S311 - no secret
        functions = self.reference(base).functions
        yield from draw_schedules(
            base, random, calls, upstream=len(upstream), rewinds=republishes, functions=functions
        )

    def attempt(self, schedule: Schedule, *, counted: bool = True) -> None:
        """Run one schedule, and compare.

        Args:
            schedule: the run.
            counted: whether it is one of those that the proof counts.

        Raises:
            Found: something was found.
        """
        reference = self.reference(schedule)
        trial = self.bench.run(schedule, reference)
        self.schedules += counted
        self.checked.update(trial.checked)
        self.faults.update(trial.happened)
        self.counts["several"] += len(schedule.faults) > 1
        self.counts["replays"] += bool(schedule.upstream or schedule.rewinds)
        if len(schedule.faults) == 1 and trial.fired and schedule.undisturbed == self.base:
            self.reached.add((schedule.faults[0].when, schedule.faults[0].call))
        self._blame(schedule)
        why = _why(reference, trial)
        if why:
            raise Found(schedule, why)

    def _blame(self, schedule: Schedule) -> None:
        """Raise if a function has shown that it is not deterministic."""
        if self.watch.observations:
            raise Found(schedule, "", dict(self.watch.observations))

    # ------------------------------------------------------------------ other processes

    def _compare_processes(self, base: Schedule) -> None:
        try:
            answers = calls_elsewhere(self.bench, [base.inputs])
        except ConfigurationError as error:
            self.not_reached.append(f"other processes: {error}")
            return
        self.counts["processes"] = len(answers)
        different = self._others(base, answers, 0)
        if not different:
            return
        alone = [(number,) for number in base.inputs]
        singles = calls_elsewhere(self.bench, alone)
        for index, inputs in enumerate(alone):
            schedule = replace(base, inputs=inputs)
            less = self._others(schedule, singles, index)
            if less.keys() & different.keys():
                raise Found(schedule, "", less, shrunk=True)
        raise Found(base, "", different, shrunk=True)

    def _others(self, schedule: Schedule, answers: Sequence[Answer], run: int) -> dict[int, Observation]:
        """The functions that give something else in another process."""
        self.watch.forget()
        self.bench.run(schedule)
        different: dict[int, Observation] = {}
        for (number, given), call in self.watch.calls.items():
            for answer in answers:
                gave, text = answer.runs[run].get((number, given), (call.gave, ""))
                if gave != call.gave:
                    others = set_by_program(self.watch.functions[number].function, answer)
                    seen = Observation(
                        number, "other process", call.arguments, call.given, call.text, text, others
                    )
                    different.setdefault(number, seen)
        return different

    # ------------------------------------------------------------------ what was found

    def error(self, shown: Found) -> NotExact:
        """The error about it, with the shortest schedule that shows it."""
        schedule, observations, why = shown.schedule, shown.observations, shown.why
        if not shown.shrunk:
            schedule = smallest(schedule, self._smaller, self._shows(set(observations)), _MOST_ATTEMPTS)
        pair = self._run_again(schedule)
        observations = (observations if shown.shrunk else self.watch.observations) or observations
        why = (_why(*pair) if pair else "") or why
        fired = pair[1].fired if pair else []
        end = describe_schedule(schedule, self.bench.records, fired, self.seed)
        error: NotExact
        if observations:
            functions = self.watch.functions
            findings = [explain(functions[number], seen) for number, seen in sorted(observations.items())]
            texts = "\n\n".join(finding.text for finding in findings)
            error = NotDeterministic(
                f"Flow {self.bench.flow.name!r} is not deterministic.\n\n{texts}\n\n{end}"
            )
            error.findings = tuple(findings)
        else:
            error = NotExact(f"Flow {self.bench.flow.name!r} is not exact.\n\n{why}\n\n{end}")
        error.schedule = schedule
        return error

    def _run_again(self, schedule: Schedule) -> tuple[Trial, Trial] | None:
        """Run a schedule again after its undisturbed run, and return both; None: the flow stops without any fault."""
        self.watch.forget()
        try:
            reference = self.bench.run(schedule.reference)
            return reference, self.bench.run(schedule, reference)
        except ChainError:
            return None

    def _shows(self, numbers: set[int]) -> Callable[[Schedule], bool]:
        """Whether a schedule still shows that functions are to blame, or else that the flow is not exact."""

        def shows(schedule: Schedule) -> bool:
            pair = self._run_again(schedule)
            if pair is None:
                return False
            return bool(numbers & self.watch.observations.keys() if numbers else _why(*pair))

        return shows

    def _smaller(self, schedule: Schedule) -> Iterator[Schedule]:
        if schedule != schedule.undisturbed:
            yield schedule.undisturbed
        for index in range(len(schedule.faults)):
            yield replace(schedule, faults=(*schedule.faults[:index], *schedule.faults[index + 1 :]))
        for index in range(len(schedule.rewinds)):
            yield replace(schedule, rewinds=(*schedule.rewinds[:index], *schedule.rewinds[index + 1 :]))
        if schedule.unreachable:
            yield replace(schedule, unreachable=())
        needed = bool(schedule.rewinds) or any(fault.service == "upstream" for fault in schedule.faults)
        plain = Schedule(
            schedule.inputs,
            schedule.faults,
            schedule.rewinds,
            upstream=schedule.upstream and needed,
            unreachable=schedule.unreachable,
        )
        if plain != schedule:
            yield plain
        for inputs in drop_pieces(schedule.inputs):
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
        for point in points:
            if (
                (point.when, point.service) == (fault.when, fault.service)
                and point.write
                and point.call < fault.call
            ):
                yield replace(schedule, faults=(replace(fault, call=point.call),))

    def _proof(self, base: Trial, *, other_processes: bool) -> Proof:
        points: dict[int, tuple[int, int]] = {}
        for point in base.points:
            if point.write or point.when == "before":
                done, there = points.get(point.step, (0, 0))
                points[point.step] = done + ((point.when, point.call) in self.reached), there + 1
        not_reached = [*self.not_reached, *self._left_out(base, points)]
        if not other_processes:
            not_reached.append("other processes: other_processes=False")
        return Proof(
            flow=self.bench.flow.name,
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
        for function in self.watch.functions:
            if function.number not in called:
                yield f"{function.name}, declared at {function.node.declared_at}: no record has reached it"
            elif function.number in self.watch.not_copied:
                yield f"{function.name}, declared at {function.node.declared_at}, was not called twice: its arguments cannot be copied"
        for name in _SIDES - {point.step for point in base.points}:
            yield f"step {name}, {STEPS[name]}: the flow does nothing there"
        for topic, why in self.bench.not_upstream.items():
            yield f"replays of topic {topic!r}: {why}"
        if find_spec("time_machine") is None:
            yield needed("a later time:", "time-machine", "prove")


def _why(reference: Trial, trial: Trial) -> str:
    """Why a run is not exact; empty: it is."""
    if trial.violation is not None:
        return str(trial.violation)
    if reference.outcome is None or trial.outcome is None:
        return ""
    batches = reference.schedule.batch != trial.schedule.batch
    return reference.outcome.difference(trial.outcome, replays=trial.schedule.upstream, batches=batches) or ""
