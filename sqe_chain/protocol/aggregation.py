"""A service with stages: the seven steps.

Data flows one way, and each step makes the next one safe to repeat:

    claim ─ recover ─┬─ process ─ seal ─ publish ─ persist (last stage first) ─ commit ─┐
                     └──────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.errors import PoisonError, RecreatedTopic, ServiceStopped, Superseded
from sqe_chain.features.closing import check_closes
from sqe_chain.features.dead_letter_commits import DeadLetterCommits
from sqe_chain.features.dropping import Dropping, Matches
from sqe_chain.features.event_times import EventTime, needed_offsets
from sqe_chain.features.every import FEATURES
from sqe_chain.features.file_inputs import (
    leaving_files,
    named_by_file,
    new_files,
    read_files,
    with_files,
)
from sqe_chain.features.holding import Holding
from sqe_chain.features.locations import locations_of, write_locations
from sqe_chain.features.readers import enter, notice_unread
from sqe_chain.features.sinks import claim_sinks
from sqe_chain.ports import Bounds, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.claim import check_not_superseded, claim, release, stamp
from sqe_chain.protocol.cutting import Part
from sqe_chain.protocol.described import DescribedTopics
from sqe_chain.protocol.entering import bring_up_to_date, first_plan
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import (
    CaughtUp,
    Committed,
    Filtered,
    Notice,
    WindowsClosed,
)
from sqe_chain.protocol.feature import Features
from sqe_chain.protocol.interfaces import CLAIM, PROCESS, RECOVER, SEAL
from sqe_chain.protocol.layout import mark_name
from sqe_chain.protocol.next_batch import NextBatch
from sqe_chain.protocol.owned_flow import OwnedFlow, PlanLog
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.planning import (
    batch_plan,
    check_commits,
    check_layout,
    layout_plan,
)
from sqe_chain.protocol.processing import Batch, Processor, TooManyForOnePlan
from sqe_chain.protocol.recovery import Recovery
from sqe_chain.protocol.results import BatchResult, StartResult
from sqe_chain.protocol.verifying import (
    check_stores,
)
from sqe_chain.task.closing import Closing
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim


@dataclass(slots=True)
class Aggregation:
    """One run of a service with stages.

    Args:
        env: the flow and its ports.

    Attributes:
        claimed: this run's claim; None before it has one, and after it gave it back.
        ends: it was started for what is done already, or was given up: nothing else is to be done.
    """

    env: Environment
    claimed: Claim | None = None
    ends: bool = False
    _features: Features = field(init=False)
    _processor: Processor = field(init=False)
    _choice: NextBatch = field(init=False)
    _holding: Holding = field(init=False)
    _dropping: Dropping = field(init=False)
    _letters: DeadLetterCommits = field(init=False)
    _topics: DescribedTopics = field(init=False)
    _owned: OwnedFlow | None = None
    _bytes_per_record: float = 100.0
    _matches: Matches = field(default_factory=Matches)

    def __post_init__(self) -> None:
        self._features = Features([kind(self.env) for kind in FEATURES])
        self._processor = Processor(self.env, self._features)
        self._choice = NextBatch(self.env)
        self._holding = Holding(self.env)
        self._dropping = Dropping(self.env)
        self._letters = DeadLetterCommits(self.env)
        self._topics = DescribedTopics(self.env)

    @property
    def last(self) -> Plan | None:
        """The last sealed plan; None before the start."""
        return None if self._owned is None else self._owned.last

    @property
    def open_plan(self) -> int | None:
        """Number of a plan that this run has sealed and not yet finished. If the run ends here, the next one finishes it."""
        return None if self._owned is None else self._owned.open_plan

    @property
    def owned(self) -> OwnedFlow:
        """The flow, as this run has it once it has claimed it."""
        if self._owned is None:
            raise AssertionError("start() comes first")
        return self._owned

    def start(self) -> StartResult:
        """Steps 1 and 2: claim, recover, and bring the layout up to date.

        Raises:
            ServiceStopped: the flow cannot be continued exactly from what is found; the text names the ways out.
            ReadersOverlap: it is one of several readers, and another one has one of its partitions.
            ConfigurationError: a topic or store is missing.
        """
        env = self.env
        for feature in self._features.declared:
            feature.check_start()
        weak = check_stores(env)
        infos = inputs.describe(env.flow, env.log)
        weak += inputs.check_durable(env.flow, infos, allowed=env.settings.allow_weak_durability)
        if not env.role.changes_readers:
            env.flow = enter(env, infos)
        try:
            result = self._claim_and_recover(infos, weak)
        except Superseded:
            raise
        except ServiceStopped as error:
            check_not_superseded(env, self.claimed, error)
            raise
        if not env.role.changes_readers:
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

    def complete(self) -> None:
        """Complete what features have begun and what ends with finite inputs, such as an overwrite; nothing, if nothing is.

        Call it when `batch` finds nothing to do any more: what then is in no plan is not in the tables.

        Raises:
            ServiceStopped: a table is not what it was, or what was staged is not there any more.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for the store or a table.
        """
        for feature in self._features.of(self.owned.last):
            plan = feature.complete(self.owned.claim, self.owned.last)
            if plan is not None:
                self.owned.apply_empty(plan)

    def _batch(self, *, at_end: bool, close: bool = False) -> BatchResult:
        env, spec = self.env, self.env.role.rebuild
        began_ms = env.clock.now_ms()
        infos, bounds, found = self._look_and_process(at_end=at_end, close=close)
        if spec is None:
            self._letters.renew(infos)
        owned = self.owned
        last = owned.last
        if found is None:
            last = self._note_published(infos)
            owned.applier.commit_again(last, now=at_end)
            env.commits.settle()
            self._holding.look(last)
            self._dropping.add({})
            env.emit(CaughtUp(last.number))
            return BatchResult(worked=False, plan=last.number)
        part, report, exclusions = found
        plan = batch_plan(last, owned.claim, part, report, exclusions, self._features.of(last, part.needs))
        with env.step(SEAL):
            owned.seal(plan)  # before this the batch does not exist; after it, it will be finished exactly so
        owned.finish(plan, owned.headers_at(last), report, publish=True, top_level=len(env.flow.levels))
        env.engine.release()  # outputs and states are stored elsewhere now
        lags = inputs.lag_by_partition(part.stops, bounds)
        if env.flow.file_sources:
            lags = with_files(env.flow, lags, new_files(env.flow, last, infos))
        result = BatchResult.of(
            report,
            exclusions,
            plan=plan.number,
            outputs=0 if part.silent else report.outputs,
            lag_by_partition=lags,
            batch_ms=env.clock.now_ms() - began_ms,
        )
        if env.flow.by_time:
            result = self._with_held(result, plan)
        env.commits.then(partial(self._tell, result, plan, part, report))
        if result.inputs:  # the next batch is cut by what this one weighed
            size = sum(end.size for end in report.ends) + report.output_size
            self._bytes_per_record = max(16.0, size / result.inputs)
        return result

    def _look_and_process(
        self, *, at_end: bool, close: bool
    ) -> tuple[
        dict[str, TopicInfo],
        dict[TopicPartition, Bounds],
        tuple[Part, Report, tuple[Exclusion, ...]] | None,
    ]:
        """The topics, their bounds, and step 3 of what is new in them; nothing outside has changed then.

        All of it again, if an input was created again meanwhile: it enters as a new root, or stops the service.
        """
        spec, anew = self.env.role.rebuild, at_end
        while True:  # not bounded: each further round means that an input was created again just now
            infos, bounds = self._look(anew=anew)
            if spec is not None:
                bounds = inputs.limit_bounds(bounds, spec.until)
            try:
                return (
                    infos,
                    bounds,
                    self._process(self.owned.last, bounds, infos, at_end=at_end, close=close),
                )
            except RecreatedTopic:
                if (
                    spec is not None or not self._topics.recreated()
                ):  # marks raise it for a topic upstream, too
                    raise
                anew = True

    def _note_published(self, infos: dict[str, TopicInfo]) -> Plan:
        """Without stages no header says that the last batch is published: an empty plan after it does. Returns the last plan."""
        env, owned = self.env, self.owned
        last = owned.last
        if env.flow.stages or last.empty or last.number == 0:
            return last
        leaving = leaving_files(env.flow, last)
        kept = [planned for planned in last.ranges if planned.topic not in leaving]
        plan = layout_plan(last, kept, owned.claim, env.clock.now_ms(), last.layout, infos, {})
        owned.apply_empty(plan)
        return owned.last

    def _tell(self, result: BatchResult, plan: Plan, part: Part, report: Report) -> None:
        """Tell what a batch has done, which is committed now."""
        env = self.env
        env.emit(Committed.of(result))
        closing = part.sections.find(Closing)
        if closing is not None:
            env.emit(WindowsClosed(plan.number, result.outputs, closing.event_ms))
        env.say(self._matches.take(report.dropped))
        self._dropping.add(report.dropped)
        if report.dropped:
            counts = {f"{stage}/{reason}": count for (stage, reason), count in sorted(report.dropped.items())}
            env.emit(Filtered(plan.number, counts))

    def _with_held(self, result: BatchResult, plan: Plan) -> BatchResult:
        """The result with what waits for event time, and who holds it back."""
        holder = self._holding.look(plan)
        name = None if holder is None else mark_name(holder.topic, holder.partition)
        return replace(
            result, held=EventTime.of(plan).waiting, holder=name, watermark_ms=holder and holder.watermark_ms
        )

    def _look(self, *, anew: bool) -> tuple[dict[str, TopicInfo], dict[TopicPartition, Bounds]]:
        """Describe the topics, bring the layout up to date with them, and read the bounds of the same topics."""
        env = self.env
        while True:  # not bounded: each further round means that an input was created again just now
            infos = self._topics.look(anew=anew)
            # A topic that was created again enters as a new root, or stops the service.
            bring_up_to_date(self.owned, infos)
            for feature in self._features.of(self.owned.last):
                feature.looked(self.owned.last, infos)
            offsets = self.owned.last.next_offsets()
            # Repeated as one: a topic that was created again answers as if it were away, until it is described again.
            read = read_files(self.owned.last)
            needed = needed_offsets(self.owned.last)
            look = partial(inputs.read_bounds, env.flow, env.ports.log, infos, offsets, read, needed)
            bounds = env.retry.call("look for new records", look)
            if bounds is not None:
                return infos, bounds
            anew = True

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
            part = self._choice.part(last, bounds, limit, at_end=at_end, close=close)
            if part is None:
                return None
            transition = self.owned.transition_after(last)
            # One that was sealed has perhaps been published in part, before a rebuild.
            batch = Batch(transition, part, last, infos, len(env.flow.levels), sealed=part.due is not None)
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
                limit = sum(planned.stop - planned.begin for planned in part.ranges) // 2

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
        spec = self.env.role.rebuild
        last = self.owned.last
        read = read_files(last)
        offsets = {tp: offset for tp, offset in last.next_offsets().items() if tp[0] not in read}
        bounds = self.env.ports.log.bounds(offsets)
        return inputs.lag(offsets, inputs.limit_bounds(bounds, spec.until) if spec else bounds)

    # ------------------------------------------------------------------ claim and recover

    def _claim_and_recover(self, infos: dict[str, TopicInfo], weak: list[str]) -> StartResult:
        env = self.env
        with env.step(CLAIM):
            self.claimed, home = claim(env, partial(inputs.group_commits, env.flow, env.log, infos))
            mine, plans = self.claimed, PlanLog(env, home)
            if home.number < 0:
                env.say(weak)
                plans.write(first_plan(env, mine, infos))
            self._owned = owned = OwnedFlow(env, mine, plans, plans.read_last(), self._features)
            # Again: until it was claimed, another run may have read what is there only since it was described.
            infos = inputs.describe(env.flow, env.log)
            check_layout(env.flow, owned.last.layout, env.settings.drop_stages)
            headers = stamp(env, mine, owned.last)
            claim_sinks(env, mine, owned.last, owned.fetch)
        with env.step(RECOVER):
            if not env.settings.accept_rollback:
                check_commits(env.flow, owned.last, inputs.group_commits(env.flow, env.log, infos))
            result = Recovery(owned, self._processor).run(headers)
            if env.role.changes_readers:
                return result
            self._enter_features(infos)
            if self.ends:
                return result
            bring_up_to_date(owned, infos)
            if env.role.rebuild is None:  # otherwise nobody should read these states yet
                last = owned.last
                write_locations(env, locations_of(env.flow, last.layout, mine.epoch, last.number))
        return result

    def _enter_features(self, infos: dict[str, TopicInfo]) -> None:
        """Begin, go on with or give up what features do beyond a batch; see `Feature.enter`."""
        owned = self.owned
        for feature in self._features.of(owned.last):
            found = feature.enter(owned.claim, owned.last, infos)
            self.ends |= found.ends
            if found.plan is not None:
                owned.apply_empty(found.plan, [found.text])
            elif found.text:
                self.env.emit(Notice(found.text))
        if self.ends:
            for feature in self._features.of(owned.last):
                feature.looked(owned.last, infos)
