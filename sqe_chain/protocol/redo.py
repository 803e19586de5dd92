"""Step 2: whether what a run finds can be the work of a crash, and how it finishes the plans that are not finished.

A crash leaves every header at the last plan n or at n - 1, and no upstream header beyond a downstream one. A plan that is begun
counts as n upstream, and as n - 1 downstream. Anything else means that a store lost writes that it had acknowledged. Where it is
still certain what was counted, the lost plans are redone; otherwise the service stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import (
    RESTORE_OR_REBUILD,
    PlanMismatch,
    StoreInconsistent,
)
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.features.overwriting import unneeded_topics
from sqe_chain.features.sinks import report_flushed
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice, Recovered
from sqe_chain.plans.layout import check_same_code, mark_name
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.plans.results import StartResult
from sqe_chain.ports import Header
from sqe_chain.protocol.decide import decide_again, marks_after
from sqe_chain.protocol.finish import Headers, OwnedFlow, beside_outputs
from sqe_chain.protocol.processing import Batch, Processor
from sqe_chain.task.digest import VERSION, differing, of_cell, of_dead_letters, of_headers, of_topic
from sqe_chain.task.results import Report

_NAMED: Final = 10
"""Differing outputs and states that an error names at most."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Finishes the plans that are not finished."""

    owned: OwnedFlow
    processor: Processor

    def run(self, headers: Headers) -> StartResult:
        """Redo what has to be redone.

        Raises:
            ServiceStopped: what was counted cannot be known, or inputs are not what they were.
            Superseded: a newer run owns the flow.
        """
        owned, env, last = self.owned, self.owned.env, self.owned.last
        level_of = {stage.index: env.flow.depths[stage.index] for stage in env.flow.stages}
        numbers = to_redo(last, headers, level_of, owned.fetch)
        beside = any(beside_outputs(env, owned.claim, last))
        if self._is_done(headers, beside=beside):
            numbers = []
        plans = [last if number == last.number else owned.must_fetch(number) for number in numbers]
        needs_inputs = any(not plan.empty for plan in plans)
        if needs_inputs or (numbers and beside):
            check_same_code(env.flow, last.layout, last.number)
        verify_records(env, last, unfinished=needs_inputs)
        again = 0
        for place, plan in enumerate(plans, 1):
            before = owned.must_fetch(plan.number - 1)
            redo = redo_of(plan, before, headers, level_of)
            if place < len(plans):  # a failover after it has noted where its inputs are now
                redo = replace(redo, there=Mirrors.of(plans[place]).ranges_of(plan))
            again += self._redo(redo, headers)
            done = Header(owned.claim.epoch, owned.claim.run_id, plan.number, plan.plan_id)
            headers = {cell: h if h.number >= plan.number else done for cell, h in headers.items()}
        env.say(_reported(numbers, last))
        result = StartResult(len(last.ranges), last.number, tuple(numbers), again)
        env.emit(Recovered.of(result))
        report_flushed(env, last, env.flow.stages)
        if not numbers and (last.number > 0 or env.settings.once.accept_rollback):
            owned.commit(last)
        return result

    def _is_done(self, headers: Headers, *, beside: bool) -> bool:
        """Whether the last plan of a transactional flow without stages is known to be done.

        Raises:
            StoreInconsistent: a marker is of a later plan.
        """
        owned, last = self.owned, self.owned.last
        if owned.transactions is None:
            return False
        published = owned.transactions.has_published(last)
        if headers:  # they show it themselves
            return False
        if published and not beside:  # a marker does not prove what is beside outputs
            return True
        env = owned.env
        infos = inputs.describe(env.flow, env.log)
        return inputs.is_committed(env.flow, env.log, infos, last.plan_id)

    def _redo(self, redo: Redo, headers: Headers) -> int:
        """Finish a plan, and give how many messages were read for that."""
        plan, owned, env = redo.plan, self.owned, self.owned.env
        infos = inputs.describe(env.flow, env.log)
        report = Report()
        if not plan.empty:  # an empty one changes what the flow is, or republishes states
            decision, before = decide_again(env.flow, plan, redo.before), redo.before
            if redo.there is not None:
                decision, before = replace(decision, ranges=redo.there), _without_leaders(before)
            transition = owned.transition_after(redo.before)
            batch = Batch(transition, decision, before, infos, redo.top_level)
            report = self.processor.attempt(batch, plan.exclusions)
            check_redone(redo, report)
            self._check_given(redo, headers, report)
        owned.finish(plan, headers, report, publish=redo.publish, top_level=redo.top_level)
        env.engine.release()
        return report.inputs

    def _check_given(self, redo: Redo, headers: Headers, report: Report) -> None:
        """Check that a redo gives what was sealed, as far as it still gives it.

        Raises:
            PlanMismatch: it gives something else. Nothing of that is published or written.
        """
        env, sealed = self.owned.env, redo.plan.gives
        if sealed is None:  # an older version has sealed it
            return
        names = [
            of_cell(env.flow.stage_at(stage).name, part)
            for (stage, part), header in headers.items()
            if _is_before(header, redo)
        ]
        if redo.publish:
            topics = [node.topic for node in env.flow.outputs]
            # Links name the offsets of inputs, which are others in another cluster.
            names += map(of_topic, topics) if redo.there is None else ()
            if VERSION in sealed:  # an older version has not looked at these
                names += [*map(of_headers, topics), of_dead_letters(env.flow.dead_letter_topic)]
        different = [*differing(sealed, report.gives, names), *_other_lanes(redo, report)]
        if not different:
            return
        text = (
            f"plan {redo.plan.number}: its redo gives something else than what was sealed, in {', '.join(different[:_NAMED])}. Expected the "
            "code that sealed it, or functions that give the same each time. Run that code with --once, then this one; or go "
            "on with --accept-changed-batch: receivers and states keep what they have of it"
        )
        if not env.settings.once.accept_changed_batch:
            raise PlanMismatch(text)
        env.emit(Notice(text))


