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
from sqe_chain.protocol.closing import check_closes
from sqe_chain.protocol.cutting import Part, ends_silence
from sqe_chain.protocol.declared import check_same_code, news_of
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import (
    CaughtUp,
    Committed,
    FilesSeen,
    Filtered,
    Notice,
    Recovered,
    Sealed,
    WindowsClosed,
)
from sqe_chain.protocol.file_inputs import (
    abandoned_files,
    abandonment_text,
    entering_files,
    gone_files,
    leaving_files,
    named_by_file,
    new_files,
    seen_files,
    with_files,
)
from sqe_chain.protocol.holding import Holding
from sqe_chain.protocol.interfaces import CLAIM, PROCESS, RECOVER, SEAL
from sqe_chain.protocol.locations import locations_of, write_locations
from sqe_chain.protocol.next_batch import NextBatch
from sqe_chain.protocol.overwrite import staging_since
from sqe_chain.protocol.overwriting import Overwriting, check_overwrites
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
from sqe_chain.protocol.readers import enter, notice_unread
from sqe_chain.protocol.recover import Redo, redo_of, to_redo
from sqe_chain.protocol.results import BatchResult, StartResult
from sqe_chain.protocol.sinks import claim_sinks, tell_flushed
from sqe_chain.protocol.verifying import (
    check_new_stages,
    check_redone,
    check_stores,
    verify_records,
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
    _choice: NextBatch = field(init=False)
    _holding: Holding = field(init=False)
    _tools: _Tools | None = None
    _bytes_per_record: float = 100.0
    _seen: FilesSeen | None = None
    _level_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._processor = Processor(self.env)
        self._choice = NextBatch(self.env, self._processor.runs_in_place)
        self._holding = Holding(self.env)

    def start(self) -> StartResult:
        """Steps 1 and 2: claim, recover, and bring the layout up to date.

        Raises:
            ServiceStopped: the flow cannot be continued exactly from what is found; the text names the ways out.
            ReadersOverlap: it is one of several readers, and another one has one of its partitions.
            ConfigurationError: a topic or store is missing.
        """
        env = self.env
        env.flow.check()
        self._level_of = {stage.index: env.flow.level(stage) for stage in env.flow.stages()}
        if env.settings.overwrite is not None:
            check_overwrites(env)
        check_stores(env)
        infos = inputs.describe(env.flow, env.log)
        env.notice_weak_topics(infos)
        if not env.settings.changes_readers:
            env.flow = enter(env, infos)
        try:
            result = self._claim_and_recover(infos)
        except Superseded:
            raise
        except ServiceStopped as error:
            self._check_still_mine(error)
            raise
        if not env.settings.changes_readers:
            notice_unread(env, infos)
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
        return self._batch(at_end=at_end)

    def close_windows(self) -> BatchResult:
        """Close all windows: no more input is expected, and `batch(at_end=True)` finds nothing to do any more.

        Their final results are published, as a batch that reads nothing. Event time has then reached the end of the last of
        them, in all state partitions, so that what belongs before it is late from then on.

        Returns:
            What became of it; `worked` is False when nothing was read since they were closed last, and then nothing was done.

        Raises:
            ConfigurationError: the flow has no windows; see `check_closes`.
            NotCaughtUp: more is expected; nothing was closed.
            ServiceStopped: the windows have been closed too often; and as `batch`.
            PoisonError: what the windows give cannot be processed; nothing was closed.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for broker or store.
        """
        check_closes(self.env.flow)
        return self._batch(at_end=True, close=True)

    @property
    def overwrite_ends(self) -> bool:
        """Whether this run was started for an overwrite alone, and none is under way: it was given up, or is done already."""
        settings, last = self.env.settings, self._last()
        wanted = settings.overwrite is not None or settings.drop_overwrite
        return wanted and staging_since(last.overwrite) is None

    def complete_overwrite(self) -> None:
        """Replace what tables hold by what was read of all files; nothing, if no overwrite is under way.

        Call it when `batch` finds nothing to do any more: what then is in no plan is not in the tables.

        Raises:
            ServiceStopped: a table is not what it was, or what was staged is not there any more.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for the store or a table.
        """
        plan = Overwriting(self.env, self._claim()).decided(self._last())
        if plan is not None:
            self.apply_empty(plan)

    def _batch(self, *, at_end: bool, close: bool = False) -> BatchResult:
        env, spec = self.env, self.env.settings.rebuild
        began_ms = env.clock.now_ms()
        infos, bounds = self._look()
        last = self._last()
        if spec is not None:
            bounds = inputs.limit_bounds(bounds, spec.until)
        found = self._process(
            last, bounds, infos, at_end=at_end, close=close
        )  # nothing outside has changed yet
        if found is None:
            last = self._note_published(infos)
            self._ready().applier.commit_again(last, now=at_end)
            env.commits.settle()
            self._holding.look(last)
            env.emit(CaughtUp(last.number))
            return BatchResult(worked=False, plan=last.number)
        part, report, exclusions = found
        shuffled = env.flow.by_time and not self._processor.runs_in_place(infos, shuffled=last.shuffled)
        claimed = self._claim()
        plan = batch_plan(last, claimed, part, report, exclusions, spec, shuffled=shuffled)
        with env.step(SEAL):
            self._seal(plan)  # before this the batch does not exist; after it, it will be finished exactly so
        self._finish(plan, self._headers_at(last), report, publish=True, top_level=levels(env.flow))
        env.engine.release()  # outputs and states are stored elsewhere now
        result = BatchResult.of(
            report,
            exclusions,
            plan=plan.number,
            outputs=0 if plan.silent else report.outputs,
            lag_by_partition=with_files(
                env.flow, inputs.lag_by_partition(part.stops, bounds), new_files(env.flow, last, infos)
            ),
            batch_ms=env.clock.now_ms() - began_ms,
        )
        if env.flow.by_time:
            result = self._with_held(result, plan)
        env.commits.then(partial(self._tell, result, plan, part, report))
        if result.inputs:  # the next batch is cut by what this one weighed
            size = sum(end.size for end in report.ends) + report.output_size
            self._bytes_per_record = max(16.0, size / result.inputs)
        return result

    def _note_published(self, infos: dict[str, TopicInfo]) -> Plan:
        """Without stages no header says that the last batch is published: an empty plan after it does. Returns the last plan."""
        env, last = self.env, self._last()
        if env.flow.stages() or last.empty or last.number == 0:
            return last
        leaving = leaving_files(env.flow, last)
        kept = [planned for planned in last.ranges if planned.topic not in leaving]
        plan = layout_plan(last, kept, self._claim(), env.clock.now_ms(), last.layout, infos, {})
        self.apply_empty(plan)
        return self._last()

    def _tell(self, result: BatchResult, plan: Plan, part: Part, report: Report) -> None:
        """Tell what a batch has done, which is committed now."""
        env = self.env
        env.emit(Committed.of(result))
        if part.closing is not None:
            env.emit(WindowsClosed(plan.number, result.outputs, part.closing.event_ms))
        if report.dropped:
            counts = {f"{stage}/{reason}": count for (stage, reason), count in sorted(report.dropped.items())}
            env.emit(Filtered(plan.number, counts))

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
            self._tell_files(infos)
            offsets = self._last().next_offsets()
            # Repeated as one: a topic that was created again answers as if it were away, until it is described again.
            read = self._last().read_files()
            look = partial(inputs.read_bounds, env.flow, env.ports.log, infos, offsets, read)
            bounds = env.retry.call("look for new records", look)
            if bounds is not None:
                return infos, bounds

    def _tell_files(self, infos: dict[str, TopicInfo]) -> None:
        """Tell which files there are, when that has changed."""
        env = self.env
        if not env.flow.file_sources():
            return
        seen = seen_files(env.flow, self._last(), infos)
        if self._seen is None or (seen.files, seen.files_left, seen.rows) != (
            self._seen.files,
            self._seen.files_left,
            self._seen.rows,
        ):
            self._seen = seen
            env.emit(seen)

    def _process(
        self,
        last: Plan,
        bounds: dict[TopicPartition, Bounds],
        infos: dict[str, TopicInfo],
        *,
        at_end: bool,
        close: bool,
    ) -> tuple[Part, Report, tuple[Exclusion, ...]] | None:
        """Step 3: the ranges, the report and the exclusions of the next batch; None when nothing is new.

        Args:
            last: the last plan.
            bounds: of its partitions, as far as they may be read.
            infos: the flow's topics.
            at_end: see `batch`.
            close: close all windows.
        """
        env = self.env
        limit = min(env.settings.max_records, int(env.settings.max_bytes / self._bytes_per_record))
        while True:  # bounded: each round halves the batch
            part = self._choice.part(last, bounds, infos, limit, at_end=at_end, close=close)
            if part is None:
                return None
            transition = self._transition_after(last)
            batch = Batch(
                transition,
                part.ranges,
                last,
                part.clock_ms,
                infos,
                levels(env.flow),
                part.left_out,
                sealed=part.due is not None,  # and perhaps published in part, before a rebuild
                caught_up=part.caught_up,
                shuffled=last.shuffled,
                silent=part.silent,
                last_silent=ends_silence(last, part.stops, silent=part.silent),
                tick_ms=part.tick_ms,
                closing=part.closing,
            )
            try:
                with env.step(PROCESS):
                    return part, *self._processor.run(batch)
            except PoisonError as error:
                raise named_by_file(error, last) from error
            except TooManyForOnePlan:
                if part.due is not None:
                    raise PoisonError(
                        f"flow {env.flow.name!r}: a batch that was published in part has to be repeated as it was sealed, but "
                        "more of its inputs fail now than one plan can list; run the code that sealed it"
                    ) from None
                limit = sum(planned.stop - planned.start for planned in part.ranges) // 2

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        mine = self.claimed
        return mine is None or self.env.ports.home.beat(self.env.flow.name, mine.epoch, mine.run_id)

    def leave(self) -> None:
        """Give the claim back, so that the next run need not wait as a standby."""
        self.env.commits.leave()
        if self.claimed is not None:
            release(self.env, self.claimed)
            self.claimed = None

    def lag(self) -> int:
        """Offsets that are stable and not yet in a plan."""
        spec = self.env.settings.rebuild
        read = self._last().read_files()
        offsets = {tp: offset for tp, offset in self._last().next_offsets().items() if tp[0] not in read}
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
            claim_sinks(env, self.claimed, self.last, self._fetch)
        with env.step(RECOVER):
            if not env.settings.accept_rollback:
                check_commits(env.flow, self.last, inputs.group_commits(env.flow, env.log, infos))
            result = self._recover(headers)
            if env.settings.changes_readers:
                return result
            self._enter_overwrite(infos)
            if env.settings.drop_overwrite:
                return result
            self._bring_up_to_date(infos)
            if env.settings.rebuild is None:  # otherwise nobody should read these states yet
                last = self._last()
                write_locations(env, locations_of(env.flow, last.layout, self.claimed.epoch, last.number))
        return result

    def _enter_overwrite(self, infos: dict[str, TopicInfo]) -> None:
        """Begin an overwrite, go on with one, or give it up; see `Overwriting.enter`."""
        found = Overwriting(self.env, self._claim()).enter(self._last(), infos)
        if found.plan is not None:
            self.apply_empty(found.plan, [found.text])
        elif found.text:
            self.env.emit(Notice(found.text))
        if self.overwrite_ends:
            self._tell_files(infos)

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
        tps = inputs.input_partitions(env.flow, infos)
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
        tell_flushed(env, last, env.flow.stages())
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
                tick_ms=plan.ticked_ms if plan.ticked_ms > redo.before.ticked_ms else None,
                closing=plan.closes.last() if plan.closing else None,
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
        read, leaving = last.read_files(), leaving_files(env.flow, last)
        abandoned, missed = abandoned_files(last, env.settings.abandon) - read, gone_files(last, infos)
        # An unfinished batch needs its inputs as they were, so then nothing may be gone.
        kept = [planned for planned in last.ranges if last.unfinished or planned not in gone]
        kept = [planned for planned in kept if planned.topic not in leaving | abandoned | missed]
        for planned in kept:
            if planned.topic not in read:
                inputs.check_same(planned, infos.get(planned.topic), last.files)
        layout = layout_of(env.flow, infos, last.number + 1, last.layout)
        files = entering_files(env.flow, last, infos, env.settings)
        if layout == last.layout and not files and not abandoned and not missed:
            return
        check_new_stages(env, last)
        known = {planned.tp for planned in kept}
        tps = inputs.input_partitions(env.flow, infos)
        starts = {tp: (0, False) for tp in tps if tp not in known}
        sources = [tp for tp in starts if tp[0] not in last.layout.sources]
        if sources:
            bounds = env.log.bounds(sources)
            starts.update(inputs.first_offsets(env.flow, bounds, env.settings.start))
        starts |= {(info.name, 0): (0, False) for info in files}
        spec = env.settings.rebuild
        plan = layout_plan(last, kept, self._claim(), env.clock.now_ms(), layout, infos, starts, spec)
        notice_unread(env, infos)
        news = [*news_of(env.flow, last, plan, infos)]
        self.apply_empty(plan, [*news, abandonment_text(last, abandoned)] if abandoned else news)

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
        env.commits.settle()

    # ------------------------------------------------------------------ seal

    def _seal(self, plan: Plan) -> None:
        """Step 4: from here on the batch will be finished exactly so, by this run or by the next one.

        The plan before is committed then: a rebuild of a lost store knows of one batch at most only that it was begun.
        """
        self.env.commits.settle()
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
        """Steps 5, 6 and 7, see `Applier.finish`; when the commit is acknowledged the plan is no longer open."""
        self._ready().applier.finish(plan, headers, report, publish=publish, top_level=top_level)
        self.env.commits.then(partial(self._no_longer_open, plan.number))

    def _no_longer_open(self, number: int) -> None:
        if self.open_plan == number:  # the next one may be open already
            self.open_plan = None

    # ------------------------------------------------------------------ small parts

    def _transition_after(self, before: Plan) -> Transition:
        stored_in = before.layout.stored_in()
        staging = staging_since(before.overwrite)
        return Transition(
            self.env.flow.name, self._claim(), before.number, before.plan_id, stored_in, staging
        )

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
