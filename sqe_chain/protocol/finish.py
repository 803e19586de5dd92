"""A claimed flow: how its next plan is sealed (step 4), and what is then done of it (steps 5 to 7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqe_chain.errors import (
    ConfigurationError,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.features.announcing import publications
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.features.lanes import may_move
from sqe_chain.features.overwrite import Overwrite
from sqe_chain.features.overwriting import Overwriting, report_replaced
from sqe_chain.features.parking import Parking, decisions
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.reporting import report_traces
from sqe_chain.features.sinks import report_flushed
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import COMMIT, PERSIST, PUBLISH, SEAL, Notice, Persisted, Published, Sealed
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.ports import Commit, Header, Home, Rows, TopicInfo, TopicPartition
from sqe_chain.protocol.transactions import Transactions
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim, Transition, persist


@dataclass(slots=True)
class PlanLog:
    """Reads and writes the plans of a flow that this run has claimed.

    Args:
        env: the flow and its ports.
        home: the home record, with this run's claim and the number of the last plan.
    """

    env: Environment
    home: Home

    def write(self, plan: Plan) -> None:
        """Write the next plan, if the claim is still this run's, and the plan before is still the last one.

        Raises:
            Superseded: a newer run has claimed the flow.
            StoreInconsistent: the home record is neither as this run left it nor a newer run's.
            ConfigurationError: the metadata store does not take a plan of this size.
        """
        env, before = self.env, self.home
        after = replace(before, number=plan.number, plan_id=plan.plan_id)
        data, drop_below = plan.stored(), max(0, plan.number - env.settings.keep_plans + 1)
        check_plan_size(env, plan, len(data))
        stored = env.home.set_home(env.flow.name, before, after, data, drop_below)
        if stored != after:
            mine = (before.epoch, before.run_id)
            if stored is not None and (stored.epoch, stored.run_id) != mine and stored.epoch >= before.epoch:
                raise Superseded(f"flow {env.flow.name!r}: run {stored.run_id} has claimed it")
            raise StoreInconsistent(
                f"flow {env.flow.name!r}: the home record is {stored or 'absent'}. Expected {before}: the metadata store went "
                "back in time. Start again: recovery finds out what can be done"
            )
        self.home = after

    def read(self, number: int) -> Plan | None:
        """A plan by its number; None when it is no longer kept."""
        return read_plan(self.env.home, self.env.flow.name, number)

    def read_last(self) -> Plan:
        """The last plan.

        Raises:
            StoreInconsistent: it is not there, or it is another one than the home record names.
        """
        home = self.home
        plan = self.read(home.number)
        if plan is None or plan.plan_id != home.plan_id:
            raise StoreInconsistent(f"the metadata store has no plan {home.number} ({home.plan_id})")
        return plan


Headers = dict[tuple[int, int], Header]
COMMIT_AGAIN_MS = 30_000
"""How often an idle service commits again. Kafka forgets a group that commits nothing (`offsets.retention.minutes`).
Also, a run that slept may have set the commit back: readers would then wait for what they have already."""


@dataclass(slots=True)
class OwnedFlow:
    """What a run works with once it has claimed the flow.

    Attributes:
        env: the flow and its ports.
        claim: this run's. It stays; whether the flow is still its own shows at the next write, never here.
        plans: where plans are sealed.
        last: the last sealed plan. Invariant: the home record names it, unless a newer run owns the flow. It may still be open.
        open_plan: number of a plan that this run has sealed and not yet finished; None when there is none. Invariant: it is None
            or the number of `last`, because a plan is sealed only when the one before is committed.
        entered: topics as described, and a layout: all that these topics bring in is in it. Compared by identity, because a new
            description may have new topics; None until the first look.
        transactions: publish its plans; None: it is not transactional.
    """

    env: Environment
    claim: Claim
    plans: PlanLog
    last: Plan
    open_plan: int | None = None
    entered: tuple[Mapping[str, TopicInfo], Layout] | None = None
    transactions: Transactions | None = None
    _committed_ms: int = 0

    def fetch(self, number: int) -> Plan | None:
        """A plan by its number; None when it is no longer kept."""
        return self.last if self.last.number == number else self.plans.read(number)

    def must_fetch(self, number: int) -> Plan:
        """A plan by its number.

        Raises:
            StoreInconsistent: it is no longer kept.
        """
        plan = self.fetch(number)
        if plan is None:
            raise StoreInconsistent(
                f"flow {self.env.flow.name!r}: plan {number} is not in the metadata store any more"
            )
        return plan

    def is_entered(self, infos: Mapping[str, TopicInfo]) -> bool:
        """Whether these topics, in this very description, have entered the present layout. Files enter and leave whenever they like."""
        if self.entered is None or self.env.flow.file_sources:
            return False
        return self.entered[0] is infos and self.entered[1] is self.last.layout

    def transition_after(self, before: Plan) -> Transition:
        """The transition from a plan to the next one, as states are written."""
        stored_in = before.layout.stored_in()
        return Transition(self.env.flow.name, self.claim, before.number, before.plan_id, stored_in)

    def headers_at(self, plan: Plan) -> Headers:
        """The headers of all stages that a plan knows, when it is finished."""
        mine, known = self.claim, plan.layout.stages
        header = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        return {(stage.index, part): header for stage, part in self.env.flow.all_cells if stage.name in known}

    def seal(self, plan: Plan) -> None:
        """Step 4: from here on the batch will be finished exactly so, by this run or by the next one.

        The plan before is committed then: a rebuild of a lost store knows of one batch at most only that it was begun.

        Raises:
            Superseded, StoreInconsistent, ConfigurationError: see `PlanLog.write`.
        """
        self.env.commits.settle()
        if self.open_plan is not None or plan.previous_id != self.last.plan_id:
            raise AssertionError(
                f"flow {self.env.flow.name!r}: plan {plan.number} after {self.last.number}, open {self.open_plan}"
            )
        self.plans.write(plan)
        self.last = plan
        self.open_plan = plan.number
        self.env.emit(Sealed(plan.number, plan.plan_id))

    def finish(self, plan: Plan, headers: Headers, report: Report, *, publish: bool, top_level: int) -> None:
        """Steps 5, 6 and 7; when the commit is acknowledged the plan is no longer open.

        Outputs come before the states that made them, downstream states before upstream ones, and the commit comes last.

        Args:
            plan: the sealed plan.
            headers: (stage index, cell) -> header before the plan.
            report: of the attempt that processed it; the engine keeps outputs and states.
            publish: whether its outputs may still be unpublished.
            top_level: the highest level that has something to write.
        """
        env = self.env
        # A silent plan gives what receivers have already.
        publish = publish and not (Rebuilding.name in plan.sections and Rebuilding.of(plan).silent)
        with env.step(PUBLISH):
            outputs = 0
            if publish and report.outputs:
                # Repeated as one: its tasks write many records, and what was published before is a replay.
                publish_kept = partial(inputs.publish, env.flow, env.ports.log, self._publish(plan))
                env.retry.call("publish", publish_kept)
                outputs = report.outputs
            if publish:
                for action in beside_outputs(env, self.claim, plan):
                    step = partial(inputs.publish, env.flow, env.ports.log, action)
                    outputs += env.retry.call("publish states", step)
                if env.flow.traces:
                    report_traces(env, report)
            env.emit(Published(plan=plan.number, outputs=outputs))
        # The last stage first: events between stages exist only while inputs are folded. If the first stage were written
        # and the second not, a redo would find the first one done and fold nothing. The second would never get its events.
        for level in range(min(top_level, len(env.flow.levels)), 0, -1):
            with env.step(PERSIST):
                rows = self._persist(plan, level, headers, report)
                env.emit(Persisted(plan.number, level, rows))
                if not plan.empty:
                    report_flushed(env, plan, env.flow.levels[level - 1])
                if Overwrite.name in plan.sections:
                    report_replaced(env, plan, level)
        with env.step(COMMIT):
            self.commit(plan)
        env.commits.then(partial(self._no_longer_open, plan.number))

    def _publish(self, plan: Plan) -> Callable[[], None]:
        """What publishes the outputs that the engine keeps."""
        engine = self.env.engine
        if self.transactions is None:
            return engine.publish
        return partial(self.transactions.publish, plan, engine.outputs)

    def apply_empty(self, plan: Plan, notices: Iterable[str] = ()) -> None:
        """Seal and finish a plan that reads nothing: it brings in a layout, or republishes states."""
        env, headers = self.env, self.headers_at(self.last)
        with env.step(SEAL):
            self.seal(plan)
        for text in notices:
            env.emit(Notice(text))
        self.finish(plan, headers, Report(), publish=True, top_level=len(env.flow.levels))
        env.commits.settle()

    def _no_longer_open(self, number: int) -> None:
        if self.open_plan == number:
            self.open_plan = None

    def _persist(self, plan: Plan, level: int, headers: Headers, report: Report) -> int:
        """Step 6 for one level: changed states by the engine, bare headers from here."""
        env, flow, touched = self.env, self.env.flow, set(report.touched)
        mine = {stage.index for stage in flow.levels[level - 1]}
        rows = 0
        if any(stage in mine for stage, _ in touched):
            # Repeated as one: its tasks write in chunks, and each cell's header shows how far that has come.
            rows = env.retry.call("persist", partial(env.engine.persist, level, plan.plan_id, headers))
        told: Mapping[tuple[int, int], Rows] = {}
        if Overwrite.name in plan.sections:
            told = Overwriting(env).persist(self.claim, plan, level, headers)
        for stage in flow.levels[level - 1]:
            bare = [cell for cell in flow.cells[stage.index] if (stage.index, cell) not in touched]
            if bare and stage.name in plan.layout.stages:  # else it is new, and enters with a plan of its own
                # `persist` is what tasks call, and does not retry by itself.
                write = partial(self._persist_header, plan, self._transition_to(plan), stage, headers, told)
                env.for_each("persist headers", bare[::-1], write)
        return rows

    def _transition_to(self, plan: Plan) -> Transition:
        """The transition to a plan from the one before."""
        stored_in = plan.layout.stored_in()
        return Transition(self.env.flow.name, self.claim, plan.number - 1, plan.previous_id, stored_in)

    def _persist_header(
        self,
        plan: Plan,
        transition: Transition,
        stage: StageNode,
        headers: Headers,
        told: Mapping[tuple[int, int], Rows],
        cell: int,
    ) -> None:
        """Write the header of a cell without changed states."""
        claim, store = self.claim, self.env.ports.store(stage)
        header = headers.get((stage.index, cell))
        if header is None:  # the stage is created with this plan
            created = Header(claim.epoch, claim.run_id, plan.number, plan.plan_id)
            stored = store.write(transition.store_flow(stage.name), stage.name, cell, None, created, ())
            if stored != created:
                raise Superseded(f"{transition.flow}/{stage.name}/{cell}: created by another run: {stored}")
        elif header.number < plan.number:  # else persisted by the run that crashed
            after, own = header.cursor or b"", told.get((stage.index, cell), ())
            own = [row for row in own if row[0] > after] if own else own
            persist(store, transition, plan.plan_id, stage.name, cell, own, header)

    def commit(self, plan: Plan) -> None:
        """Step 7."""
        commit_plan(self.env, self.claim, plan)
        self._committed_ms = self.env.clock.now_ms()

    def commit_again(self, last: Plan, *, now: bool = False) -> None:
        """Commit the last plan again, if the last commit is `COMMIT_AGAIN_MS` old.

        Args:
            last: the plan.
            now: do it whatever the time is.
        """
        if now or self.env.clock.now_ms() - self._committed_ms > COMMIT_AGAIN_MS:
            self.commit(last)


def beside_outputs(env: Environment, claim: Claim, plan: Plan) -> Iterator[Callable[[], int]]:
    """Step 5, after outputs: what a plan publishes beside them: states again, and decisions about dead-letter records.

    Yields:
        What publishes a part of it, and gives the number of records. Each is safe to repeat.
    """
    yield from publications(env, claim, plan)
    yield from decisions(env, plan)


def commit_plan(env: Environment, claim: Claim, plan: Plan) -> None:
    """Commit a plan: for lag monitors, and as a consistency check for recovery. The plan keeps where the flow is, not the commit."""
    if env.role.refold is not None:  # it has no group; the flow commits when it goes on from there
        return
    known, needed = known_without_store(env.flow, claim, plan), needed_offsets(plan)
    commits = dict[TopicPartition, Commit]()
    for planned in plan.ranges:
        start = plan.layout.starts.get(planned.tp, 0)
        own = known | {"topic_id": planned.topic_id} | ({"start": start} if start else {})
        commits[planned.tp] = Commit(needed[planned.tp], json.dumps(own))
    ids = {planned.topic: planned.topic_id for planned in plan.ranges}
    # Repeated as one: a commit without an answer may be for partitions that are gone; then the others are committed.
    send = partial(env.ports.log.commit, env.flow.declared_name)
    env.commits.commit(partial(inputs.commit, env.ports.log, send, commits, ids))


def known_without_store(flow: CompiledFlow, claim: Claim, plan: Plan) -> dict[str, object]:
    """What a commit's metadata keep for a rebuild that has lost the store: how far the flow has come, and what it cannot repeat."""
    known: dict[str, object] = {"plan": plan.number, "id": plan.plan_id, "epoch": claim.epoch}
    if Closes.name in plan.sections:  # how many times; where, the lost plans knew
        known["closes"] = len(Closes.of(plan))
    if may_move(flow, plan):
        known["state_partitions"] = plan.layout.state_partitions
    if Begun.name in plan.sections:  # marks of what was read before the first stage do not fit here
        known["begun"] = len(Begun.of(plan).marks)
    if Parking.name in plan.sections:
        parking = Parking.of(plan)
        if waiting := len(parking.records) + len(parking.discarded):
            known["parked"] = waiting
        if parking.counted:
            known["released"] = 1
    return known


