"""What must hold after every write of a flow, whatever its functions do: the invariants without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.carrier import chain_header
from sqe_chain.envelope.message import is_enveloped, read
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.shapes import title_of
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Commit, Header, Home, Output, StateStore, TopicPartition
from sqe_chain.task.compiler import way_into
from sqe_chain.task.dead_letters import FIRST_REASON
from sqe_chain.testing.faults import PortCall
from sqe_chain.testing.invariants import Invariants
from sqe_chain.testing.proving.contents import shown
from sqe_chain.testing.proving.watching import Watched

Reached = tuple[int, tuple[tuple[TopicPartition, int], ...]]
"""Number of a plan, and how far it has read each partition."""
Rows = Mapping[bytes, bytes]


class Audit(Invariants):
    """Checks a flow's writes as they take effect.

    Args:
        flow: the flow.
        stores: name -> store, without injected faults.
        reference: (stage, cell, how far the plan has read) -> its rows in an undisturbed run; empty: this is that run, or one
            with other records.

    Attributes:
        seen: the same of this run.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        stores: Mapping[str, StateStore],
        reference: Mapping[tuple[str, int, Reached], Rows],
    ) -> None:
        super().__init__()
        self.seen: dict[tuple[str, int, Reached], Rows] = {}
        self._flow = flow
        self._stores = stores
        self._reference = reference
        self._plans: dict[str, Plan] = {}
        self._headers: dict[tuple[str, int], Header] = {}
        self._published: dict[object, object] = {}
        self._written: set[object] = set()
        self._home: Home | None = None
        self._last: Plan | None = None

    def on_call(self, call: PortCall, answer: Any) -> None:  # noqa: ANN401 - of any call
        """Check the invariants after a call.

        Raises:
            Violation: an invariant does not hold.
        """
        if call.name == "set_home" and answer is not None:
            self._on_home(call.port, answer)
        elif call.of == "store" and call.name == "write":
            _, stage, part, _, wanted, *_ = call.args
            if wanted == answer:
                self._on_state(stage, part, answer)
        elif call.name == "publish":
            self._on_output(call.args[0], call.port)
        elif call.of == "broker" and call.name == "commit" and self._flow.keeps_plans:
            self._on_commit(call.args[1])

    def _on_home(self, store: StateStore, home: Home) -> None:
        self.check_home(self._flow.name, self._home, home)
        self._home = home
        if home.number < 0 or home.plan_id in self._plans:
            return
        plan = Plan.from_bytes(store.plan(self._flow.name, home.number) or b"")
        self.check_plan(self._flow.name, plan, self._last)
        self._plans[plan.plan_id] = self._last = plan

    def _on_state(self, stage: str, part: int, header: Header) -> None:
        where, before = f"state partition {part} of stage {stage!r}", self._headers.get((stage, part))
        self._headers[stage, part] = header
        self.check_header(where, before, header)
        self.check_sealed(where, header, self._plans)
        plan = self._plans[header.plan_id]
        node = next(node for node in self._flow.stages if node.name == stage)
        store = self._stores[node.store or ""]
        if header.begun_id or not isinstance(store, MemoryStore) or not self._comparable(node):
            return
        reached = plan.number, tuple(sorted((planned.tp, planned.stop) for planned in plan.ranges))
        rows = dict(store.copy_part(self._flow.name, stage, part).states)
        self.seen[stage, part, reached] = rows
        expected = self._reference.get((stage, part, reached))
        if expected is not None and (before is None or before.number < header.number):
            by = f"{where} ({_functions_of(self._flow, node)})"
            self.check_rows(f"{by}, against the undisturbed run after the same inputs", rows, expected)

    def _comparable(self, node: StageNode) -> bool:
        """Whether a plan with the same number and ranges must store the same: nothing but its inputs has moved event time."""
        return node.stage_kind.sink is None and not node.traits.ticks and not self._flow.by_time

    def _on_output(self, output: Output, writer: object) -> None:
        topic, partition, key, value, headers, _ = output
        if any(name == FIRST_REASON for name, _ in headers or ()):
            return
        if not is_enveloped(value) and chain_header(headers) is None:
            return  # under SQE's record keys
        envelope = read(value, headers=headers)
        content = envelope.payloads, key, envelope.type, envelope.timestamp_ms, partition
        place, where = (topic, envelope.lane, envelope.position), f"{envelope.chain} on {topic}"
        known = self._published.setdefault(place, content)
        if known != content:
            self.check_content(where, shown(known), shown(content))
        if self._flow.keeps_plans:  # republishers pass on replays, also in the batch of what they repeat
            self.check_once(where, self._written, (writer, place))
        self.checked["redo"] += 1

    def _on_commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        for tp, commit in commits.items():
            plan = self._plans.get(str(parse_metadata(commit).get("id")))
            ends = needed_offsets(plan) if plan else {}
            self.require(
                "commit", ends.get(tp) == commit.offset, f"{tp}: {commit.offset} is not the end of a plan"
            )

    def check_at_rest(self, log: MemoryLog) -> None:
        """Check that nothing is left to do.

        Raises:
            Violation: something is.
        """
        last = self._last
        if last is None:
            return
        ends = {
            planned.tp: planned.stop for planned in last.ranges if planned.topic in self._flow.input_topics
        }
        self.check_read(ends, log.bounds(ends))
        for (stage, part), header in self._headers.items():
            self.check_done(f"state partition {part} of stage {stage!r}", header, last)


def _functions_of(flow: CompiledFlow, stage: StageNode) -> str:
    """The functions that may be to blame for a state: that of its fold, and the one before the stage."""
    fold = stage.maker.function if isinstance(stage.maker, Watched) else stage.maker
    return way_into(flow, stage) if fold is None else f"{way_into(flow, stage)}, folded by {title_of(fold)}"
