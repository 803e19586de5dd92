"""A service with stages: the seven steps.

Data flows one way, and each step makes the next one safe to repeat:

    claim ─ recover ─┬─ process ─ seal ─ publish ─ persist (last stage first) ─ commit ─┐
                     └──────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.errors import PoisonError, ServiceStopped, StoreInconsistent, Superseded
from sqe_chain.ports import Bounds, Header, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.applying import Applier
from sqe_chain.protocol.claim import claim, release, stamp
from sqe_chain.protocol.cutting import Part, ends_silence, next_part
from sqe_chain.protocol.declared import check_same_code, news_of
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.event_times import KnownTimes, releases
from sqe_chain.protocol.events import CaughtUp, Committed, Filtered, Notice, Recovered, Sealed
from sqe_chain.protocol.holding import Holding
from sqe_chain.protocol.idle import IdleWriters
from sqe_chain.protocol.in_step import keep_in_step
from sqe_chain.protocol.interfaces import CLAIM, PROCESS, RECOVER, SEAL
from sqe_chain.protocol.locations import locations_of, write_locations
from sqe_chain.protocol.plan import Plan, mark_name
from sqe_chain.protocol.plan_log import PlanLog
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
    check_new_stages,
    check_redone,
    check_stores,
    verify_records,
    verify_rest,
)
from sqe_chain.segment.exclusion import Exclusion
from sqe_chain.segment.level import levels
from sqe_chain.segment.results import Report
from sqe_chain.segment.states import Claim, Transition


@dataclass(frozen=True, slots=True)
class _Tools:
    """What a run works with once it has claimed the flow."""

    plans: PlanLog
    applier: Applier


@dataclass(slots=True)
class Aggregation:
    """One run of a service with stages.

    Args:
        env: the flow and its ports.

    Attributes:
        claimed: this run's claim; None before it has one, and after it gave it back.
        last: the last sealed plan.
        open_plan: number of a plan that this run has sealed and not yet finished; None when there is none. If the run
            ends here, the next one finishes it.
    """

    env: Environment
    claimed: Claim | None = None
    last: Plan | None = None
    open_plan: int | None = None
    _processor: Processor = field(init=False)
    _idle: IdleWriters = field(init=False)
    _holding: Holding = field(init=False)
    _tools: _Tools | None = None
    _bytes_per_record: float = 100.0
    _level_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._processor = Processor(self.env)
        self._idle = IdleWriters(self.env)
        self._holding = Holding(self.env)

    def start(self) -> StartResult:
        """Steps 1 and 2: claim, recover, and bring the layout up to date.

        Raises:
            ServiceStopped: the flow cannot be continued exactly from what is found; the text names the ways out.
            ConfigurationError: a topic or store is missing.
        """
        env = self.env
        env.flow.check()
        self._level_of = {stage.index: env.flow.level(stage) for stage in env.flow.stages()}
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

    def batch(self, *, at_end: bool = False) -> BatchResult:
        """Steps 3 to 7 for what is new in the inputs, and for what has waited for event time long enough.

        Args:
            at_end: no more input is expected: what waits for event time need not wait for silent partitions.

        Returns:
            What became of it; `worked` is False when there was nothing new, and then nothing was done.

        Raises:
            ServiceStopped: going on would not be exact: messages are missing, or inputs are not what they were.
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
        found = self._process(last, bounds, infos, at_end=at_end)  # nothing outside has changed yet
        if found is None:
            self._ready().applier.commit_again(last, now=at_end)
            self._holding.look(last)
            env.emit(CaughtUp(last.number))
            return BatchResult(worked=False, plan=last.number)
        clock_ms, part, report, exclusions = found
        shuffled = env.flow.by_time and not self._processor.runs_in_place(infos, shuffled=last.shuffled)
        claimed = self._claim()
        plan = batch_plan(last, claimed, clock_ms, part, report, exclusions, spec, shuffled=shuffled)
        with env.step(SEAL):
            self._seal(plan)  # before this the batch does not exist; after it, it will be finished exactly so
        self._finish(plan, self._headers_at(last), report, publish=True, top_level=levels(env.flow))
        env.engine.release()  # outputs and states are stored elsewhere now
        result = BatchResult.of(
            report,
            exclusions,
            plan=plan.number,
            outputs=0 if plan.silent else report.outputs,
            lag_by_partition=inputs.lag_by_partition(part.stops, bounds),
            batch_ms=env.clock.now_ms() - started_ms,
        )
        if env.flow.by_time:
            result = self._with_held(result, plan)
        env.emit(Committed.of(result))
        if report.dropped:
            counts = {f"{stage}/{reason}": count for (stage, reason), count in sorted(report.dropped.items())}
            env.emit(Filtered(plan.number, counts))
        if result.inputs:  # the next batch is cut by what this one weighed
            size = sum(end.size for end in report.ends) + report.output_size
            self._bytes_per_record = max(16.0, size / result.inputs)
        return result

    def _with_held(self, result: BatchResult, plan: Plan) -> BatchResult:
        """The result with what waits for event time, and who holds it back."""
        holder = self._holding.look(plan)
        name = None if holder is None else mark_name(holder.topic, holder.partition)
        return replace(result, held=plan.held, holder=name, watermark_ms=holder and holder.watermark_ms)

    def _look(self) -> tuple[dict[str, TopicInfo], dict[TopicPartition, Bounds]]:
        """Describe the topics, bring the layout up to date with them, and read the bounds of the same topics."""
        env = self.env
        while True:  # not bounded: each further round means that an input was created again just now
            infos = inputs.describe(env.flow, env.log)
            # A topic that was created again enters as a new root, or stops the service.
            self._bring_up_to_date(infos)
            offsets = self._last().next_offsets()
            # Repeated as one: a topic that was created again answers as if it were away, until it is described again.
            look = partial(inputs.read_bounds, env.flow, env.ports.log, infos, offsets)
            bounds = env.retry.call("look for new records", look)
            if bounds is not None:
                return infos, bounds

    def _process(
        self,
        last: Plan,
        bounds: dict[TopicPartition, Bounds],
        infos: dict[str, TopicInfo],
        *,
        at_end: bool,
    ) -> tuple[int, Part, Report, tuple[Exclusion, ...]] | None:
        """Step 3: the clock, the ranges, the report and the exclusions of the next batch; None when nothing is new.

        Args:
            last: the last plan.
            bounds: of its partitions, as far as they may be read.
            infos: the flow's topics.
            at_end: see `batch`.
        """
        env = self.env
        limit = min(env.settings.max_records, int(env.settings.max_bytes / self._bytes_per_record))
        while True:  # bounded: each round halves the batch
            part = next_part(last, bounds, max(len(last.ranges), limit), spec=env.settings.rebuild)
            if part.empty and (part.silent or not last.held):
                return None
            clock_ms, left_out = env.clock.now_ms(), tuple[Exclusion, ...]()
            if part.due is not None:
                verify_rest(env, part.due, bounds)
                clock_ms, left_out = part.due.clock_ms, part.due.exclusions
                part = replace(part, caught_up=part.due.caught_up)
            else:
                part = keep_in_step(env, part, bounds)
                part = self._with_idle(last, part, bounds, clock_ms, at_end=at_end)
                in_place = self._processor.runs_in_place(infos, shuffled=last.shuffled)
                if part.empty and not releases(env.flow, last, part.caught_up, clock_ms, in_place=in_place):
                    return None
            transition = self._transition_after(last)
            sealed_before = part.due is not None  # and perhaps published in part, before a rebuild
            batch = Batch(
                transition,
                part.ranges,
                last,
                clock_ms,
                infos,
                levels(env.flow),
                left_out,
                sealed=sealed_before,
                caught_up=part.caught_up,
                shuffled=last.shuffled,
                silent=part.silent,
                last_silent=ends_silence(last, part.stops, silent=part.silent),
            )
            try:
                with env.step(PROCESS):
                    return clock_ms, part, *self._processor.run(batch)
            except TooManyForOnePlan:
                if part.due is not None:
                    raise PoisonError(
                        f"flow {env.flow.name!r}: a batch that was published in part has to be repeated as it was sealed, but "
                        "more of its inputs fail now than one plan can list; run the code that sealed it"
                    ) from None
                limit = sum(planned.stop - planned.start for planned in part.ranges) // 2

    def _with_idle(
        self, last: Plan, part: Part, bounds: dict[TopicPartition, Bounds], clock_ms: int, *, at_end: bool
    ) -> Part:
        """The part, with the partitions that it reads to their end, and writers that are not waited for there."""
        if not self.env.flow.timed:
            return part
        if not part.silent:
            found = self._idle.find(KnownTimes.after(last), part.stops, bounds, clock_ms, at_end=at_end)
            return replace(part, caught_up=found)
        # After a rebuild nothing more comes of a partition that is read as far as silence lasts.
        spec = self.env.settings.rebuild
        limits = {tp: last.silent_until.get(mark_name(*tp), 0) for tp in part.stops}
        limits = limits if spec is None else dict(spec.until)
        ended = [tp for tp, stop in part.stops.items() if stop >= limits.get(tp, 0)]
        return replace(part, caught_up=KnownTimes.after(last).everybody_in(ended, clock_ms))

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        mine = self.claimed
        return mine is None or self.env.ports.home.beat(self.env.flow.name, mine.epoch, mine.run_id)

    def leave(self) -> None:
        """Give the claim back, so that the next run need not wait as a standby."""
        if self.claimed is not None:
            release(self.env, self.claimed)
            self.claimed = None

    def lag(self) -> int:
        """Offsets that are stable and not yet in a plan."""
        spec = self.env.settings.rebuild
        offsets = self._last().next_offsets()
        bounds = self.env.ports.log.bounds(offsets)
        return inputs.lag(offsets, inputs.limit_bounds(bounds, spec.until) if spec else bounds)

    # ------------------------------------------------------------------ claim and recover

    def _claim_and_recover(self, infos: dict[str, TopicInfo]) -> StartResult:
        env = self.env
        with env.step(CLAIM):
            self.claimed, home = claim(env, partial(inputs.group_commits, env.flow, env.log, infos))
            plans = PlanLog(env, home)
            self._tools = _Tools(plans, Applier(env, self.claimed))
            if home.number < 0:
                self._write_birth_plan(infos)
            self.last = plans.read_last()
            check_layout(env.flow, self.last.layout, env.settings.drop_stages)
            headers = stamp(env, self.claimed, self.last)
        with env.step(RECOVER):
            if not env.settings.accept_rollback:
                check_commits(env.flow, self.last, inputs.group_commits(env.flow, env.log, infos))
            result = self._recover(headers)
            self._bring_up_to_date(infos)
            if env.settings.rebuild is None:  # otherwise nobody should read these states yet
                last = self._last()
                write_locations(env, locations_of(env.flow, last.layout, self.claimed.epoch, last.number))
        return result

    def _check_still_mine(self, found: ServiceStopped) -> None:
        """Look whether a newer run owns the flow: its work looks to this run like a store that went back in time.

        Raises:
            Superseded: a newer run does.
        """
        env, mine = self.env, self.claimed
        home, _ = env.home.home(env.flow.name)
        if mine is not None and home is not None and home.epoch > mine.epoch:
            raise Superseded(
                f"flow {env.flow.name!r}: run {home.run_id} has claimed it with epoch {home.epoch}, this one had {mine.epoch}"
            ) from found

    def _write_birth_plan(self, infos: dict[str, TopicInfo]) -> None:
        env = self.env
        tps = inputs.partitions_of(infos[topic] for topic in env.flow.input_topics())
        bounds = env.log.bounds(tps)
        spec = env.settings.rebuild
        if spec is not None:
            starts = {tp: (spec.starts.get(tp, 0), tp in spec.starts) for tp in tps}
            for tp, (offset, _) in starts.items():
                inputs.check_bounds(tp, offset, bounds[tp])
        else:
            starts = inputs.first_offsets(env.flow, bounds, env.settings.start)
        now_ms = env.clock.now_ms()
        self._ready().plans.write(birth_plan(env.flow, self._claim(), now_ms, infos, starts, spec))

    def _recover(self, headers: dict[tuple[int, int], Header]) -> StartResult:
        env, last = self.env, self._last()
        numbers = to_redo(last, headers, self._level_of, self._fetch)
        if numbers and (last.announced or not last.empty):
            check_same_code(env.flow, last)
        needs_inputs = bool(numbers) and not (last.empty and numbers == [last.number])
        verify_records(env, last, unfinished=needs_inputs)
        for number in numbers:
            plan = last if number == last.number else self._must_fetch(number)
            before = self._must_fetch(number - 1)
            self._redo(redo_of(plan, before, headers, self._level_of), headers)
            claimed = self._claim()
            done = Header(claimed.epoch, claimed.run_id, plan.number, plan.plan_id)
            headers = {cell: h if h.number >= number else done for cell, h in headers.items()}
        if len(numbers) > 1:  # a crash leaves one unfinished plan, never two
            env.emit(
                Notice(
                    f"the store had lost acknowledged writes; plans {numbers[0]} to {numbers[-1]} were redone"
                )
            )
        result = StartResult(len(last.ranges), last.number, tuple(numbers))
        env.emit(Recovered.of(result))
        if not numbers and (last.number > 0 or env.settings.accept_rollback):
            self._ready().applier.commit(last)
        return result

    def _redo(self, redo: Redo, headers: dict[tuple[int, int], Header]) -> None:
        plan, env = redo.plan, self.env
        infos = inputs.describe(env.flow, env.log)
        report = Report()
        if not plan.empty:  # an empty one brings in a layout, or announces states
            transition = self._transition_after(redo.before)
            batch = Batch(
                transition,
                plan.ranges,
                redo.before,
                plan.clock_ms,
                infos,
                redo.top_level,
                sealed=True,
                caught_up=plan.caught_up,
                shuffled=plan.shuffled,
                silent=plan.silent,
                last_silent=ends_silence(redo.before, plan.next_offsets(), silent=plan.silent),
            )
            report = self._processor.attempt(batch, plan.exclusions)
            check_redone(redo, report)
        self._finish(plan, headers, report, publish=redo.publish, top_level=redo.top_level)
        env.engine.release()

    def _bring_up_to_date(self, infos: dict[str, TopicInfo]) -> None:
        """Let new partitions, sources, stages and outputs enter, with an empty plan of their own.

        A topic without envelopes that was created again enters in the same way: it is another root.
        """
        last, env = self._last(), self.env
        gone = [
            planned
            for planned in last.ranges
            if inputs.is_new_root(env.flow, planned.topic, planned.topic_id, infos.get(planned.topic))
        ]
        # An unfinished batch needs its inputs as they were, so then nothing may be gone.
        kept = [planned for planned in last.ranges if last.unfinished or planned not in gone]
        for planned in kept:
            inputs.check_same(planned, infos.get(planned.topic))
        layout = layout_of(env.flow, infos, last.number + 1, last.layout)
        if layout == last.layout:
            return
        check_new_stages(env, last)
        known = {planned.tp for planned in kept}
        tps = inputs.partitions_of(infos[topic] for topic in env.flow.input_topics())
        starts = {tp: (0, False) for tp in tps if tp not in known}
        sources = [tp for tp in starts if tp[0] not in last.layout.sources]
        if sources:
            bounds = env.log.bounds(sources)
            starts.update(inputs.first_offsets(env.flow, bounds, env.settings.start))
        spec = env.settings.rebuild
        plan = layout_plan(last, kept, self._claim(), env.clock.now_ms(), layout, infos, starts, spec)
        self.apply_empty(plan, news_of(env.flow, last, plan, infos))

    def apply_empty(self, plan: Plan, notices: Iterable[str] = ()) -> None:
        """Seal and finish a plan that reads nothing: it brings in a layout, or announces states.

        Args:
            plan: the next one.
            notices: told as soon as it is sealed.
        """
        env, headers = self.env, self._headers_at(self._last())
        with env.step(SEAL):
            self._seal(plan)
        for text in notices:
            env.emit(Notice(text))
        self._finish(plan, headers, Report(), publish=True, top_level=levels(env.flow))

    # ------------------------------------------------------------------ seal

    def _seal(self, plan: Plan) -> None:
        """Step 4: from here on the batch will be finished exactly so, by this run or by the next one."""
        self._ready().plans.write(plan)
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
        self._ready().applier.finish(plan, headers, report, publish=publish, top_level=top_level)
        self.open_plan = None

    # ------------------------------------------------------------------ small parts

    def _transition_after(self, before: Plan) -> Transition:
        stored_in = before.layout.stored_in()
        return Transition(self.env.flow.name, self._claim(), before.number, before.plan_id, stored_in)

    def _headers_at(self, plan: Plan) -> dict[tuple[int, int], Header]:
        mine = self._claim()
        header = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        known = plan.layout.stages
        return {(stage.index, part): header for stage, part in self.env.cells() if stage.name in known}

    def _ready(self) -> _Tools:
        if self._tools is None:
            raise AssertionError("start() comes first")
        return self._tools

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
        return self._ready().plans.read(number)

    def _must_fetch(self, number: int) -> Plan:
        plan = self._fetch(number)
        if plan is None:
            raise StoreInconsistent(
                f"flow {self.env.flow.name!r}: plan {number} is not in the home store any more"
            )
        return plan
