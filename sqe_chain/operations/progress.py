"""How far a flow has come, before it is folded again: what was counted, and what of it was certainly published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.errors import START_OVER, StoreInconsistent
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.rebuilding import Reached, Rebuilding, Unfinished
from sqe_chain.features.ticking import Timers
from sqe_chain.ports import Commit, Home, TopicInfo, TopicPartition
from sqe_chain.protocol.claim import never_run
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.inputs import parse_metadata
from sqe_chain.protocol.layout import Layout
from sqe_chain.protocol.plan import Plan


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a flow has come, by what store and Kafka still know.

    Attributes:
        number: of its last plan.
        layout: of that plan; None when it is lost.
        ends: partition -> offset up to which it has counted, and everything is known to be published.
        published: partition -> offset up to which its outputs are known to be published; greater than `ends` after a
            rewind.
        starts: first offset of each partition that it did not begin at 0.
        unfinished: the batch after `ends`, which may have been published in part.
        published_until: see `Rebuilding.published_until`, of its last plan.
        reached: how far event time had come at `ends`.
        closes: see `Closes`: `done` at `ends`, `published` as far as that is certain.
        recreated: topics that were created again after a part of them had been counted, which cannot be counted again.
    """

    number: int
    layout: Layout | None
    ends: dict[TopicPartition, int]
    published: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]
    unfinished: Unfinished | None = None
    published_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    reached: Reached | None = None
    closes: Closes = field(default_factory=Closes)
    recreated: frozenset[str] = frozenset()


def read_plan(env: Environment, flow: str, number: int) -> Plan | None:
    """A plan of a flow; None when it is not kept."""
    data = env.home.plan(flow, number)
    return None if data is None else Plan.from_bytes(data)


def find_progress(
    env: Environment,
    home: Home,
    infos: Mapping[str, TopicInfo],
    commits: Mapping[TopicPartition, Commit],
) -> Progress:
    """Find out how far a flow has come.

    Args:
        env: the flow and its ports.
        home: its home record.
        infos: its topics.
        commits: its group's.

    Raises:
        ConfigurationError: it has never run with this store.
        StoreInconsistent: it cannot be known what was published.
    """
    name = env.flow.name
    known_by = {
        tp: (commit, meta) for tp, commit in commits.items() if "plan" in (meta := parse_metadata(commit))
    }
    ours = {
        tp: (commit, meta)
        for tp, (commit, meta) in known_by.items()
        if meta.get("topic_id") == infos[tp[0]].topic_id.hex()
    }
    known = max((int(str(meta["plan"])) for _, meta in ours.values()), default=-1)
    last = read_plan(env, name, home.number)
    number = max(home.number, known)
    if number < 0:
        raise never_run(name)
    committed = {tp: commit.offset for tp, (commit, _) in ours.items()}
    if last is None:
        closed = max((int(str(meta.get("closes", 0))) for _, meta in ours.values()), default=0)
        if closed:
            raise StoreInconsistent(
                f"flow {name!r}: its windows were closed {closed} times at the end of its input. Where, its plans said, and they are "
                f"lost, so it cannot be folded again as it was. Restore the store, or {START_OVER}"
            )
        starts = {tp: int(str(meta.get("start", 0))) for tp, (_, meta) in ours.items()}
        return Progress(
            number,
            None,
            committed,
            committed,
            {tp: at for tp, at in starts.items() if at},
            recreated=frozenset(topic for topic, _ in known_by.keys() - ours.keys()),
        )
    # Was everything published that the last plan gives? A silent plan gives nothing. Kafka's commit comes after persisting,
    # and persisting after publishing. If nothing proves it, only the plan before is certain.
    behind, last_closes = Rebuilding.of(last), Closes.of(last)
    proven = (
        behind.silent or known > last.number or last.plan_id in {meta.get("id") for _, meta in ours.values()}
    )
    base: Plan | None = last
    if not proven and not _is_begun(env, last):
        base = read_plan(env, name, last.number - 1)
    if base is None:
        raise StoreInconsistent(
            f"flow {name!r}: plan {last.number - 1} is not kept any more, so it is not known what was published of the last "
            f"one; {START_OVER}"
        )
    before, times = Closes.of(base), EventTime.of(base)
    unfinished = Unfinished(
        last.clock_ms,
        last.ranges,
        last.exclusions,
        last_closes.done > before.done,
        EventTime.of(last).frontier,
    )
    rest = Rebuilding.of(base).unfinished if base is last else unfinished
    known_ends = last.ends()
    starts = {tp: at for tp, at in last.layout.starts.items() if tp in known_ends}
    ends = {tp: planned.stop for tp, planned in base.ends().items() if tp[0] in infos}
    ends |= {tp: max(offset, ends.get(tp, 0)) for tp, offset in committed.items()}
    published = {tp: max(end, Rebuilding.of(base).silent_until.get(tp, 0)) for tp, end in ends.items()}
    reached = Rebuilding.of(base).reached
    if reached is None and times.times:
        reached = Reached(times.times, times.frontier, Timers.of(base).ticked_ms)
    closes = replace(last_closes, done=before.done, published=max(before.done, before.published))
    recreated = recreated_since(last, infos) | {*last.layout.gone}
    return Progress(
        number, last.layout, ends, published, starts, rest, behind.published_until, reached, closes, recreated
    )


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