def _without_leaders(plan: Plan) -> Plan:
    """The plan without leaders of its cluster, which are unknown to another one."""
    return replace(plan, ranges=tuple(replace(planned, last_epoch=0) for planned in plan.ranges))


def _other_lanes(redo: Redo, report: Report) -> list[str]:
    """Output partitions in which lanes end elsewhere than was sealed, where that is all that can be compared."""
    sealed = redo.plan.published
    if not redo.publish or redo.there is None or sealed is None or sealed.since == redo.plan.number:
        return []
    return [mark_name(*tp) for tp, ends in report.lane_ends.items() if sealed.ends.get(tp) != ends]


def _is_before(header: Header, redo: Redo) -> bool:
    """Whether a state partition has nothing of a plan yet, so that its redo gives all of its states."""
    begun = header.number == redo.before.number and header.begun_id == redo.plan.plan_id
    return header.number < redo.plan.number and not begun


@dataclass(frozen=True, slots=True)
class Redo:
    """A plan to finish.

    Attributes:
        plan: the plan.
        before: the plan before it.
        publish: its outputs may be unpublished, so they are published.
        top_level: the highest level that has something to write.
        there: its ranges in the cluster to which the flow was failed over meanwhile; None: it reads its own.
    """

    plan: Plan
    before: Plan
    publish: bool
    top_level: int
    there: tuple[PlannedRange, ...] | None = None


def _reported(numbers: list[int], last: Plan) -> list[str]:
    """What to report of plans that were redone: a crash leaves one unfinished plan, and a failover one before its own."""
    moved = Mirrors.of(last).unfinished is not None
    texts = []
    if moved and last.number - 1 in numbers:
        texts.append(f"plan {last.number - 1} was finished with what this cluster has of its inputs")
    if len(numbers) > 1 + moved:
        texts.append(
            f"the store had lost acknowledged writes; plans {numbers[0]} to {last.number} were redone"
        )
    return texts


def to_redo(
    last: Plan, headers: Headers, level_of: Mapping[int, int], fetch: Callable[[int], Plan | None]
) -> list[int]:
    """The numbers of the plans that have to be finished, oldest first.

    Args:
        last: the last plan, n.
        headers: (stage index, cell) -> header, stamped by this run. Without any, which is a flow without stages, nobody knows whether
            the last plan was published, so it is redone, unless nothing was.
        level_of: stage index -> its level.
        fetch: gives a plan by its number; None when the log has dropped it.

    Returns:
        Empty when every header is at n. More than one number when the store lost acknowledged writes, and they
        can be redone.

    Raises:
        StoreInconsistent: what was counted cannot be known.
    """
    if not headers:
        published = last.empty or last.layout.stages or last.number == 0
        return [] if published else [last.number]
    for cell, header in headers.items():
        _check_known(cell, header, last, fetch)
    _check_order(headers, level_of)
    lowest = min(header.number for header in headers.values())
    numbers = list(range(lowest + 1, last.number + 1))
    # The lowest too: a redo begins with the marks and offsets of the plan before it.
    for number in (lowest, *numbers):
        if number < last.number and fetch(number) is None:
            raise StoreInconsistent(
                f"a state partition is at plan {lowest}, the last plan is {last.number}, and plan {number} is no "
                f"longer kept: the store lost acknowledged writes; {RESTORE_OR_REBUILD}"
            )
    return numbers


def redo_of(plan: Plan, before: Plan, headers: Headers, level_of: Mapping[int, int]) -> Redo:
    """How to finish a plan, with the headers as they are now.

    Persisting starts when all outputs are acknowledged. So one header that has reached or begun the plan proves that
    everything was published. Then nothing is published again, and levels above the last unfinished one do not run.
    """
    reached = any(
        header.number >= plan.number or (header.number == before.number and header.begun_id == plan.plan_id)
        for header in headers.values()
    )
    unfinished = [level_of[stage] for (stage, _), header in headers.items() if header.number < plan.number]
    return Redo(plan, before, not reached, max(unfinished) if reached and unfinished else 1 << 30)


