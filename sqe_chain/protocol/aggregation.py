"""A service with stages: the seven steps.

Data flows one way, and each step makes the next one safe to repeat:

    claim ─ recover ─┬─ process ─ seal ─ publish ─ persist (last stage first) ─ commit ─┐
                     └──────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.errors import (
    LostOffsets,
    PlanMismatch,
    PoisonError,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
    TruncatedInput,
    WeakDurability,
)
from sqe_chain.flow import Node
from sqe_chain.plan import Exclusion, Plan, PlannedRange
from sqe_chain.ports import Bounds, Commit, Header, Home, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.claim import claim, release, stamp
from sqe_chain.protocol.planning import (
    batch_plan,
    birth_plan,
    check_commits,
    check_layout,
    layout_of,
    layout_plan,
    marks_after,
    portions_of,
)
from sqe_chain.protocol.recover import Redo, redo_of, to_redo
from sqe_chain.protocol.surroundings import (
    CLAIM,
    COMMIT,
    PERSIST,
    PROCESS,
    PUBLISH,
    RECOVER,
    SEAL,
    Surroundings,
)
from sqe_chain.segment.level import levels, stages_at
from sqe_chain.segment.results import Job, Report
from sqe_chain.states import Claim, Step, persist

DAY_MS = 86_400_000


@dataclass(slots=True)
class Aggregation:
    """One run of a service with stages.

    Args:
        around: the flow and its ports.
    """

    around: Surroundings
    claimed: Claim | None = None
    last: Plan | None = None
    _home: Home | None = None
    _before_last: Plan | None = None
    _in_place: bool = True
    _committed_ms: int = 0
    _bytes_per_record: float = 100.0
    _level_of: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        """Steps 1 and 2: claim, recover, and bring the layout up to date.

        Raises:
            ServiceStopped: what is found cannot be continued exactly; the text names the ways out.
            ConfigurationError: a topic or store is missing.
        """
        around = self.around
        around.flow.check()
        self._level_of = {stage.index: around.flow.level(stage) for stage in around.flow.stages()}
        self._in_place = around.settings.in_place
        self._check_durability()
        infos = around.patiently("look at the topics", lambda: inputs.describe(around.flow, around.log))
        around.notice_weak_topics(infos)
        try:
            self._claim_and_recover(infos)
        except Superseded:
            raise
        except ServiceStopped as error:
            self._check_still_mine(error)
            raise

    def batch(self) -> bool:
        """Steps 3 to 7 for what is new in the inputs.

        Returns:
            False when there was nothing new; then nothing was done.

        Raises:
            ServiceStopped: a witness says that going on would not be exact.
            PoisonError: an input cannot be processed.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for broker or store.
        """
        around, last = self.around, self._last()
        infos = around.patiently("look at the topics", lambda: inputs.describe(around.flow, around.log))
        if self._bring_up_to_date(infos):
            last = self._last()
        ends = last.ends()
        positions = {place: planned.stop for place, planned in ends.items()}
        bounds = around.patiently("look for new records", lambda: around.log.bounds(positions))
        try:
            for place, offset in positions.items():
                inputs.check_bounds(place, offset, bounds[place])
        except (LostOffsets, TruncatedInput):
            if not around.patiently(
                "look at the topics again", lambda: inputs.recreated_since(around.flow, around.log, infos)
            ):
                raise
            return self.batch()  # which names it, or begins with it
        limit = max(
            len(positions),
            min(around.settings.max_records, int(around.settings.max_bytes / self._bytes_per_record)),
        )
        stops = inputs.cut(positions, bounds, limit)
        if stops == positions:
            self._commit_again_daily()
            around.tell("caught_up", plan=last.number)
            return False
        ranges = tuple(
            replace(planned, start=planned.stop, stop=stops[place]) for place, planned in ends.items()
        )
        started_ms = around.clock.now_ms()
        with around.step(PROCESS):
            report, exclusions = self._process(ranges, started_ms, infos)
        plan = batch_plan(last, self._claim(), started_ms, ranges, report, exclusions)
        with around.step(SEAL):
            self._seal(plan)
        self._finish(plan, self._headers_at(last), report, publish=True, top_level=levels(around.flow))
        around.engine.release()
        records = sum(end.records for end in report.ends)
        around.tell(
            "committed",
            plan=plan.number,
            inputs=records,
            replays=sum(end.replays for end in report.ends),
            excluded=len(exclusions),
            outputs=report.outputs,
            lag=inputs.lag(stops, bounds),
            batch_ms=around.clock.now_ms() - started_ms,
        )
        if records:
            self._bytes_per_record = max(
                16.0, (sum(e.size for e in report.ends) + report.output_size) / records
            )
        return True

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow."""
        mine = self.claimed
        return mine is None or self.around.home.beat(self.around.flow.name, mine.epoch, mine.run_id)

    def leave(self) -> None:
        """Give the claim back. The last batch is complete."""
        if self.claimed is not None:
            release(self.around, self.claimed)
            self.claimed = None

    def lag(self) -> int:
        """Offsets that are stable and not yet in a plan."""
        positions = {place: planned.stop for place, planned in self._last().ends().items()}
        return inputs.lag(positions, self.around.log.bounds(positions))

    # ------------------------------------------------------------------ claim and recover

    def _claim_and_recover(self, infos: dict[str, TopicInfo]) -> None:
        around = self.around
        with around.step(CLAIM):
            self.claimed, self._home = claim(around, partial(self._commits, infos))
            if self._home.number < 0:
                self._be_born(infos)
            self.last = self._fetch(self._home.number)
            if self.last is None or self.last.plan_id != self._home.plan_id:
                raise StoreInconsistent(
                    f"the home store has no plan {self._home.number} ({self._home.plan_id})"
                )
            check_layout(around.flow, self.last.layout, around.settings.drop_stages)
            headers = stamp(around, self.claimed, self.last)
        with around.step(RECOVER):
            if not around.settings.accept_rollback:
                check_commits(around.flow, self.last, self._commits(infos))
            self._recover(headers)
            self._bring_up_to_date(infos)

    def _check_still_mine(self, found: ServiceStopped) -> None:
        """What looks like a store gone back in time may be the work of newer runs while this one slept."""
        around, mine = self.around, self.claimed
        home, _ = around.patiently("look at the claim", lambda: around.home.home(around.flow.name))
        if mine is not None and home is not None and home.epoch > mine.epoch:
            raise Superseded(
                f"flow {around.flow.name!r}: run {home.run_id} has claimed it with epoch {home.epoch}, this one had {mine.epoch}"
            ) from found

    def _check_durability(self) -> None:
        around = self.around
        stores = {stage.store or "": around.store(stage) for stage in around.flow.stages()} | {
            "": around.home
        }
        for name, store in sorted(stores.items()):
            weak = around.patiently("look at the store's settings", store.check)
            if weak and not around.settings.allow_weak_durability:
                raise WeakDurability(
                    f"store {name or 'default'!r} may lose acknowledged writes: {'; '.join(weak)}. Change that, or accept "
                    "it with --allow-weak-durability"
                )
            for text in weak:
                around.tell("notice", text=f"weak durability accepted: {text}")

    def _commits(self, infos: dict[str, TopicInfo]) -> dict[TopicPartition, Commit]:
        around = self.around
        places = inputs.partitions_of(infos[topic] for topic in around.flow.input_topics())
        return around.patiently(
            "read the group's commits", lambda: around.log.committed(around.flow.name, places)
        )

    def _be_born(self, infos: dict[str, TopicInfo]) -> None:
        """Seal the birth plan."""
        around, home = self.around, self._home
        if home is None:
            raise AssertionError("born after the claim")
        places = inputs.partitions_of(infos[topic] for topic in around.flow.input_topics())
        bounds = around.patiently("look at the inputs", lambda: around.log.bounds(places))
        starts = inputs.first_offsets(around.flow, bounds, around.settings.start)
        self._set_home(home, birth_plan(around.flow, self._claim(), around.clock.now_ms(), infos, starts))

    def _recover(self, headers: dict[tuple[int, int], Header]) -> None:
        around, last = self.around, self._last()
        numbers = to_redo(last, headers, self._level_of, self._fetch)
        self._verify_records(last, unfinished=bool(numbers))
        for number in numbers:
            plan = last if number == last.number else self._must_fetch(number)
            before = self._must_fetch(number - 1)
            self._redo(redo_of(plan, before, headers, self._level_of), headers)
            claimed = self._claim()
            done = Header(claimed.epoch, claimed.run_id, plan.number, plan.plan_id)
            headers = {place: h if h.number >= number else done for place, h in headers.items()}
        if len(numbers) > 1:
            around.tell("notice", text=f"the store had lost acknowledged writes; plans {numbers} were redone")
        around.tell("recovered", plan=last.number, redone=numbers)
        if not numbers and (last.number > 0 or around.settings.accept_rollback):
            self._commit(last, last.ranges)

    def _verify_records(self, last: Plan, *, unfinished: bool) -> None:
        around = self.around
        infos = around.patiently(
            "look at the inputs", lambda: around.log.describe({p.topic for p in last.ranges})
        )
        ranges = []
        for planned in last.ranges:
            if not unfinished and self._started_over(planned, infos):
                continue
            inputs.check_same(planned, infos.get(planned.topic))
            ranges.append(planned)
        bounds = around.patiently("look at the inputs", lambda: around.log.bounds([p.place for p in ranges]))
        for planned in ranges:
            bound: Bounds = bounds[planned.place]
            inputs.check_bounds(planned.place, planned.start if unfinished else planned.stop, bound)
            if planned.topic in self._compacted(infos):
                continue
            compared = around.patiently(
                "read a last record again",
                partial(inputs.check_last_record, around.log, planned, bound),
            )
            if not compared:
                place = f"{planned.topic}[{planned.partition}]"
                around.tell(
                    "notice", text=f"{place}: the last record read has aged out, it could not be compared"
                )

    def _redo(self, redo: Redo, headers: dict[tuple[int, int], Header]) -> None:
        plan, around = redo.plan, self.around
        infos = around.patiently("look at the topics", lambda: inputs.describe(around.flow, around.log))
        report = Report()
        if any(planned.start != planned.stop for planned in plan.ranges):  # else it only brings in a layout
            report = self._attempt(
                plan.ranges, redo.before, plan.clock_ms, plan.exclusions, infos, redo.top_level
            )
            _check_redone(redo, report)
        self._finish(plan, headers, report, publish=redo.publish, top_level=redo.top_level)
        around.engine.release()

    def _bring_up_to_date(self, infos: dict[str, TopicInfo]) -> bool:
        """Let new partitions, sources, stages and outputs enter by an empty plan of their own.

        So does a topic without envelopes that was created again: it is another root.
        """
        last, around = self._last(), self.around
        kept = [planned for planned in last.ranges if not self._started_over(planned, infos)]
        for planned in kept:
            inputs.check_same(planned, infos.get(planned.topic))
        births = {
            stage.name: last.layout.stages.get(stage.name, last.number + 1) for stage in around.flow.stages()
        }
        layout = layout_of(around.flow, infos, births)
        layout = replace(layout, outputs=last.layout.outputs | layout.outputs)  # names are permanent
        if layout == last.layout:
            return False
        self._check_new_stages(last)
        known = {planned.place for planned in kept}
        places = inputs.partitions_of(infos[topic] for topic in around.flow.input_topics())
        starts = {place: (0, False) for place in places if place not in known}
        sources = [place for place in starts if place[0] not in last.layout.sources]
        if sources:
            bounds = around.patiently("look at the inputs", lambda: around.log.bounds(sources))
            starts.update(inputs.first_offsets(around.flow, bounds, around.settings.start))
        plan = layout_plan(last, kept, self._claim(), around.clock.now_ms(), layout, infos, starts)
        with around.step(SEAL):
            self._seal(plan)
        around.tell("notice", text=f"plan {plan.number} brings in a new layout: {layout}")
        self._finish(plan, self._headers_at(last), Report(), publish=False, top_level=levels(around.flow))
        return True

    def _check_new_stages(self, last: Plan) -> None:
        """A stage that was dropped has missed what came since; under its old name it cannot come back."""
        around, parts = self.around, range(self.around.flow.state_partitions)
        for stage in around.flow.stages():
            if stage.name in last.layout.stages:
                continue
            read_headers = partial(around.store(stage).headers, around.flow.name, stage.name, parts)
            if any(around.patiently("look at a new stage", read_headers)):
                raise ServiceStopped(
                    f"{stage.place}: the store holds states of a stage {stage.name!r} that was dropped; it has missed what "
                    "came since: give the new stage another name"
                )

    # ------------------------------------------------------------------ the steps of a batch

    def _process(
        self, ranges: Sequence[PlannedRange], clock_ms: int, infos: dict[str, TopicInfo]
    ) -> tuple[Report, tuple[Exclusion, ...]]:
        """Step 3, again without the inputs on which stages failed."""
        around, left_out = self.around, list[Exclusion]()
        for attempt in range(1, around.settings.attempts + 1):
            report = self._attempt(
                ranges, self._last(), clock_ms, tuple(left_out), infos, levels(around.flow)
            )
            if not report.failed:
                now = around.patiently(
                    "look at the topics", lambda: around.log.describe({r.topic for r in ranges})
                )
                for planned in ranges:
                    inputs.check_same(planned, now.get(planned.topic))
                for text in report.notices:
                    around.tell("notice", text=text)
                return report, tuple(left_out + report.excluded)
            around.tell("failed", attempt=attempt, inputs=len(report.failed), first=str(report.failed[0]))
            known = {(one.topic, one.partition, one.offset): one for one in (*report.failed, *left_out)}
            left_out = list(known.values())
        raise PoisonError(
            f"user code failed in {around.settings.attempts} attempts at one batch, each time on other inputs, last on "
            f"{left_out[-1]}; mend the code"
        )

    def _attempt(
        self,
        ranges: Sequence[PlannedRange],
        before: Plan,
        clock_ms: int,
        exclusions: Sequence[Exclusion],
        infos: dict[str, TopicInfo],
        top_level: int,
    ) -> Report:
        """Run all tasks once; again shuffled when keys do not lie where murmur2 puts them."""
        around, step = self.around, self._step_after(before)
        portions = portions_of(ranges, before, exclusions)
        max_bytes = {topic: info.max_message_bytes for topic, info in infos.items()}
        while True:
            in_place = self._in_place and self._fits_in_place(infos)
            job = Job(step, clock_ms, in_place, top_level, max_bytes, self._compacted(infos))
            report = around.patiently("process", partial(around.engine.process, job, portions))
            if not report.strays:
                return report
            self._in_place = False
            around.tell(
                "notice", text=f"{report.strays} keys are not where murmur2 puts them: from now on shuffled"
            )

    def _seal(self, plan: Plan) -> None:
        """Step 4. Before it nothing has happened; after it the batch will be finished exactly so."""
        if self._home is None:
            raise AssertionError("sealed after the claim")
        self._set_home(self._home, plan)
        self._before_last, self.last = self.last, plan
        self.around.tell("sealed", plan=plan.number, id=plan.plan_id)

    def _finish(
        self,
        plan: Plan,
        headers: dict[tuple[int, int], Header],
        report: Report,
        *,
        publish: bool,
        top_level: int,
    ) -> None:
        """Steps 5, 6 and 7 of a sealed plan."""
        around = self.around
        with around.step(PUBLISH):
            if publish and report.outputs:
                around.patiently("publish", around.engine.publish)
            around.tell("published", plan=plan.number, outputs=report.outputs if publish else 0)
        for level in range(min(top_level, levels(around.flow)), 0, -1):
            with around.step(PERSIST):
                rows = self._persist(plan, level, headers, report)
                around.tell("persisted", plan=plan.number, level=level, rows=rows)
        with around.step(COMMIT):
            self._commit(plan, plan.ranges)

    def _persist(self, plan: Plan, level: int, headers: dict[tuple[int, int], Header], report: Report) -> int:
        """Step 6 for one level: changed states by the engine, bare headers from here."""
        around, flow = self.around, self.around.flow
        touched = set(report.touched)
        mine = {stage.index for stage in stages_at(flow, level)}
        rows = 0
        if any(stage in mine for stage, _ in touched):
            rows = around.patiently("persist", lambda: around.engine.persist(level, plan.plan_id, headers))
        step = Step(flow.name, self._claim(), plan.number - 1, plan.previous_id)
        for stage, part in around.places():
            if stage.index not in mine or (stage.index, part) in touched:
                continue
            header = headers.get((stage.index, part)) or self._created(stage, part, plan)
            if header.number >= plan.number:
                continue
            store = around.store(stage)
            around.patiently(
                "persist a header",
                partial(persist, store, step, plan.plan_id, stage.name, part, (), header),
            )
        return rows

    def _created(self, stage: Node, part: int, plan: Plan) -> Header:
        """The header of a stage that is born with this plan."""
        mine = self._claim()
        born = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        standing = self.around.patiently(
            "create a header",
            lambda: self.around.store(stage).write(self.around.flow.name, stage.name, part, None, born, ()),
        )
        if standing != born:
            raise Superseded(
                f"{self.around.flow.name}/{stage.name}/{part}: created by another run: {standing}"
            )
        return born

    def _commit(self, plan: Plan, ranges: Sequence[PlannedRange]) -> None:
        """Step 7: a courtesy to lag monitors, and a witness for recovery."""
        around = self.around
        commits = {
            planned.place: Commit(
                planned.stop,
                json.dumps(
                    {
                        "plan": plan.number,
                        "id": plan.plan_id,
                        "epoch": self._claim().epoch,
                        "topic_id": planned.topic_id,
                    }
                ),
            )
            for planned in ranges
        }
        around.patiently("commit", lambda: around.log.commit(around.flow.name, commits))
        self._committed_ms = around.clock.now_ms()

    def _commit_again_daily(self) -> None:
        """Groups forget what is not committed again."""
        if self.around.clock.now_ms() - self._committed_ms > DAY_MS:
            self._commit(self._last(), self._last().ranges)

    # ------------------------------------------------------------------ small parts

    def _set_home(self, before: Home, plan: Plan) -> None:
        """Write a plan to the home store, compared with the claim and the plan before."""
        around = self.around
        after = replace(before, number=plan.number, plan_id=plan.plan_id)
        data, drop = plan.to_bytes(), max(0, plan.number - around.settings.keep_plans + 1)
        standing = around.patiently(
            f"seal plan {plan.number}",
            lambda: around.home.set_home(around.flow.name, before, after, data, drop),
        )
        if standing != after:
            other = standing is not None and (standing.epoch, standing.run_id) != (
                before.epoch,
                before.run_id,
            )
            if standing is not None and other and standing.epoch >= before.epoch:
                raise Superseded(f"flow {around.flow.name!r}: run {standing.run_id} has claimed it")
            raise StoreInconsistent(
                f"flow {around.flow.name!r}: the home record is {standing}, expected was {before}: the home store went back "
                "in time; start again, recovery will say what can be done"
            )
        self._home = after

    def _fits_in_place(self, infos: dict[str, TopicInfo]) -> bool:
        """Whether every input has as many partitions as there are state partitions."""
        flow = self.around.flow
        return all(infos[topic].partitions == flow.state_partitions for topic in flow.input_topics())

    def _started_over(self, planned: PlannedRange, infos: dict[str, TopicInfo]) -> bool:
        info = infos.get(planned.topic)
        return inputs.started_over(self.around.flow, planned.topic, planned.topic_id, info)

    def _compacted(self, infos: dict[str, TopicInfo]) -> frozenset[str]:
        return frozenset(topic for topic, info in infos.items() if info.compacted)

    def _step_after(self, before: Plan) -> Step:
        return Step(self.around.flow.name, self._claim(), before.number, before.plan_id)

    def _headers_at(self, plan: Plan) -> dict[tuple[int, int], Header]:
        mine = self._claim()
        header = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        known = plan.layout.stages
        return {(stage.index, part): header for stage, part in self.around.places() if stage.name in known}

    def _claim(self) -> Claim:
        if self.claimed is None:
            raise AssertionError("start() comes first")
        return self.claimed

    def _last(self) -> Plan:
        if self.last is None:
            raise AssertionError("start() comes first")
        return self.last

    def _fetch(self, number: int) -> Plan | None:
        if self.last is not None and self.last.number == number:
            return self.last
        name = self.around.flow.name
        data = self.around.patiently(f"read plan {number}", lambda: self.around.home.plan(name, number))
        return None if data is None else Plan.from_bytes(data)

    def _must_fetch(self, number: int) -> Plan:
        plan = self._fetch(number)
        if plan is None:
            raise StoreInconsistent(
                f"flow {self.around.flow.name!r}: plan {number} is not in the home store any more"
            )
        return plan


def _check_redone(redo: Redo, report: Report) -> None:
    """Check that a plan done again has ended where it says."""
    plan = redo.plan
    if report.failed or report.excluded:
        raise PlanMismatch(
            f"plan {plan.number}: user code fails on {(report.failed + report.excluded)[0]}, on which it did not fail "
            "when the plan was sealed; run the code that sealed it until it has finished"
        )
    marks = marks_after(redo.before, report)
    if marks != plan.marks:
        off = [name for name in plan.marks if marks.get(name) != plan.marks[name]]
        raise PlanMismatch(
            f"plan {plan.number}: doing it again ends at other marks in {off}: the input or the code changed; run the "
            "code that sealed it, or restore the input"
        )
