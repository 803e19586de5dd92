"""Replays a flow from its topics into memory, up to a plan: what a rebuild does, without a claim and without a switch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self, cast

from sqe_chain.adapters.memory.store import MemoryStore, StoreCopy
from sqe_chain.cli.move import export_in
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.narrowing import Focus, narrowed_nodes, nodes_to_replay
from sqe_chain.ext.explain.reading import Pass, ReadOnlyLog
from sqe_chain.ext.explain.recording import Place, Recorder, RecordingKind
from sqe_chain.ext.explain.since import Before, begin_after, check_continued, fill, rebuilding_up_to
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.features.file_inputs import check_no_files
from sqe_chain.features.parking import Parking
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.sinks import check_no_sinks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import Node, StageNode
from sqe_chain.flow.stored import StoredState
from sqe_chain.operations.moving import ExportedRow, read_export
from sqe_chain.operations.skipped_again import find_skipped
from sqe_chain.plans.environment import Environment, Ports, Refold, Role
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.plan import Plan, encoded_sections
from sqe_chain.plans.revisions import Revisions
from sqe_chain.ports import Log, TopicPartition
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.runtime.observers import Quiet
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.failed_log import FailedLog
from sqe_chain.task.results import Job, Portion, Report


class _RecordingEngine(InProcessEngine):
    """Starts a new record with each attempt at a batch."""

    recorder: Recorder
    reading: Pass

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        self.recorder.begin(job.transition.before_number + 1)
        self.reading.again()
        return super().process(job, portions)


COMPACTED: Final = -2
"""See `Missing.partition`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Records that a replay needs and the brokers no longer have.

    Attributes:
        partition: the partition; -1: all records of a topic that was deleted and created again; -2: compaction removes records of
            the topic, and nobody knows which.
        begin: first missing offset.
        end: one past the last.
    """

    topic: str
    partition: int
    begin: int
    end: int

    def __str__(self) -> str:
        if self.partition == COMPACTED:
            return f"records of {self.topic!r}, which is compacted"
        if self.partition < 0:
            return f"the topic that was called {self.topic!r} before"
        return f"{self.topic}[{self.partition}] offsets {self.begin} to {self.end - 1}"


@dataclass(slots=True)
class Replay:
    """One replay; a context, after which its states are gone.

    Args:
        env: the flow and its ports. Nothing is written to them.
        recorder: takes what is recorded.
        alone: stages that process recorded keys alone; see `RecordingKind`.
        focus: what the replay need not do; None: it does all.
        only: fold this input alone, in an empty state; None: fold all.
        since: a file of `sqe-chain export`: begin with its states; None: begin where the flow began.
        reading: counts the records, and may end the replay early.
        failed: what the flow's dead-letter topic knows; see `failed_logs`.
        enough: whether the replay may end after a plan; None: it goes on up to the plan of the flow.

    Attributes:
        missing: records that retention has deleted. The replay begins after them. After an export it does not begin.
        before: what it has begun with; None: nothing.
    """

    env: Environment
    plan: Plan
    recorder: Recorder
    alone: frozenset[str] = frozenset()
    focus: Focus | None = None
    only: Place | None = None
    since: Path | None = None
    reading: Pass = field(default_factory=Pass)
    failed: Sequence[FailedLog] = ()
    enough: Callable[[Plan], bool] | None = None
    missing: tuple[Missing, ...] = ()
    before: Before | None = None
    _stores: dict[str, MemoryStore] = field(default_factory=dict)
    _flow: CompiledFlow | None = None
    _service: StagedService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._stores.values():
            store.restore_all(StoreCopy())

    def run(self, change: Callable[[Node], Node] = lambda node: node) -> None:
        """Read the topics from where the flow began, or from the plan of the export, and fold.

        Args:
            change: replaces operators of the flow.

        Raises:
            ConfigurationError: the flow reads files, writes tables or parks records, so it cannot be replayed. Or the export is not one of this
                history of the flow.
            ServiceStopped: it was asked to stop; or the topics are not what they were.
        """
        env, flow = self.env, self.env.flow
        check_no_files(flow)
        check_no_sinks(flow, "to replay")
        if flow.poison == "park":
            raise ConfigurationError(
                f"flow {flow.name!r} parks records, and counts them later than others. Expected another policy than poison='park', to "
                "replay it in the order of its topics. See what is parked with `sqe-chain failed list`"
            )
        name = f"{flow.name}.replay"
        nodes = tuple(change(self._recording(node)) for node in self._nodes())
        self._flow = traced = replace(flow, nodes=nodes, poison=_without_output(flow)).renamed(name)
        log = cast("Log", ReadOnlyLog(env.ports.log, self.reading))
        unique = token_hex(8)
        self._stores = stores = {store: MemoryStore(f"{name}-{unique}-{store}") for store in env.ports.stores}
        spec = self._begin(traced)
        if self.before is not None and self.missing:
            return  # what comes after them would be folded into states that lack them
        ports = Ports(log, stores)
        engine = _RecordingEngine(traced, log, ports.store)
        engine.recorder, engine.reading = self.recorder, self.reading
        second = Environment(
            flow=traced,
            ports=ports,
            engine=engine,
            observer=Quiet(),
            clock=env.clock,
            new_run_id=env.new_run_id,
            settings=replace(env.settings, allow_weak_durability=True).asking(takeover=True),
            role=Role(refold=spec),
        )
        self._service = service = StagedService(second)
        service.start()
        begun, wanted = self._read_to(service.last), sum(self._ends().values())
        self.reading.begin(wanted - begun)
        while service.batch().worked:
            self.reading.reached(self._read_to(service.last) - begun)
            self.reading.check()
            if self.enough is not None and service.last is not None and self.enough(service.last):
                return

    def _begin(self, flow: CompiledFlow) -> Refold:
        """What to fold, after the states that it begins with are in the stores."""
        if self.since is None:
            ends = self._ends()
            return self._spec({tp: at for tp, at in self.plan.layout.starts.items() if tp in ends})
        with export_in(self.since) as lines:
            before, rows = read_export(self.env.flow, lines)
            check_continued(self.env.home, self.env.flow.name, before, self.plan)
            spec = self._spec(needed_offsets(before))
            needed = (row for row in rows if self._needs(flow, row))
            fill(self._stores, flow, begin_after(before, self.plan, spec.number, flow.name), needed)
        keys = self.recorder.keys or frozenset()
        states = {stage.name: tuple(self.states(stage, keys)) for stage in flow.stages if stage.codec}
        self.before = Before(before, states)
        return spec

    def _needs(self, flow: CompiledFlow, row: ExportedRow) -> bool:
        """Whether the replay needs a row of the export: of stages that process recorded keys alone, only theirs."""
        name, _, key, _ = row
        stage = next(stage for stage in flow.stages if stage.name == name)
        others = name in self.alone and stage.traits.states_by_key and self.recorder.keys is not None
        return not others or key in (self.recorder.keys or ())

    @staticmethod
    def _read_to(plan: Plan | None) -> int:
        """The sum of the offsets up to which a plan has read."""
        return 0 if plan is None else sum(planned.stop for planned in plan.ends().values())

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """Inputs that the last batch of the replay skipped."""
        last = None if self._service is None else self._service.last
        return () if last is None else last.exclusions

    def states(self, stage: StageNode, keys: frozenset[bytes]) -> list[StoredState]:
        """The states of keys after the replay, in the order of key and window."""
        if self._flow is None:
            raise AssertionError("run() comes first")
        store = self._stores[stage.store or ""]
        states = [
            state
            for cell in range(self._flow.state_partitions * stage.buckets)
            for row, content in store.scan(self._flow.name, stage.name, cell)
            for state in stage.stage_kind.states_in(row, content)
        ]
        return sorted(
            (state for state in states if state.key in keys), key=lambda state: (state.key, state.span)
        )

    def _topics(self) -> tuple[str, ...]:
        """The topics that the replay reads."""
        return (self.env.flow if self._flow is None else self._flow).input_topics

    def _ends(self) -> dict[TopicPartition, int]:
        """Up to where the replay reads."""
        ends, needed = self.plan.ends(), self._topics()
        whole = self._flow is None or self._flow.input_topics == self.env.flow.input_topics
        return {tp: planned.stop for tp, planned in ends.items() if whole or tp[0] in needed}

    def _skips(self, tp: TopicPartition) -> bool:
        """Whether a partition cannot have any of the keys."""
        return (
            self.focus is not None
            and self.focus.partitions is not None
            and tp[1] not in self.focus.partitions
        )

    def _nodes(self) -> list[Node]:
        flow, focus = self.env.flow, self.focus
        if focus is None:
            return nodes_to_replay(flow)
        # The states of an export are of all stages.
        whole = focus if self.since is None else replace(focus, upto="")
        return narrowed_nodes(flow, whole, self.recorder.watch)

    def _recording(self, node: Node) -> Node:
        if not isinstance(node, StageNode) or (self.focus and node.name not in self.focus.keys):
            return node
        kind = RecordingKind(node.stage_kind, self.recorder, alone=node.name in self.alone)
        return replace(node, stage_kind=kind)

    def _spec(self, begun: Mapping[TopicPartition, int]) -> Refold:
        """What to fold, from these offsets or from the oldest records that are left."""
        plan, env = self.plan, self.env
        number = plan.number + 1
        if self.only is not None:
            topic, partition, offset = self.only
            starts = {tp: planned.stop for tp, planned in plan.ends().items()} | {(topic, partition): offset}
            until = starts | {(topic, partition): offset + 1}
            sections = encoded_sections(Rebuilding(attempt=number), Revisions.of(plan))
            return Refold(number, starts, until, sections)
        ends, topics = self._ends(), self._topics()
        starts = dict(begun) | {tp: end for tp, end in ends.items() if self._skips(tp)}
        bounds = env.log.bounds(ends)
        gone = [topic for topic in plan.layout.gone if topic in topics] if self.since is None else []
        infos = env.log.describe(topics)
        missing = [Missing(topic, -1, 0, 0) for topic in gone]
        if env.flow.allow_compacted:  # a topic may have been compacted that is not any more
            compacted = [topic for topic, info in sorted(infos.items()) if info.compacted] or sorted(infos)
            missing += [Missing(topic, COMPACTED, 0, 0) for topic in compacted]
        for tp, end in ends.items():
            begin = starts.get(tp, 0)
            if bounds[tp].begin > begin and end > begin:
                missing.append(Missing(*tp, begin, min(end, bounds[tp].begin)))
                starts[tp] = bounds[tp].begin
        self.missing = tuple(missing)
        closes = Closes.of(plan)
        until = {tp: max(end, starts.get(tp, 0)) for tp, end in ends.items()}
        rebuilding = rebuilding_up_to(plan)
        known = Begun.of(plan).marks if self.since is None else {}
        marks = Begun({tp: known[tp] for tp in known if starts.get(tp, 0) == begun.get(tp, 0)})
        parking = replace(
            Parking.of(plan), records=(), released=(), decided=None, skipped=find_skipped(env, self.failed)
        )
        sections = encoded_sections(rebuilding, replace(closes, done=0), marks, parking, Revisions.of(plan))
        return Refold(number, starts, until, sections)


def _without_output(flow: CompiledFlow) -> Any:  # noqa: ANN401 - a policy
    """A policy that publishes nothing: dead-letter records were published when the flow ran."""
    return "skip" if flow.poison == "dead_letter" else flow.poison
