"""Step 3: run the user's code over a batch. Nothing outside changes, so it may be done as often as need be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqe_chain.errors import PoisonError
from sqe_chain.plan import Exclusion, Plan, PlannedRange
from sqe_chain.ports import TopicInfo
from sqe_chain.protocol import inputs
from sqe_chain.protocol.planning import portions_of
from sqe_chain.protocol.surroundings import Surroundings
from sqe_chain.segment.results import Job, Report
from sqe_chain.states import Step


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be processed.

    Attributes:
        step: where headers stand before it, and who applies it.
        ranges: of the input partitions.
        before: the plan before.
        clock_ms: the batch's clock, the same in every attempt.
        infos: input topic -> what the broker says of it.
        top_level: the last level whose stages are wanted.
        exclusions: inputs that are left out whatever happens: they were, when the batch was sealed before.
    """

    step: Step
    ranges: Sequence[PlannedRange]
    before: Plan
    clock_ms: int
    infos: Mapping[str, TopicInfo]
    top_level: int
    exclusions: Sequence[Exclusion] = ()


class Processing:
    """Runs batches on the engine.

    Args:
        around: the flow and its ports.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._in_place = around.settings.in_place

    def run(self, batch: Batch) -> tuple[Report, tuple[Exclusion, ...]]:
        """Attempts until no stage fails: each without the inputs on which those before failed.

        Returns:
            The report, and what is left out: all that the plan has to say of the batch.

        Raises:
            PoisonError: an input cannot be processed; or user code fails on other inputs each time.
            RecreatedTopic: an input was created again meanwhile.
        """
        around, left_out = self._around, list(batch.exclusions)
        for attempt in range(1, around.settings.attempts + 1):
            report = self.attempt(batch, left_out)
            if not report.failed:
                topics = {planned.topic for planned in batch.ranges}
                now = around.patiently("look at the topics", partial(around.log.describe, topics))
                for planned in batch.ranges:
                    inputs.check_same(planned, now.get(planned.topic))
                for text in report.notices:
                    around.tell("notice", text=text)
                return report, tuple(left_out + report.excluded)
            around.tell("failed", attempt=attempt, inputs=len(report.failed), first=str(report.failed[0]))
            known = {(one.topic, one.partition, one.offset): one for one in (*report.failed, *left_out)}
            left_out = list(known.values())
        raise PoisonError(
            f"user code failed in {around.settings.attempts} attempts at one batch, each time on other inputs, last on "
            f"{left_out[-1]}; mend the code"
        )

    def attempt(self, batch: Batch, exclusions: Sequence[Exclusion]) -> Report:
        """Run all tasks once; again shuffled when keys do not lie where murmur2 puts them."""
        around, infos = self._around, batch.infos
        portions = portions_of(batch.ranges, batch.before, exclusions)
        max_bytes = {topic: info.max_message_bytes for topic, info in infos.items()}
        while True:
            in_place = self._in_place and self._fits_in_place(infos)
            compacted = inputs.compacted(infos)
            job = Job(batch.step, batch.clock_ms, in_place, batch.top_level, max_bytes, compacted)
            report = around.patiently("process", partial(around.engine.process, job, portions))
            if not report.strays:
                return report
            self._in_place = False
            around.tell(
                "notice", text=f"{report.strays} keys are not where murmur2 puts them: from now on shuffled"
            )

    def _fits_in_place(self, infos: Mapping[str, TopicInfo]) -> bool:
        """Whether every input has as many partitions as there are state partitions, and nothing goes to all of them."""
        flow = self._around.flow
        if any(stage.spec and stage.spec.heartbeat for stage in flow.stages()):
            return False
        return all(infos[topic].partitions == flow.state_partitions for topic in flow.input_topics())
