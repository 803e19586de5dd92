"""Compares two generations of a flow's states, where both have counted the same inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.features.event_times import EventTime
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import readable_key
from sqe_chain.operations.attempts import cells_of, store_of
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.retrying import RetryingStore
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.ports import Header, StateStore

EXAMPLES = 10
"""Keys that a comparison names for each stage, of each kind of difference."""

Rows = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ComparedStage:
    """What a comparison has found out about the states of one stage.

    Attributes:
        stage: its name.
        equal: keys whose states are equal.
        different: keys that both have, with different states.
        missing: keys that the flow has and the new code has not.
        added: keys that the new code has and the flow has not.
        examples: some of these keys, as text, with the state in the flow and that of the new code; None: there is none.
        moved: state partitions that could not be compared, because the flow, or the run beside it, went on meanwhile.
        new: the flow has no such stage, so there is nothing to compare.
        gone: the new code has no such stage: nobody folds its states on.
    """

    stage: str
    equal: int = 0
    different: int = 0
    missing: int = 0
    added: int = 0
    examples: tuple[tuple[str, object | None, object | None], ...] = ()
    moved: int = 0
    new: bool = False
    gone: bool = False

    @property
    def same(self) -> bool:
        """Whether all was compared, and nothing differs. A new stage changes nothing that is there."""
        return not (self.differs or self.moved)

    @property
    def differs(self) -> bool:
        """Whether something that was compared differs, or the stage is gone."""
        return bool(self.different or self.missing or self.added or self.gone)

    def with_rows(self, stage: StageNode, before: Rows, after: Rows) -> ComparedStage:
        """The same, with the keys of a state partition, or of all of them."""
        equal, different, examples = 0, 0, list(self.examples)
        for key, old in before.items():
            new = after.get(key)
            if new is not None and _equal(stage, key, old, new):
                equal += 1
                continue
            different += new is not None
            if len(examples) < EXAMPLES:
                examples.append((readable_key(key), _shown(stage, key, old), _shown(stage, key, new)))
        added = [key for key in after if key not in before]
        shown = added[: EXAMPLES - len(examples)]
        examples += [(readable_key(key), None, _shown(stage, key, after[key])) for key in shown]
        return replace(
            self,
            equal=self.equal + equal,
            different=self.different + different,
            missing=self.missing + len(before) - equal - different,
            added=self.added + len(added),
            examples=tuple(examples),
        )


@dataclass(frozen=True, slots=True)
class Generations:
    """The states of a flow, and those of an attempt beside it.

    Args:
        env: the flow as the new code declares it, and its stores.
        before: the flow's last plan.
        after: the attempt's last plan.
        attempt: the attempt's name.
    """

    env: Environment
    before: Plan
    after: Plan
    attempt: str
    _plans: dict[tuple[str, int], Plan | None] = field(default_factory=dict)

    def compare(self) -> list[ComparedStage]:
        """Compare all stages. What cannot be compared at equal positions is counted, and not judged.

        Raises:
            Unavailable: asked to stop while waiting for a store.
        """
        compared = [self._compare(stage) for stage in self.env.flow.stages]
        return compared + gone_stages(self.env.flow, self.before.layout)

    def _compare(self, stage: StageNode) -> ComparedStage:
        result, before = ComparedStage(stage.name), self.before.layout
        if stage.name not in before.stages:
            return replace(result, new=True)
        old, new = cells_of(before, stage.name), cells_of(self.after.layout, stage.name)
        # With as many state partitions a key is in the same one of both; else all are compared as one.
        pairs = [((cell,), (cell,)) for cell in old] if old == new else [(tuple(old), tuple(new))]
        for cells in pairs:
            sides = self._rows_at_equal_positions(stage, *cells)
            if sides is None:
                result = replace(result, moved=result.moved + len(cells[1]))
            else:
                result = result.with_rows(stage, *sides)
        return result

    def _rows_at_equal_positions(
        self, stage: StageNode, old: tuple[int, ...], new: tuple[int, ...]
    ) -> tuple[Rows, Rows] | None:
        """The rows of these cells of both; None: they are not at equal positions, or went on while they were read."""
        env, live = self.env, self.env.flow.name
        flow = self.before.layout.stages[stage.name].flow
        sides = (
            (store_of(env, stage, flow), flow, live, old),
            (env.ports.store(stage), self.attempt, self.attempt, new),
        )
        read_headers = [
            partial(RetryingStore(store, env.retry).headers, stored, stage.name, cells)
            for store, stored, _, cells in sides
        ]
        headers = [read() for read in read_headers]
        plans = [self._plan_of(name, known) for (_, _, name, _), known in zip(sides, headers, strict=True)]
        if plans[0] is None or plans[1] is None or not _same_positions(plans[0], plans[1]):
            return None
        # Repeated as one: a scan is many calls.
        rows = [
            env.retry.call("read states", partial(_scan, store, stored, stage.name, cells))
            for store, stored, _, cells in sides
        ]
        return (rows[0], rows[1]) if [read() for read in read_headers] == headers else None

    def _plan_of(self, name: str, headers: list[Header | None]) -> Plan | None:
        """The plan up to which all of these cells are written; None: there is none, or a write is under way."""
        first = headers[0]
        if first is None or any(
            header is None or header.begun_id or header.plan_id != first.plan_id for header in headers
        ):
            return None
        at = name, first.number
        if at not in self._plans:
            self._plans[at] = read_plan(self.env.home, name, first.number)
        plan = self._plans[at]
        return plan if plan is not None and plan.plan_id == first.plan_id else None


def _scan(store: StateStore, flow: str, stage: str, cells: tuple[int, ...]) -> Rows:
    return {key: state for cell in cells for key, state in store.scan(flow, stage, cell)}


def _same_positions(before: Plan, after: Plan) -> bool:
    """Whether both have counted the same inputs."""
    old, new = before.ends(), after.ends()
    counted = all(
        (new[tp].topic_id, new[tp].stop) == (planned.topic_id, planned.stop)
        for tp, planned in old.items()
        if tp in new
    )
    # What only one of them reads must be unread, or the source has left the flow.
    fresh = all(
        planned.stop == after.layout.starts.get(tp, 0) for tp, planned in new.items() if tp not in old
    )
    return counted and fresh and EventTime.of(before).frontier == EventTime.of(after).frontier


def _equal(stage: StageNode, key: bytes, old: bytes, new: bytes) -> bool:
    """Whether two stored states are equal, in bytes or as the new code reads both."""
    if old == new:
        return True
    try:
        return list(stage.stage_kind.states_in(key, old)) == list(stage.stage_kind.states_in(key, new))
    except Exception:  # noqa: BLE001 - the new code need not be able to read what the old one has written
        return False


def _shown(stage: StageNode, key: bytes, content: bytes | None) -> object | None:
    """A state as JSON, or its bytes as hexadecimal digits if the new code cannot read it."""
    if content is None:
        return None
    try:
        states = [stage.codec.to_json(stored.state) for stored in stage.stage_kind.states_in(key, content)]  # type: ignore[union-attr]
    except Exception:  # noqa: BLE001 - the same
        return f"0x{content.hex()}"
    return states[0] if len(states) == 1 else states


def gone_stages(flow: CompiledFlow, before: Layout) -> list[ComparedStage]:
    """The stages of a layout that a flow no longer has."""
    declared = {stage.name for stage in flow.stages}
    return [ComparedStage(name, gone=True) for name in before.stages if name not in declared]


def differences(compared: list[ComparedStage]) -> Iterator[str]:
    """A line for each stage in which something differs, or was not compared."""
    for result in compared:
        if result.new or result.same:
            continue
        if result.gone:
            yield f"stage {result.stage!r} is not in the new code: nobody folds its states on"
            continue
        parts = {
            "different": result.different, "missing in the new code": result.missing, "only in the new code": result.added,
        }  # fmt: skip
        counted = [f"{count} {what}" for what, count in parts.items() if count]
        if result.moved:
            counted.append(f"{result.moved} state partitions not compared, because they went on meanwhile")
        key = f"; the first key is {result.examples[0][0]}" if result.examples else ""
        yield f"stage {result.stage!r}: {result.equal} keys equal, {', '.join(counted)}{key}"
