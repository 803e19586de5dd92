"""Moves a flow to another Kafka cluster, which mirrors its inputs: one plan, under a claim, by which it goes on reading there.

Marks are of lanes, so whatever the mirror repeats is dropped. Offsets are of a cluster: the plan notes where each partition goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from sqe_chain.adapters.mirror import MirroredTopic, MirrorLog
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import (
    ChainError,
    ConfigurationError,
    GapError,
    PartitionsMismatch,
    ServiceStopped,
)
from sqe_chain.features.announcing import Announcing
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.noting import CodecNotes
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.mirrored_inputs import MirrorLook, end_of_inputs
from sqe_chain.operations.mirrored_outputs import MissingRecords, missing_outputs, published_there
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Marks, check_layout, check_same_code
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.plans.planning import plan_after
from sqe_chain.plans.stored_plans import check_sections, plan_of_a_run, read_plan
from sqe_chain.ports import Header, Range, TopicInfo, TopicPartition
from sqe_chain.protocol.claim import beat, check_claim, claim, read_headers, release, stamp
from sqe_chain.protocol.finish import Headers, PlanLog
from sqe_chain.protocol.redo import Redo, redo_of, to_redo
from sqe_chain.task.states import Claim

MARGIN_MS: Final = 300_000
"""How long before the last record of each partition reading goes on, in milliseconds: what is read again costs only time."""
_SURVIVING: Final = {Mirrors.name, CodecNotes.name, Announcing.name, EventTime.name, Lanes.name}
"""Sections of plans that hold no offsets, or such that stay true: offsets go on where the flow had read to."""
_SHOWN: Final = 10
_LOOK_BACK: Final = 10
_LOOKS: Final = 20
"""How often a flow is looked at whose service runs, until no plan was sealed meanwhile."""


@dataclass(frozen=True, slots=True)
class FailedOver:
    """What a failover has done.

    Attributes:
        plan: number of its plan.
        cluster: id of the cluster in which the flow goes on.
        topics: input or output topic -> its topic there.
        accepted: what is missing there, and was accepted.
        unfinished: number of the plan that the service finishes first; None: the last one is finished.
    """

    plan: int
    cluster: str
    topics: Mapping[str, str]
    accepted: tuple[MissingRecords, ...]
    unfinished: int | None = None


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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a failover would find.

    Attributes:
        plan: the plan that it would seal.
        missing: what is missing in the other cluster; it may be accepted.
        needed: inputs of an unfinished plan that are missing there; they may not.
        unfinished: number of the plan that the service has to finish there; None: the last one is finished.
        again: the flow reads this cluster already.
    """

    plan: Plan
    missing: tuple[MissingRecords, ...]
    needed: tuple[MissingRecords, ...]
    unfinished: int | None
    again: bool