def _check_known(
    cell: tuple[int, int], header: Header, last: Plan, fetch: Callable[[int], Plan | None]
) -> None:
    where = f"stage {cell[0]}, state partition {cell[1]}"
    if header.number > last.number:
        raise StoreInconsistent(
            f"{where}: is at plan {header.number}, but the metadata store's last plan is {last.number}: the metadata store "
            f"went back in time; {RESTORE_OR_REBUILD}"
        )
    plan = last if header.number == last.number else fetch(header.number)
    if plan is not None and plan.plan_id != header.plan_id:
        raise StoreInconsistent(
            f"{where}: is at plan {header.number} with id {header.plan_id}, but {plan.plan_id} was sealed: two histories "
            f"are mixed, a store went back in time; {RESTORE_OR_REBUILD}"
        )
    if header.begun_id:
        begun = last if header.number + 1 == last.number else fetch(header.number + 1)
        if begun is None or begun.plan_id != header.begun_id:
            raise StoreInconsistent(
                f"{where}: has begun a plan {header.begun_id} that was never sealed after {header.number}: the metadata "
                f"store went back in time; {RESTORE_OR_REBUILD}"
            )


def _check_order(headers: Headers, level_of: Mapping[int, int]) -> None:
    """Check that no upstream header is beyond a downstream one.

    An upstream stage that has reached a plan emits nothing in its redo, so a downstream stage before that plan would
    never get the events.
    """
    for level in range(1, max(level_of.values(), default=0)):
        upstream = [header for (stage, _), header in headers.items() if level_of[stage] <= level]
        downstream = [header for (stage, _), header in headers.items() if level_of[stage] > level]
        if not upstream or not downstream:
            continue
        # Of a begun plan some keys are written: those emit nothing any more, so it counts as reached.
        most = max(header.number + (1 if header.begun_id else 0) for header in upstream)
        least = min(header.number for header in downstream)
        if most > least:
            raise StoreInconsistent(
                f"a stage has reached plan {most}, but a stage after it is at {least}. A redo does not emit again what the first "
                f"has emitted, so the second has lost it. A store lost acknowledged writes; {RESTORE_OR_REBUILD}"
            )


def verify_records(env: Environment, last: Plan, *, unfinished: bool) -> None:
    """Check that the inputs are still what the last plan has read: read the last record of each range again.

    Args:
        env: the flow and its ports.
        last: the last plan.
        unfinished: the plan has to be redone, so all of its records are needed.

    Raises:
        RecreatedTopic, TruncatedInput, LostOffsets, PartitionsMismatch: they are not.
    """
    infos = env.log.describe({planned.topic for planned in last.ranges})
    unneeded = unneeded_topics(env, last, infos)
    ranges = []
    for planned in last.ranges:
        if planned.topic in unneeded and not (unfinished and planned.reads):
            continue
        if not unfinished and same_inputs.is_new_root(
            env.flow, planned.topic, planned.topic_id, infos.get(planned.topic)
        ):
            continue
        same_inputs.check_same(planned, infos.get(planned.topic))
        ranges.append(planned)
    bounds, needed = env.log.bounds([planned.tp for planned in ranges]), needed_offsets(last)
    for planned in ranges:
        first = planned.begin if unfinished else needed[planned.tp]
        inputs.check_bounds(planned.tp, first, bounds[planned.tp])
    compacted = inputs.compacted_topics(infos)
    kept = [planned for planned in ranges if planned.topic not in compacted]
    for planned in same_inputs.check_last_records(env.log, kept, bounds):
        where = f"{planned.topic}[{planned.partition}]"
        env.emit(Notice(f"{where}: the last record read has aged out, it could not be compared"))


def check_redone(redo: Redo, report: Report) -> None:
    """Check that a redo ends at the marks of its plan.

    Raises:
        PlanMismatch: it does not, or user code fails that did not fail before the seal.
    """
    plan = redo.plan
    if report.failed or report.excluded:
        raise PlanMismatch(
            f"plan {plan.number}: user code fails on {(report.failed + report.excluded)[0]}, but did not fail "
            "when the plan was sealed. Run the code that sealed it until it has finished"
        )
    if report.broken:
        raise PlanMismatch(
            f"plan {plan.number} was sealed, and its redo fails where it did not fail before: {report.broken[0]}. Run the code "
            "that sealed it until it has finished"
        )
    marks = marks_after(redo.before, report)
    off = [mark_name(*tp) for tp, mark in plan.marks.items() if not _ends_at(redo, mark, marks.get(tp))]
    if off:
        raise PlanMismatch(
            f"plan {plan.number}: its redo ends at other marks in {', '.join(off)}: the input or the code changed. Run the code "
            "that sealed it, or restore the input"
        )


def _ends_at(redo: Redo, sealed: PartitionMarks, reached: PartitionMarks | None) -> bool:
    """Whether a redo ends at the sealed marks of a partition. In another cluster records have other offsets."""
    if redo.there is None:
        return reached == sealed
    return reached is not None and reached.counts_the_same(sealed)
