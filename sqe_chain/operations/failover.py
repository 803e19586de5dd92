"""Moves a flow to another Kafka cluster, which mirrors its inputs: one plan, under a claim, by which it goes on reading there.

Marks are of lanes, so whatever the mirror repeats is dropped. Offsets are of a cluster: the plan notes where each partition goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sqe_chain.adapters.mirror import MirroredTopic, MirrorLog
from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import (
    ChainError,
    ConfigurationError,
    EnvelopeError,
    GapError,
    PartitionsMismatch,
    ServiceStopped,
)
from sqe_chain.features.announcing import Announcing
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.noting import CodecNotes
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.mirrored_outputs import MissingRecords, missing_outputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Marks, check_layout
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.plans.planning import plan_after
from sqe_chain.plans.stored_plans import check_sections, plan_of_a_run
from sqe_chain.ports import Header, Message, Range, TopicInfo
from sqe_chain.protocol.claim import beat, check_claim, claim, release, stamp
from sqe_chain.protocol.finish import PlanLog
from sqe_chain.task.exclusion import record_crc
from sqe_chain.task.states import Claim

MARGIN_MS: Final = 300_000
"""How long before the last record of each partition reading goes on, in milliseconds: what is read again costs only time."""
_SURVIVING: Final = {Mirrors.name, CodecNotes.name, Announcing.name, EventTime.name, Lanes.name}
"""Sections of plans that hold no offsets, or such that stay true: offsets go on where the flow had read to."""
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class FailedOver:
    """What a failover has done.

    Attributes:
        plan: number of its plan.
        cluster: id of the cluster in which the flow goes on.
        topics: input or output topic -> its topic there.
        accepted: what is missing there, and was accepted.
    """

    plan: int
    cluster: str
    topics: Mapping[str, str]
    accepted: tuple[MissingRecords, ...]


def check_may_fail_over(flow: CompiledFlow) -> None:
    """Check that all that a flow knows of its inputs is bound to lanes, and that it leaves nothing in the old cluster.

    Raises:
        ConfigurationError: it is not; the text names why.
    """
    without = [
        ("has no stages: its progress is in its group's commits, which are offsets", not flow.stages),
        ("reads files", bool(flow.file_sources)),
        *(
            (
                f"reads {', '.join(source.topics)} without envelopes: a mirror changes offsets, and a raw record is known by nothing else",
                source.raw,
            )
            for source in flow.sources
        ),
        ("publishes records with SQE's keys, which name no lane", flow.writes_sqe),
        ("is transactional", flow.transactional),
        (
            f"has poison={flow.poison!r}: what it noted of failed records is in the old cluster, or by offset",
            flow.poison != "stop",
        ),
        (f"has timers in stage {', '.join(sorted(flow.ticking))}", bool(flow.ticking)),
        ("takes its inputs by event time", flow.by_time),
        ("allows compacted inputs, in which nobody notices a gap", flow.allow_compacted),
        ("is one of several readers", flow.partitions is not None),
    ]
    for why, holds in without:
        if holds:
            raise ConfigurationError(
                f"flow {flow.name!r} {why}. Expected a flow with stages, all of whose inputs are envelopes that flows have published, with "
                "poison='stop', without event time and timers. Begin in the other cluster under another flow name"
            )


@dataclass(slots=True)
class Failover:
    """Moves a flow to the cluster of `env`. May be killed and repeated: before its plan is sealed, nothing is noted.

    Args:
        env: the flow, with its stores, and the other cluster as its log.
        names: input or output topic as the flow declares it -> its topic there, where it has another name.
        margin_ms: see `MARGIN_MS`.
        accepted: lanes on which records may be missing; see `MissingRecords.lane`.
    """

    env: Environment
    names: Mapping[str, str]
    margin_ms: int = MARGIN_MS
    accepted: Collection[str] = ()
    _mine: Claim | None = None

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        return beat(self.env, self._mine)

    def run(self) -> FailedOver:
        """Look first, then claim, look again, and seal the plan. The service starts in the other cluster then.

        Raises:
            ConfigurationError: the flow, a topic or a lane is none that this can be done with; or the flow is there already.
            GapError: the mirror has not received records, and that is not accepted; the text names their lanes.
            ServiceStopped: a plan is unfinished.
            Superseded: another run has claimed the flow.
        """
        env = self.env
        check_may_fail_over(env.flow)
        self._plan_after(
            plan_of_a_run(env.home, env.flow.name), Claim(0, "")
        )  # refused without touching the flow
        self._mine, home = claim(env, dict)
        try:
            plans = PlanLog(env, home)
            last = plans.read_last()
            check_layout(env.flow, last.layout, ())
            _check_finished(env.flow, last, stamp(env, self._mine, last).values())
            plan, accepted = self._plan_after(last, self._mine)
            check_claim(env, self._mine)
            plans.write(plan)
        finally:
            with suppress(ChainError):  # then the next run waits until the heartbeat has stopped
                release(env, self._mine)
        mirrors = Mirrors.of(plan)
        names = {name: topic.name for name, topic in mirrors.topics.items()}
        return FailedOver(plan.number, mirrors.cluster, names, accepted)

    def _plan_after(self, last: Plan, mine: Claim) -> tuple[Plan, tuple[MissingRecords, ...]]:
        """The plan of the failover, and what is missing and accepted."""
        env = self.env
        _check_plan(env.flow, last)
        infos = self._describe(last)
        cluster = next(iter(infos.values())).cluster
        mirrors = self._mirrors(last, cluster, infos)
        log = MirrorLog(env.ports.log, mirrors.cluster, mirrors.topics)
        marks, missing, again = Marks(), list[MissingRecords](), mirrors == Mirrors.of(last)
        for planned in last.ranges:
            look = _Look(env.flow, planned, last.marks[planned.tp], self.accepted, witnessed=not again)
            missing += env.retry.call(
                "read the mirror", partial(look.read, log, mirrors.topics[planned.topic])
            )
            marks[planned.tp] = look.marks
        if not again:
            missing += env.retry.call("look for outputs", partial(missing_outputs, env.flow, last, log))
        self._check_accepted(missing)
        if again and not missing:
            raise ConfigurationError(
                f"flow {env.flow.name!r} reads cluster {cluster} since a failover already. Expected another one, or records that are missing. "
                "Start its service there"
            )
        ranges = tuple(_moved(planned, again=again) for planned in last.ranges)
        layout = replace(last.layout, cluster=cluster)
        plan = plan_after(last, mine, env.clock.now_ms(), layout, ranges, marks)
        if plan.published is not None:
            lost = {records.lane for records in missing}
            plan = replace(plan, published=plan.published.without(lost))
        return plan.carried_from(last, [mirrors]).with_id(), tuple(missing)

    def _describe(self, last: Plan) -> dict[str, TopicInfo]:
        """The topics that hold inputs and outputs, by the names that the flow has for them."""
        env, known = self.env, last.layout.sources
        needed = sorted({*known, *env.flow.written_topics})
        unknown = sorted(self.names.keys() - set(needed))
        names = {topic: self.names.get(topic, topic) for topic in needed}
        if unknown or len(set(names.values())) < len(names):
            raise ConfigurationError(
                f"flow {env.flow.name!r}: --topics gives {dict(self.names)}. Expected another topic for each of its inputs and outputs: "
                f"{', '.join(needed)}. Give NAME=TOPIC for those that have other names"
            )
        infos = env.log.describe(names.values())
        absent = sorted(name for name in names.values() if name not in infos)
        if absent:
            raise ConfigurationError(
                f"flow {env.flow.name!r}: {', '.join(absent)} not found in the other cluster. Expected the mirrors of its inputs and outputs. "
                "Give their names with --topics NAME=TOPIC"
            )
        for topic, name in names.items():
            partitions = _partitions_of(topic, env.flow, last)
            if infos[name].partitions < partitions:
                raise PartitionsMismatch(
                    f"{name!r} in the other cluster has {infos[name].partitions} partitions, and the flow knows {partitions} of {topic!r}. "
                    "Expected as many at least. Mirror it with the same partitions"
                )
            if infos[name].compacted and topic in known:
                raise ConfigurationError(
                    f"{name!r} in the other cluster is compacted. Expected all records. Mirror it without compaction"
                )
        return {topic: infos[name] for topic, name in names.items()}

    def _mirrors(self, last: Plan, cluster: str, infos: Mapping[str, TopicInfo]) -> Mirrors:
        """Where reading goes on."""
        flow, before = self.env.flow, Mirrors.of(last)
        if not cluster or not last.layout.cluster:
            raise ConfigurationError(
                f"flow {flow.name!r}: the id of {'this' if not cluster else 'the old'} cluster is not known. Expected brokers that report it. "
                "Without it nobody could refuse a start in the wrong one"
            )
        if cluster == last.layout.cluster:
            noted = {topic: (known.name, known.topic_id) for topic, known in before.topics.items()}
            # An output that was declared since then is in this cluster by its own name.
            mirrored = [topic for topic in infos if topic in noted or topic in last.layout.sources]
            if noted != {topic: (infos[topic].name, infos[topic].topic_id) for topic in mirrored}:
                raise ConfigurationError(
                    f"flow {flow.name!r} reads cluster {cluster} already, and there not these topics. Expected the address of another one. "
                    "Give it with --kafka"
                )
            return before
        begins: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in infos}
        sources = last.layout.sources
        for planned in last.ranges:
            there = self._first_offset(planned, last.marks[planned.tp], infos[planned.topic])
            begins[planned.topic][planned.partition] = planned.stop, there
        return Mirrors(
            cluster,
            {
                topic: MirroredTopic(
                    info.name,
                    info.topic_id,
                    bytes.fromhex(sources[topic][0]) if topic in sources else info.topic_id,
                    begins[topic],
                )
                for topic, info in infos.items()
            },
        )

    def _first_offset(self, planned: PlannedRange, marks: PartitionMarks, info: TopicInfo) -> int:
        """Where to begin in a partition of the other cluster, as it counts: at or before all that was not counted."""
        log, tp = self.env.log, (info.name, planned.partition)
        begin = log.bounds([tp])[tp].begin
        if planned.last_timestamp_ms >= 0:
            return max(begin, log.offsets_at([tp], max(0, planned.last_timestamp_ms - self.margin_ms))[tp])
        if marks.entered_in_middle and not marks.lanes:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r} began in the middle of {planned.topic}[{planned.partition}], and has read nothing of it since. "
                "Expected a record by whose time its place in the other cluster is found. Begin there under another flow name"
            )
        return begin

    def _check_accepted(self, missing: Collection[MissingRecords]) -> None:
        refused = [records for records in missing if records.lane not in self.accepted]
        if refused:
            more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
            raise GapError(
                f"flow {self.env.flow.name!r}: the other cluster lacks records. Lane {'; lane '.join(f'{records.lane}: {records.text}' for records in refused[:_SHOWN])}"
                f"{more}. Expected all that was published. Nothing was changed. Wait until the mirror has received them, or accept their loss with "
                "--accept-missing LANE for each of these lanes"
            )


class _Look:
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
        self._witnessed = witnessed and planned.last_crc >= 0 and len(known) > 0
        self.marks = known

    def read(self, log: MirrorLog, topic: MirroredTopic) -> list[MissingRecords]:
        """What is missing. `marks` are those that the flow goes on with."""
        planned = self._planned
        begin = max(planned.stop, topic.first(planned.partition))
        end = max(begin, log.bounds([planned.tp])[planned.tp].stable_end)
        seen, self.marks = self._copy(), self._copy()
        missing, has_last = dict[int, MissingRecords](), not self._witnessed
        with suppress(EnvelopeError):  # the service will stop there
            for block in log.read(Range(planned.topic, topic.known_id, planned.partition, begin, end)):
                for message in block:
                    has_last |= record_crc(message.key(), message.value()) == planned.last_crc
                    self._look_at(message, seen, missing)
        if not has_last:
            lane, mark = max(self._known, key=lambda known: known[1].offset)
            text = (
                f"{planned.topic}[{planned.partition}] ends there before position {mark.position.hex()}, which was counted, so what came after it "
                "may be missing, too"
            )
            missing[lane] = MissingRecords(planned.tp, f"{lane:016x}", text)
        return list(missing.values())

    def _copy(self) -> PartitionMarks:
        copied = self._known.copy()
        copied.max_lanes, copied.recreated = self._flow.max_lanes, self._flow.recreated
        # It was read up to its marks, so from now on there is no excuse for a gap.
        copied.entered_in_middle = False
        return copied

    def _look_at(self, message: Message, seen: PartitionMarks, missing: dict[int, MissingRecords]) -> None:
        head, offset = find_head(message.value(), message.headers()), message.offset()
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


def _moved(planned: PlannedRange, *, again: bool) -> PlannedRange:
    """Where reading goes on in a partition; `again`: in the same cluster."""
    # The last record stays: the next failover looks for it, and here its offset looks like one that retention has deleted. Its leader
    # epoch is of the old cluster, and in another one no log had that leader.
    epoch = planned.last_epoch if again else 0
    return replace(planned, start=planned.stop, again=-1, last_epoch=epoch)


def _partitions_of(topic: str, flow: CompiledFlow, last: Plan) -> int:
    """How many partitions of a topic the flow has read, or writes."""
    written = [output.partitions for output in flow.outputs if output.topic == topic]
    return max([last.layout.sources.get(topic, ("", 0))[1], *written])


def _check_plan(flow: CompiledFlow, last: Plan) -> None:
    """Check that a plan holds nothing else that is bound to offsets."""
    check_sections(last)
    others = sorted(last.sections.keys() - _SURVIVING)
    if others:
        raise ConfigurationError(
            f"flow {flow.name!r}: plan {last.number} has {', '.join(others)}, which a failover would lose or does not know. Expected none of these "
            "(after a rebuild or rewind: a service that has caught up). Begin in the other cluster under another flow name"
        )
    for tp, marks in last.marks.items():
        if 0 in marks.lanes:
            raise ConfigurationError(
                f"flow {flow.name!r}: {tp[0]}[{tp[1]}] has records that were wrapped at their origin, and whose place is their offset. Expected "
                "envelopes that flows have published. Let a flow without stages publish them, and mirror what it publishes"
            )


def _check_finished(flow: CompiledFlow, last: Plan, headers: Collection[Header]) -> None:
    at = {(header.number, header.plan_id, header.begun_id) for header in headers}
    if at != {(last.number, last.plan_id, "")}:
        raise ServiceStopped(
            f"flow {flow.name!r}: plan {last.number} is unfinished, and its inputs are known by offsets of the old cluster. Expected a plan that all "
            "state partitions have reached. Start the service in the old cluster once. If that is gone, begin in the other one under another flow name"
        )
