"""How far a flow has come before a rebuild: what it has counted, and what of that it has certainly published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import START_OVER, ServiceStopped, StoreInconsistent
from sqe_chain.features.closing import Closes
from sqe_chain.features.due import goes_by_moments
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.lanes import Lanes, check_committed, known_lanes
from sqe_chain.features.parking import Parking
from sqe_chain.features.rebuilding import Reached, Rebuilding, Unfinished
from sqe_chain.features.ticking import Timers
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import never_run, read_plan
from sqe_chain.ports import Commit, Home, TopicInfo, TopicPartition


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """How far a flow has come, according to store and Kafka.

    Attributes:
        layout: of that plan; None when it is lost.
        ends: partition -> offset up to which it has counted, and has published everything.
        published: partition -> offset up to which it has published its outputs; greater than `ends` after a rewind.
        starts: first offset of each partition that it did not begin at 0.
        unfinished: the batch after `ends`, which may have been published in part.
        published_until: see `Rebuilding.published_until`, of its last plan.
        reached: how far event time had come at `ends`.
        heard: see `Rebuilding.heard`, of its last plan.
        closes: see `Closes`: `done` at `ends`, `published` as far as that is certain.
        parking: what is parked after the last plan.
        recreated: topics that were created again after a part of them had been counted, which cannot be counted again.
        lanes: since when it publishes on its present lanes, if that is known.
        by_moments: see `goes_by_moments`.
        begun: what it had read before its first stage.
        revisions: which of its inputs it follows.
        marks: of its last plan.
    """

    number: int
    layout: Layout | None
    ends: dict[TopicPartition, int]
    published: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]
    unfinished: Unfinished | None = None
    published_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    reached: Reached | None = None
    heard: Reached | None = None
    closes: Closes = field(default_factory=Closes)
    parking: Parking = field(default_factory=Parking)
    recreated: frozenset[str] = frozenset()
    lanes: Lanes = field(default_factory=Lanes)
    by_moments: bool = True
    begun: Begun = field(default_factory=Begun)
    revisions: Revisions = field(default_factory=Revisions)
    marks: Mapping[TopicPartition, PartitionMarks] = field(default_factory=dict)

    @property
    def still_to_publish(self) -> Rebuilding:
        """What is to be published again that receivers may have."""
        return Rebuilding(unfinished=self.unfinished, published_until=self.published_until)


def find_progress(
    env: Environment,
    home: Home,
    infos: Mapping[str, TopicInfo],
    commits: Mapping[TopicPartition, Commit],
) -> FlowProgress:
    """Find out how far a flow has come.

    Raises:
        ConfigurationError: it has never run with this store.
        StoreInconsistent: neither store nor Kafka knows what was published.
        PlanMismatch: a plan that the store has lost may have published on lanes that the flow has no longer.
        ServiceStopped: the last plan releases failed records, and may be published in part.
    """
    name = env.flow.name
    every = [
        _PlanCommit(tp, commit.offset, meta)
        for tp, commit in commits.items()
        if "plan" in (meta := parse_metadata(commit))
    ]
    ours = [commit for commit in every if commit.meta.get("topic_id") == infos[commit.tp[0]].topic_id.hex()]
    known = max((commit.number("plan") for commit in ours), default=-1)
    number = max(home.number, known)
    if number < 0:
        raise never_run(name)
    last = read_plan(env.home, name, home.number)
    if env.flow.outputs:
        check_committed(env.flow, [commit.meta for commit in ours], last.number if last else -1)
    if last is None:
        lost = {commit.tp[0] for commit in every if commit not in ours}
        return _find_in_commits(name, number, ours, frozenset(lost))
    # A run that was killed right after it had begun a revision of the flow's own leaves commits of the revision before.
    since = Revisions.of(last).since
    ours = [commit for commit in ours if commit.number("plan") >= since]
    known = max((commit.number("plan") for commit in ours), default=-1)
    base: Plan | None = last
    if not _is_published(last, known, ours) and not _is_begun(env, last):
        base = read_plan(env.home, name, last.number - 1)
    if base is None:
        raise StoreInconsistent(
            f"flow {name!r}: the store no longer keeps plan {last.number - 1}. Expected it, to find out what the flow has "
            f"published of plan {last.number}. {START_OVER.capitalize()}"
        )
    if base is not last and Parking.of(last).released:
        raise ServiceStopped(
            f"flow {name!r}: plan {last.number} releases failed records, and a part of it may be published. Expected a finished plan. "
            "Run the service once, which finishes it"
        )
    if base is not last and env.flow.transactional:
        raise ServiceStopped(
            f"flow {name!r} is transactional, and plan {last.number} is not finished. Expected a finished plan: folded again, it would be "
            "published a second time. Run the service once, which finishes it"
        )
    ends = {tp: planned.stop for tp, planned in base.ends().items() if tp[0] in infos}
    ends |= {commit.tp: max(commit.offset, ends.get(commit.tp, 0)) for commit in ours}
    behind, before, closes = Rebuilding.of(base), Closes.of(base), Closes.of(last)
    known_ends = last.ends()
    return FlowProgress(
        number,
        last.layout,
        ends,
        published={tp: max(end, behind.silent_until.get(tp, 0)) for tp, end in ends.items()},
        starts={tp: at for tp, at in last.layout.starts.items() if tp in known_ends},
        unfinished=behind.unfinished if base is last else _unfinished_after(base, last),
        published_until=Rebuilding.of(last).published_until,
        reached=behind.reached or reached_at(base),
        heard=Rebuilding.of(last).heard,
        closes=replace(closes, done=before.done, published=max(before.done, before.published)),
        parking=replace(Parking.of(last), released=(), decided=None),
        recreated=recreated_since(last, infos) | {*last.layout.gone},
        lanes=known_lanes(name, last),
        by_moments=goes_by_moments(last),
        begun=Begun.of(last),
        revisions=Revisions.of(last),
        marks=last.marks,
    )


@dataclass(frozen=True, slots=True)
class _PlanCommit:
    """A commit of the flow's group that names a plan."""

    tp: TopicPartition
    offset: int
    meta: Mapping[str, object]

    def number(self, name: str) -> int:
        """A number in its metadata; 0 where it has none."""
        return int(str(self.meta.get(name, 0)))


