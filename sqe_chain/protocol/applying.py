"""Steps 5 to 7 of a sealed plan: publish its outputs, persist its states, commit its offsets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqe_chain.errors import ConfigurationError, Superseded, Unavailable
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Commit, Header, Rows
from sqe_chain.protocol import inputs
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Persisted, Published
from sqe_chain.protocol.feature import Features
from sqe_chain.protocol.interfaces import COMMIT, PERSIST, PUBLISH
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim, Transition, persist

T = TypeVar("T")

COMMIT_AGAIN_MS = 30_000
"""How often an idle service commits again. Kafka forgets a group that commits nothing (`offsets.retention.minutes`); and a
run that slept may have set the commit back, so that readers would wait for what they have already."""


@dataclass(slots=True)
class Applier:
    """Applies sealed plans: outputs before the states that made them, downstream states before upstream ones, commit last.

    Args:
        env: the flow and its ports.
        claim: this run.
        features: of the run.
    """

    env: Environment
    claim: Claim
    features: Features = field(default_factory=Features)
    _committed_ms: int = 0

    def finish(
        self,
        plan: Plan,
        headers: dict[tuple[int, int], Header],
        report: Report,
        *,
        publish: bool,
        top_level: int,
    ) -> None:
        """Steps 5, 6 and 7.

        Args:
            plan: the sealed plan.
            headers: (stage index, cell) -> header before the plan.
            report: of the attempt that processed it; the engine keeps outputs and states.
            publish: whether its outputs may still be unpublished.
            top_level: the highest level that has something to write.
        """
        env = self.env
        features = self.features.of(plan)
        publish = publish and all(feature.publishes(plan) for feature in features)
        with env.step(PUBLISH):
            outputs = 0
            if publish and report.outputs:
                # Repeated as one: its tasks write many records, and what was published before is a replay.
                env.retry.call("publish", partial(self._publish, env.engine.publish))
                outputs = report.outputs
            for feature in features if publish else ():
                for action in feature.publish(self.claim, plan):
                    outputs += env.retry.call("publish states", partial(self._publish, action))
            env.emit(Published(plan=plan.number, outputs=outputs))
        # The last stage first: events between stages exist only while inputs are folded. Were the first stage written and
        # the second not, a redo would find the first one done, fold nothing, and the second would never get its events.
        for level in range(min(top_level, len(env.flow.levels)), 0, -1):
            with env.step(PERSIST):
                rows = self._persist(plan, level, headers, report)
                env.emit(Persisted(plan.number, level, rows))
                for feature in features:
                    feature.persisted(plan, level)
        with env.step(COMMIT):
            self.commit(plan)

    def _publish(self, action: Callable[[], T]) -> T:
        """Step 5. If it fails, look whether an output topic is too small now, for which waiting would not help, or gone."""
        env = self.env
        try:
            return action()
        except (ConfigurationError, Unavailable):
            inputs.describe(env.flow, env.ports.log, running=True)
            raise

    def _persist(self, plan: Plan, level: int, headers: dict[tuple[int, int], Header], report: Report) -> int:
        """Step 6 for one level: changed states by the engine, bare headers from here."""
        env, flow = self.env, self.env.flow
        touched = set(report.touched)
        mine = {stage.index for stage in flow.levels[level - 1]}
        rows = 0
        if any(stage in mine for stage, _ in touched):
            # Repeated as one: its tasks write in chunks, and each cell's header says how far that has come.
            rows = env.retry.call("persist", lambda: env.engine.persist(level, plan.plan_id, headers))
        transition = Transition(
            flow.name, self.claim, plan.number - 1, plan.previous_id, plan.layout.stored_in()
        )
        told = dict[tuple[int, int], Rows]()
        for feature in self.features.of(plan):
            told |= feature.persist(self.claim, plan, level, headers)
        for stage, part in env.flow.all_cells:
            if stage.index not in mine or (stage.index, part) in touched:
                continue
            if stage.name not in plan.layout.stages:  # it is new, and enters with a plan of its own
                continue
            header = headers.get((stage.index, part)) or self._create_header(stage, part, plan)
            if header.number >= plan.number:  # persisted by the run that crashed
                continue
            # Repeated as one: `persist` works on a bare store, as it does within tasks, and finds what it has done.
            bare = env.ports.store(stage)
            after = b"" if header.cursor is None else header.cursor
            own = [row for row in told.get((stage.index, part), ()) if row[0] > after]
            write = partial(persist, bare, transition, plan.plan_id, stage.name, part, own, header)
            env.retry.call("persist a header", write)
        return rows

    def _create_header(self, stage: StageNode, part: int, plan: Plan) -> Header:
        """Create the header of a stage that is created with this plan."""
        mine = self.claim
        created = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        store, flow = self.env.store(stage), plan.layout.stages[stage.name].flow
        stored = store.write(flow, stage.name, part, None, created, ())
        if stored != created:
            raise Superseded(f"{self.env.flow.name}/{stage.name}/{part}: created by another run: {stored}")
        return created

    def commit(self, plan: Plan) -> None:
        """Step 7: for lag monitors, and as a witness for recovery. Where the flow is, the plan says, not the commit."""
        env = self.env
        if env.role.refold is not None:  # it has no group; the flow commits when it goes on from there
            return
        needed = self.features.needed(plan)
        commits = {
            planned.tp: Commit(needed[planned.tp], self._metadata(plan, planned)) for planned in plan.ranges
        }
        ids = {planned.topic: planned.topic_id for planned in plan.ranges}
        # Repeated as one: a commit without an answer may be for partitions that are gone; then the others are committed.
        env.commits.commit(partial(inputs.commit, env.ports.log, env.flow.declared_name, commits, ids))
        self._committed_ms = env.clock.now_ms()

    def _metadata(self, plan: Plan, planned: PlannedRange) -> str:
        """What a rebuild needs when the store is lost: how far the flow has come, and where it once began."""
        known: dict[str, object] = {
            "plan": plan.number,
            "id": plan.plan_id,
            "epoch": self.claim.epoch,
            "topic_id": planned.topic_id,
        }
        for feature in self.features.of(plan):
            known |= feature.commit(plan)
        start = plan.layout.starts.get(planned.tp, 0)
        return json.dumps(known | {"start": start} if start else known)

    def commit_again(self, last: Plan, *, now: bool = False) -> None:
        """Commit the last plan again, if the last commit is `COMMIT_AGAIN_MS` old.

        Args:
            last: the plan.
            now: do it whatever the time is.
        """
        if now or self.env.clock.now_ms() - self._committed_ms > COMMIT_AGAIN_MS:
            self.commit(last)
