"""Who is waited for: which writers are idle, so that nobody waits for them, and which partition holds back all others.

Stages that go by event time wait for the partition that is behind. A silent one would hold back all others without end.
So once its writers are idle it counts as far as all others were `Settings.idle_ms` ago. What it brings is then appended at most
that much later than everything else of its time. A writer is idle in a partition if

* everything that is there has been read;
* nothing of it came for `Settings.idle_ms`;
* its republishers have passed on all that they had to read then. Each, from the root on, has committed
  what its topic held when the one before had done so;
* and after that there was still nothing to read.

What follows from it is sealed with the batch (`EventTime.frontier`), so that a redo repeats it whatever time it is then. A writer
that comes back with something older may be late: stages report and count it, and give it to `dropped()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.decision import CaughtUp
from sqe_chain.features.event_times import EventTime, KnownTimes, Seen, seen_by
from sqe_chain.features.observing import BatchObserver
from sqe_chain.flow.compiled import CompiledFlow, takes_times
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.layout import mark_name
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.results import BatchResult
from sqe_chain.plans.stored_plans import plan_of_a_run
from sqe_chain.ports import Bounds, StateStore, TopicPartition
from sqe_chain.task.event_times import ORIGIN, Hop

NOTICE_MS: Final = 60_000
"""After so long the first notice is emitted; each further one after twice the time."""


Ends = dict[TopicPartition, int]


@dataclass(slots=True)
class _Passage:
    """How far it is known that what was there is passed on.

    Attributes:
        since_ms: since when the writer has been silent.
        began_ms: the clock when it was begun to look.
        hops: the republishers that have to pass it on, in their order.
        ends: what the first of them has to commit; empty: not looked at yet.
        passed_ms: all that there was by this clock has been passed on; None: that is not known.
    """

    since_ms: int
    began_ms: int
    hops: tuple[Hop, ...]
    ends: Ends = field(default_factory=dict)
    passed_ms: int | None = None


@dataclass(slots=True)
class _Answers:
    """What the broker answers while one batch looks for idle writers: each question is asked once, however many partitions are silent.

    Answers are numbered in the order of their questions. What a republisher has passed on is in the log that is asked for after its
    commit. So an answer counts again only where it was given late enough.
    """

    env: Environment
    _asked: int = 0
    _infos: dict[str, Infos] = field(default_factory=dict)
    _ends: dict[str, tuple[int, Ends]] = field(default_factory=dict)
    # By identity: partitions that wait for the same ends share one object, which is kept here.
    _behind: dict[tuple[str, int], tuple[int, bool, Ends]] = field(default_factory=dict)

    def is_there(self, topic: str) -> bool:
        """Whether there is such a topic."""
        if topic not in self._infos:
            self._infos[topic] = self.env.log.describe([topic])
        return topic in self._infos[topic]

    def ends_of(self, topic: str, after: int) -> Ends:
        """Where a topic that is there ends, by an answer after this one."""
        number, ends = self._ends.get(topic, (0, {}))
        if number <= after:
            tps = inputs.partitions_of(self._infos[topic].values())
            ends = {tp: bounds.stable_end for tp, bounds in self.env.log.bounds(tps).items()}
            self._asked += 1
            self._ends[topic] = self._asked, ends
        return ends

    def is_behind(self, group: str, ends: Ends) -> tuple[int, bool]:
        """Whether a republisher has not committed all of it, and the number of the answer. One that has no commit does not exist any more."""
        if (group, id(ends)) not in self._behind:
            commits = self.env.log.committed(group, ends)
            behind = bool(commits) and any(
                end > (commits[tp].offset if tp in commits else 0) for tp, end in ends.items()
            )
            self._asked += 1
            self._behind[group, id(ends)] = self._asked, behind, ends
        number, behind, _ = self._behind[group, id(ends)]
        return number, behind


@dataclass(slots=True)
class IdleWriters:
    """Finds idle writers, batch after batch; what it has found out about republishers is kept in between."""

    env: Environment
    _passages: dict[tuple[TopicPartition, str], _Passage] = field(default_factory=dict)

    def find(
        self,
        known: KnownTimes,
        offsets: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, Bounds],
        clock_ms: int,
        seen: Seen,
        *,
        at_end: bool = False,
    ) -> CaughtUp:
        """Look which partitions are read to their end as a batch begins, and which of their writers are idle.

        Args:
            known: event time at the end of the batch before.
            offsets: where the batch begins in each partition.
            bounds: of the partitions.
            clock_ms: the batch's clock.
            seen: the latest event times that were known by some clocks.
            at_end: no more input is expected, so silence need not have lasted.
        """
        idle_ms, answers = self.env.settings.idle_ms, _Answers(self.env)
        caught_up: dict[TopicPartition, dict[str, int | None]] = {}
        for tp, offset in offsets.items():
            if offset < bounds[tp].stable_end:
                continue
            here = known.at(tp, {tp: {}}, clock_ms)
            own = caught_up.setdefault(tp, {})
            for writer, silent_ms in sorted(here.silent_since().items()):
                if not (at_end or clock_ms - silent_ms >= idle_ms):
                    continue
                passage = self._passage(tp, writer, silent_ms, here.hops_of(writer), clock_ms)
                passed_ms = _passed(passage, here.hops_of(writer), clock_ms, answers)
                if passed_ms is None:
                    continue
                latest_ms = seen_by(seen, passed_ms - idle_ms)
                if at_end or self._is_static(tp):
                    own[writer] = None
                elif latest_ms is not None:
                    own[writer] = latest_ms + 1
        return self._still_at_end(caught_up, offsets)

    def _is_static(self, tp: TopicPartition) -> bool:
        """Whether it has reference data without times: what comes there later is never late."""
        source = self.env.flow.source_of[tp[0]]
        return source is not None and source.static

    def _passage(
        self, tp: TopicPartition, name: str, since_ms: int, hops: tuple[Hop, ...], clock_ms: int
    ) -> _Passage:
        """What is known of a writer that has been silent in a partition."""
        known = self._passages.get((tp, name))
        if hops and (known is None or known.since_ms != since_ms):
            known = self._passages[tp, name] = _Passage(since_ms, clock_ms, hops)
        return known or _Passage(since_ms, clock_ms, hops)

    def _still_at_end(
        self, caught_up: dict[TopicPartition, dict[str, int | None]], offsets: Mapping[TopicPartition, int]
    ) -> CaughtUp:
        """Without partitions to which something was added meanwhile: it may be what was passed on last."""
        passed_on = [tp for tp, idle in caught_up.items() if idle.keys() - {ORIGIN}]
        if not passed_on:
            return caught_up
        bounds = self.env.log.bounds(passed_on)
        grown = {tp for tp in passed_on if bounds[tp].stable_end != offsets[tp]}
        return {tp: {} if tp in grown else idle for tp, idle in caught_up.items()}


def _passed(known: _Passage, hops: tuple[Hop, ...], clock_ms: int, answers: _Answers) -> int | None:
    """By which clock all that there was is known to have been passed on; None: by none."""
    if not hops:
        return clock_ms
    after = 0
    while known.hops:
        group, topic = known.hops[0]
        if answers.is_there(topic):
            known.ends = known.ends or answers.ends_of(topic, after)
            after, behind = answers.is_behind(group, known.ends)
            if behind:
                return known.passed_ms
        known.hops, known.ends = known.hops[1:], {}
    known.passed_ms = known.began_ms
    # The next call begins again with the first republisher: that all was passed on by now proves nothing of what comes from now on.
    known.began_ms, known.hops = clock_ms, hops
    return known.passed_ms


class Holder(NamedTuple):
    """An input partition that is behind all others.

    Attributes:
        topic: topic.
        partition: partition.
        writer: the writer there that is behind, "flow/output"; empty for what nobody republished, or when nothing has come.
        watermark_ms: up to where it is known; None: nowhere yet.
    """

    topic: str
    partition: int
    writer: str
    watermark_ms: int | None

    def __str__(self) -> str:
        by = f" (written by {self.writer})" if self.writer else ""
        return f"{self.topic}[{self.partition}]{by}"


class WaitingInputs(NamedTuple):
    """What waits for event time in one input partition.

    Attributes:
        topic: topic.
        partition: partition.
        units: how many records.
        taken_to_ms: up to where records of all partitions were taken, in event time; None: none yet.
        holder: who holds them back; None when nothing waits.
    """

    topic: str
    partition: int
    units: int
    taken_to_ms: int | None
    holder: Holder | None


def holder_of(flow: CompiledFlow, plan: Plan) -> Holder | None:
    """Who holds back what waits after a plan: the partition that is behind all others; None when nothing waits."""
    if not EventTime.of(plan).waiting:
        return None
    holders, times_after = list[Holder](), KnownTimes.after(plan)
    for planned in plan.ranges:
        if flow.declared_topic[planned.topic] not in flow.gated:
            continue
        times = times_after.at(planned.tp, {planned.tp: {}}, plan.clock_ms)
        known = {writer: times.watermark_of(writer) for writer in times.silent_since()}
        writer = min(known, key=lambda name: (known[name] is not None, known[name] or 0, name))
        holders.append(Holder(*planned.tp, writer, known[writer]))
    return min(
        holders,
        key=lambda holder: (holder.watermark_ms is not None, holder.watermark_ms or 0, holder[:2]),
        default=None,
    )


def waiting_of(flow: CompiledFlow, stage: StageNode, plan: Plan) -> list[WaitingInputs]:
    """What waits for event time after a plan in each input partition that a stage takes records of."""
    topics, holder, time = flow.topics_before[stage.index], holder_of(flow, plan), EventTime.of(plan)
    held = []
    for planned in plan.ranges:
        if flow.declared_topic[planned.topic] in topics:
            times = time.times.get(planned.tp)
            count = 0 if times is None or times.waiting is None else times.waiting.inputs
            taken_ms = time.frontier and time.frontier.at_ms
            held.append(WaitingInputs(*planned.tp, count, taken_ms, holder if count else None))
    return held


def waiting_in(home: StateStore, flow: CompiledFlow, stage: StageNode) -> list[WaitingInputs]:
    """The same, as of the last plan in the metadata store; reading it disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store, or the stage takes its records as they come.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store does not answer.
    """
    if not takes_times(stage):
        raise ConfigurationError(
            f"stage {stage.name!r} takes its records as they come, so none waits for event time; only windows, joins and filters by "
            "event time do"
        )
    return waiting_of(flow, stage, plan_of_a_run(home, flow.name))


@dataclass(slots=True)
class Holding:
    """Reports when the same partition has held back all others for long."""

    env: Environment
    _holder: Holder | None = None
    _since_ms: int = 0
    _next_ms: int = 0

    def look(self, plan: Plan) -> Holder | None:
        """Look at the last plan, after each batch and whenever there is nothing to do. Returns who holds back."""
        holder, now_ms = holder_of(self.env.flow, plan), self.env.clock.now_ms()
        if holder is None or holder != self._holder:
            self._holder, self._since_ms, self._next_ms = holder, now_ms, now_ms + NOTICE_MS
        elif now_ms >= self._next_ms:
            what = "has brought nothing" if holder.watermark_ms is None else "has not come any further"
            hint = (
                "look whether that flow runs" if holder.writer != ORIGIN else "look whether its producer runs"
            )
            self.env.emit(
                Notice(
                    f"{EventTime.of(plan).waiting} records wait for event time: {holder} {what} for {(now_ms - self._since_ms) // 1_000} s; {hint}"
                )
            )
            self._next_ms = now_ms + 2 * (now_ms - self._since_ms)
        return holder


class HoldingReports(BatchObserver):
    """Reports what waits for event time, and who holds it back."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._holding = Holding(env)

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:  # noqa: ARG002 - see `BatchObserver`
        if not self.env.flow.by_time:
            return result
        holder = self._holding.look(plan)
        name = None if holder is None else mark_name(holder.topic, holder.partition)
        return replace(
            result, held=EventTime.of(plan).waiting, holder=name, watermark_ms=holder and holder.watermark_ms
        )

    def idle(self, last: Plan) -> None:
        self._holding.look(last)
