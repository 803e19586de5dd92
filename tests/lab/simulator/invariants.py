"""Checks the invariants after every write, and at rest, against the reference model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.struct_pb2 import Value

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import Envelope, read
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Commit, Header, Home, Output, TopicPartition
from sqe_chain.testing.faults import PortCall
from sqe_chain.testing.invariants import Invariants, rows_at
from tests.lab.reference.expected import ExpectedStates
from tests.lab.reference.facts import CHANGED, unit_of
from tests.lab.reference.lanes import lane_position_of
from tests.lab.reference.model import Model
from tests.lab.reference.plans import StoredPlan
from tests.lab.reference.world import TABLE, World
from tests.lab.simulator.flows import text_type
from tests.lab.simulator.functions import ids_of, parsed
from tests.lab.simulator.plain_reader import PlainReader
from tests.lab.simulator.table_checks import TableChecks

if TYPE_CHECKING:
    from tests.lab.simulator.table_audit import TableAudit

Content = tuple[Sequence[bytes | None], bytes | None, str, int, int, int]
"""Content of an output: payloads, key, type, number of siblings, event time, partition."""


def _unordered(content: Content, world: World, *, changed: bool) -> object:
    """A content that is equal for states which list the same ids in another order, folded by the functions of then or of now."""
    payloads, key, type_name, *rest = content

    def ids(payload: bytes) -> list[str]:
        if type_name == Value.DESCRIPTOR.full_name:
            return ids_of(Value.FromString(payload))
        found = ids_of(parsed(payload, world.form)) if payload else []
        return [one.replace(CHANGED, "") for one in found] if changed else found

    return [sorted(ids(payload or b"")) for payload in payloads], key, rest


class WriteChecks(Invariants):
    """Checks the invariants after every write that took effect.

    Args:
        world: the world.
        log: its broker, without injected faults.
        flow: of the service `totals`.
        model: the reference model.
        table: reads the world's table; None: it has none.

    Attributes:
        table: checks the world's table; None: it has none.
        members: group -> who joined it last; not of groups that have lost their commits, where the first run that wakes goes on.
        outputs_repeat: whether repeated outputs must have equal content; not after a whole store was rolled back.
        plain: reads what a transactional flow publishes; None: it is not transactional.
        committed: id of the plan whose transaction was committed last.
    """

    def __init__(
        self, world: World, log: MemoryLog, flow: CompiledFlow, model: Model, table: TableAudit | None = None
    ) -> None:
        super().__init__()
        self.outputs_repeat, self.members, self.committed = True, dict[str, object](), ""
        self._marked = dict[object, str]()
        self.plain: PlainReader | None = None
        if world.transactional:
            self.plain = PlainReader(log, {node.topic for node in flow.outputs}, "totals/")
        self._world = world
        self._log = log
        self._flow = flow
        self._model = model
        self._text = text_type(world)
        self._second = next((stage for stage in flow.stages if stage.name == "second"), None)
        self._expected: dict[str, ExpectedStates] = {}
        self._plans: dict[str, Plan] = {}
        self._published_contents: dict[object, Content] = {}
        self._written: set[object] = set()
        self._published: dict[str, set[str]] = {}
        self._dead_letters: dict[object, object] = {}
        self.table = None
        if table is not None:
            parts = world.state_partitions
            self.table = TableChecks(table, parts, self._plans, self._expected, self.require)
        self.reset_observations()

    def reset_observations(self) -> None:
        """Forget headers and claims seen so far, because stores were rolled back."""
        self._headers: dict[tuple[str, str, int], Header] = {}
        self._homes: dict[str, Home] = {}
        if self.table is not None:
            self.table.reset()
        self._last: Plan | None = None
        self._outputs_checked: set[str] = set()
        self.ordered = False

    def last_header(self, cell: tuple[str, str, int]) -> Header | None:
        """The last header seen of a cell (flow, stage, cell)."""
        return self._headers.get(cell)

    def on_write(self, call: PortCall, answer: Any) -> None:
        """Check a write that took effect; see `sqe_chain.testing.faults.Watch`."""
        if call.name in {"commit_transaction", "transactional_writer"}:
            self._on_transaction(call)
            return
        self._on_member(call, answer)
        if call.of == "table":
            if self.table is not None and call.name == "commit":
                self.table.on_commit(call.args[1].after)
        elif call.name == "publish":
            self._on_output(call.args[0], call.port)
        elif call.args[0].split(".")[0] == "totals":
            self._on_totals(call, answer)

    def _on_totals(self, call: PortCall, answer: Any) -> None:
        if call.name == "write":
            flow, stage, part, _, wanted, *_ = call.args
            if wanted == answer:
                self._on_state(call.port, flow, stage, part, answer)
        elif call.name == "set_home":
            if answer is not None:
                self._on_home(call.port, call.args[0], answer)
        elif call.name == "commit" and call.args[0] == "totals":
            self._on_commit(call.args[1])

    def _on_transaction(self, call: PortCall) -> None:
        """A plain reader may read now: what is committed, and no more."""
        if call.name == "commit_transaction":
            self.committed = self._marked[call.port]
        if self.plain is not None:
            self._read_plainly(self.plain)

    def _on_member(self, call: PortCall, answer: Any) -> None:
        """Of the runs without stages that have joined a group, only the newest one commits."""
        if call.of != "broker":
            return
        group = call.args[0]
        if call.name == "join":
            self.members[group] = answer
        elif call.name == "commit" and group in self.members:
            newest = call.port is self.members[group]
            self.require("one writer", newest, f"an older run has committed for {group}: {call.args[1]}")

    # ------------------------------------------------------------------ plans

    def _on_home(self, store: MemoryStore, flow: str, home: Home) -> None:
        self.check_home(flow, self._homes.get(flow), home)
        self._homes[flow] = home
        if home.number < 0:
            return
        if home.plan_id not in self._plans:
            self._check_plan(store, flow, home)
            if self.table is not None and flow == "totals" and home.number > 0:
                self.table.on_seal(home.epoch)
        plan = self._plans[home.plan_id]
        if flow == "totals":
            moved = self._last is not None and self._last.layout.stored_in() != plan.layout.stored_in()
            self._last = plan
            if moved:
                self.check_states(store)

    def _check_plan(self, store: MemoryStore, flow: str, home: Home) -> None:
        data = store.plan(flow, home.number)
        self.require("plans", data is not None, f"{flow} has no plan {home.number}")
        plan = Plan.from_bytes(data or b"")
        self.require("plans", plan.plan_id == home.plan_id, f"{flow}: {plan.number} is {plan.plan_id}")
        before = self._plans.get(plan.previous_id)
        if plan.previous_id:
            self.require("plans", before is not None, f"plan {plan.number} follows {plan.previous_id}")
        self.check_plan(flow, plan, before)
        expected = self._model.expected_after(
            (stored := StoredPlan.read(data or b"")), self._expected.get(plan.previous_id)
        )
        self._plans[plan.plan_id], self._expected[plan.plan_id] = plan, expected
        left_out = [(exclusion.topic, exclusion.partition, exclusion.offset) for exclusion in plan.exclusions]
        # What an operator has tried in vain was skipped by an earlier plan.
        out = [at for at in left_out if at not in stored.again]
        agrees = set(out) - expected.may_exclude == expected.excluded - expected.may_exclude and len(
            set(out)
        ) == len(out)
        texts = [
            (exclusion.topic, exclusion.partition, exclusion.offset, exclusion.error, exclusion.text[:80])
            for exclusion in plan.exclusions
        ]
        self.require(
            "once", agrees, f"plan {plan.number} leaves out {texts}, must be {sorted(expected.excluded)}"
        )

    # ------------------------------------------------------------------ states

    def _on_state(self, store: MemoryStore, flow: str, stage: str, part: int, header: Header) -> None:
        cell = (flow, stage, part)
        where = f"{flow}/{stage}/{part} at {header}"
        before = self._headers.get(cell)
        self._headers[cell] = header
        self.check_header(where, before, header)
        if self._stored_in(stage) != flow:
            return  # about to be deleted, or not switched over to yet
        self._check_cell(store, flow, stage, part, header)
        new = before is None or (header.number, header.begun_id) != (before.number, before.begun_id)
        if new:
            self._check_write_order(store, stage, header, where)

    def _stored_in(self, stage: str) -> str | None:
        return self._last.layout.stored_in().get(stage) if self._last else None

    def check_states(self, store: MemoryStore) -> None:
        """Check all present states."""
        for stage in self._flow.stages:
            flow = self._stored_in(stage.name)
            if flow is None:
                continue
            for cell in self._flow.cells[stage.index]:
                header = store.headers(flow, stage.name, [cell])[0]
                if header is not None:
                    self._check_cell(store, flow, stage.name, cell, header)

    def _check_cell(self, store: MemoryStore, flow: str, stage: str, part: int, header: Header) -> None:
        where = f"{flow}/{stage}/{part} at plan {header.number}"
        self.check_sealed(where, header, self._expected)
        if self.table is not None and stage == TABLE:
            self.table.on_header(part, header, where)
        if stage not in {"first", "second", "sums"}:
            return
        done, begun = (
            self._expected[plan_id].cells.get(stage, {}).get(part, {})
            for plan_id in (header.plan_id, header.begun_id or header.plan_id)
        )
        stored: Mapping[bytes, Any] = store.copy_part(flow, stage, part).states
        if stage == "sums":
            stored = {key: json.loads(state) for key, state in stored.items()}
        self.check_rows(where, stored, rows_at(header, done, begun))

    def _check_write_order(self, store: MemoryStore, stage: str, header: Header, where: str) -> None:
        reached = header.begun_id or header.plan_id
        if reached not in self._outputs_checked and reached in self._plans:
            self._outputs_checked.add(reached)
            plan, expected = self._plans[reached], self._expected[reached]
            names = ["notes", *(["second.notes"] if self._world.stages > 1 else [])]
            for name in (
                names if not Rebuilding.of(plan).silent and self.outputs_repeat and expected.emitted else ()
            ):
                self.check_published(f"{where}: {name}", expected.emitted, self._published.get(name, set()))
        if stage == "first" and self._world.stages > 1 and self.ordered:
            flow = self._stored_in("second")
            cells = self._flow.cells[self._second.index] if self._second else range(0)
            self.check_downstream(where, header, store.headers(flow or "", "second", cells))

    # ------------------------------------------------------------------ outputs and commits

    def _on_output(self, output: Output, port: object) -> None:
        topic, partition, key, value, headers, _ = output
        if topic == self._flow.marker_topic:
            self._marked[port] = json.loads(value or b"")["id"]
            return
        if headers and headers[-1][0] == "sqe-decision":
            return
        if headers and headers[-1][0] == "sqe-text":
            self._on_dead_letter_record(topic, dict(headers), (key, value))
            return
        envelope = read(value, headers=headers)
        links = envelope.chain.links
        way = lane_position_of(links)
        writer = links[-1].output
        if not self.outputs_repeat and writer.startswith("totals/"):
            return
        time_ms, place = envelope.timestamp_ms, (topic, way.lane, way.position)
        content: Content = (envelope.payloads, envelope.key, envelope.type, way.of, time_ms, partition)
        known = self._published_contents.setdefault(place, content)
        again, changed = topic.endswith(".states") and self._folded_again(), self._model.changed
        if known != content and not (
            again
            and _unordered(known, self._world, changed=changed)
            == _unordered(content, self._world, changed=changed)
        ):
            self.check_content(f"{envelope.chain} on {topic}", known, content)
        if writer.startswith(
            "totals/"
        ):  # republishers pass on replays, also in the batch of what they repeat
            self.check_once(f"{envelope.chain} on {topic}: {content}", self._written, (port, place))
        self.checked["redo"] += 1
        if topic == "notes" and self.plain is None:
            self._note_published(envelope)

    def _note_published(self, envelope: Envelope) -> None:
        name = envelope.chain.links[-1].output.removeprefix("totals/")
        ids = [unit_of(unit.value).id for unit in envelope.payloads_as(self._text) if unit is not None]
        self._published.setdefault(name, set()).update(ids)

    def _read_plainly(self, reader: PlainReader) -> None:
        for topic, envelope in reader.read():
            if topic == "notes":
                self._note_published(envelope)
        self.checked["once"] += 1

    def _folded_again(self) -> bool:
        """Whether states were rebuilt: inputs of different partitions may then be folded in another order."""
        return self._last is not None and any("." in flow for flow in self._last.layout.stored_in().values())

    def _on_dead_letter_record(
        self, topic: str, headers: Mapping[str, bytes | None], content: object
    ) -> None:
        names = ("sqe-topic-id", "sqe-partition", "sqe-offset", "sqe-error")
        origin = (topic, *(headers[name] for name in names))
        known = self._dead_letters.setdefault(origin, content)
        self.require(
            "once", known == content, f"two dead-letter records of {origin}: {content}, before {known}"
        )

    def _on_commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        for tp, commit in commits.items():
            metadata = parse_metadata(commit)
            plan = self._plans.get(str(metadata.get("id")))
            self.require("commit", plan is not None, f"{tp}: commit of {metadata}, which nobody sealed")
            if plan is None or not self.ordered:
                continue
            after = self._expected[plan.plan_id]
            end = after.ends.get(tp, -1)
            needed = after.needed.get(tp, end)
            waits = any(message.coordinates[:2] == tp for _, message in after.waiting)
            self.require(
                "commit",
                commit.offset <= needed and (waits or commit.offset == end),
                f"{tp}: {commit.offset} is not the end of plan {plan.number}",
            )
            for stage, flow in plan.layout.stored_in().items():
                for (its, name, part), header in self._headers.items():
                    if (its, name) == (flow, stage):
                        behind = header.number < plan.number
                        self.require(
                            "commit", not behind, f"plan {plan.number}, but {name}/{part} is at {header}"
                        )

    # ------------------------------------------------------------------ at rest

    def expected(self) -> ExpectedStates:
        """The expected states after the last plan."""
        return self._expected[self._last.plan_id] if self._last else ExpectedStates()

    def check_at_rest(self, store: MemoryStore) -> None:
        """Check that nothing is left to do; see "rest"."""
        last = self._last
        if last is None:
            return
        if self.plain is not None:
            self._read_plainly(self.plain)
        self.check_states(store)
        ends = self.expected().ends
        self.check_read(ends, self._log.bounds(ends))
        for stage in self._flow.stages:
            flow = last.layout.stored_in()[stage.name]
            for header in store.headers(flow, stage.name, self._flow.cells[stage.index]):
                self.check_done(stage.name, header, last)
        commits = self._log.committed("totals", ends)
        committed = {tp: commit.offset for tp, commit in commits.items()}
        # An older run's commit may arrive late: commits inform others, the plan is authoritative.
        in_bounds = all(offset <= ends[tp] for tp, offset in committed.items())
        self.require(
            "rest", in_bounds and committed.keys() == ends.keys(), f"commits are {committed}, ends are {ends}"
        )

    def check_sum(self, found: list[str], must: set[str], may: set[str], what: str) -> None:
        """Check that each fact was counted once, none is missing, none is extra."""
        twice = [name for name, count in Counter(found).items() if count > 1]
        self.require("sum", not twice, f"{what}: {twice} twice")
        missing, extra = must - set(found), set(found) - may
        self.require(
            "sum", not missing and not extra, f"{what}: missing {sorted(missing)}, extra {sorted(extra)}"
        )