def check_plan_size(env: Environment, plan: Plan, size: int) -> None:
    """Check before the seal that the metadata store takes a plan of this size.

    Raises:
        ConfigurationError: it is too large.
        Unavailable: asked to stop while waiting for the store.
    """
    most = env.home.max_plan_bytes
    if size <= most:
        return
    lanes = sum(len(marks) for marks in plan.marks.values())
    sections = (Section.kinds[name].of(plan).remedy(len(text)) for name, text in plan.sections.items())
    known = [remedy for remedy in sections if remedy is not None]
    parts = "".join(f"{part}, " for part, _ in known)
    parts += f"{len(plan.ranges)} input partitions, {lanes} lanes in their marks, and {len(plan.exclusions)} skipped inputs"
    first = "".join(f"{advice}. " for _, advice in known)
    policy = "" if known else "choose poison='stop', "
    raise ConfigurationError(
        f"flow {env.flow.name!r}: plan {plan.number} is too large, and nothing was sealed: {size} bytes. Expected at most {most}, which "
        f"the metadata store takes. The plan has {parts}. {first}Many lanes: republish with fewer partitions and shards upstream. "
        f"Many skipped inputs: correct what they fail on, {policy}or make batches smaller (--max-records). Else take a metadata store "
        "with more room (Cassandra: commitlog_segment_size; a plan may take half of it)"
    )
