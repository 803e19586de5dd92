"""A service with stages: the seven steps.

Data flows one way, and each step makes the next one safe to repeat:

    claim ─ recover ─┬─ process ─ seal ─ publish ─ persist (last stage first) ─ commit ─┐
                     └──────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.errors import PoisonError, ServiceStopped, StoreInconsistent, Superseded
from sqe_chain.ports import Bounds, Commit, Header, Home, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.applying import Applier
from sqe_chain.protocol.claim import claim, release, stamp
from sqe_chain.protocol.cutting import Part, next_part
from sqe_chain.protocol.declared import check_same_code, news_of
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import CaughtUp, Committed, Filtered, Notice, Recovered, Sealed
from sqe_chain.protocol.interfaces import CLAIM, PROCESS, RECOVER, SEAL
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.planning import (
    batch_plan,
    birth_plan,
    check_commits,
    check_layout,
    layout_of,
    layout_plan,
)
from sqe_chain.protocol.processing import Batch, Processor, TooManyForOnePlan
from sqe_chain.protocol.recover import Redo, redo_of, to_redo
from sqe_chain.protocol.results import BatchResult, StartResult
from sqe_chain.protocol.verifying import (
    check_filters,
    check_new_stages,
    check_plan_size,
    check_redone,
    check_stores,
    verify_records,
    verify_rest,
)
from sqe_chain.segment.exclusion import Exclusion
from sqe_chain.segment.level import levels
from sqe_chain.segment.results import Report
from sqe_chain.segment.states import Claim, Step


@dataclass(slots=True)
class Aggregation:
    """One run of a service with stages.

    Args:
        env: the flow and its ports.

    Attributes:
        claimed: this run's claim; None before it has one, and after it gave it back.
        last: the last sealed plan.
        open_plan: number of a plan that this run has sealed and not yet finished; None when there is none. Whatever
            ends the run meanwhile, the next one finishes it.
    """

    env: Environment
    claimed: Claim | None = None
    last: Plan | None = None
    open_plan: int | None = None
    _home: Home | None = None
    _processing: Processor = field(init=False)
    _plans: Applier | None = None
    _bytes_per_record: float = 100.0
    _level_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._processing = Processor(self.env)

    def start(self) -> StartResult:
        """Steps 1 and 2: claim, recover, and bring the layout up to date.

        Raises:
            ServiceStopped: what is found cannot be continued exactly; the text names the ways out.
            ConfigurationError: a topic or store is missing.
        """
        env = self.env
        env.flow.check()
        self._level_of = {stage.index: env.flow.level(stage) for stage in env.flow.stages()}
        check_filters(env)
        check_stores(env)
        infos = inputs.describe(env.flow, env.log)
        env.notice_weak_topics(infos)
        try:
            result = self._claim_and_recover(infos)
        except Superseded:
            raise
        except ServiceStopped as error:
            self._check_still_mine(error)
            raise
        return result

    def batch(self) -> BatchResult:
        """Steps 3 to 7 for what is new in the inputs.

        Returns:
            What became of it; `worked` is False when there was nothing new, and then nothing was done.

        Raises:
            ServiceStopped: a witness says that going on would not be exact.
            PoisonError: an input cannot be processed.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for broker or store.
        """
        env, spec = self.env, self.env.settings.rebuild
        infos, bounds = self._look()
        last = self._last()
        if spec is not None:
            bounds = inputs.limit_bounds(bounds, spec.until)
        started_ms = env.clock.now_ms()
        found = self._process(last, bounds, infos)
        if found is None:
            self._applying().commit_again_daily(last)
            env.emit(CaughtUp(last.number))
            return BatchResult(worked=False, plan=last.number)
        clock_ms, part, report, exclusions = found
        plan = batch_plan(last, self._claim(), clock_ms, part, report, exclusions, spec)
        with env.step(SEAL):
            self._seal(plan)
        self._finish(plan, self._headers_at(last), report, publish=True, top_level=levels(env.flow))
        env.engine.release()
        result = BatchResult.of(
            report,
            exclusions,
            plan=plan.number,
            outputs=0 if plan.silent else report.outputs,
            lag_by_partition=inputs.lag_by_partition(part.stops, bounds),
            batch_ms=env.clock.now_ms() - started_ms,
        )
        env.emit(Committed.of(result))
        if report.dropped:
            counts = {f"{stage}/{reason}": count for (stage, reason), count in sorted(report.dropped.items())}
            env.emit(Filtered(plan.number, counts))
        if result.inputs:
            size = sum(end.size for end in report.ends) + report.output_size
            self._bytes_per_record = max(16.0, size / result.inputs)
        return result

    def _look(self) -> tuple[dict[str, TopicInfo], dict[TopicPartition, Bounds]]:
        """The topics, and where the log of each partition begins and ends: of the same topics, as the last plan has them."""
        env = self.env
        while True:  # not bounded: one more round means that somebody has just created an input again
            infos = inputs.describe(env.flow, env.log)
            self._bring_up_to_date(infos)  # begins with a topic that was created again, or names it and stops
            positions = {place: planned.stop for place, planned in self._last().ends().items()}
            # Repeated as one: a topic that was created again answers as if it were away, until it is described again.
            look = partial(inputs.read_bounds, env.flow, env.ports.log, infos, positions)
            bounds = env.retry.call("look for new records", look)
            if bounds is not None:
                return infos, bounds

    def _process(
        self, last: Plan, bounds: dict[TopicPartition, Bounds], infos: dict[str, TopicInfo]
    ) -> tuple[int, Part, Report, tuple[Exclusion, ...]] | None:
        """Step 3: clock, ranges, report and exclusions of the next batch; None when nothing is new.

        Args:
            last: the last plan.
            bounds: of its partitions, as far as they may be read.
            infos: the flow's topics.
        """
        env = self.env
        limit = min(env.settings.max_records, int(env.settings.max_bytes / self._bytes_per_record))
        while True:
            part = next_part(last, bounds, max(len(last.ranges), limit), spec=env.settings.rebuild)
            if part.empty:
                return None
            clock_ms, left_out = env.clock.now_ms(), tuple[Exclusion, ...]()
            if part.due is not None:
                verify_rest(env, part.due, bounds)
                clock_ms, left_out = part.due.clock_ms, part.due.exclusions
            step = self._step_after(last)
            again_said = part.due is not None  # of an interrupted batch, in front of a rebuild
            batch = Batch(
                step, part.ranges, last, clock_ms, infos, levels(env.flow), left_out, sealed=again_said
            )
            try:
                with env.step(PROCESS):
                    return clock_ms, part, *self._processing.run(batch)
            except TooManyForOnePlan:
                if part.due is not None:
                    raise PoisonError(
                        f"flow {env.flow.name!r}: a batch that was published in part has to be done as it was sealed, but "
                        "more of its inputs fail now than one plan can name; run the code that sealed it"
                    ) from None
                limit = sum(planned.stop - planned.start for planned in part.ranges) // 2

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow."""
        mine = self.claimed
        return mine is None or self.env.ports.home.beat(self.env.flow.name, mine.epoch, mine.run_id)

    def leave(self) -> None:
        """Give the claim back. The last batch is complete."""
        if self.claimed is not None:
            release(self.env, self.claimed)
            self.claimed = None

    def lag(self) -> int:
        """Offsets that are stable and not yet in a plan."""
        spec = self.env.settings.rebuild
        positions = {place: planned.stop for place, planned in self._last().ends().items()}
        bounds = self.env.ports.log.bounds(positions)
        return inputs.lag(positions, inputs.limit_bounds(bounds, spec.until) if spec else bounds)

    # ------------------------------------------------------------------ claim and recover

    def _claim_and_recover(self, infos: dict[str, TopicInfo]) -> StartResult:
        env = self.env
        with env.step(CLAIM):
            self.claimed, self._home = claim(env, partial(self._commits, infos))
            self._plans = Applier(env, self.claimed)
            if self._home.number < 0:
                self._be_born(infos)
            self.last = self._fetch(self._home.number)
            if self.last is None or self.last.plan_id != self._home.plan_id:
                raise StoreInconsistent(
                    f"the home store has no plan {self._home.number} ({self._home.plan_id})"
                )
            check_layout(env.flow, self.last.layout, env.settings.drop_stages)
            headers = stamp(env, self.claimed, self.last)
        with env.step(RECOVER):
            if not env.settings.accept_rollback:
                check_commits(env.flow, self.last, self._commits(infos))
            result = self._recover(headers)
            self._bring_up_to_date(infos)
        return result

    def _check_still_mine(self, found: ServiceStopped) -> None:
        """What looks like a store gone back in time may be the work of newer runs while this one slept."""
        env, mine = self.env, self.claimed
        home, _ = env.home.home(env.flow.name)
        if mine is not None and home is not None and home.epoch > mine.epoch:
            raise Superseded(
                f"flow {env.flow.name!r}: run {home.run_id} has claimed it with epoch {home.epoch}, this one had {mine.epoch}"
            ) from found

    def _commits(self, infos: dict[str, TopicInfo]) -> dict[TopicPartition, Commit]:
        env = self.env
        places = inputs.partitions_of(infos[topic] for topic in env.flow.input_topics())
        return env.log.committed(env.flow.name, places)

    def _be_born(self, infos: dict[str, TopicInfo]) -> None:
        """Seal the birth plan."""
        env, home = self.env, self._home
        if home is None:
            raise AssertionError("born after the claim")
        places = inputs.partitions_of(infos[topic] for topic in env.flow.input_topics())
        bounds = env.log.bounds(places)
        spec = env.settings.rebuild
        if spec is not None:
            starts = {place: (spec.starts.get(place, 0), place in spec.starts) for place in places}
            for place, (offset, _) in starts.items():
                inputs.check_bounds(place, offset, bounds[place])
        else:
            starts = inputs.first_offsets(env.flow, bounds, env.settings.start)
        now_ms = env.clock.now_ms()
        self._set_home(home, birth_plan(env.flow, self._claim(), now_ms, infos, starts, spec))

    def _recover(self, headers: dict[tuple[int, int], Header]) -> StartResult:
        env, last = self.env, self._last()
        numbers = to_redo(last, headers, self._level_of, self._fetch)
        if numbers and any(planned.start != planned.stop for planned in last.ranges):
            check_same_code(env.flow, last)
        verify_records(env, last, unfinished=bool(numbers))
        for number in numbers:
            plan = last if number == last.number else self._must_fetch(number)
            before = self._must_fetch(number - 1)
            self._redo(redo_of(plan, before, headers, self._level_of), headers)
            claimed = self._claim()
            done = Header(claimed.epoch, claimed.run_id, plan.number, plan.plan_id)
            headers = {place: h if h.number >= number else done for place, h in headers.items()}
        if len(numbers) > 1:
            env.emit(
                Notice(
                    f"the store had lost acknowledged writes; plans {numbers[0]} to {numbers[-1]} were redone"
                )
            )
        result = StartResult(len(last.ranges), last.number, tuple(numbers))
        env.emit(Recovered.of(result))
        if not numbers and (last.number > 0 or env.settings.accept_rollback):
            self._applying().commit(last)
        return result

    def _redo(self, redo: Redo, headers: dict[tuple[int, int], Header]) -> None:
        plan, env = redo.plan, self.env
        infos = inputs.describe(env.flow, env.log)
        report = Report()
        if any(planned.start != planned.stop for planned in plan.ranges):  # else it only brings in a layout
            step = self._step_after(redo.before)
            batch = Batch(step, plan.ranges, redo.before, plan.clock_ms, infos, redo.top_level, sealed=True)
            report = self._processing.attempt(batch, plan.exclusions)
            check_redone(redo, report)
        self._finish(plan, headers, report, publish=redo.publish, top_level=redo.top_level)
        env.engine.release()

    def _bring_up_to_date(self, infos: dict[str, TopicInfo]) -> None:
        """Let new partitions, sources, stages and outputs enter by an empty plan of their own.

        So does a topic without envelopes that was created again: it is another root.
        """
        last, env = self._last(), self.env
        gone = [planned for planned in last.ranges if inputs.started_over(env.flow, planned, infos)]
        kept = [planned for planned in last.ranges if last.unfinished or planned not in gone]
        for planned in kept:
            inputs.check_same(planned, infos.get(planned.topic))
        layout = layout_of(env.flow, infos, last.number + 1, last.layout)
        if layout == last.layout:
            return
        check_new_stages(env, last)
        known = {planned.place for planned in kept}
        places = inputs.partitions_of(infos[topic] for topic in env.flow.input_topics())
        starts = {place: (0, False) for place in places if place not in known}
        sources = [place for place in starts if place[0] not in last.layout.sources]
        if sources:
            bounds = env.log.bounds(sources)
            starts.update(inputs.first_offsets(env.flow, bounds, env.settings.start))
        spec = env.settings.rebuild
        plan = layout_plan(last, kept, self._claim(), env.clock.now_ms(), layout, infos, starts, spec)
        with env.step(SEAL):
            self._seal(plan)
        for text in news_of(env.flow, last, plan, infos):
            env.emit(Notice(text))
        self._finish(plan, self._headers_at(last), Report(), publish=False, top_level=levels(env.flow))

    # ------------------------------------------------------------------ seal

    def _seal(self, plan: Plan) -> None:
        """Step 4. Before it nothing has happened; after it the batch will be finished exactly so."""
        if self._home is None:
            raise AssertionError("sealed after the claim")
        self._set_home(self._home, plan)
        self.last = plan
        self.open_plan = plan.number
        self.env.emit(Sealed(plan.number, plan.plan_id))

    def _finish(
        self,
        plan: Plan,
        headers: dict[tuple[int, int], Header],
        report: Report,
        *,
        publish: bool,
        top_level: int,
    ) -> None:
        """Steps 5, 6 and 7, see `Applier.finish`; after that no plan is open."""
        self._applying().finish(plan, headers, report, publish=publish, top_level=top_level)
        self.open_plan = None

    # ------------------------------------------------------------------ small parts

    def _set_home(self, before: Home, plan: Plan) -> None:
        """Write a plan to the home store, compared with the claim and the plan before."""
        env = self.env
        after = replace(before, number=plan.number, plan_id=plan.plan_id)
        data, drop = plan.to_bytes(), max(0, plan.number - env.settings.keep_plans + 1)
        check_plan_size(env, plan, len(data))
        standing = env.home.set_home(env.flow.name, before, after, data, drop)
        if standing != after:
            other = standing is not None and (standing.epoch, standing.run_id) != (
                before.epoch,
                before.run_id,
            )
            if standing is not None and other and standing.epoch >= before.epoch:
                raise Superseded(f"flow {env.flow.name!r}: run {standing.run_id} has claimed it")
            raise StoreInconsistent(
                f"flow {env.flow.name!r}: the home record is {standing or 'absent'}; expected was {before}: the home store went back "
                "in time; start again, recovery will say what can be done"
            )
        self._home = after

    def _step_after(self, before: Plan) -> Step:
        stored_in = before.layout.stored_in()
        return Step(self.env.flow.name, self._claim(), before.number, before.plan_id, stored_in)

    def _headers_at(self, plan: Plan) -> dict[tuple[int, int], Header]:
        mine = self._claim()
        header = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        known = plan.layout.stages
        return {(stage.index, part): header for stage, part in self.env.places() if stage.name in known}

    def _applying(self) -> Applier:
        if self._plans is None:
            raise AssertionError("start() comes first")
        return self._plans

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
        data = self.env.home.plan(self.env.flow.name, number)
        return None if data is None else Plan.from_bytes(data)

    def _must_fetch(self, number: int) -> Plan:
        plan = self._fetch(number)
        if plan is None:
            raise StoreInconsistent(
                f"flow {self.env.flow.name!r}: plan {number} is not in the home store any more"
            )
        return plan
