"""One run of a flow: a start, then batch after batch. The steps of a batch are called here, with plans and without.

Data flows one way, and each step makes the next one safe to repeat:

    with plans      claim ─ recover ─┬─ process ─ seal ─ publish ─ persist (last stage first) ─ commit ─┐
                                     └──────────────────────────────────────────────────────────────────┘
    without         join ── redo ────┬─ note what is begun ─ process and publish ────────────── commit ─┐
                                     └──────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from sqe_chain.errors import ChainError, RecreatedTopic
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.file_inputs import explained
from sqe_chain.features.observing import BatchObserver
from sqe_chain.features.readers import enter_flow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import CaughtUp, Committed
from sqe_chain.plans.look import Infos, Look, Offsets
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.results import BatchResult, StartResult
from sqe_chain.plans.rights import check_rights
from sqe_chain.plans.same_inputs import DescribedTopics
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.protocol.observers import observers_of
from sqe_chain.protocol.processing import TooManyForOnePlan
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim


@dataclass(frozen=True, slots=True)
class Processed:
    """A batch whose functions have run. With plans nothing outside has changed by that; without, its outputs are published.

    Attributes:
        decision: what it reads and does.
        report: of its tasks.
        exclusions: skipped inputs.
    """

    decision: BatchDecision
    report: Report
    exclusions: tuple[Exclusion, ...]


@dataclass(slots=True)
class FlowRun(ABC):
    """One run of a flow. What is abstract here, a run with plans does in another way than one without.

    Attributes:
        env: the flow and its ports. A start replaces its flow by that of the reader that this run is.
        claimed: this run's claim; None before it has one, after it gave it back, and without plans. The heartbeat reads it from
            its own thread.
        ends: it was started for what is done already, or was given up: nothing else is to be done. Known after the start.
    """

    env: Environment
    claimed: Claim | None = None
    ends: bool = False
    _observers: tuple[BatchObserver, ...] = field(init=False)
    _topics: DescribedTopics = field(init=False)
    # Of what the last batch read and published, to cut the next one by `max_bytes`. The first is cut by a guess.
    _bytes_per_record: float = 100.0

    def __post_init__(self) -> None:
        self._observers = observers_of(self.env)
        self._topics = DescribedTopics(self.env)

    @property
    def last(self) -> Plan | None:
        """The last sealed plan; None before the start, and without plans."""
        return None

    @property
    def open_plan(self) -> int | None:
        """Number of a plan that this run has sealed and not yet finished. If the run ends here, the next one finishes it."""
        return None

    def start(self) -> StartResult:
        """Steps 1 and 2: become the one run of the flow, finish what the run before has begun, and let in what is new.

        Raises:
            ServiceStopped: the flow cannot be continued exactly from what is found; the text names what to do.
            ReadersOverlap: it is one of several readers, and another one has one of its partitions.
            Superseded: a newer run owns the flow.
            ConfigurationError: a topic, a store or a right is missing.
        """
        env = self.env
        weak = self._check_before()
        infos = inputs.describe(env.flow, env.log)
        weak += inputs.check_durable(env.flow, infos, allowed=env.settings.allow_weak_durability)
        env.retry.call("ask for rights", partial(check_rights, env.flow, env.ports.log, infos))
        env.flow = enter_flow(env, infos)
        with self._explained():
            return self._recover(infos, weak)

    def batch(self, *, at_end: bool = False, final: bool = False) -> BatchResult:
        """Steps 3 to 7 for what is new in the inputs, and for what has waited for event time long enough.

        Args:
            at_end: no more input is expected: what waits for event time need not wait for silent partitions.
            final: with `at_end`, when there is nothing to do any more: the input ends here, so all windows are closed, and their
                final results published. Event time has then reached the end of the last of them, in all state partitions; what
                belongs before it is late from then on.

        Returns:
            What became of it; `worked` is False when there was nothing to read or to release.

        Raises:
            NotCaughtUp: more input is expected, despite `final`; no window was closed.
            ConfigurationError: the plan would be larger than its store takes, or a topic is not as declared.
            ServiceStopped: going on would not be exact: messages are missing, or inputs are not what they were.
            PoisonError: an input cannot be processed.
            Superseded: a newer run owns the flow.
            Unavailable: asked to stop while waiting for broker or store.
        """
        env, began_ms = self.env, self.env.clock.now_ms()
        with self._explained():
            infos, bounds, processed = self._next(at_end=at_end, final=final)
        if processed is None:
            return self._rest(infos, at_end=at_end)
        plan = self._finish(processed)
        report = processed.report
        result = BatchResult.of(
            report,
            processed.exclusions,
            plan=None if plan is None else plan.number,
            outputs=0 if processed.decision.silent else report.outputs,
            lag_by_partition=inputs.lag_by_partition(processed.decision.stops, bounds),
            batch_ms=env.clock.now_ms() - began_ms,
        )
        if plan is not None:
            for observer in self._observers:
                result = observer.result(result, plan, infos)
        env.commits.then(partial(self._tell, result, plan, processed))
        if result.inputs:  # the next batch is cut by what this one weighed
            size = sum(end.size for end in report.ends) + report.output_size
            self._bytes_per_record = max(16.0, size / result.inputs)
        return result

    def _next(
        self, *, at_end: bool, final: bool
    ) -> tuple[Infos, Mapping[TopicPartition, Bounds], Processed | None]:
        """Let in what is new, then step 3: the topics, their bounds, and what was processed; None: there is nothing to do."""
        env, again = self.env, at_end
        limit = min(env.settings.max_records, int(env.settings.max_bytes / self._bytes_per_record))
        # Not bounded: each further round means that an input was created again just now, or halves the batch.
        while True:
            infos = self._topics.look(again=again)
            again = True
            # A topic that was created again enters as a new root, or stops the service.
            self._enter(infos)
            for observer in self._observers:
                observer.looked(self.last, infos)
            bounds = self._bounds(infos)
            if bounds is None:
                continue
            try:
                return infos, bounds, self._process(infos, Look(bounds, limit, at_end, final))
            except RecreatedTopic:  # marks raise it for a topic upstream, too
                if env.role.refold is not None or not self._topics.recreated():
                    raise
            except TooManyForOnePlan as error:
                limit, again = error.records // 2, False

    def _bounds(self, infos: Infos) -> Mapping[TopicPartition, Bounds] | None:
        """Where the inputs begin, and up to where they may be read; None: one was created again meanwhile."""
        env, refold = self.env, self.env.role.refold
        # Repeated as one: a topic that was created again answers as if it were away, until it is described again.
        look = partial(inputs.read_bounds, env.flow, env.ports.log, infos, *self._to_read())
        bounds = env.retry.call("look for new records", look)
        return bounds if refold is None or bounds is None else inputs.limit_bounds(bounds, refold.until)

    def _rest(self, infos: Infos, *, at_end: bool) -> BatchResult:
        """There is nothing to read or to release."""
        self._commit_again(infos, now=at_end)
        self.env.commits.settle()
        last = self.last
        if last is not None:
            for observer in self._observers:
                observer.idle(last)
        number = None if last is None else last.number
        self.env.emit(CaughtUp(number))
        return BatchResult(worked=False, plan=number)

    def _tell(self, result: BatchResult, plan: Plan | None, processed: Processed) -> None:
        """Report what a batch has done, which is committed now."""
        self.env.emit(Committed.of(result))
        if plan is not None:
            for observer in self._observers:
                observer.committed(plan, processed.decision, processed.report, result)

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

    def complete(self) -> None:  # noqa: B027 - most flows have nothing to complete
        """Complete what is done when all inputs are read to their ends. Nothing, unless a table is overwritten."""

    def lag(self) -> int:
        """Offsets that are stable and not yet read."""
        offsets, ended, _ = self._to_read()
        offsets = {tp: offset for tp, offset in offsets.items() if tp[0] not in ended}
        bounds, refold = self.env.ports.log.bounds(offsets), self.env.role.refold
        return inputs.lag(offsets, inputs.limit_bounds(bounds, refold.until) if refold else bounds)

    @abstractmethod
    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""

    @abstractmethod
    def leave(self) -> None:
        """Make room, so that the next run, or a command, need not wait."""

    @abstractmethod
    def _check_before(self) -> list[str]:
        """Check what needs no topics; gives what is weak and accepted."""

    @abstractmethod
    def _recover(self, infos: Infos, weak: list[str]) -> StartResult:
        """Become the one run of the flow, and finish what the run before has begun.

        Args:
            infos: the topics.
            weak: what is weak and accepted. It is reported once, when the flow begins.
        """

    @abstractmethod
    def _enter(self, infos: Infos) -> None:
        """Let in what is new in the topics, before anything of it is read."""

    @abstractmethod
    def _to_read(self) -> tuple[Offsets, frozenset[str], Offsets | None]:
        """Next offset of each partition, topics of files that are read to their ends, and where records are read again from."""

    @abstractmethod
    def _process(self, infos: Infos, look: Look) -> Processed | None:
        """Decide what a batch reads and does, and run the user's functions; without plans, publish, too. None: there is nothing to do.

        Raises:
            RecreatedTopic: an input was created again while it was read. It is safe to process again.
            TooManyForOnePlan: nothing was done. The batch has to be smaller.
        """

    @abstractmethod
    def _finish(self, processed: Processed) -> Plan | None:
        """Make the batch final; gives its plan. When its commit is acknowledged it is over."""

    @abstractmethod
    def _commit_again(self, infos: Infos, *, now: bool) -> None:
        """Commit what was committed before, now and then: Kafka forgets groups that commit nothing.

        Of a flow without stages that has plans it seals an empty one first, if the last plan is not known to be published.
        """
