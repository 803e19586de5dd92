"""What must hold after every write of a flow, whatever its functions do: the simulator's invariants without its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.carrier import chain_header
from sqe_chain.envelope.message import is_enveloped, read
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.operations.dead_letters import FIRST_REASON
from sqe_chain.ports import Commit, Header, Home, Output, StateStore, TopicPartition
from sqe_chain.protocol.inputs import parse_metadata
from sqe_chain.protocol.plan import Plan
from sqe_chain.testing.invariants import Violation
from sqe_chain.testing.proving.contents import shown

Reached = tuple[int, tuple[tuple[TopicPartition, int], ...]]
"""Number of a plan, and how far it has read each partition."""
Rows = Mapping[bytes, bytes]


@dataclass(slots=True)
class Audit:
    """Checks a flow's writes as they take effect.

    Attributes:
        flow: the flow.
        stores: name -> store, without injected faults.
        reference: (stage, cell, how far the plan has read) -> its rows in an undisturbed run; empty: this is that run, or one
            with other records.
        seen: the same of this run.
        checked: invariant -> how often it was looked at.
    """

    flow: CompiledFlow
    stores: Mapping[str, StateStore]
    reference: Mapping[tuple[str, int, Reached], Rows] = field(default_factory=dict)
    seen: dict[tuple[str, int, Reached], Rows] = field(default_factory=dict)
    checked: Counter[str] = field(default_factory=Counter)
    _plans: dict[str, Plan] = field(default_factory=dict)
    _headers: dict[tuple[str, int], Header] = field(default_factory=dict)
    _published: dict[object, object] = field(default_factory=dict)
    _written: set[object] = field(default_factory=set)
    _epoch: int = 0
    _last: Plan | None = None

    def on_write(self, kind: str, what: tuple[Any, ...]) -> None:
        """Check the invariants after a write.

        Raises:
            Violation: an invariant does not hold.
        """
        if kind == "home" and what[2] is not None:
            self._on_home(what[0], what[2])
        elif kind == "state":
            _, _, stage, part, wanted, stored = what
            if wanted == stored:
                self._on_state(stage, part, stored)
        elif kind == "publish":
            self._on_output(*what)
        elif kind == "commit" and self.flow.keeps_plans:
            self._on_commit(what[1])

    def _on_home(self, store: StateStore, home: Home) -> None:
        self._require("monotone", home.epoch >= self._epoch, f"epoch {home.epoch} after {self._epoch}")
        self._epoch = home.epoch
        if home.number < 0 or home.plan_id in self._plans:
            return
        plan = Plan.from_bytes(store.plan(self.flow.name, home.number) or b"")
        self._require("plans", plan == plan.with_id(), f"plan {plan.number} is not what its id says")
        before = self._last
        if before is not None:
            self._require(
                "plans", plan.previous_id == before.plan_id, f"plan {plan.number} follows another one"
            )
            starts = {planned.tp: planned.start for planned in plan.ranges}
            follows = all(starts.get(planned.tp) == planned.stop for planned in before.ranges)
            self._require("plans", follows, f"plan {plan.number} does not begin where the one before ends")
        self._plans[plan.plan_id] = self._last = plan

    def _on_state(self, stage: str, part: int, header: Header) -> None:
        where, before = (
            f"state partition {part} of stage {stage!r}: {header}",
            self._headers.get((stage, part)),
        )
        self._headers[stage, part] = header
        if before is not None:
            self._require("one writer", header.epoch >= before.epoch, f"{where}; before {before}")
            self._require("monotone", header.number >= before.number, f"{where}; before {before}")
        plan = self._plans.get(header.plan_id)
        self._require("order", plan is not None, f"{where}: that plan was never sealed")
        node = next(node for node in self.flow.stages if node.name == stage)
        store = self.stores[node.store or ""]
        if (
            plan is None
            or header.begun_id
            or not isinstance(store, MemoryStore)
            or not self._comparable(node)
        ):
            return
        reached = plan.number, tuple(sorted((planned.tp, planned.stop) for planned in plan.ranges))
        rows = dict(store.copy_part(self.flow.name, stage, part).states)
        self.seen[stage, part, reached] = rows
        expected = self.reference.get((stage, part, reached))
        if expected is not None and (before is None or before.number < header.number):
            off = [key for key in sorted({*rows, *expected}) if rows.get(key) != expected.get(key)]
            text = (
                f"{where}: keys {off[:3]} are not what the undisturbed run has stored after the same inputs"
            )
            self._require("prefix", not off, text)

    def _comparable(self, node: StageNode) -> bool:
        """Whether a plan with the same number and ranges must store the same: nothing but its inputs has moved event time."""
        return node.stage_kind.sink is None and not node.traits.ticks and not self.flow.by_time

    def _on_output(self, output: Output, writer: int) -> None:
        topic, partition, key, value, headers, _ = output
        if any(name == FIRST_REASON for name, _ in headers or ()):
            return
        if not is_enveloped(value) and chain_header(headers) is None:
            return  # under SQE's record keys
        envelope = read(value, headers=headers)
        content = envelope.payloads, key, envelope.type, envelope.timestamp_ms, partition
        place = topic, envelope.lane, envelope.position
        known = self._published.setdefault(place, content)
        if known != content:
            text = f"{envelope.chain} on {topic} was {shown(known)}, and then {shown(content)}"
            self._require("redo", False, text)  # noqa: FBT003
        if self.flow.keeps_plans:  # republishers pass on replays, also in the batch of what they repeat
            text = f"{envelope.chain} on {topic} twice in a batch: {shown(content)}"
            self._require("redo", (writer, place) not in self._written, text)
            self._written.add((writer, place))
        self.checked["redo"] += 1

    def _on_commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        for tp, commit in commits.items():
            plan = self._plans.get(str(parse_metadata(commit).get("id")))
            ends = needed_offsets(plan) if plan else {}
            self._require(
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
            planned.tp: planned.stop for planned in last.ranges if planned.topic in self.flow.input_topics
        }
        for tp, bound in log.bounds(ends).items():
            self._require(
                "rest", ends[tp] == bound.stable_end, f"{tp}: read to {ends[tp]} of {bound.stable_end}"
            )
        for (stage, part), header in self._headers.items():
            done = (header.number, header.begun_id) == (last.number, "")
            self._require(
                "rest", done, f"state partition {part} of stage {stage!r}: {header}; last plan {last.number}"
            )

    def _require(self, name: str, holds: bool, text: str) -> None:  # noqa: FBT001
        self.checked[name] += 1
        if not holds:
            raise Violation(name, text)
