"""Since when a flow publishes on its present lanes.

Readers recognise replays by lane and position. Outputs move to other lanes when the number of state partitions or the stage before
an output changes. Then nothing that was published before may be published again: readers would count it twice.

So it is with late inputs. Taken again, a late input is no longer late: it comes earlier. Windows then count it that were closed
before, under the same lanes and positions, so readers would keep the old results. What other stages make of it, such as pairs and
what timers give, may even have other positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from sqe_chain.errors import PlanMismatch
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.event_times import EventTime, frontier_after
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.inputs import describe, group_commits, parse_metadata
from sqe_chain.plans.layout import Layout, by_name, by_partition, check_same_code, moved_outputs
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.ports import TopicPartition
from sqe_chain.task.event_times import Frontier, furthest
from sqe_chain.task.results import Report
from sqe_chain.task.roots import MISSED

Offsets = Mapping[TopicPartition, int]
MOVED, UPGRADED, LATE = "moved", "upgraded", "late"
"""What would differ; see `Lanes.why`."""
_WINDOWS: Final = "windows/"
_WHY: Final = {
    LATE: "inputs came late by event time, so what stages make of them would differ",
    MOVED: "state partitions, or stages before outputs, have changed, so outputs were on other lanes",
    UPGRADED: "an older version has published results of windows, joins and timers on other lanes",
}
_MISSED: Final = "{} late records have missed windows of stage {!r}, and would count in them now"


@dataclass(frozen=True, slots=True)
class Lanes(Section):
    """Since when a flow publishes on its present lanes. A plan has it as soon as the flow was rebuilt, or an output has moved.

    Attributes:
        since: the outputs of earlier inputs of a partition may be on other lanes; None: nothing is noted.
        frontier: up to where these inputs were taken, in the order of times; None: not known, or they do not go by time.
        why: what would differ if they were published again -> how often that was noted; see `reasons`. Empty: older versions noted nothing.
    """

    name: ClassVar[str] = "lanes"
    since: Offsets | None = None
    frontier: Frontier | None = None
    why: Mapping[str, int] = field(default_factory=dict)

    def carried(self, last: Plan, plan: Plan) -> Lanes:  # noqa: ARG002 - see `Section`
        """All of it, for life."""
        return self

    def to_json(self) -> dict[str, Any]:
        """For json.dumps."""
        since = {} if self.since is None else {"since": by_name(self.since)}
        why = {"why": dict(sorted(self.why.items()))} if self.why else {}
        return since | ({} if self.frontier is None else {"frontier": self.frontier}) | why

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        frontier = raw.get("frontier")
        return cls(by_partition(raw["since"]), Frontier(*frontier) if frontier else None, raw.get("why", {}))

    @property
    def reasons(self) -> str:
        """What would differ if earlier inputs were published again."""
        texts = [
            _WHY[what] if what in _WHY else _MISSED.format(count, what.removeprefix(_WINDOWS))
            for what, count in sorted(self.why.items())
        ]
        return "; ".join(texts or [*_WHY.values()])

    def moved(self, published: Offsets, frontier: Frontier | None, why: Mapping[str, int]) -> Lanes:
        """The same after outputs have moved, or will not come out the same.

        Args:
            published: up to where outputs were published before.
            frontier: up to where inputs were taken before, in the order of times.
            why: see `Lanes.why`.
        """
        since = self.since or {}
        # Never back: outputs that have moved twice were published on two lanes before, and both may be known to readers.
        return Lanes(
            {**since, **{tp: offset for tp, offset in published.items() if offset > since.get(tp, 0)}},
            furthest(self.frontier, frontier),
            dict(Counter(self.why) + Counter(why)),
        )

    def taken_by(self, stops: Offsets) -> Frontier | None:
        """Up to where inputs were taken whose outputs may be on other lanes, if all of them are read again; else None."""
        read = all(stops.get(tp, 0) >= offset for tp, offset in (self.since or {}).items())
        return self.frontier if read else None


def known_lanes(flow: str, plan: Plan) -> Lanes:
    """What the last plan of a flow knows of its lanes: nothing where a version that noted nothing has rebuilt the flow."""
    lanes, rebuilt = Lanes.of(plan), any(stored != flow for stored in plan.layout.stored_in().values())
    return lanes if rebuilt else replace(lanes, since=lanes.since or {})


def check_may_move(flow: CompiledFlow, known: Layout, number: int, behind: Rebuilding) -> None:
    """Check that outputs stay on their lanes while some that receivers may have are still to be published again.

    Args:
        flow: the flow as it is declared now.
        known: the layout of its last plan.
        number: of its last plan.
        behind: what is still to be done since it was rebuilt or rewound.

    Raises:
        PlanMismatch: they would come on other lanes.
    """
    if behind.unfinished is not None:
        check_same_code(flow, known, number)
    texts = moved_outputs(flow, known) if behind.published_until else []
    if texts:
        (topic, partition), offset = min(behind.published_until.items())
        raise PlanMismatch(
            f"flow {flow.name!r}: {topic}[{partition}] was rewound, and its outputs up to offset {offset} are still to be published "
            f"again. They would come on other lanes now: {'; '.join(texts)}. Expected the old declaration: readers would count them "
            "twice. Run it until it has caught up, then the new one, or its rebuild"
        )


def check_committed(flow: CompiledFlow, commits: Iterable[Mapping[str, object]], known: int) -> None:
    """Check that what later plans than the last one have published stays on its lanes, when it is published again.

    Args:
        flow: the flow as it is declared now.
        commits: the metadata of its group's commits; older versions did not note P there.
        known: number of the last plan that the store has.

    Raises:
        PlanMismatch: it would come on other lanes.
    """
    for meta in commits:
        number, was = int(str(meta.get("plan", -1))), meta.get("state_partitions", flow.state_partitions)
        if number > known and was != flow.state_partitions:
            raise PlanMismatch(
                f"flow {flow.name!r}: Kafka has a commit of plan {number}, which the store has lost, with {was} state partitions; declared "
                f"are {flow.state_partitions}. What was published since would come on other lanes, and readers would count it twice. Expected "
                f"{was} state partitions. Declare them, use sqe-chain rebuild, and run the flow until it has caught up"
            )


def may_move(flow: CompiledFlow, plan: Plan) -> bool:
    """Whether outputs of a flow may move to other lanes: they have shards, or have moved before."""
    return bool(flow.stages and flow.outputs) or Lanes.name in plan.sections


def check_rolled_back(env: Environment, last: Plan) -> None:
    """Check that a store which went back as a whole had no other layout since; its commits know.

    Raises:
        PlanMismatch: see `check_committed`.
    """
    if env.settings.once.accept_rollback and env.flow.stages and env.flow.outputs:
        commits = group_commits(env.flow, env.log, describe(env.flow, env.log))
        check_committed(env.flow, map(parse_metadata, commits.values()), last.number)


def lanes_entering(flow: CompiledFlow, last: Plan) -> Lanes | None:
    """Since when outputs come on other lanes, when a layout enters after a plan; None: as before. Pure.

    Raises:
        PlanMismatch: outputs would move that are still to be published again.
    """
    if not may_move(flow, last):
        return None
    behind = Rebuilding.of(last)
    check_may_move(flow, last.layout, last.number, behind)
    if not moved_outputs(flow, last.layout):
        return None
    published = {tp: max(at, behind.silent_until.get(tp, 0)) for tp, at in last.next_offsets().items()}
    reached = behind.reached or EventTime.of(last)
    return Lanes.of(last).moved(published, reached.frontier, {MOVED: 1})


def late_after(flow: CompiledFlow, last: Plan, decision: BatchDecision, report: Report) -> Lanes | None:
    """Up to where inputs would give something else if they were published again, after a batch that has taken late ones. None: none. Pure.

    A window that is still open takes a late input as it would have taken it in time. Of other stages the order of inputs decides what
    they give, and under which.
    """
    if decision.silent:
        return None
    missed = Counter[str]()
    for (stage, _), count in report.sections.get(MISSED, {}).items():
        missed[_WINDOWS + stage] += count
    late = sum(end.late for end in report.ends) if flow.by_order else 0
    why = missed | Counter({LATE: late})
    return Lanes.of(last).moved(decision.stops, frontier_after(last, decision), why) if +why else None