def _find_in_commits(
    flow: str, number: int, commits: Sequence[_PlanCommit], recreated: frozenset[str]
) -> FlowProgress:
    """How far a flow has come whose store has lost its plans."""
    closed = max((commit.number("closes") for commit in commits), default=0)
    if closed:
        raise StoreInconsistent(
            f"flow {flow!r}: the store has lost its plans, which knew where the windows were closed {closed} times at the end of "
            f"the input. Expected the plans, to close them there again. Restore the store, or {START_OVER}"
        )
    parked = max((commit.number("parked") for commit in commits), default=0)
    if parked:
        raise StoreInconsistent(
            f"flow {flow!r}: the store has lost its plans, which had {parked} records that were parked or discarded. Expected the plans: these "
            f"records must not count. Restore the store, or {START_OVER}"
        )
    if any(commit.number("begun") for commit in commits):
        raise StoreInconsistent(
            f"flow {flow!r}: the store has lost its plans, which knew what the flow had read before its first stage. Expected the plans, "
            f"to ignore what comes again of it. Restore the store, or {START_OVER}"
        )
    ends = {commit.tp: commit.offset for commit in commits}
    starts = {commit.tp: start for commit in commits if (start := commit.number("start"))}
    # Nobody knows which records were released: perhaps the last ones.
    counted = tuple(
        (*commit.tp, commit.offset - 1, str(commit.meta["topic_id"]))
        for commit in commits
        if commit.number("released") and commit.offset
    )
    parking = Parking(counted=tuple((topic, id_, number, offset) for topic, number, offset, id_ in counted))
    return FlowProgress(number, None, ends, ends, starts, parking=parking, recreated=recreated)


def _is_published(last: Plan, known: int, commits: Sequence[_PlanCommit]) -> bool:
    """Whether commits prove that all outputs of the last plan are published: they come after them. A silent plan has no outputs."""
    committed = {commit.meta.get("id") for commit in commits}
    return Rebuilding.of(last).silent or known > last.number or last.plan_id in committed


def _unfinished_after(base: Plan, last: Plan) -> Unfinished:
    """The last plan, if nothing proves that it was published."""
    closes = Closes.of(last).done > Closes.of(base).done
    return Unfinished(last.clock_ms, last.ranges, last.exclusions, closes, EventTime.of(last).frontier)


def reached_at(base: Plan) -> Reached | None:
    """How far event time has come with a plan; None where nothing goes by it."""
    times = EventTime.of(base)
    return Reached(times.times, times.frontier, Timers.of(base).ticked_ms) if times.times else None


def recreated_since(plan: Plan, infos: Mapping[str, TopicInfo]) -> frozenset[str]:
    """The topics that were created again since a plan."""
    ids = {topic: info.topic_id.hex() for topic, info in infos.items()}
    return frozenset(
        planned.topic
        for planned in plan.ranges
        if planned.topic_id != ids.get(planned.topic, planned.topic_id)
    )


def _is_begun(env: Environment, plan: Plan) -> bool:
    """Whether a header has reached or begun a plan, or it is empty: persisting comes after publishing."""
    if plan.empty:
        return True
    for stage in env.flow.stages:
        stored = plan.layout.stages.get(stage.name)
        if stored is None:
            continue
        cells = range(plan.layout.state_partitions * stored.buckets)
        for header in env.store(stage).headers(stored.flow, stage.name, cells):
            if header is not None and plan.plan_id in {header.plan_id, header.begun_id}:
                return True
    return False
