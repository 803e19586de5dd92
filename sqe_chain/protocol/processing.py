"""Step 3: run the user's code over a batch. Nothing outside changes, so it can be repeated as often as needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqe_chain.errors import PoisonError
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.overwriting import unneeded_topics
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Failed, Notice, Shuffled
from sqe_chain.plans.plan import Plan, PlannedRange, as_range
from sqe_chain.ports import TopicInfo, TopicPartition
from sqe_chain.protocol.decide import given_to_tasks
from sqe_chain.task.exclusion import Exclusion, SkipLimit
from sqe_chain.task.parking import ParkedRecord
from sqe_chain.task.results import Job, Portion, Report
from sqe_chain.task.states import Transition

MAX_EXCLUSIONS = 2_000
"""Inputs that one plan skips at most, because it lists them. A batch with more of them is made smaller."""
# With error texts of 500 characters each that is about a megabyte. A store takes a plan of several, by its default settings.

CAREFUL_BATCHES = 20
"""Batches after one with a failed stage that are folded with care from the beginning."""
# Inputs that fail come in groups, and a batch that finds one without care is run again as a whole. Care keeps states so that they can be taken back.

ONE_BY_ONE = 5
"""Inputs that are skipped one by one where filters cannot try them; after that, all that fail in an attempt."""
# A typo may fail all inputs of a batch: then five attempts show it, and another one for each input would never end. The price is that
# a sound input, which fails only because of another, is skipped after the fifth.

Coordinates = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class TooManyForOnePlan(Exception):
    """The batch would skip more inputs than a plan lists.

    Attributes:
        records: what the batch would read.
    """

    records: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be processed.

    Attributes:
        transition: from the plan before to the batch's, and who applies it.
        decision: what it reads and does.
        before: the plan before.
        infos: input topic -> what the broker reports of it.
        top_level: the last level whose stages are wanted.
    """

    transition: Transition
    decision: BatchDecision
    before: Plan
    infos: Mapping[str, TopicInfo]
    top_level: int


class Candidates:
    """Inputs on which a stage has failed, until it is known of each whether it fails by itself.

    Before an input fails it may have changed other keys and deeper stages, and sound inputs may fail because of that.
    So the next attempt retries alone all that failed (`Job.candidates`): each is processed and taken back. Those that
    fail then are skipped, and the others are cleared, once. A filter cannot take an input back. In a flow that
    has one, inputs are at first skipped one by one, the earliest of those that failed.
    """

    def __init__(self, *, can_try: bool) -> None:
        # What the next attempt tries, or skips where it cannot try. Cleared inputs never come back by `judge`, so attempts end.
        self.known: dict[Coordinates, Exclusion] = {}
        self._can_try = can_try
        self._cleared: set[Coordinates] = set()

    def add(self, failed: Sequence[Exclusion]) -> None:
        """Try these, too."""
        self.known |= _by_coordinates(failed)

    def judge(self, failed: Sequence[Exclusion]) -> bool:
        """Judge by an attempt.

        Returns:
            Whether the attempt was the last: all candidates have failed again, and nothing else has.
        """
        outcomes = _by_coordinates(failed)
        fresh = outcomes.keys() - self.known.keys()
        cleared = set[Coordinates]()
        if self._can_try:
            cleared = self.known.keys() - outcomes.keys() - self._cleared
        elif fresh and len(self.known) < ONE_BY_ONE:
            outcomes = {min(fresh): outcomes[min(fresh)]}
        for coordinates in cleared:
            del self.known[coordinates]
        self._cleared |= cleared
        self.known |= outcomes
        return not fresh and not cleared


def _by_coordinates(failed: Sequence[Exclusion]) -> dict[Coordinates, Exclusion]:
    return {(failing.topic, failing.partition, failing.offset): failing for failing in failed}