class MirroredEnd(NamedTuple):
    """How far a partition of the other cluster has come.

    Attributes:
        tp: topic as the flow declares it, and partition.
        there: the topic that holds it there, and partition.
        counted_ms: time of the last record that the flow has read of it, milliseconds since 1970; -1: none, or it is an output.
        there_ms: time of the last record there; -1: there is none.
    """

    tp: TopicPartition
    there: TopicPartition
    counted_ms: int
    there_ms: int


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

    def look(self) -> Outlook:
        """What a failover at this moment would find. Claims nothing, and changes nothing.

        Raises:
            ConfigurationError: the flow, a topic or a lane is none that this can be done with.
            ServiceStopped: the flow's service is too busy to look at it, or several plans are unfinished.
        """
        env = self.env
        check_may_fail_over(env.flow)
        for _ in range(_LOOKS):
            last = plan_of_a_run(env.home, env.flow.name)
            headers = read_headers(env, last.layout.stored_in())
            if plan_of_a_run(env.home, env.flow.name).plan_id == last.plan_id:
                break
        else:
            raise ServiceStopped(
                f"flow {env.flow.name!r}: its service seals plans faster than they can be looked at. Expected a service that is stopped. Stop it"
            )
        # A stage that the last plan creates is at the plan before, as it would be stamped.
        number, plan_id = (
            (last.number - 1, last.previous_id) if last.previous_id else (last.number, last.plan_id)
        )
        born, known = Header(0, "", number, plan_id), last.layout.stages
        at = {
            cell: header or born
            for cell, header in headers.items()
            if env.flow.stage_at(cell[0]).name in known
        }
        return self._look(last, at, partial(read_plan, env.home, env.flow.name), Claim(0, ""))

    def ends(self, outlook: Outlook) -> list[MirroredEnd]:
        """How far each partition of the other cluster has come.

        Args:
            outlook: see `look`.
        """
        plan, log = outlook.plan, self.env.log
        topics = Mirrors.of(plan).topics
        counted = {planned.tp: planned.last_timestamp_ms for planned in plan.ranges}
        tps = counted | {
            (output.topic, number): -1
            for output in self.env.flow.outputs
            for number in range(output.partitions)
        }
        there = {tp: (topics[tp[0]].name if tp[0] in topics else tp[0], tp[1]) for tp in sorted(tps)}
        bounds = log.bounds(there.values())
        ids = log.topic_ids({name for name, _ in there.values()})
        # The very last offsets may be markers of transactions.
        ranges = [
            Range(name, ids[name], number, max(bound.begin, bound.stable_end - _LOOK_BACK), bound.stable_end)
            for (name, number), bound in ((place, bounds[place]) for place in there.values())
        ]
        return [
            MirroredEnd(tp, there[tp], tps[tp], messages[-1].timestamp()[1] if messages else -1)
            for tp, messages in zip(there, log.read_all(ranges), strict=True)
        ]

    def run(self) -> FailedOver:
        """Look first, then claim, look again, and seal the plan. The service starts in the other cluster then.

        A plan that is unfinished is finished there, by the service, with what the mirror has of its inputs.

        Raises:
            ConfigurationError: the flow, a topic or a lane is none that this can be done with; or the flow is there already.
            GapError: the mirror has not received records, and that is not accepted; the text names their lanes.
            ServiceStopped: a plan is unfinished, and the mirror lacks inputs of it.
            Superseded: another run has claimed the flow.
        """
        env = self.env
        self.check(self.look())  # refused without touching the flow
        self._mine, home = claim(env, dict)
        try:
            plans = PlanLog(env, home)
            last = plans.read_last()
            check_layout(env.flow, last.layout, ())
            outlook = self._look(last, stamp(env, self._mine, last), plans.read, self._mine)
            self.check(outlook)
            check_claim(env, self._mine)
            plans.write(outlook.plan)
        finally:
            with suppress(ChainError):  # then the next run waits until the heartbeat has stopped
                release(env, self._mine)
        mirrors = Mirrors.of(outlook.plan)
        names = {name: topic.name for name, topic in mirrors.topics.items()}
        return FailedOver(outlook.plan.number, mirrors.cluster, names, outlook.missing, outlook.unfinished)

    def _look(
        self,
        last: Plan,
        headers: Headers,
        fetch: Callable[[int], Plan | None],
        mine: Claim,
    ) -> Outlook:
        env = self.env
        _check_plan(env.flow, last)
        infos = self._describe(last)
        cluster = next(iter(infos.values())).cluster
        again = bool(cluster) and cluster == last.layout.cluster
        if again:
            mirrors, redo = self._same_mirrors(last, cluster, infos), None
        else:
            redo = _unfinished(env.flow, last, headers, fetch)
            mirrors = self._mirrors(last, last if redo is None else redo.before, cluster, infos)
        log = MirrorLog(env.ports.log, mirrors.cluster, mirrors.topics)
        marks, missing, needed = Marks(), list[MissingRecords](), list[MissingRecords]()
        if redo is not None:
            ends, needed = env.retry.call(
                "read the mirror", partial(_inputs_there, env.flow, redo, log, mirrors)
            )
            mirrors = replace(mirrors, unfinished=ends)
        for planned in last.ranges:
            look = MirrorLook(env.flow, planned, last.marks[planned.tp], self.accepted, witnessed=not again)
            missing += env.retry.call(
                "read the mirror", partial(look.read, log, mirrors.topics[planned.topic])
            )
            marks[planned.tp] = look.marks
        published = last.published
        if not again:
            # What an unfinished plan publishes is published there.
            by = redo.before if redo is not None and redo.publish else last
            missing += env.retry.call("look for outputs", partial(missing_outputs, env.flow, by, log))
            published = published_there(last, by, missing)
        ranges = tuple(_moved(planned, again=again) for planned in last.ranges)
        layout = replace(last.layout, cluster=cluster)
        plan = plan_after(last, mine, env.clock.now_ms(), layout, ranges, marks)
        plan = replace(plan, published=published).carried_from(last, [mirrors]).with_id()
        unfinished = None if redo is None else last.number
        return Outlook(plan, tuple(missing), tuple(needed), unfinished, again)

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

    def _same_mirrors(self, last: Plan, cluster: str, infos: Mapping[str, TopicInfo]) -> Mirrors:
        """Where the flow reads since its last failover, which was to this cluster."""
        flow, before = self.env.flow, Mirrors.of(last)
        noted = {topic: (known.name, known.topic_id) for topic, known in before.topics.items()}
        # An output that was declared since then is in this cluster by its own name.
        mirrored = [topic for topic in infos if topic in noted or topic in last.layout.sources]
        if noted != {topic: (infos[topic].name, infos[topic].topic_id) for topic in mirrored}:
            raise ConfigurationError(
                f"flow {flow.name!r} reads cluster {cluster} already, and there not these topics. Expected the address "
                "of another one. Give it with --kafka"
            )
        return before

    def _mirrors(self, last: Plan, before: Plan, cluster: str, infos: Mapping[str, TopicInfo]) -> Mirrors:
        """Where reading goes on.

        Args:
            last: the last plan.
            before: the last plan that is finished.
            cluster: id of the cluster.
            infos: the topics there, by the names that the flow has for them.
        """
        flow = self.env.flow
        if not cluster or not last.layout.cluster:
            raise ConfigurationError(
                f"flow {flow.name!r}: the id of {'this' if not cluster else 'the old'} cluster is not known. Expected brokers that report it. "
                "Without it nobody could refuse a start in the wrong one"
            )
        begins: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in infos}
        sources, finished = last.layout.sources, before.ends()
        for planned in last.ranges:
            by = finished.get(planned.tp, planned)
            marks = before.marks.get(planned.tp, last.marks[planned.tp])
            there = self._first_offset(by, marks, infos[planned.topic])
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

    def check(self, outlook: Outlook) -> None:
        """Check that nothing is in the way.

        Raises:
            ServiceStopped, GapError, ConfigurationError: something is.
        """
        name = self.env.flow.name
        if outlook.needed:
            raise ServiceStopped(
                f"flow {name!r}: plan {outlook.unfinished} is unfinished, and the other cluster lacks inputs of it: {_named(outlook.needed)}. "
                "Expected all of them: nobody can finish it with others. Nothing was changed. Wait until the mirror has received them, or start "
                "the service in the old cluster once. If neither can be, begin in the other one under another flow name"
            )
        refused = [records for records in outlook.missing if records.lane not in self.accepted]
        if refused:
            raise GapError(
                f"flow {name!r}: the other cluster lacks records. {_named(refused)}. Expected all that was published. Nothing was changed. Wait "
                "until the mirror has received them, or accept their loss with --accept-missing LANE for each of these lanes"
            )
        if outlook.again and not outlook.missing:
            raise ConfigurationError(
                f"flow {name!r} reads cluster {outlook.plan.layout.cluster} since a failover already. Expected another one, or records that are "
                "missing. Start its service there"
            )


