"""A run of a flow that keeps plans: what `FlowRun` leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from sqe_chain.errors import ConfigurationError, ServiceStopped, Superseded
from sqe_chain.features.event_times import needed_offsets
from sqe_chain.features.file_inputs import FileSettings, news_of_files, read_files
from sqe_chain.features.lanes import check_rolled_back
from sqe_chain.features.locations import locate_states
from sqe_chain.features.noting import CodecNotes, ask_codecs
from sqe_chain.features.overwriting import Overwriting
from sqe_chain.features.parking import ReleaseRequest, check_policy
from sqe_chain.features.readers import notice_unread
from sqe_chain.features.rebuilding import check_still_open
from sqe_chain.features.sinks import claim_sinks
from sqe_chain.features.view_tables import hide_tables
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.plans import inputs
from sqe_chain.plans.events import CLAIM, PROCESS, RECOVER, SEAL, Notice
from sqe_chain.plans.layout import check_layout
from sqe_chain.plans.look import Infos, Look, Offsets
from sqe_chain.plans.mirrors import check_lanes
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.planning import layout_plan
from sqe_chain.plans.results import StartResult
from sqe_chain.protocol.batch import FlowRun, Processed
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
from sqe_chain.protocol.finish import OwnedFlow, PlanLog, beside_outputs
from sqe_chain.protocol.processing import Batch, Processor
from sqe_chain.protocol.redo import Recovery
from sqe_chain.protocol.transactions import Transactions
from sqe_chain.protocol.whole_revisions import check_may_be_revised, check_own_revision, record_own_revision
from sqe_chain.task.states import Claim


@dataclass(slots=True)
class StagedService(FlowRun):
    """A run with plans: of a flow with stages, or with files.

    Attributes:
        request: failed records that the next batch processes; commands about them set it.
    """

    request: ReleaseRequest = field(default_factory=ReleaseRequest)
    _processor: Processor = field(init=False)
    _idle: IdleWriters = field(init=False)
    # From the claim on; never None again, also when another run has claimed the flow.
    _owned: OwnedFlow | None = None

    def __post_init__(self) -> None:
        FlowRun.__post_init__(self)
        self._processor = Processor(self.env)
        self._idle = IdleWriters(self.env)

    @property
    def last(self) -> Plan | None:
        return None if self._owned is None else self._owned.last

    @property
    def open_plan(self) -> int | None:
        return None if self._owned is None else self._owned.open_plan

    @property
    def owned(self) -> OwnedFlow:
        """The flow, as this run has it once it has claimed it."""
        if self._owned is None:
            raise AssertionError("start() comes first")
        return self._owned

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

    def beat(self) -> bool:
        return beat(self.env, self.claimed)

    def leave(self) -> None:
        self.env.commits.leave()
        if self._owned is not None and self._owned.transactions is not None:
            self._owned.transactions.close()
        if self.claimed is not None:
            release(self.env, self.claimed)
            self.claimed = None

    # ------------------------------------------------------------------ steps 1 and 2

    def _check_before(self) -> list[str]:
        if self.env.flow.transactional and self.env.settings.once.accept_rollback:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r} is transactional. Expected a start without --accept-rollback: its readers would get outputs "
                "twice. Restore the store, or declare the flow without transactional=True"
            )
        check_may_be_revised(self.env.flow)
        Overwriting(self.env).check_start()
        return check_stores(self.env)

    def _recover(self, infos: Infos, weak: list[str]) -> StartResult:
        try:
            result = self._claim_and_recover(infos, weak)
        except Superseded:
            raise
        except ServiceStopped as error:
            check_not_superseded(self.env, self.claimed, error)
            raise
        if not self.env.role.only_recovers:
            notice_unread(self.env, infos)
        return result

    def _claim_and_recover(self, infos: Infos, weak: list[str]) -> StartResult:
        env = self.env
        with env.step(CLAIM):
            read_commits = partial(inputs.group_commits, env.flow, env.log, infos)
            self.claimed, home = claim(env, read_commits, infos)
            mine, plans = self.claimed, PlanLog(env, home)
            transactions = self._fence(mine)
            if home.number < 0:
                env.say(weak)
                plans.write(first_plan(env, mine, infos))
            self._owned = owned = OwnedFlow(env, mine, plans, plans.read_last(), transactions=transactions)
            check_still_open(env, owned.last)
            # Again: until it was claimed, another run may have read what is there only since it was described.
            infos = inputs.describe(env.flow, env.log)
            check_layout(env.flow, owned.last.layout, env.settings.once.drop_stages)
            ask_codecs(env, CodecNotes.of(owned.last).notes)
            if env.role.refold is None:
                check_own_revision(env.flow, owned.last)
            headers = stamp(env, mine, owned.last)
            hide_tables(env, mine, owned.last)
            claim_sinks(env, mine, owned.last, owned.fetch)
            check_rolled_back(env, owned.last)
        with env.step(RECOVER):
            if not env.settings.once.accept_rollback:
                check_commits(env.flow, owned.last, inputs.group_commits(env.flow, env.log, infos))
            record_own_revision(env, owned.last, infos)
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

    def _fence(self, mine: Claim) -> Transactions | None:
        """End the transaction that an older run may have open, if the flow publishes any."""
        env = self.env
        if not env.flow.transactional or env.role.refold is not None:
            return None
        transactions = Transactions(env, mine)
        env.retry.call("begin transactions", transactions.open)
        return transactions

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

    # ------------------------------------------------------------------ steps 3 to 7

    def _enter(self, infos: Infos) -> None:
        if self.owned.transactions is not None:
            self.owned.transactions.look(infos)
        if not self.owned.is_entered(infos):
            bring_up_to_date(self.owned, infos)

    def _to_read(self) -> tuple[Offsets, frozenset[str], Offsets | None]:
        last = self.owned.last
        return last.next_offsets(), read_files(last), needed_offsets(last)

    def _process(self, infos: Infos, look: Look) -> Processed | None:
        """Step 3. Nothing outside changes, so it can be repeated as often as needed."""
        env, owned = self.env, self.owned
        last = owned.last
        decision = decide_batch(env, self._idle, self.request, last, look, env.clock.now_ms())
        if decision is None:
            return None
        batch = Batch(owned.transition_after(last), decision, last, infos, len(env.flow.levels))
        with env.step(PROCESS):
            return Processed(decision, *self._processor.run(batch))

    def _finish(self, processed: Processed) -> Plan:
        """Steps 4 to 7."""
        env, owned = self.env, self.owned
        last, report = owned.last, processed.report
        marker = None if owned.transactions is None else owned.transactions.noted
        plan = batch_plan(env, last, owned.claim, processed.decision, report, processed.exclusions, marker)
        check_lanes(env.flow.name, plan)
        with env.step(SEAL):
            owned.seal(plan)
        env.flow.notes.update(report.met)
        owned.finish(plan, owned.headers_at(last), report, publish=True, top_level=len(env.flow.levels))
        env.engine.release()  # outputs and states are stored elsewhere now
        return plan

    def _commit_again(self, infos: Infos, *, now: bool) -> None:
        env, owned = self.env, self.owned
        last = owned.last
        proved = bool(env.flow.stages) or (
            owned.transactions is not None
            and owned.transactions.has_published(last)  # never, if it had no outputs
            and not any(beside_outputs(env, owned.claim, last))
        )
        if not proved and not last.empty and last.number > 0:
            # Neither headers nor a marker show that all of the last batch is published: an empty plan after it does.
            leaving = news_of_files(env.flow, env.settings.of(FileSettings), last, infos).leaving
            kept = [planned for planned in last.ranges if planned.topic not in leaving]
            now_ms = env.clock.now_ms()
            plan = layout_plan(last, kept, owned.claim, now_ms, last.layout, infos, {})
            owned.apply_empty(plan.with_id(last))
        owned.commit_again(owned.last, now=now)
