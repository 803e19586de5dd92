"""Looks in a mirror for inputs: for those that a flow has counted, those that are still to come, and those of an unfinished plan."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import chain

from sqe_chain.adapters.mirror import MirroredTopic, MirrorLog
from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.errors import EnvelopeError, GapError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.mirrored_outputs import MissingRecords
from sqe_chain.plans.plan import PlannedRange
from sqe_chain.ports import Range


def end_of_inputs(
    flow: CompiledFlow,
    before: PlannedRange,
    known: tuple[PartitionMarks, PartitionMarks],
    log: MirrorLog,
    topic: MirroredTopic,
) -> tuple[int, list[MissingRecords]]:
    """Where the inputs of an unfinished plan end in a partition of the mirror, as the flow counts. They begin where reading goes on.

    A mirror keeps the order of a partition. Take all up to the last record that the plan has counted. What is new in it to the marks of the
    plan before is what the plan has counted. All else in it are replays.

    Args:
        flow: the flow.
        before: the range of the plan before.
        known: marks of the plan before, and of the plan.
        log: the mirror.
        topic: the topic there.

    Returns:
        One past the last of them, and what is missing of them, without which nobody can finish the plan.
    """
    marks, sealed = _copy(flow, known[0]), known[1]
    wanted = {
        lane: mark.position
        for lane, mark in sealed
        if lane not in marks.lanes or marks[lane].position != mark.position
    }
    end = first = topic.first(before.partition)
    if not wanted:
        return end, []
    # A lane that is new there has one excuse for a gap. So what is before the inputs has to be seen.
    last = newest(marks) if marks.entered_in_middle else None
    stop = max(first, log.bounds([before.tp])[before.tp].stable_end)
    blocks = log.read(Range(before.topic, topic.known_id, before.partition, first, stop))
    with suppress(EnvelopeError, GapError):
        for message in chain.from_iterable(blocks):
            head, end = find_head(message.value(), message.headers()), message.offset() + 1
            if (head.lane, head.position) == last:
                last = None
            if marks.accept(head, message.offset()) and head.position == wanted.get(head.lane):
                del wanted[head.lane]
                if not wanted:
                    break
    if not wanted and last is None and marks.counts_the_same(sealed):
        return end, []
    lacking = wanted or {lane: mark.position for lane, mark in sealed}
    return first, [
        MissingRecords(
            before.tp,
            f"{lane:016x}",
            f"{before.topic}[{before.partition}] lacks inputs up to position {position.hex()} of a plan that is unfinished",
        )
        for lane, position in sorted(lacking.items())
    ]


def newest(marks: PartitionMarks) -> tuple[int, bytes] | None:
    """Lane and position of the last record of a partition that was counted; None: none was."""
    # By these, and not by a checksum of the record: an envelope ends with its own, so those of many records are the same.
    lane, mark = max(marks, key=lambda known: known[1].offset, default=(0, None))
    return None if mark is None else (lane, mark.position)


def _copy(flow: CompiledFlow, marks: PartitionMarks) -> PartitionMarks:
    """Marks that may be moved, with the settings of the flow."""
    copied = marks.copy()
    copied.max_lanes, copied.recreated = flow.max_lanes, flow.recreated
    return copied


class MirrorLook:
    """Reads what the mirror has of one partition from where the flow goes on, and finds what is missing.

    Args:
        flow: the flow.
        planned: the last range of the partition.
        known: its marks.
        accepted: see `Failover`.
        witnessed: whether the last record that was counted must be there, too.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        planned: PlannedRange,
        known: PartitionMarks,
        accepted: Collection[str],
        *,
        witnessed: bool,
    ) -> None:
        self._flow, self._planned, self._known, self._accepted = flow, planned, known, accepted
        self._last = newest(known) if witnessed else None
        self.marks = known

    def read(self, log: MirrorLog, topic: MirroredTopic) -> list[MissingRecords]:
        """What is missing. `marks` are those that the flow goes on with."""
        planned = self._planned
        begin = max(planned.stop, topic.first(planned.partition))
        end = max(begin, log.bounds([planned.tp])[planned.tp].stable_end)
        seen, self.marks = self._copy(), self._copy()
        missing, last = dict[int, MissingRecords](), self._last
        with suppress(EnvelopeError):  # the service will stop there
            for block in log.read(Range(planned.topic, topic.known_id, planned.partition, begin, end)):
                for message in block:
                    head = find_head(message.value(), message.headers())
                    if (head.lane, head.position) == last:
                        last = None
                    self._look_at(head, message.offset(), seen, missing)
        if last is not None:
            lane, position = last
            text = (
                f"{planned.topic}[{planned.partition}] ends there before position {position.hex()}, which was counted, so what came after it "
                "may be missing, too"
            )
            missing[lane] = MissingRecords(planned.tp, f"{lane:016x}", text)
        return list(missing.values())

    def _copy(self) -> PartitionMarks:
        copied = _copy(self._flow, self._known)
        # It was read up to its marks, so from now on there is no excuse for a gap.
        copied.entered_in_middle = False
        return copied

    def _look_at(
        self, head: EnvelopeHead, offset: int, seen: PartitionMarks, missing: dict[int, MissingRecords]
    ) -> None:
        try:
            seen.accept(head, offset)
        except GapError:
            known = seen.lanes.get(head.lane)
            after = "its beginning" if known is None else known.position.hex()
            text = f"{self._planned.topic}[{self._planned.partition}] lacks what is after {after}, up to {head.previous.hex()}"
            if head.lane not in missing:
                missing[head.lane] = MissingRecords(self._planned.tp, f"{head.lane:016x}", text)
                if f"{head.lane:016x}" in self._accepted:
                    self.marks.pass_over(head, offset)
            seen.pass_over(head, offset)
            seen.accept(head, offset)