class Processor:
    """Runs batches on the engine."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        # Once a key was found elsewhere it stays False: until the next start each batch is shuffled.
        self._in_place = env.settings.in_place
        # What waits is not lost, and has a limit of its own.
        share = 1.0 if env.flow.poison == "park" else env.settings.max_excluded_share
        self._skip_limit = SkipLimit(env.settings.max_excluded, share)
        self._leaves_out = env.flow.poison != "stop"
        # A state must be storable after each input: who checks that only at the end finds other inputs to blame.
        states = [stage.codec for stage in env.flow.stages if stage.codec is not None]
        self._always_careful = self._leaves_out and not all(codec.self_checking for codec in states)
        self._careful_batches = 0  # that are still to be folded with care; a run begins without
        self._can_try = env.flow.reversible

    def run(self, batch: Batch) -> tuple[Report, tuple[Exclusion, ...]]:
        """Process the batch until no stage fails on anything that is not skipped.

        Returns:
            The report of the last attempt, which is what a redo gives, and the skipped inputs.

        Raises:
            PoisonError: an input cannot be processed, or something fails that no single input has caused.
            TooManyExcluded: the poison policy would skip more than it may.
            TooManyForOnePlan: make the batch smaller.
            RecreatedTopic: an input was created again while it was read.
        """
        env, candidates = self._env, Candidates(can_try=self._can_try)
        attempt = 1
        # Bounded by the inputs of the batch: each attempt but the last finds one more that fails, or clears one.
        while True:
            known = tuple(candidates.known.values())
            report = self.attempt(batch, batch.decision.sealed or (), candidates=known)
            if candidates.judge(report.failed):
                if not known:
                    break
                # Once again without trying them: an input that was taken back may have moved the stream time of states, and a redo skips it.
                report = self.attempt(batch, (*(batch.decision.sealed or ()), *known))
                if not report.failed:
                    break
                candidates.add(report.failed)
            if report.failed:
                first = str(report.failed[0])
                env.emit(Failed(attempt, len(report.failed), first))
            attempt += 1
        if report.broken:
            raise PoisonError(report.broken[0])
        exclusions = (*candidates.known.values(), *report.excluded)
        limit = self._check_skipped(batch, exclusions, report.fresh)
        # A batch takes one input of each partition at least, so no smaller batch would have fewer of them.
        if len(exclusions) > max(MAX_EXCLUSIONS, len(batch.decision.ranges)):
            if (
                batch.decision.sealed is not None
            ):  # it was perhaps published in part, so it is never made smaller
                raise PoisonError(
                    f"flow {env.flow.name!r}: a batch that was published in part has to be repeated as it was sealed. "
                    "But more of its inputs fail now than one plan can list. Run the code that sealed it"
                )
            raise TooManyForOnePlan(sum(planned.stop - planned.begin for planned in batch.decision.ranges))
        self._skip_limit = limit
        self._careful_batches = CAREFUL_BATCHES if candidates.known else max(0, self._careful_batches - 1)
        self._check_topics(batch)
        for text in report.notices:
            env.emit(Notice(text))
        return report, (*(batch.decision.sealed or ()), *exclusions)

    def _check_skipped(self, batch: Batch, exclusions: Sequence[Exclusion], read: int) -> SkipLimit:
        """Check that the batch does not skip too much, or what was counted before; gives the limit after it."""
        if batch.decision.releasing is not None:  # what fails again has been skipped before
            return self._skip_limit
        # A silent batch publishes no dead-letter record, so this input would be gone without a trace.
        lost = next((own for own in exclusions if own.policy == "dead_letter"), None)
        if batch.decision.silent and lost is not None:
            raise PoisonError(
                f"flow {self._env.flow.name!r}: {lost} cannot be processed now. The flow had read it before, and it is not in the dead-letter "
                "topic, so it was counted. Expected code that processes it. Fix the code, then fold again; or declare poison='skip' while "
                "you fold, to leave out what fails"
            ).at(lost.topic, lost.partition, lost.offset)
        self._skip_limit.check(self._env.flow.name, exclusions, read)
        return self._skip_limit.after(len(exclusions), read)

    def _check_topics(self, batch: Batch) -> None:
        """Check that no topic was created again while it was read.

        Fetches carry no topic ids. If the ids are the same before and after, what was read in between is of these topics.
        """
        unneeded = unneeded_topics(self._env, batch.before, batch.infos)
        ranges = [
            planned for planned in batch.decision.ranges if planned.reads or planned.topic not in unneeded
        ]
        now = self._env.log.topic_ids({planned.topic for planned in ranges})
        for planned in ranges:
            same_inputs.check_same_id(planned, now.get(planned.topic))

    def attempt(
        self, batch: Batch, exclusions: Sequence[Exclusion], *, candidates: Sequence[Exclusion] = ()
    ) -> Report:
        """Run all tasks once. If keys do not lie where murmur2 puts them, run them again, shuffled; if a stage fails, with care.

        Without a shuffle, units of such keys are folded in the wrong task or not at all. So until it is known that there are
        none, an error of user code proves nothing.

        Args:
            batch: what is to be processed.
            exclusions: what is skipped.
            candidates: inputs that are retried alone: each is processed and taken back.
        """
        env, infos, decision, before = self._env, batch.infos, batch.decision, batch.before
        portions = portions_of(decision, before, (*exclusions, *candidates))
        sections = given_to_tasks(env, before, decision)
        tried = frozenset(
            [(candidate.topic, candidate.partition, candidate.offset) for candidate in candidates]
        )
        careful = self._always_careful or bool(candidates) or self._careful_batches > 0
        in_place = self._in_place and self._fits_in_place(infos)
        while True:  # at most three times: with care, and with a shuffle
            job = Job(
                batch.transition,
                decision.clock_ms,
                in_place,
                batch.top_level,
                # Without topics outputs are not compared with what these accept now: they were accepted when the batch was sealed.
                {} if decision.sealed is not None else infos,
                inputs.compacted_topics(infos),
                tried,
                careful,
                sections,
            )
            try:
                # Repeated as one: its tasks read records and states with many calls, and write nothing.
                report = env.retry.call("process", partial(env.engine.process, job, portions))
            except PoisonError:
                if self._leaves_out and not careful:
                    careful, self._careful_batches = True, CAREFUL_BATCHES
                    continue
                if not job.in_place:
                    raise
            else:
                if report.broken and self._leaves_out and not careful:
                    careful = True
                    continue
                if not report.mispartitioned:
                    report.placed = job.in_place
                    return report
                stages = tuple(stage.name for stage in env.flow.levels[0])
                env.emit(Shuffled(stages, report.mispartitioned))
            self._in_place = in_place = False

    def _fits_in_place(self, infos: Mapping[str, TopicInfo]) -> bool:
        """Whether every input has as many partitions as there are state partitions, and no stage has heartbeats.

        A heartbeat goes to all state partitions, which takes a shuffle.
        """
        flow = self._env.flow
        if not flow.fits_in_place or (flow.file_sources and flow.state_partitions != 1):
            return False
        return {infos[topic].partitions for topic in flow.input_topics} <= {flow.state_partitions}


def _needed(decision: BatchDecision) -> Sequence[PlannedRange]:
    """The ranges that tasks get: those that are read, and empty ones so that stages are woken that have something to do."""
    moments, all_ranges = decision.moments, decision.ranges
    if decision.wakes_all:
        return all_ranges
    reads = [planned for planned in all_ranges if planned.reads]
    if moments is None or not (parts := moments.parts):
        return reads
    # Without a shuffle, the task of a state partition is the one that reads the partitions of its number.
    needed = [planned for planned in all_ranges if planned.reads or planned.partition in parts]
    return needed or all_ranges


def portions_of(decision: BatchDecision, before: Plan, exclusions: Sequence[Exclusion]) -> list[Portion]:
    """What the tasks read, with marks and exclusions."""
    known, portions, releasing = before.ends(), list[Portion](), decision.releasing
    excluded = defaultdict[TopicPartition, list[Exclusion]](list)
    for exclusion in exclusions:
        excluded[exclusion.topic, exclusion.partition].append(exclusion)
    parked = defaultdict[TopicPartition, list[ParkedRecord]](list)
    for record in () if releasing is None else releasing.records:
        parked[record.tp].append(record)
    for planned in _needed(decision):
        tp = planned.tp
        portions.append(
            Portion(
                as_range(planned, known[tp].last_epoch),
                before.marks[tp],
                tuple(excluded.get(tp, ())),
                decision.times.get(tp),
                planned.start,
                tp in decision.at_end,
                tuple(parked.get(tp, ())),
            )
        )
    return portions
