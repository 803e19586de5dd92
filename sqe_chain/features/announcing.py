"""Publishing the newest state of each key again: what a plan with `Announcing` does in its step 5.

Such a plan reads nothing. Its records follow from the plan before, its own id and the states alone, so each run that publishes
them gives the same. It is sealed and finished as every plan is: the next run publishes all of it before anything else. So what
a run still sends after a pause is a replay, and no republished state arrives after a later change of its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, Self

from sqe_chain.errors import PlanMismatch, StoreInconsistent
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.context import Origin, TopicIdPartition
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.plans.planning import plan_after
from sqe_chain.plans.published import PublishedLanes
from sqe_chain.ports import StateStore, TopicInfo
from sqe_chain.task.announced import (
    Given,
    announced_origin,
    announced_records,
    digest_of,
    given_by,
)
from sqe_chain.task.states import Claim, check_owner

CHUNK: Final = 1_000
"""Records written before their acknowledgements are waited for."""

ID_DIGITS: Final = 16
"""Hexadecimal digits of a plan's id that make the name of one publication of states."""


@dataclass(frozen=True, slots=True)
class Announcing(Section):
    """Which states a plan republishes.

    Attributes:
        digests: stage -> for each state partition a digest of what is published of its states, empty for nothing.
    """

    name: ClassVar[str] = "announced"
    digests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, tuple[str, ...]]:
        return dict(self.digests)

    @classmethod
    def from_json(cls, raw: Mapping[str, list[str]]) -> Self:
        return cls({stage: tuple(digests) for stage, digests in raw.items()})


def announcement_plan(
    last: Plan, claim: Claim, clock_ms: int, announced: Mapping[str, tuple[str, ...]]
) -> Plan:
    """A plan that reads nothing, and publishes states again.

    Args:
        last: the last plan; nothing after it has to be silent, and nothing is unfinished.
        claim: the run.
        clock_ms: now.
        announced: see `Announcing.digests`.
    """
    ranges = last.ended_ranges()
    plan = plan_after(last, claim, clock_ms, last.layout, ranges, last.marks)
    if plan.published is not None:  # what is published again is on lanes of its own, which nobody notes
        plan = replace(plan, published=PublishedLanes(plan.number))
    return plan.carried_from(last, (Rebuilding(), Announcing(announced))).with_id(last)


def origin_of(plan: Plan) -> Origin | None:
    """The origin of republished states; None while nothing has been read.

    It is the last record of the first partition, by name, that has one, with the time of the newest record read.
    """
    ranges = sorted(plan.ranges, key=lambda planned: planned.tp)
    root = next((planned for planned in ranges if planned.last_offset >= 0), None)
    if root is None:
        return None
    newest_ms = max(planned.last_timestamp_ms for planned in plan.ranges)
    tp = TopicIdPartition(root.topic, bytes.fromhex(root.topic_id), root.partition)
    return announced_origin(tp, root.last_offset, root.last_epoch, newest_ms)


def publications(env: Environment, claim: Claim, plan: Plan) -> Iterator[Callable[[], int]]:
    """Step 5: what publishes the newest states of each state partition that a plan names.

    Yields:
        What publishes those of one state partition, and gives the number of records. It is safe to repeat.
    """
    if Announcing.name not in plan.sections:
        return
    announcer, digests = Announcer(env, claim), Announcing.of(plan).digests
    for stage in env.flow.stages:
        for part, digest in enumerate(digests.get(stage.name, ())):
            if digest:
                yield partial(announcer.publish, plan, stage, part)


@dataclass(frozen=True, slots=True)
class Announcer:
    """Reads states, and publishes them. One state partition is held in memory at a time."""

    env: Environment
    claim: Claim

    def look(
        self, plan: Plan, stage: StageNode, part: int, topics: Mapping[str, TopicInfo]
    ) -> tuple[str, int]:
        """See what would be republished of one state partition, without publishing anything.

        Returns:
            A digest of it, empty for nothing, and the number of records.

        Raises:
            PoisonError: user code fails, or a record would not be accepted; names the key.
            Superseded: a newer run owns the flow.
            StoreInconsistent: a header is not at the plan.
            Unavailable: the store does not answer.
        """
        flow, origin = self.env.flow, origin_of(plan)
        given = self._given(plan, (plan.number, plan.plan_id), stage, part, origin)
        if origin is None or not given:
            return "", 0
        records = announced_records(flow, part, given, origin, _suffix("0" * ID_DIGITS), topics)
        return digest_of(flow, given), len(records)

    def publish(self, plan: Plan, stage: StageNode, part: int) -> int:
        """Publish what a sealed plan names of one state partition; acknowledged when this returns.

        May be repeated, by any run: it gives the same records each time.

        Returns:
            Records published.

        Raises:
            PlanMismatch: the code gives something else than when the plan was sealed.
            Superseded, StoreInconsistent, Unavailable: as `look`, and as writers do.
        """
        env, origin = self.env, origin_of(plan)
        given = self._given(plan, (plan.number - 1, plan.previous_id), stage, part, origin)
        if origin is None or digest_of(env.flow, given) != Announcing.of(plan).digests[stage.name][part]:
            raise PlanMismatch(
                f"flow {env.flow.name!r}: plan {plan.number} was sealed to republish the states of stage {stage.name!r}. But the "
                f"operators after changes() give something else now for state partition {part}. Run the code that sealed the plan until "
                "it has finished. Or fold again with sqe-chain rebuild, which forgets that states were to be republished"
            )
        records = announced_records(env.flow, part, given, origin, _suffix(plan.plan_id[:ID_DIGITS]), {})
        writer = env.ports.log.writer()
        try:
            for begin in range(0, len(records), CHUNK):
                writer.write(records[begin : begin + CHUNK])
                writer.flush()
        finally:
            writer.close()
        return len(records)

    def _given(
        self, plan: Plan, at: tuple[int, str], stage: StageNode, part: int, origin: Origin | None
    ) -> Given:
        if origin is None:
            return []
        rows = self._rows(plan.layout, at, stage, part)
        return given_by(self.env.flow, stage, rows, origin)

    def _rows(
        self, layout: Layout, at: tuple[int, str], stage: StageNode, part: int
    ) -> list[tuple[bytes, bytes]]:
        """Keys and states of a state partition in the order of keys. A scan may give a key twice."""
        stored, store, rows = layout.stages[stage.name], self.env.ports.store(stage), dict[bytes, bytes]()
        for cell in range(part * stored.buckets, (part + 1) * stored.buckets):
            self._check_header(store, stored.flow, stage, cell, at)
            rows.update(store.scan(stored.flow, stage.name, cell))
            self._check_header(store, stored.flow, stage, cell, at)
        return sorted(rows.items())

    def _check_header(
        self, store: StateStore, flow: str, stage: StageNode, cell: int, at: tuple[int, str]
    ) -> None:
        """Check that a cell is exactly at a plan, and that nobody else has claimed it."""
        where = f"{flow}/{stage.name}/{cell}"
        header = check_owner(store.headers(flow, stage.name, [cell])[0], self.claim, where)
        if (header.number, header.plan_id, header.begun_id) != (*at, ""):
            raise StoreInconsistent(
                f"{where}: is at {header}, expected was plan {at[0]} ({at[1]}): the store went back in time; start again"
            )


def _suffix(plan: str) -> str:
    """What an output's name has at its end. Names that users give have no slash."""
    return f"/announced.{plan}"
