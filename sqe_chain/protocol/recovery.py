"""Step 2: finish what the run before has left, as `sqe_chain.protocol.recover` decides."""

from __future__ import annotations

from dataclasses import dataclass

from sqe_chain.ports import Header
from sqe_chain.protocol import inputs
from sqe_chain.protocol.declared import check_same_code
from sqe_chain.protocol.events import Notice, Recovered
from sqe_chain.protocol.owned_flow import Headers, OwnedFlow
from sqe_chain.protocol.planning import part_again
from sqe_chain.protocol.processing import Batch, Processor
from sqe_chain.protocol.recover import Redo, redo_of, to_redo
from sqe_chain.protocol.results import StartResult
from sqe_chain.protocol.verifying import check_redone, verify_records
from sqe_chain.task.results import Report


@dataclass(frozen=True, slots=True)
class Recovery:
    """Finishes the plans that are not finished.

    Args:
        owned: the flow, claimed and stamped by this run.
        processor: processes batches again.
    """

    owned: OwnedFlow
    processor: Processor

    def run(self, headers: Headers) -> StartResult:
        """Redo what has to be redone.

        Args:
            headers: of all state partitions, as they were found.

        Raises:
            ServiceStopped: what was counted cannot be known, or inputs are not what they were.
            Superseded: a newer run owns the flow.
        """
        owned, env, last = self.owned, self.owned.env, self.owned.last
        level_of = {stage.index: env.flow.depths[stage.index] for stage in env.flow.stages}
        numbers = to_redo(last, headers, level_of, owned.fetch)
        features = owned.features.of(last)
        publishing = (action for feature in features for action in feature.publish(owned.claim, last))
        if numbers and (not last.empty or any(publishing)):
            check_same_code(env.flow, last)
        needs_inputs = bool(numbers) and not (last.empty and numbers == [last.number])
        verify_records(env, last, owned.features, unfinished=needs_inputs)
        for number in numbers:
            plan = last if number == last.number else owned.must_fetch(number)
            before = owned.must_fetch(number - 1)
            self._redo(redo_of(plan, before, headers, level_of), headers)
            done = Header(owned.claim.epoch, owned.claim.run_id, plan.number, plan.plan_id)
            headers = {cell: h if h.number >= number else done for cell, h in headers.items()}
        if len(numbers) > 1:  # a crash leaves one unfinished plan, never two
            env.emit(
                Notice(
                    f"the store had lost acknowledged writes; plans {numbers[0]} to {numbers[-1]} were redone"
                )
            )
        result = StartResult(len(last.ranges), last.number, tuple(numbers))
        env.emit(Recovered.of(result))
        for feature in features:
            feature.recovered(last)
        if not numbers and (last.number > 0 or env.settings.accept_rollback):
            owned.applier.commit(last)
        return result

    def _redo(self, redo: Redo, headers: Headers) -> None:
        plan, owned, env = redo.plan, self.owned, self.owned.env
        infos = inputs.describe(env.flow, env.log)
        report = Report()
        if not plan.empty:  # an empty one brings in a layout, or announces states
            part = part_again(plan, redo.before, owned.features.of(plan))
            transition = owned.transition_after(redo.before)
            batch = Batch(transition, part, redo.before, infos, redo.top_level)
            report = self.processor.attempt(batch, plan.exclusions)
            check_redone(redo, report)
        owned.finish(plan, headers, report, publish=redo.publish, top_level=redo.top_level)
        env.engine.release()
