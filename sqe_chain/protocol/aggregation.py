"""A service with stages: the seven steps.

Data flows one way, and each step makes the next one safe to repeat:

    claim ─ recover ─┬─ process ─ seal ─ publish ─ persist (last stage first) ─ commit ─┐
                     └──────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from sqe_chain.errors import ChainError, PoisonError, RecreatedTopic, ServiceStopped, Superseded
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.features.file_inputs import FileSettings, explained, news_of_files, read_files
from sqe_chain.features.lanes import check_rolled_back
from sqe_chain.features.locations import locate_states
from sqe_chain.features.observing import BatchObserver
from sqe_chain.features.overwriting import Overwriting
from sqe_chain.features.parking import ReleaseRequest, check_policy
from sqe_chain.features.readers import enter_flow, notice_unread
from sqe_chain.features.sinks import claim_sinks
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import CLAIM, PROCESS, RECOVER, SEAL, CaughtUp, Committed, Notice
from sqe_chain.plans.layout import check_layout
from sqe_chain.plans.look import Look
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.planning import layout_plan
from sqe_chain.plans.results import BatchResult, StartResult
from sqe_chain.plans.rights import check_rights
from sqe_chain.plans.same_inputs import DescribedTopics
from sqe_chain.ports import Bounds, TopicInfo, TopicPartition
from sqe_chain.protocol.claim import (
    beat,
    check_commits,
    check_not_superseded,
    check_stores,
    claim,
    release,
    stamp,
)
from sqe_chain.protocol.decide import batch_plan, decide_batch
from sqe_chain.protocol.entering import bring_up_to_date, first_plan
from sqe_chain.protocol.observers import observers_of
from sqe_chain.protocol.owned_flow import OwnedFlow, PlanLog
from sqe_chain.protocol.processing import Batch, Processor, TooManyForOnePlan
from sqe_chain.protocol.recovery import Recovery
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]
AllBounds = Mapping[TopicPartition, Bounds]
Processed = tuple[BatchDecision, Report, tuple[Exclusion, ...]]


@dataclass(slots=True)
class StagedService:
    """One run of a service with stages.

    Attributes:
        env: the flow and its ports. A start replaces its flow by that of the reader that this run is.
        claimed: this run's claim; None before it has one, and after it gave it back. The heartbeat reads it from its own thread.
        ends: it was started for what is done already, or was given up: nothing else is to be done. Known after the start.
        request: failed records that the next batch processes; commands about them set it.
    """

    env: Environment
    claimed: Claim | None = None
    ends: bool = False
    request: ReleaseRequest = field(default_factory=ReleaseRequest)
    _processor: Processor = field(init=False)
    _idle: IdleWriters = field(init=False)
    _observers: tuple[BatchObserver, ...] = field(init=False)
    _topics: DescribedTopics = field(init=False)
    # From the claim on; never None again, also when another run has claimed the flow.
    _owned: OwnedFlow | None = None
    # Of what the last batch read and published, to cut the next one by `max_bytes`. The first is cut by a guess.
    _bytes_per_record: float = 100.0

    def __post_init__(self) -> None:
        self._processor = Processor(self.env)
        self._idle = IdleWriters(self.env)
        self._observers = observers_of(self.env)
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
            ServiceStopped: the flow cannot be continued exactly from what is found; the text names what to do.
            ReadersOverlap: it is one of several readers, and another one has one of its partitions.
            ConfigurationError: a topic, a store or a right is missing.
        """
        env = self.env
        Overwriting(env).check_start()
        weak = check_stores(env)
        infos = inputs.describe(env.flow, env.log)
        weak += inputs.check_durable(env.flow, infos, allowed=env.settings.allow_weak_durability)
        env.retry.call("ask for rights", partial(check_rights, env.flow, env.ports.log, infos))
        env.flow = enter_flow(env, infos)
        try:
            with self._explained():
                result = self._claim_and_recover(infos, weak)
        except Superseded:
            raise
        except ServiceStopped as error:
            check_not_superseded(env, self.claimed, error)
            raise
        if not env.role.only_recovers:
            notice_unread(env, infos)
        return result

    def batch(self, *, at_end: bool = False, final: bool = False) -> BatchResult:
        """Steps 3 to 7 for what is new in the inputs, and for what has waited for event time long enough.

        Args:
            at_end: no more input is expected: what waits for event time need not wait for silent partitions.
            final: with `at_end`, when there is nothing to do any more: the input ends here, so all windows are closed, and their
                final results published. Event time has then reached the end of the last of them, in all state partitions; what
                belongs before it is late from then on.

        Returns:
            What became of it; `worked` is False when there was nothing to do, and then nothing was done.

        Raises:
            NotCaughtUp: more input is expected, despite `final`; nothing was done.
            ServiceStopped: going on would not be exact: messages are missing, or inputs are not what they were.
            PoisonError: an input cannot be processed.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for broker or store.
        """
        env, began_ms = self.env, self.env.clock.now_ms()
        with self._explained():
            infos, bounds, processed = self._next(at_end=at_end, final=final)
        owned = self.owned
        last = owned.last
        if processed is None:
            return self._rest(infos, at_end=at_end)
        decision, report, exclusions = processed
        plan = batch_plan(env, last, owned.claim, decision, report, exclusions)
        with env.step(SEAL):
            owned.seal(plan)  # before this the batch does not exist; after it, it will be finished exactly so
        owned.finish(plan, owned.headers_at(last), report, publish=True, top_level=len(env.flow.levels))
        env.engine.release()  # outputs and states are stored elsewhere now
        result = BatchResult.of(
            report,
            exclusions,
            plan=plan.number,
            outputs=0 if decision.silent else report.outputs,
            lag_by_partition=inputs.lag_by_partition(decision.stops, bounds),
            batch_ms=env.clock.now_ms() - began_ms,
        )
        for observer in self._observers:
            result = observer.result(result, plan, infos)
        env.commits.then(partial(self._tell, result, plan, decision, report))
        if result.inputs:  # the next batch is cut by what this one weighed
            size = sum(end.size for end in report.ends) + report.output_size
            self._bytes_per_record = max(16.0, size / result.inputs)
        return result

    def complete(self) -> None:
        """Complete the overwrite that is under way: all files are read. Nothing, if none is.

        Call it when `batch` finds nothing to do any more: what then is in no plan is not in the tables.

        Raises:
            ServiceStopped: a table is not what it was, or what was staged is not there any more.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for the store or a table.
        """
        plan = Overwriting(self.env).complete(self.owned.claim, self.owned.last)
        if plan is not None:
            self.owned.apply_empty(plan)

    def _next(self, *, at_end: bool, final: bool) -> tuple[Infos, AllBounds, Processed | None]:
        """Step 3: the topics, their bounds, and what was processed; None: there is nothing to do. Nothing outside has changed then.

        One that was sealed before has perhaps been published in part, so it is never made smaller.
        """
        env, owned, again = self.env, self.owned, at_end
        limit = min(env.settings.max_records, int(env.settings.max_bytes / self._bytes_per_record))
        # Not bounded: each further round means that an input was created again just now, or halves the batch.
        while True:
            infos = self._topics.look(again=again)
            bounds = self._bounds(owned, infos)
            if bounds is None:
                again = True
                continue
            last = owned.last
            look, now_ms = Look(bounds, limit, at_end, final), env.clock.now_ms()
            decision = decide_batch(env, self._idle, self.request, last, look, now_ms)
            if decision is None:
                return infos, bounds, None
            batch = Batch(owned.transition_after(last), decision, last, infos, len(env.flow.levels))
            try:
                with env.step(PROCESS):
                    return infos, bounds, (decision, *self._processor.run(batch))
            except RecreatedTopic:  # marks raise it for a topic upstream, too
                if env.role.refold is not None or not self._topics.recreated():
                    raise
                again = True
            except TooManyForOnePlan:
                if decision.sealed is not None:
                    raise PoisonError(
                        f"flow {env.flow.name!r}: a batch that was published in part has to be repeated as it was sealed. "
                        "But more of its inputs fail now than one plan can list. Run the code that sealed it"
                    ) from None
                limit = sum(planned.stop - planned.begin for planned in decision.ranges) // 2

    def _bounds(self, owned: OwnedFlow, infos: Infos) -> AllBounds | None:
        """Bring the layout up to date with the topics, and read their bounds; None: one was created again meanwhile."""
        env, refold = self.env, self.env.role.refold
        # A topic that was created again enters as a new root, or stops the service.
        if not owned.is_entered(infos):
            bring_up_to_date(owned, infos)
        for observer in self._observers:
            observer.looked(owned.last, infos)
        # Repeated as one: a topic that was created again answers as if it were away, until it is described again.
        look = partial(
            inputs.read_bounds,
            env.flow,
            env.ports.log,
            infos,
            owned.last.next_offsets(),
            read_files(owned.last),
            needed_offsets(owned.last),
        )
        bounds = env.retry.call("look for new records", look)
        return bounds if refold is None or bounds is None else inputs.limit_bounds(bounds, refold.until)

    def _rest(self, infos: Infos, *, at_end: bool) -> BatchResult:
        """There is nothing to do."""
        env, owned = self.env, self.owned
        last = owned.last
        if not env.flow.stages and not last.empty and last.number > 0:
            # Without stages no header shows that the last batch is published: an empty plan after it does.
            leaving = news_of_files(env.flow, env.settings.of(FileSettings), last, infos).leaving
            kept = [planned for planned in last.ranges if planned.topic not in leaving]
            now_ms = env.clock.now_ms()
            plan = layout_plan(last, kept, owned.claim, now_ms, last.layout, infos, {})
            owned.apply_empty(plan.with_id(last))
            last = owned.last
        owned.commit_again(last, now=at_end)
        env.commits.settle()
        for observer in self._observers:
            observer.idle(last)
        env.emit(CaughtUp(last.number))
        return BatchResult(worked=False, plan=last.number)

    def _tell(self, result: BatchResult, plan: Plan, decision: BatchDecision, report: Report) -> None:
        """Report what a batch has done, which is committed now."""
        self.env.emit(Committed.of(result))
        for observer in self._observers:
            observer.committed(plan, decision, report, result)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors about files name them as their users do."""
        try:
            yield
        except ChainError as error:
            as_known = error if self.last is None else explained(self.last, error)
            if as_known is error:
                raise
            raise as_known from error

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        return beat(self.env, self.claimed)

    def leave(self) -> None:
        """Give the claim back, so that the next run need not wait as a standby."""
        self.env.commits.leave()
        if self.claimed is not None:
            release(self.env, self.claimed)
            self.claimed = None

    def lag(self) -> int:
        """Offsets that are stable and not yet in a plan."""
        last, refold = self.owned.last, self.env.role.refold
        ended = read_files(last)
        offsets = {tp: offset for tp, offset in last.next_offsets().items() if tp[0] not in ended}
        bounds = self.env.ports.log.bounds(offsets)
        return inputs.lag(offsets, inputs.limit_bounds(bounds, refold.until) if refold else bounds)

    # ------------------------------------------------------------------ claim and recover

    def _claim_and_recover(self, infos: Infos, weak: list[str]) -> StartResult:
        env = self.env
        with env.step(CLAIM):
            read_commits = partial(inputs.group_commits, env.flow, env.log, infos)
            self.claimed, home = claim(env, read_commits, infos)
            mine, plans = self.claimed, PlanLog(env, home)
            if home.number < 0:
                env.say(weak)
                plans.write(first_plan(env, mine, infos))
            self._owned = owned = OwnedFlow(env, mine, plans, plans.read_last())
            # Again: until it was claimed, another run may have read what is there only since it was described.
            infos = inputs.describe(env.flow, env.log)
            check_layout(env.flow, owned.last.layout, env.settings.once.drop_stages)
            headers = stamp(env, mine, owned.last)
            claim_sinks(env, mine, owned.last, owned.fetch)
            check_rolled_back(env, owned.last)
        with env.step(RECOVER):
            if not env.settings.once.accept_rollback:
                check_commits(env.flow, owned.last, inputs.group_commits(env.flow, env.log, infos))
            result = Recovery(owned, self._processor).run(headers)
            if env.role.only_recovers:
                return result
            self._enter_overwrite(infos)
            check_policy(env.flow, owned.last)
            if self.ends:
                return result
            bring_up_to_date(owned, infos)
            locate_states(env, mine, owned.last)
        return result

    def _enter_overwrite(self, infos: Infos) -> None:
        """Begin an overwrite, go on with one, or give it up."""
        owned = self.owned
        entered = Overwriting(self.env).enter(owned.claim, owned.last, infos)
        self.ends |= entered.ends
        if entered.plan is not None:
            owned.apply_empty(entered.plan, [entered.text])
        elif entered.text:
            self.env.emit(Notice(entered.text))
        if self.ends:
            for observer in self._observers:
                observer.looked(owned.last, infos)
