"""Event time from batch to batch: what each partition begins with, what is released, and what outputs promise. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.flow import Flow
from sqe_chain.flow.nodes import Node, StageNode
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.plan import Plan, at_name, mark_name
from sqe_chain.segment.event_times import EventTimes, Frontier, Progress, Stated, WaitingUnits, frontier_of
from sqe_chain.segment.routes import with_route

CaughtUp = dict[str, tuple[str, ...]]
"""See `Plan.caught_up`."""
NOTHING: Final = 1
"""The watermark that promises nothing, milliseconds since 1970; 0 would be as good as absent."""


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """Event time in all input partitions at the end of a batch.

    Args:
        times: "topic/partition" -> event time there; see `Plan.times`.
        since_ms: since when partitions of which nothing is known have been looked at.
    """

    times: Mapping[str, EventTimes]
    since_ms: int
    _stated: dict[str, dict[str, Stated]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, times in self.times.items():
            stated = self._stated.setdefault(at_name(name)[0], {})
            for writer, one in times.writers.items():
                if one.stated_ms is not None:
                    before = stated.get(writer, Stated(0, 0, one.hops))
                    watermark_ms = max(one.stated_ms, before.watermark_ms)
                    heard_ms = max(one.heard_ms, before.heard_ms)
                    # Each partition knows the ways by which its own messages have come: the writer may be behind on any of them.
                    stated[writer] = Stated(watermark_ms, heard_ms, with_route(before.hops, one.hops))

    @classmethod
    def after(cls, plan: Plan) -> KnownTimes:
        """What is known after a plan."""
        return cls(plan.times, plan.clock_ms)

    def at(self, tp: TopicPartition, caught_up: CaughtUp, clock_ms: int) -> EventTimes:
        """Event time in one partition as the next batch begins.

        What a writer has stated in another partition of the topic holds in this one too, for what comes after everything that
        was there then: `caught_up` was found after the batch before was finished, so once that is read, `believe` it.

        Args:
            tp: the partition.
            caught_up: see `Plan.caught_up`.
            clock_ms: the batch's clock.
        """
        name = mark_name(*tp)
        before = self.times.get(name) or EventTimes(self.since_ms)
        found = before.copy(clock_ms=clock_ms)
        found.idle = set(caught_up.get(name, ()))
        for writer, stated in sorted(self._stated.get(tp[0], {}).items()):
            if name in caught_up:
                found.elsewhere[writer] = stated
            elif writer not in before.writers:
                found.unsure = True
        return found

    def all_at(
        self, tps: Iterable[TopicPartition], caught_up: CaughtUp, clock_ms: int
    ) -> dict[TopicPartition, EventTimes]:
        """Event time in several partitions as the next batch begins; see `at`."""
        return {tp: self.at(tp, caught_up, clock_ms) for tp in tps}

    def everybody_in(self, tps: Iterable[TopicPartition], clock_ms: int) -> CaughtUp:
        """All writers of these partitions, as `Plan.caught_up` lists them: nothing more comes there, so none is waited for."""
        ended: CaughtUp = {mark_name(*tp): () for tp in tps}
        found = {name: self.at(at_name(name), ended, clock_ms).believe() for name in ended}
        return {name: tuple(sorted(one.silent_since())) for name, one in found.items()}


def progress_of(times: Mapping[TopicPartition, EventTimes]) -> list[Progress]:
    """How far event time has come in partitions, as far as nothing is read of what the next batch begins with."""
    return [one.copy(clock_ms=one.clock_ms).believe().progress(*tp) for tp, one in times.items()]


def releases(flow: Flow, last: Plan, caught_up: CaughtUp, clock_ms: int, *, in_place: bool) -> bool:
    """Whether a batch that reads nothing would take anything that waits for event time.

    Args:
        flow: the flow.
        last: the plan before.
        caught_up: see `Plan.caught_up`.
        clock_ms: the batch's clock.
        in_place: whether level 1 runs in the reading tasks.
    """
    if not caught_up:
        return False
    found = progress_of(KnownTimes.after(last).all_at(last.ends(), caught_up, clock_ms))
    stages = {stage.name: stage for stage in flow.stages()}
    for name, one in last.waiting.items():
        stage, part = at_name(name)
        if not one.units or stage not in stages:
            continue
        topics, own = flow.topics_before(stages[stage]), in_place and flow.level(stages[stage]) == 1
        frontier = frontier_of(
            each
            for each in found
            if flow.declared_topic(each.topic) in topics and (not own or each.partition == part)
        )
        if frontier is not None and (one.frontier is None or frontier > one.frontier):
            return True
    return False


def watermarks_of(
    flow: Flow, found: Iterable[Progress], waiting: Mapping[str, WaitingUnits]
) -> dict[str, int]:
    """What each output may promise: whatever it writes from now on has this time or a later one.

    Nothing that is still to be read belongs before the watermark of its partition, and nothing that still waits in a stage
    before the frontier there. An output of which nothing is known yet promises `NOTHING`: its readers then wait, while they
    take a writer without any promise, an older one, for one whose records are in the order of their times.

    Args:
        flow: the flow.
        found: how far event time has come in all input partitions, before the batch.
        waiting: see `Plan.waiting`, of the plan before.
    """
    found = list(found)
    promised: dict[str, int] = {}
    for output in flow.outputs():
        topics = flow.topics_before(output)
        if flow.partitions is not None or any(one.name in topics for one in flow.file_sources()):
            promised[output.name] = (
                NOTHING  # nobody knows what other readers read, or which files are still to come
            )
            continue
        limits: list[Frontier | None] = [frontier_of(one for one in found if one.topic in topics)]
        for stage in _stages_before(flow, output):
            limits += [one.frontier for name, one in waiting.items() if at_name(name)[0] == stage.name]
        known = [limit.at_ms for limit in limits if limit is not None]
        promised[output.name] = max(NOTHING, min(known)) if len(known) == len(limits) else NOTHING
    return promised


def _stages_before(flow: Flow, node: Node) -> list[StageNode]:
    """The stages that what reaches a node has passed."""
    before = [flow.nodes[parent] for parent in node.parents]
    found = [one for one in before if isinstance(one, StageNode)]
    return found + [stage for one in before for stage in _stages_before(flow, one)]
