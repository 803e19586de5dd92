"""Rebuilds the states of a flow from its inputs, beside its old states, and cuts over in one step.

A second flow, with another name and the same functions, folds everything from where the flow once began up to given
offsets. It is an ordinary flow, with a claim, plans and headers of its own, but it publishes and commits nothing. Its
plans continue the numbers of the flow's. When it is done, one compare-and-set of the home record makes its last plan the
flow's. Only then does this operation delete the old states.

The flow stays silent until it has passed the offsets up to which it had published (`Rebuilding.silent_until`): its
receivers have these outputs. It then repeats, as it was sealed, a batch that they may have in part
(`Rebuilding.unfinished`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqe_chain.envelope.revisions import FIRST
from sqe_chain.errors import (
    START_OVER,
    ChainError,
    ConfigurationError,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.features.closing import Closes
from sqe_chain.features.events import Rebuilt
from sqe_chain.features.file_inputs import check_no_files
from sqe_chain.features.lanes import MOVED, Lanes, check_may_move
from sqe_chain.features.locations import locations_of, repair_locations, write_locations
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.sinks import check_no_sinks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.attempts import Attempts, is_free, kept_name, name_of
from sqe_chain.operations.following import Follower
from sqe_chain.operations.going_back import keep_states
from sqe_chain.operations.progress import FlowProgress, find_progress, recreated_since
from sqe_chain.operations.shadow import say_changed_code, second_environment
from sqe_chain.operations.skipped_again import find_skipped
from sqe_chain.operations.switching import (
    Switch,
    check_equal,
    check_may_switch,
    is_between_batches,
    left_to_fold,
    seal_sections,
)
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Engine, Environment, Refold
from sqe_chain.plans.events import CLAIM, RECOVER, SEAL
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.plans.finding_revisions import find_revisions
from sqe_chain.plans.layout import moved_outputs
from sqe_chain.plans.own_revisions import declared_revision
from sqe_chain.plans.plan import Plan, encoded_sections
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import plan_of_a_run, read_last_plan
from sqe_chain.ports import Commit, Header, Home, TopicInfo, TopicPartition
from sqe_chain.protocol.claim import beat, check_has_run, check_not_superseded, check_stores, claim, release
from sqe_chain.protocol.finish import commit_plan
from sqe_chain.protocol.whole_revisions import recorded_revision
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.states import Claim

Offsets = Mapping[TopicPartition, int]
Folded = tuple[Refold, Rebuilding, Closes, Lanes, Revisions]
"""What an attempt folds, and of its sections those by which it differs from another one."""


@dataclass(slots=True)
class Rebuild:
    """Rebuilds a flow, rewinds it, or puts the states of its shadow, or of before the last switch, in the place of its own.

    Args:
        env: the flow and its ports; its engine is not used.
        engine: makes an engine for the second flow.
        to: where to end: offsets for some partitions, or a time in milliseconds since 1970, by the records' own
            timestamps. Partitions that are not named, and by default all of them, end where the flow was.
        republish: publish again what comes after `to`.
        resume: continue an interrupted attempt; the code must not have changed since.
        switch: fold the rest for states that are there, and put these in the place of the flow's; None: fold all.
        stopped: whether to end before everything is folded.
    """

    env: Environment
    engine: Callable[[CompiledFlow], Engine]
    to: Offsets | int | None = None
    republish: bool = False
    resume: bool = False
    switch: Switch | None = None
    stopped: Callable[[], bool] = lambda: False
    claimed: Claim | None = None

    def run(self) -> Plan:
        """Fold, and cut over. The flow's own runs are fenced off at once; until it is cut over the flow does not change.

        Returns:
            The last plan of the flow then.

        Raises:
            LostOffsets: an input no longer holds what the flow once began with.
            ServiceStopped: an input was created again since, so the flow cannot be rebuilt.
            PlanMismatch: receivers may have a part of what is to be published again, and the new declaration gives it otherwise.
            Superseded: another run has claimed the flow.
            ConfigurationError: the flow keeps no states or reads files, `to` lies beyond what it has read, or `republish`
                before outputs moved, or before late inputs.
        """
        env = self.env
        check_no_files(env.flow)
        check_no_sinks(env.flow, "to rebuild it")
        if env.flow.transactional and (self.republish or not env.flow.stages):
            raise ConfigurationError(
                f"flow {env.flow.name!r} is transactional: readers that know no positions would get again what is published again. Expected "
                "a rebuild or rewind of states alone. Do without --republish; or declare the flow without transactional=True"
            )
        if not env.flow.stages:
            raise ConfigurationError(
                f"flow {env.flow.name!r} keeps no states. Expected stages, to fold them again. `sqe-chain rewind` moves its offsets"
            )
        check_stores(env)
        infos = inputs.describe(env.flow, env.log)
        check_has_run(env, inputs.group_commits(env.flow, env.log, infos))
        with env.step(CLAIM):
            commits = partial(inputs.group_commits, env.flow, env.log, infos)
            mine, home = self._claim(commits)
        self.claimed = mine
        try:
            infos = inputs.describe(env.flow, env.log)  # again: until the claim another run may have read on
            progress = find_progress(env, home, infos, inputs.group_commits(env.flow, env.log, infos))
            if progress.layout is None:  # plans are lost, which knew under which revision it publishes
                own = Revisions(own=recorded_revision(env))
                progress = replace(progress, revisions=own)
            folded = self._spec(progress, infos)
            if progress.layout is not None:
                repair_locations(env, progress.layout, mine.epoch, progress.number)
            name, spec, home = self._attempt(progress, folded, home)
            mine = self._mine
            second = self._second_environment(name, spec)
            self._fold(second, spec)
            plan = self._last_plan(second, spec, infos)
            if (switch := self.switch) is not None:
                live = check_equal(env, home, plan, name, accept=switch.accept_differences or switch.back)
                if not switch.back:
                    keep_states(env, mine, live)
                Attempts(env, mine).close_at(name, plan)  # nobody follows for it from here on
            self._cut_over(home, mine, plan)
            # Before anything is deleted: readers who are led to the old states find all of them.
            # A resumed attempt may have been begun by other code, without a view that is a table.
            write_locations(
                env, locations_of(env.flow, plan.layout, mine.epoch, plan.number, complete=not self.resume)
            )
            self._clean_up(Attempts(env, mine), progress, second.flow.name, plan)
        except Superseded:
            raise
        except ChainError as error:
            check_not_superseded(env, self.claimed, error)
            self._check_recreated(self._recreated(infos), error)
            raise
        finally:
            release(env, self.claimed)
        return plan

    def _claim(self, read_commits: Callable[[], Mapping[TopicPartition, Commit]]) -> tuple[Claim, Home]:
        if self.switch is None:
            return claim(self.env, read_commits, lost=True)
        check_may_switch(self.env, self.switch)
        # A live run is ended between two of its batches: other code could not finish one.
        return claim(self.env, read_commits, lost=True, may_take=partial(is_between_batches, self.env))

    @property
    def _mine(self) -> Claim:
        if self.claimed is None:
            raise AssertionError("run() claims the flow first")
        return self.claimed

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        return beat(self.env, self.claimed)

    # ------------------------------------------------------------------ what to fold

    def _attempt(self, progress: FlowProgress, folded: Folded, home: Home) -> tuple[str, Refold, Home]:
        """The name of the attempt, what it folds, and the home record, which has another epoch if it needed one for that name."""
        attempts, spec = Attempts(self.env, self._mine), folded[0]
        current = set(progress.layout.stored_in().values()) if progress.layout else set[str]()
        attempts.close(current)  # otherwise they could be resumed once the flow has left them
        if self.switch is not None:
            return *left_to_fold(self.env, progress, spec, self._mine if self.switch.back else None), home
        if self.resume:
            return self._to_resume(attempts, current, *folded[1:]), spec, home
        # Without a layout it is not known whether the states there are the flow's own.
        if progress.layout is not None:
            self._delete(attempts, current)
        home = self._with_free_name(home)
        return name_of(self.env.flow, home.epoch), spec, home

    def _spec(self, progress: FlowProgress, infos: Mapping[str, TopicInfo]) -> Folded:
        flow = self.env.flow
        self._check_recreated(progress.recreated)
        tps = inputs.partitions_of(infos[topic] for topic in flow.input_topics)
        ends = {tp: progress.ends.get(tp, 0) for tp in tps}
        revisions, starts = self._revisions(progress, infos)
        next_own = revisions.own != progress.revisions.own
        if next_own and self.to is not None:
            raise ConfigurationError(
                f"flow {flow.name!r}: revision {revisions.own} of its outputs begins at the beginning, because its states at a point mix roots of "
                "both sides. Expected no --to. Rebuild without it"
            )
        until = dict(ends)
        for tp, offset in self._target_offsets(ends).items():
            if tp not in ends:
                raise ConfigurationError(
                    f"{tp[0]}[{tp[1]}]: flow {flow.name!r} does not read it. Expected an input partition of the flow"
                )
            if offset > ends[tp]:
                raise ConfigurationError(
                    f"{tp[0]}[{tp[1]}]: offset {offset}. Expected at most {ends[tp]}, up to which flow {flow.name!r} has counted: a "
                    "rewind does not move it forward. Give an earlier offset"
                )
            until[tp] = max(offset, progress.starts.get(tp, 0))
        until, closes = self._with_closes(until, progress)
        if next_own or revisions.known != progress.revisions.known:
            # Published again is everything, after the cut-over.
            until = {
                tp: starts.get(tp, 0) if next_own else max(offset, starts.get(tp, 0))
                for tp, offset in until.items()
            }
            return self._as_if_new(progress, revisions, starts, until, closes)
        self._check_released(until, progress)
        published = {tp: progress.published.get(tp, 0) for tp in ends}
        silent_until, received = dict[TopicPartition, int](), dict(progress.published_until)
        if self.republish:
            received = {tp: max(offset, received.get(tp, 0)) for tp, offset in published.items()}
        else:
            silent_until = {tp: offset for tp, offset in published.items() if offset}
        received = {tp: offset for tp, offset in received.items() if offset > until.get(tp, offset)}
        reached, heard = progress.reached, progress.heard or progress.reached
        if not flow.by_time:  # the new code takes its inputs as they come
            reached, heard = (known and replace(known, frontier=None) for known in (reached, heard))
        rebuilding = Rebuilding(
            silent_until=silent_until,
            unfinished=progress.unfinished,
            attempt=progress.number + 1,
            published_until=received,
            reached=reached if silent_until else None,
            heard=heard if received else None,
        )
        lanes = self._lanes(until, progress)
        parking = replace(
            progress.parking, skipped=find_skipped(self.env, failed_logs(self.env)), disordered=False
        )
        until = {tp: max(offset, starts.get(tp, 0)) for tp, offset in until.items()}
        sections = encoded_sections(rebuilding, closes, parking, lanes, progress.begun, revisions)
        outputs = progress.layout.outputs if progress.layout else {}
        spec = Refold(rebuilding.attempt, starts, until, sections, outputs)
        return spec, rebuilding, closes, lanes, revisions

    def _as_if_new(
        self,
        progress: FlowProgress,
        revisions: Revisions,
        starts: Mapping[TopicPartition, int],
        until: Offsets,
        closes: Closes,
    ) -> Folded:
        """What to fold if other inputs count than before: nobody has anything of what is made of them.

        So nothing is passed over in silence, and how far event time had come does not matter.
        """
        revisions = replace(
            revisions,
            since=revisions.since if revisions.own == progress.revisions.own else progress.number + 1,
        )
        rebuilding, lanes = Rebuilding(attempt=progress.number + 1), Lanes()
        closes = replace(closes, done=0, published=0)
        parking = replace(
            progress.parking, skipped=find_skipped(self.env, failed_logs(self.env)), disordered=False
        )
        sections = encoded_sections(rebuilding, closes, parking, lanes, progress.begun, revisions)
        outputs = progress.layout.outputs if progress.layout else {}
        spec = Refold(rebuilding.attempt, starts, until, sections, outputs)
        return spec, rebuilding, closes, lanes, revisions

    def _revisions(
        self, progress: FlowProgress, infos: Mapping[str, TopicInfo]
    ) -> tuple[Revisions, dict[TopicPartition, int]]:
        """The newest revisions, and where the partitions begin: later than before, if these have replaced all that is gone.

        Raises:
            UnknownRevision: it is not known where one begins.
            ConfigurationError: the flow has published, and would publish something else under the same names.
        """
        env, starts = self.env, dict(progress.starts)
        met = [own.topic for own in progress.revisions.newer.values()]
        upstream = find_revisions(env.flow, env.log, infos, met)
        newest = Revisions.of_records(upstream.records)
        newest = replace(
            newest,
            known={**progress.revisions.known, **newest.known},
            topics={**progress.revisions.topics, **newest.topics},
        )
        for (topic, partition), bound in env.log.bounds(inputs.input_partitions(env.flow, infos)).items():
            begin, tp = bound.begin, (topic, partition)
            counted = progress.marks[tp].lanes if tp in progress.marks else ()
            if begin > starts.get(tp, 0) and upstream.begins_late(tp, begin, counted):
                starts[tp] = begin
        before = progress.revisions
        own = declared_revision(env.flow) if env.flow.outputs else before.own
        newest = replace(newest, own=own, since=before.since)
        self._check_own_outputs(progress, newest)
        if newest.known != progress.revisions.known:
            env.say([f"follows {', '.join(newest.texts())} from now on"])
        return newest, starts

    def _check_own_outputs(self, progress: FlowProgress, newest: Revisions) -> None:
        """Check that a flow publishes what it will make of other revisions under a revision of its own.

        Raises:
            ConfigurationError: it has published, and would publish something else under the same names.
        """
        flow, before = self.env.flow, progress.revisions
        if not flow.outputs:
            return
        name = f"{flow.declared_name}/{flow.outputs[0].name}"
        if newest.own < before.own:
            raise ConfigurationError(
                f"{name} is declared with revision {newest.own}, and has published revision {before.own}. Expected revision={before.own}, or a "
                "later one"
            )
        lost = (
            progress.layout is None
        )  # and with its plans what the flow has followed, and published under which revision
        published = lost or (progress.layout is not None and bool(progress.layout.outputs))
        other = newest.known != before.known or (lost and before.own != FIRST)
        if published and other and newest.own == before.own:
            raise ConfigurationError(
                f"{name} has published, and will publish something else, because the flow follows {', '.join(newest.texts())} from now on. "
                f"Expected a revision of its own. Declare revision={before.own + 1} for all outputs of flow {flow.name!r}"
            )

    def _lanes(self, until: Offsets, progress: FlowProgress) -> Lanes:
        """Since when the flow publishes on its lanes, once it is as it is declared now."""
        flow, layout, lanes = self.env.flow, progress.layout, progress.lanes
        if flow.falling and flow.outputs and not progress.by_moments:
            # In silence it would do what that version has left open where no input came, and nobody would get it.
            raise ConfigurationError(
                f"flow {flow.name!r} cannot be folded again: an older version has made its last plan, by which windows and timers may be "
                "open that are due. Expected a plan of this version. Start the flow once, which gives their results; then repeat this"
            )
        if layout is not None:
            check_may_move(flow, layout, progress.number, progress.still_to_publish)
        if layout is None or lanes.since is None or moved_outputs(flow, layout):
            lanes = lanes.moved(
                progress.published, progress.reached.frontier if progress.reached else None, {MOVED: 1}
            )
        moved = lanes.since if self.republish and flow.outputs else None
        for (topic, partition), since in (moved or {}).items():
            offset = until.get((topic, partition), since)
            if offset < since:
                raise ConfigurationError(
                    f"flow {flow.name!r}: {topic}[{partition}]@{offset} was published before offset {since}, and would not come "
                    f"out the same: {lanes.reasons}. Readers would count it twice, or keep old results. Expected --to at or after "
                    f"{since} with --republish. Give a later offset, or do without --republish"
                )
        return lanes

    def _check_released(self, until: Offsets, progress: FlowProgress) -> None:
        publishes = self.republish and self.env.flow.outputs
        for topic, _, partition, offset in progress.parking.counted if publishes else ():
            if until.get((topic, partition), 0) <= offset:
                raise ConfigurationError(
                    f"{topic}[{partition}]@{offset} failed and was released, so receivers know its outputs under another name, and would "
                    "count them again. Expected --to after it with --republish. Give a later offset, or do without --republish"
                )

    def _recreated(self, infos: Mapping[str, TopicInfo]) -> list[str]:
        """The inputs that were created again since they were described."""
        try:
            now = inputs.describe(self.env.flow, self.env.log)
        except ChainError:
            return []
        return [
            topic for topic, info in infos.items() if topic in now and now[topic].topic_id != info.topic_id
        ]

    def _check_recreated(self, topics: Iterable[str], cause: ChainError | None = None) -> None:
        flow = self.env.flow
        for topic in sorted(topics):
            if topic in flow.input_topics:
                raise ServiceStopped(
                    f"flow {flow.name!r}: {topic!r} was created again after the flow had counted a part of it. Expected that part, to "
                    f"fold it again. The only way on is to {START_OVER}"
                ) from cause

    def _with_closes(
        self, until: dict[TopicPartition, int], progress: FlowProgress
    ) -> tuple[dict[TopicPartition, int], Closes]:
        """Where to end, and where all windows were closed on the way there and after it. A partition short of a closing holds back the others."""
        known = progress.closes
        before = min(known.within(until), known.published)
        if before < len(known):
            stops, starts = known.stops_at(before), progress.starts
            until = {
                tp: min(offset, max(stops.get(tp, 0), starts.get(tp, 0))) for tp, offset in until.items()
            }
        return until, replace(known, done=0, published=before if self.republish else known.published)

    def _target_offsets(self, ends: Offsets) -> Offsets:
        to, env = self.to, self.env
        if not isinstance(to, int):
            return to or {}
        return {tp: min(offset, ends[tp]) for tp, offset in env.log.offsets_at(ends, to).items()}

    # ------------------------------------------------------------------ the second flow

    def _second_environment(self, name: str, spec: Refold) -> Environment:
        second = second_environment(self.env, self.engine, name, spec)
        second.settings = second.settings.asking(takeover=True, accept_rollback=False)
        return second

    def _to_resume(
        self,
        attempts: Attempts,
        current: set[str],
        spec: Rebuilding,
        closes: Closes,
        lanes: Lanes,
        revisions: Revisions,
    ) -> str:
        """The name of the interrupted attempt, if it would end where this one has to end."""
        name = self.env.flow.name
        attempt = next(
            (known for known in attempts.known() if known.open and known.name not in current), None
        )
        if attempt is None:
            raise ConfigurationError(
                f"flow {name!r}: there is no interrupted attempt. Expected one to resume. Start without --resume"
            )
        known = Rebuilding.of(attempt.plan)
        # Its plans know what receivers have beyond the end that it began with, and not beyond an earlier one.
        stops = attempt.plan.next_offsets()
        ahead = {tp: offset for tp, offset in spec.published_until.items() if stops.get(tp, 0) < offset}
        why = ""
        if known.attempt != spec.attempt:
            why = f"continues plan {known.attempt - 1}, but the flow is at plan {spec.attempt - 1} now"
        elif _counts_by(Revisions.of(attempt.plan)) != _counts_by(revisions):
            why = "began with other revisions of the inputs"
        elif (known.silent_until, known.unfinished) != (spec.silent_until, spec.unfinished):
            why = "began with other options, or knew less of what was published"
        elif ahead.items() - known.published_until.items():
            why = "began with a later end, and does not know what was published after the present one"
        elif replace(Closes.of(attempt.plan), done=0) != closes:
            why = "began with other closings of windows"
        elif Lanes.of(attempt.plan) != lanes:
            why = "began with outputs on other lanes"
        if why:
            raise ConfigurationError(
                f"flow {name!r}: the interrupted attempt {why}. Expected the same rebuild. Start without --resume"
            )
        return attempt.name

    def _delete(self, attempts: Attempts, but: set[str]) -> set[str]:
        """Delete all attempts but those in which the flow keeps states. Returns their names."""
        obsolete = [attempt for attempt in attempts.with_shadows() if attempt.name not in but]
        for attempt in obsolete:
            attempts.delete(attempt, but)
        return {attempt.name for attempt in obsolete}

    def _with_free_name(self, home: Home) -> Home:
        """The home record, with the first epoch of a claim that gives a free name for an attempt.

        A metadata store that was emptied gives out epochs again, while other stores still hold states under their names.
        """
        env, mine = self.env, self._mine
        epoch = mine.epoch
        # Ends beyond the last epoch that any store has a name from.
        while not is_free(env, name_of(env.flow, epoch)):
            epoch += 1
        if epoch == mine.epoch:
            return home
        after = replace(home, epoch=epoch)
        self._set_home(home, after)
        self.claimed = replace(mine, epoch=epoch)
        return after

    def _fold(self, second: Environment, spec: Refold) -> None:
        service = StagedService(second)
        service.start()
        ends = service.last.ends() if service.last else {}
        for tp, planned in ends.items():
            if planned.stop > spec.until.get(tp, 0):
                raise ConfigurationError(
                    f"{tp[0]}[{tp[1]}]: {second.flow.name} is at {planned.stop}. Expected at most {spec.until.get(tp, 0)}. "
                    + ("End the shadow, and begin another" if self.switch else "Start without --resume")
                )
        try:
            work = self._work(service)
            while work():
                if self.stopped():
                    raise ServiceStopped(
                        f"flow {self.env.flow.name!r}: asked to stop before everything was folded. Nothing has changed. "
                        + ("Repeat this" if self.switch else "--resume continues from here")
                    )
            if self.switch is not None:
                seal_sections(service, spec)
        finally:
            service.leave()

    def _work(self, service: StagedService) -> Callable[[], bool]:
        """What folds a batch, and gives False where nothing is left: of states that are there, plan by plan of the flow, to compare outputs."""
        if self.switch is None:
            return lambda: service.batch().worked
        env = self.env
        follower = Follower(env, service)
        say_changed_code(env, service.env.flow.name, follower.compared)
        return partial(follower.batch, plan_of_a_run(env.home, env.flow.name))

    def _last_plan(self, second: Environment, spec: Refold, infos: Mapping[str, TopicInfo]) -> Plan:
        plan = read_last_plan(second.home, second.flow.name)
        if plan is None:
            raise StoreInconsistent(
                f"flow {second.flow.name!r}: its last plan is gone. Start again without --resume"
            )
        self._check_recreated(recreated_since(plan, infos))
        short = [tp for tp, end in plan.ends().items() if end.stop < spec.until.get(tp, 0)]
        if short:
            raise ServiceStopped(
                f"flow {self.env.flow.name!r}: {short[0][0]}[{short[0][1]}] ends at {plan.ends()[short[0]].stop}. Expected "
                f"{spec.until[short[0]]}, where the flow was: the log was truncated. Restore it"
            )
        return plan

    # ------------------------------------------------------------------ cutting over

    def _cut_over(self, home: Home, mine: Claim, plan: Plan) -> None:
        """Cut over in one step: before it the flow is where it was, after it at the second flow's last plan."""
        env = self.env  # with its own owner: the flow is whole again, if a process had begun to forget it
        after = replace(home, owner=env.role.owner, number=plan.number, plan_id=plan.plan_id)
        with env.step(SEAL):
            # The only line that changes the flow. A crash before it leaves an attempt to resume or delete; after it, states
            # under the old name, which the next rebuild deletes.
            self._set_home(home, after, plan)
        with env.step(RECOVER):
            commit_plan(env, mine, plan)
        env.emit(Rebuilt(plan.number, plan.layout.stored_in()))

    def _set_home(self, before: Home, after: Home, plan: Plan | None = None) -> None:
        env, name = self.env, self.env.flow.name
        drop_below = max(0, plan.number - env.settings.keep_plans + 1) if plan else 0
        data = plan.stored() if plan else None
        stored = env.home.set_home(name, before, after, data, drop_below)
        if stored != after:
            raise Superseded(
                f"flow {name!r}: run {stored.run_id if stored else '(none)'} has claimed it. This one changes nothing more"
            )

    def _clean_up(self, attempts: Attempts, before: FlowProgress, name: str, plan: Plan) -> None:
        """Close the attempt that has become the flow's states, and delete what is no longer needed."""
        attempts.close({name})
        kept = (
            before.layout if self.switch and not self.switch.back else None
        )  # for the way back: `operations/going_back.py`
        needed = {name, *plan.layout.stored_in().values()}
        if kept is not None:
            needed |= {kept_name(self.env.flow), *kept.stored_in().values()}
        deleted = self._delete(attempts, needed)
        tombstone = Header(attempts.mine.epoch, attempts.mine.run_id, plan.number, plan.plan_id)
        if before.layout is not None and kept is None:
            attempts.clear_layout(before.layout, tombstone, but=deleted)
        attempts.delete_leftovers(plan.layout, kept, tombstone)


def _counts_by(revisions: Revisions) -> tuple[object, int]:
    return revisions.known, revisions.own