def _named(records: Sequence[MissingRecords]) -> str:
    """Some of them, for an error."""
    more = f"; and {len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return f"Lane {'; lane '.join(f'{lacking.lane}: {lacking.text}' for lacking in records[:_SHOWN])}{more}"


def _moved(planned: PlannedRange, *, again: bool) -> PlannedRange:
    """Where reading goes on in a partition; `again`: in the same cluster."""
    # The last record stays: the next failover looks for it, and here its offset looks like one that retention has deleted. Its leader
    # epoch is of the old cluster, and in another one no log had that leader.
    epoch = planned.last_epoch if again else 0
    return replace(planned.ended(), last_epoch=epoch)


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


def _unfinished(
    flow: CompiledFlow,
    last: Plan,
    headers: Headers,
    fetch: Callable[[int], Plan | None],
) -> Redo | None:
    """How the last plan is to be finished; None: it is.

    Raises:
        ServiceStopped: plans before it are unfinished, too, as after a failover whose service has not started yet.
        PlanMismatch: the flow is declared otherwise than when it was sealed.
    """
    level_of = {stage.index: flow.depths[stage.index] for stage in flow.stages}
    numbers = to_redo(last, headers, level_of, fetch)
    if not numbers:
        return None
    before = fetch(last.number - 1)
    if before is None or numbers != [last.number]:
        raise ServiceStopped(
            f"flow {flow.name!r}: plans {numbers[0]} to {last.number} are unfinished. Expected at most the last one. Start the service in the "
            "cluster that it reads once"
        )
    if not last.empty:
        check_same_code(flow, last.layout, last.number)
    _check_plan(flow, before)
    return redo_of(last, before, headers, level_of)


def _inputs_there(
    flow: CompiledFlow, redo: Redo, log: MirrorLog, mirrors: Mirrors
) -> tuple[dict[TopicPartition, int], list[MissingRecords]]:
    """Where the inputs of an unfinished plan end in the mirror, and what it lacks of them."""
    ends, needed, before = dict[TopicPartition, int](), list[MissingRecords](), redo.before.ends()
    for planned in redo.plan.ranges:
        if planned.reads:
            tp = planned.tp
            marks = redo.before.marks[tp], redo.plan.marks[tp]
            ends[tp], lacking = end_of_inputs(flow, before[tp], marks, log, mirrors.topics[tp[0]])
            needed += lacking
    return ends, needed
