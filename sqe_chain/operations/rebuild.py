"""Folding a flow again from its inputs, beside its states, and switching over in one step.

A second flow, with another name and the same functions, folds everything from where the flow once began up to given
offsets. It is an ordinary flow, with a claim, plans and headers of its own, but it publishes and commits nothing; its
plans continue the numbers of the flow's. When it is done, its last plan becomes the flow's, by one compare-and-set of the
home record. What was stored before is deleted after that, not earlier.

Until the flow has passed the offsets up to which it had published, it stays silent too (`Rebuilding.silent_until`): its
receivers have these outputs. A batch of which they may have a part is then repeated as it was sealed
(`Rebuilding.unfinished`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

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
from sqe_chain.features.every import aggregation_of, features_of
from sqe_chain.features.file_inputs import check_no_files
from sqe_chain.features.locations import locations_of, repair_locations, write_locations
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.sinks import check_no_sinks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.attempts import Attempt, Attempts, cells_of, name_of
from sqe_chain.operations.progress import Progress, find_progress, read_plan, recreated_since
from sqe_chain.ports import Header, Home, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.claim import check_has_run, check_not_superseded, check_stores, claim, release
from sqe_chain.protocol.environment import Environment, Refold
from sqe_chain.protocol.events import CLAIM, RECOVER, SEAL
from sqe_chain.protocol.interfaces import Engine
from sqe_chain.protocol.owned_flow import Applier
from sqe_chain.protocol.plan import Plan
from sqe_chain.task.states import Claim

Offsets = Mapping[TopicPartition, int]


@dataclass(slots=True)
class Rebuild:
    """Folds a flow again.

    Args:
        env: the flow and its ports; its engine is not used.
        engine: makes an engine for the second flow.
        to: where to end: offsets for some partitions, or a time in milliseconds since 1970, by the records' own
            timestamps. Partitions that are not named, and by default all of them, end where the flow stood.
        republish: publish again what comes after `to`.
        resume: go on with an attempt that was interrupted; the code must not have changed since.
        stopped: whether to end before everything is folded.
    """

    env: Environment
    engine: Callable[[CompiledFlow], Engine]
    to: Offsets | int | None = None
    republish: bool = False
    resume: bool = False
    stopped: Callable[[], bool] = lambda: False
    claimed: Claim | None = None

    def run(self) -> Plan:
        """Fold, and switch over. The flow's own runs are fenced off at once; until the switch the flow does not change.

        Returns:
            The last plan of the flow after the switch.

        Raises:
            LostOffsets: an input no longer holds what the flow once began with.
            ServiceStopped: an input was created again since, so it cannot be folded again.
            Superseded: another run has claimed the flow.
            ConfigurationError: the flow keeps no states, or reads files, or `to` lies beyond what it has read.
        """
        env = self.env
        check_no_files(env.flow)
        check_no_sinks(env.flow, "to fold again")
        if not env.flow.stages:
            raise ConfigurationError(
                f"flow {env.flow.name!r} keeps no states, there is nothing to fold again; rewind moves its offsets"
            )
        check_stores(env)
        infos = inputs.describe(env.flow, env.log)
        check_has_run(env, inputs.group_commits(env.flow, env.log, infos))
        with env.step(CLAIM):
            commits = partial(inputs.group_commits, env.flow, env.log, infos)
            mine, home = claim(env, features_of(env), commits, lost=True)
        self.claimed = mine
        try:
            infos = inputs.describe(env.flow, env.log)  # again: until the claim another run may have read on
            progress = find_progress(env, home, infos, inputs.group_commits(env.flow, env.log, infos))
            spec, rebuilding, closes = self._spec(progress, infos)
            if progress.layout is not None:
                repair_locations(env, progress.layout, mine.epoch, progress.number)
            current = set(progress.layout.stored_in().values()) if progress.layout else set[str]()
            attempts = Attempts(env, mine)
            attempts.close(current)  # otherwise they could be resumed once the flow has left them
            if self.resume:
                second = self._second_environment(
                    self._to_resume(attempts, current, rebuilding, closes), spec
                )
            else:
                # Without a layout it is not known whether the states there are the flow's own.
                if progress.layout is not None:
                    self._delete(attempts, current)
                mine, home = self._with_free_name(attempts, mine, home)
                second = self._second_environment(name_of(env.flow, mine.epoch), spec)
            self._fold(second, spec)
            plan = self._last_plan(second, spec, infos)
            self._switch(home, mine, plan)
            # Before anything is deleted: readers who are led to the old states find all of them.
            write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))
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

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        mine = self.claimed
        return mine is None or self.env.ports.home.beat(self.env.flow.name, mine.epoch, mine.run_id)

    # ------------------------------------------------------------------ what to fold

    def _spec(self, progress: Progress, infos: Mapping[str, TopicInfo]) -> tuple[Refold, Rebuilding, Closes]:
        flow = self.env.flow
        self._check_recreated(progress.recreated)
        tps = inputs.partitions_of(infos[topic] for topic in flow.input_topics)
        ends = {tp: progress.ends.get(tp, 0) for tp in tps}
        until = dict(ends)
        for tp, offset in self._target_offsets(ends).items():
            if tp not in ends:
                raise ConfigurationError(f"flow {flow.name!r} does not read {tp[0]}[{tp[1]}]")
            if offset > ends[tp]:
                raise ConfigurationError(
                    f"{tp[0]}[{tp[1]}]: offset {offset} lies beyond {ends[tp]}, up to which flow {flow.name!r} has "
                    "counted; a flow can be rewound, not moved on"
                )
            until[tp] = max(offset, progress.starts.get(tp, 0))
        until, closes = self._with_closes(until, progress)
        published = {tp: progress.published.get(tp, 0) for tp in ends}
        silent_until, heard = dict[TopicPartition, int](), dict(progress.published_until)
        if self.republish:
            heard = {tp: max(offset, heard.get(tp, 0)) for tp, offset in published.items()}
        else:
            silent_until = {tp: offset for tp, offset in published.items() if offset}
        heard = {tp: offset for tp, offset in heard.items() if offset > until.get(tp, offset)}
        event_time = progress.reached if silent_until or heard else None
        if event_time is not None and not flow.by_time:  # the new code takes its inputs as they come
            event_time = replace(event_time, frontier=None)
        rebuilding = Rebuilding(
            silent_until=silent_until,
            unfinished=progress.unfinished,
            attempt=progress.number + 1,
            published_until=heard,
            reached=event_time,
        )
        spec = Refold(rebuilding.attempt, progress.starts, until, (rebuilding, closes))
        return spec, rebuilding, closes

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
                    f"flow {flow.name!r}: {topic!r} was created again after a part of it had been counted; that is gone, so "
                    f"the flow cannot be folded again. The only way on is to {START_OVER}"
                ) from cause

    def _with_closes(
        self, until: dict[TopicPartition, int], progress: Progress
    ) -> tuple[dict[TopicPartition, int], Closes]:
        """Where to end, and the closings of all windows on the way there and after it.

        A closing that some partitions have not reached there holds back the others: after it, states would not be those that
        the flow once had.
        """
        known = progress.closes
        before = min(known.within(until), known.published)
        if before < len(known):
            stops, starts = known.stops_at(before), progress.starts
            until = {
                tp: min(offset, max(stops.get(tp, 0), starts.get(tp, 0))) for tp, offset in until.items()
            }
        return until, replace(known, done=0, published=before if self.republish else known.published)

    def _target_offsets(self, ends: Offsets) -> Offsets:
        """The offsets asked for."""
        to, env = self.to, self.env
        if not isinstance(to, int):
            return to or {}
        found = env.log.offsets_at(ends, to)
        return {tp: min(offset, ends[tp]) for tp, offset in found.items()}

    # ------------------------------------------------------------------ the second flow

    def _second_environment(self, name: str, spec: Refold) -> Environment:
        """The environment of the second flow."""
        env = self.env
        flow = env.flow.renamed(name)
        role = replace(env.role, refold=spec)
        settings = replace(env.settings, takeover=True, accept_rollback=False)
        return replace(env, flow=flow, engine=self.engine(flow), settings=settings, role=role)

    def _to_resume(self, attempts: Attempts, current: set[str], wanted: Rebuilding, closes: Closes) -> str:
        """The name of the attempt that was interrupted, if it would end where this one has to end."""
        name = self.env.flow.name
        found = next((one for one in attempts.known() if one.open and one.name not in current), None)
        if found is None:
            raise ConfigurationError(f"flow {name!r}: there is no interrupted attempt to resume")
        known = Rebuilding.of(found.plan)
        if known.attempt != wanted.attempt:
            raise ConfigurationError(
                f"flow {name!r}: the interrupted attempt continues plan {known.attempt - 1}, but the flow has gone on "
                f"to plan {wanted.attempt - 1} since; start without --resume"
            )
        if (known.silent_until, known.unfinished) != (wanted.silent_until, wanted.unfinished):
            raise ConfigurationError(
                f"flow {name!r}: the interrupted attempt was begun with other options, or more is known now of what was "
                "published; start without --resume"
            )
        # Of what receivers have beyond the end, its plans know what was beyond the end that it was begun with.
        stops = found.plan.next_offsets()
        ahead = {tp: offset for tp, offset in wanted.published_until.items() if stops.get(tp, 0) < offset}
        if ahead.items() - known.published_until.items():
            raise ConfigurationError(
                f"flow {name!r}: the interrupted attempt was begun to end later than it is to end now, and does not know what "
                "was published after that; start without --resume"
            )
        if replace(Closes.of(found.plan), done=0) != closes:
            raise ConfigurationError(
                f"flow {name!r}: the interrupted attempt was begun with other closings of windows; start without --resume"
            )
        return found.name

    def _delete(self, attempts: Attempts, but: set[str]) -> set[str]:
        """Delete all attempts but those in which the flow keeps states. Returns their names."""
        found: list[Attempt] = [one for one in attempts.known() if one.name not in but]
        for one in found:
            attempts.delete(one)
        return {one.name for one in found}

    def _with_free_name(self, attempts: Attempts, mine: Claim, home: Home) -> tuple[Claim, Home]:
        """The claim, with the first epoch from which a free name for an attempt can be made.

        A home store that was emptied gives out epochs again, while other stores still hold states under names made from
        them.
        """
        env, epoch = self.env, mine.epoch
        # Ends beyond the last epoch that any store has a name from.
        while not attempts.is_free(name_of(env.flow, epoch)):
            epoch += 1
        if epoch == mine.epoch:
            return mine, home
        after = replace(home, epoch=epoch)
        self._set_home(home, after)
        self.claimed = replace(mine, epoch=epoch)
        return self.claimed, after

    def _fold(self, second: Environment, spec: Refold) -> None:
        service = aggregation_of(second)
        service.start()
        ends = service.last.ends() if service.last else {}
        for tp, planned in ends.items():
            if planned.stop > spec.until.get(tp, 0):
                raise ConfigurationError(
                    f"{tp[0]}[{tp[1]}]: the interrupted attempt is at {planned.stop}, beyond {spec.until.get(tp, 0)}; "
                    "start without --resume"
                )
        try:
            while service.batch().worked:
                if self.stopped():
                    raise ServiceStopped(
                        f"flow {self.env.flow.name!r}: asked to stop before all was folded; nothing has changed, "
                        "--resume goes on from here"
                    )
        finally:
            service.leave()

    def _last_plan(self, second: Environment, spec: Refold, infos: Mapping[str, TopicInfo]) -> Plan:
        home, _ = second.home.home(second.flow.name)
        plan = read_plan(second, second.flow.name, home.number) if home else None
        if plan is None:
            raise StoreInconsistent(f"flow {second.flow.name!r}: its last plan is gone; start again")
        self._check_recreated(recreated_since(plan, infos))
        short = [tp for tp, end in plan.ends().items() if end.stop < spec.until.get(tp, 0)]
        if short:
            raise ServiceStopped(
                f"flow {self.env.flow.name!r}: {short[0][0]}[{short[0][1]}] ends at {plan.ends()[short[0]].stop}, below "
                f"{spec.until[short[0]]} where the flow stood: the log was truncated; restore it"
            )
        return plan

    # ------------------------------------------------------------------ the switch

    def _switch(self, home: Home, mine: Claim, plan: Plan) -> None:
        """Switch in one step: before it the flow is where it was, after it at the second flow's last plan."""
        env, after = self.env, replace(home, number=plan.number, plan_id=plan.plan_id)
        with env.step(SEAL):
            # The only line that changes the flow. A crash before it leaves an attempt to resume or delete; after it, states
            # under the old name, which the next rebuild deletes.
            self._set_home(home, after, plan)
        with env.step(RECOVER):
            Applier(env, mine, features_of(env)).commit(plan)
        env.emit(Rebuilt(plan.number, plan.layout.stored_in()))

    def _set_home(self, before: Home, after: Home, plan: Plan | None = None) -> None:
        env, name = self.env, self.env.flow.name
        drop_below = max(0, plan.number - env.settings.keep_plans + 1) if plan else 0
        data = plan.to_bytes() if plan else None
        stored = env.home.set_home(name, before, after, data, drop_below)
        if stored != after:
            raise Superseded(
                f"flow {name!r}: run {stored.run_id if stored else '(none)'} has claimed it; nothing was changed"
            )

    def _clean_up(self, attempts: Attempts, before: Progress, name: str, plan: Plan) -> None:
        """After the switch: close the attempt that has become the flow's states, and delete what is no longer needed."""
        attempts.close({name})
        deleted = self._delete(attempts, {name})
        tombstone = Header(attempts.mine.epoch, attempts.mine.run_id, plan.number, plan.plan_id)
        if before.layout is not None:
            for stage in self.env.flow.stages:
                stored = before.layout.stages.get(stage.name)
                if stored is not None and stored.flow not in deleted:
                    attempts.clear(stage, stored.flow, cells_of(before.layout, stage), tombstone)
        attempts.delete_leftovers(plan.layout.stored_in(), tombstone)
