"""A run of a flow without stages: read, transform, publish, commit. It needs no store.

After a crash the batch that was begun is computed again, and compared with what receivers have. Then it is published again,
and receivers ignore it by lane and position. Marks drop replays, and notice missing messages: a hole upstream must not be
passed on as if nothing were missing. They are kept in the metadata of the group's commits, where they fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ConfigurationError, GroupInUse, ServiceStopped
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.noting import ask_codecs, given_of_notes
from sqe_chain.features.reporting import report_traces
from sqe_chain.features.timing import UnplannedTimes
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.events import COMMIT, PUBLISH, RECOVER, SEAL, Notice, Published, Recovered
from sqe_chain.plans.look import Infos, Look, Offsets
from sqe_chain.plans.plan import PlannedRange
from sqe_chain.plans.results import StartResult
from sqe_chain.ports import Membership, Range, TopicPartition
from sqe_chain.protocol.batch import FlowRun, Processed
from sqe_chain.protocol.begun import BegunBatch, BegunBatches, noted_ends, output_ends, shares
from sqe_chain.protocol.committed import (
    InputProgress,
    Recreated,
    check_metadata,
    check_no_plans,
    commit_of,
    enter,
    noted_in,
    tell_entered,
)
from sqe_chain.protocol.revising import Corrected, Revising, WantedRevision
from sqe_chain.protocol.skipped import KEPT, SkippedInputs, check_known, read_skipped
from sqe_chain.task.event_times import Taking
from sqe_chain.task.exclusion import SkipLimit
from sqe_chain.task.parking import Discarded, ParkedKeys
from sqe_chain.task.reading import check_read_id
from sqe_chain.task.results import Job, Portion, Report, Sections
from sqe_chain.task.states import Transition

RENEW_MS = 5_000
"""How often the commits of all partitions are made again, whether something came or not: Kafka forgets each of them by itself
(`offsets.retention.minutes`). And how soon an idle run finds that a newer one has taken its place."""

_ASK_MS = 500

SESSION_MS = 12_000
"""For how long a command waits until a run that was killed counts as gone."""


@dataclass(slots=True)
class Republisher(FlowRun):
    """A run without plans: its group's commits are all that it keeps."""

    _member: Membership | None = None
    _run: str = ""
    _inputs: dict[TopicPartition, InputProgress] = field(default_factory=dict)
    _renewed_ms: int = 0
    _known: SkippedInputs = field(default_factory=SkippedInputs)
    # Of outputs, so that a redo need not read all of them; as old as `RENEW_MS` at most.
    _ends: dict[TopicPartition, int] = field(default_factory=dict)
    _ends_ms: int = 0
    _times: UnplannedTimes = field(init=False)
    _skip_limit: SkipLimit = field(init=False)
    _revising: Revising = field(init=False)

    def __post_init__(self) -> None:
        FlowRun.__post_init__(self)
        self._times = UnplannedTimes(self.env)
        self._revising = Revising(self.env)
        self._skip_limit = SkipLimit(self.env.settings.max_excluded, self.env.settings.max_excluded_share)

    def _check_before(self) -> list[str]:
        check_metadata(self.env.flow)
        return []

    def _recover(self, infos: Infos, weak: list[str]) -> StartResult:
        """Fence older runs, and find the committed offsets; a first start commits them before anything is published."""
        env, flow = self.env, self.env.flow
        with env.step(RECOVER):
            commits = inputs.group_commits(flow, env.log, infos)
            check_no_plans(flow, commits)
            self._revising.check_has_begun(commits)
            if not commits:  # the flow begins
                env.say(weak)
            ask_codecs(env, noted_in(commits.values()))
            self._run = env.new_run_id()
            # The one member of the flow's group. From here on no older run can begin a batch, or commit one.
            self._member = env.log.join(flow.declared_name, flow.input_topics)
            self._revising.read()
            self._enter(infos)
            self._take_up()
            self._find_skipped({tp: known.offset for tp, known in self._inputs.items() if known.repeats})
            again = self._redo(infos)
        result = StartResult(len(self._inputs), inputs=again)
        env.emit(Recovered.of(result))
        return result

    def _to_read(self) -> tuple[Offsets, frozenset[str], Offsets | None]:
        return self._offsets(), frozenset(), None

    def _offsets(self) -> dict[TopicPartition, int]:
        return {tp: progress.offset for tp, progress in self._inputs.items()}

    def _process(self, infos: Infos, look: Look) -> Processed | None:
        """Note what is begun, run the functions, and publish what they make."""
        env, now_ms = self.env, self.env.clock.now_ms()
        decision = self._decide(look, now_ms)
        if decision is None:
            return None
        taking = None
        if env.flow.timed:
            times, taking = self._times.begin(self._offsets(), decision.stops, look.bounds, now_ms)
            decision = replace(decision, times=times)
        if not self._ends or abs(now_ms - self._ends_ms) > RENEW_MS:
            self._ends, self._ends_ms = output_ends(env, infos), now_ms
        portions = [
            replace(
                self._portion(planned.tp, planned.stop, self._ends),
                times=decision.times.get(planned.tp),
                at_end=planned.tp in decision.at_end,
            )
            for planned in decision.ranges
            if planned.reads
        ]
        given = self._given(taking)
        with env.step(SEAL):
            self._begin(portions, decision, taking)
        with env.step(PUBLISH):
            report = self._publish(portions, now_ms, infos, given)
            env.emit(Published(outputs=report.outputs))
        return Processed(decision, report, tuple(report.excluded))

    def _decide(self, look: Look, now_ms: int) -> BatchDecision | None:
        """What a batch reads: of all partitions alike, and not beyond where a rewind began."""
        offsets = self._offsets()
        bounds = inputs.limit_bounds(look.bounds, self._seen_until())
        stops = inputs.cut(offsets, bounds, max(len(offsets), look.limit))
        if stops == offsets:
            return None
        ranges = tuple(
            PlannedRange(tp[0], known.topic_id.hex(), tp[1], known.offset, stops[tp])
            for tp, known in self._inputs.items()
        )
        ends = frozenset(tp for tp, stop in stops.items() if stop >= look.bounds[tp].stable_end)
        return BatchDecision(ranges, now_ms, at_end=ends)

    def _finish(self, processed: Processed) -> None:
        env, decision, report = self.env, processed.decision, processed.report
        with env.step(COMMIT):
            self._advance(decision.stops, report)
            if env.flow.timed:
                self._times.done(decision.stops, report, decision.clock_ms)
            if env.flow.traces:
                report_traces(env, report)
            self._commit([planned.tp for planned in decision.ranges if planned.reads])

    def _commit_again(self, infos: Infos, *, now: bool) -> None:  # noqa: ARG002 - plans need the topics
        self._commit([], renew=now)

    def rewind(self, to: Mapping[TopicPartition, int] | int) -> dict[TopicPartition, int]:
        """Move the committed offsets back, so that what follows is published again.

        Args:
            to: offsets for some partitions, or a time in milliseconds since 1970.

        Returns:
            Each partition's next offset now.

        Raises:
            ConfigurationError: a partition is not read, an offset lies after the next one to read, or readers of SQE's record
                keys would count replays.
        """
        env = self.env
        if isinstance(to, int):
            offsets = env.log.offsets_at(self._inputs, to)
            to = {tp: min(offset, self._inputs[tp].offset) for tp, offset in offsets.items()}
        for tp, offset in to.items():
            progress = self._inputs.get(tp)
            if progress is None or offset > progress.offset:
                at = (
                    f"the flow has read up to {progress.offset}" if progress else "this flow does not read it"
                )
                raise ConfigurationError(f"{tp[0]}[{tp[1]}]: cannot be rewound to offset {offset}: {at}")
        to = {tp: offset for tp, offset in to.items() if offset < self._inputs[tp].offset}
        self._check_marks_known(to)
        begin = self._revising.marks_of_rewind(to, self._inputs)
        if to:
            self._find_skipped(to)
        for (topic, partition), offset in to.items():
            was = self._inputs[topic, partition]
            marks = begin.get((topic, partition)) or PartitionMarks(
                topic, was.topic_id, partition, entered_in_middle=offset > 0
            )
            published = max(was.offset, was.published)
            source = env.flow.source_of[topic]
            replays = source is not None and not source.raw
            seen = (was.marks if was.seen is None else was.marks.merged(was.seen)) if replays else None
            self._inputs[topic, partition] = replace(
                was,
                offset=offset,
                epoch=0,
                marks=marks,
                published=published,
                again=max(was.offset, was.again),
                began=min(was.began, offset),
                seen=seen,
            )
        self._commit(list(to))
        env.commits.settle()
        return self._offsets()

    def _check_marks_known(self, to: Mapping[TopicPartition, int]) -> None:
        """Check that a flow which writes no replays for readers of SQE's record keys will know all of them again."""
        flow = self.env.flow
        for (topic, partition), offset in to.items():
            source = flow.source_of[topic]
            if flow.writes_sqe and offset > 0 and source is not None and not source.raw:
                raise ConfigurationError(
                    f"{topic}[{partition}]: cannot be rewound to offset {offset}. The flow would forget what came before, and write later "
                    "replays of it, which readers of SQE's record keys cannot notice. Expected 0, if the log still begins "
                    f"there. Rewind to {topic}[{partition}]=0, or leave the partition where it is"
                )

    def check_stopped(self) -> None:
        """Check before `start` that no run is alive, whose place a command would take. One that was killed is waited for.

        Raises:
            ServiceStopped: one is.
        """
        env, group = self.env, self.env.flow.declared_name
        infos = inputs.describe(env.flow, env.log)
        for _ in range(SESSION_MS // _ASK_MS):
            commits = env.log.committed(group, inputs.input_partitions(env.flow, infos))
            try:  # the same ones again: the broker refuses that while there is a member
                env.retry.call("look for a run", partial(env.ports.log.commit, group, commits))
            except GroupInUse:
                env.clock.wait(_ASK_MS)
            else:
                return
        raise ServiceStopped(
            f"flow {env.flow.name!r}: a run is alive, or another program has joined the group {group!r}. Nothing was changed. Stop it, and "
            "repeat the command; or give --takeover, which ends the run"
        )

    def beat(self) -> bool:
        return True  # its group has its claim, and the next commit shows whether that holds

    def leave(self) -> None:
        self.env.commits.leave()
        if self._member is not None:
            self._member.leave()

    def _publish(
        self,
        portions: list[Portion],
        clock_ms: int,
        infos: Infos,
        sections: Sections,
    ) -> Report:
        env = self.env
        job = Job(
            Transition.without_plans(env.flow.name),
            clock_ms,
            topics=infos,
            compacted=inputs.compacted_topics(infos),
            sections=sections,
        )
        # Repeated as one: its tasks read and write many times, and what was published before is a replay.
        work = partial(env.engine.republish, job, portions)
        report = env.retry.call("publish", partial(inputs.publish, env.flow, env.ports.log, work))
        for text in report.notices:
            env.emit(Notice(text))
        self._skip_limit = self._skip_limit.after(len(report.excluded), report.fresh)
        return report

    def _find_skipped(self, again: Mapping[TopicPartition, int]) -> None:
        """Look for what was skipped where it is read again: after a rewind, and where replays are not known.

        Args:
            again: from which offsets.

        Raises:
            DeadLettersLost: retention has taken some of it.
        """
        # The policy may be another one now.
        if not again or not (self.env.flow.dead_letters or any(own.failed for own in self._inputs.values())):
            return
        self._known = read_skipped(self.env)
        for tp, offset in again.items():
            check_known(self.env, self._known, tp, self._inputs[tp].topic_id, offset, self._inputs[tp].failed)

    def _skipped(self) -> ParkedKeys | None:
        """What stays skipped although it is read again."""
        offsets: dict[TopicPartition, frozenset[int]] = {}
        for tp, known in self._inputs.items():
            if known.repeats:
                records = self._known.by_partition.get((known.topic_id, tp[1]), ())
                own = (record.offset for record in records if self._revising.stays_skipped(record))
                offsets[tp] = frozenset({*known.skipped, *own})
        if not offsets or not (any(offsets.values()) or self._known.identities):
            return None
        return ParkedKeys(discarded=offsets, failed=self._known.identities)

    def _seen_until(self) -> dict[TopicPartition, int]:
        """Where a batch ends at most: there, what was seen before the rewind counts as seen again."""
        return {tp: known.again for tp, known in self._inputs.items() if known.offset < known.again}

    def _letters_end(self, tp: TopicPartition, ends: Mapping[TopicPartition, int]) -> int:
        """Where dead-letter records of an input partition are written after, at least; 0: that did not fit into the commit."""
        return next((ends.get(to, 0) for to in self._letters(tp)), -1)

    def _letters(self, tp: TopicPartition) -> list[TopicPartition]:
        """Where dead-letter records of an input partition go; empty: the flow has none."""
        flow = self.env.flow
        return [(flow.dead_letter_topic, tp[1] % flow.dead_letter_partitions)] if flow.dead_letters else []

    def _portion(self, tp: TopicPartition, stop: int, ends: Mapping[TopicPartition, int]) -> Portion:
        """What is read of a partition next, and what its task has to know."""
        known = self._inputs[tp]
        return Portion(
            Range(tp[0], known.topic_id, tp[1], known.offset, stop, known.epoch),
            known.marks,
            published=known.again,
            failed=known.failed,
            unsure=known.unsure,
            after=self._letters_end(tp, ends),
        )

    def _begin(self, portions: list[Portion], decision: BatchDecision, taking: Taking | None) -> None:
        """Note what the batch is before anything of it is published: see `sqe_chain.protocol.begun`."""
        promised = {} if taking is None else taking.watermarks
        tps = [(portion.read.topic, portion.read.partition) for portion in portions]
        for tp, portion, ends in zip(tps, portions, shares(self._ends, len(tps)), strict=True):
            # The end of its own dead-letter records too: whether there are any has to be known of each input by itself.
            known = ends | {to: self._ends[to] for to in self._letters(tp) if to in self._ends}
            self._inputs[tp].begun = BegunBatch(portion.read.stop, decision.clock_ms, promised, known)
        self._commit(tps)
        self.env.commits.settle()

    def _redo(self, infos: Infos) -> int:
        """Finish the batches that a run has begun which was killed.

        Returns:
            Messages read for that.

        Raises:
            PlanMismatch: receivers have something else than the code of now gives.
            PoisonError: an input cannot be processed.
        """
        env = self.env
        begun = {tp: known.begun for tp, known in self._inputs.items() if known.begun is not None}
        if not begun:
            return 0
        ends = noted_ends(begun.values())
        portions = [self._portion(tp, batch.until, ends) for tp, batch in begun.items()]
        redo = BegunBatches(env, self._given(None), infos, portions, begun)
        report = env.retry.call("publish", partial(inputs.publish, env.flow, env.ports.log, redo.run))
        env.emit(Published(outputs=report.outputs))
        self._advance({tp: batch.until for tp, batch in begun.items()}, report)
        self._commit(list(begun))
        env.commits.settle()
        return report.inputs

    def _given(self, taking: Taking | None) -> Sections:
        """What tasks get."""
        notes = given_of_notes(self.env.flow)
        return Sections.of(self._skip_limit, self._skipped(), taking, self._revising.own.for_tasks(), notes)

    def correct(self, time_ms: int | None, *, dry: bool = False) -> Corrected:
        """Begin the declared revision, and move back to where it begins. Instead of `start`; nothing is published.

        Repeated after a crash, it finishes what was begun, with the seam that was written first.

        Args:
            time_ms: from when on the roots count in it, in milliseconds since 1970; None: all roots.
            dry: only look; nothing is changed.

        Raises:
            ConfigurationError: no new revision is declared, or it has begun and was taken up.
            PlanMismatch: the flow is in the middle of something.
            LostOffsets: what would have to be read again may be gone.
            ServiceStopped: as `start`.
        """
        self._revising.wanted = WantedRevision(time_ms, dry)
        self.start()
        return self._revising.result

    def _take_up(self) -> None:
        """Move back to where the declared revision begins, unless that was done."""
        moved = self._revising.take_up(self._inputs, self._run)
        if moved:
            self._inputs |= moved
            self._commit(list(moved))
            self.env.commits.settle()

    def _advance(self, stops: dict[TopicPartition, int], report: Report) -> None:
        for end in report.ends:
            progress = self._inputs[end.topic, end.partition]
            progress.marks = end.marks
            progress.failed += end.failed
            progress.epoch = end.last_epoch or progress.epoch
        for excluded in report.excluded:
            if excluded.policy == "skip" and excluded.error != Discarded.__name__:
                progress = self._inputs[excluded.topic, excluded.partition]
                progress.skipped = (*progress.skipped, excluded.offset)[-KEPT:]
        for tp, stop in stops.items():
            progress = self._inputs[tp]
            progress.offset, progress.begun = stop, None
            if progress.seen is not None and stop >= progress.again:
                progress.marks, progress.seen = progress.marks.merged(progress.seen), None

    def _enter(self, infos: Infos) -> None:
        """Take up partitions that this run does not know yet, and commit where they begin before anything of them is published."""
        env, flow = self.env, self.env.flow
        recreated = self._leave_recreated(infos)
        every = inputs.input_partitions(flow, infos)
        tps = [tp for tp in every if tp not in self._inputs]
        if not tps:
            return
        env.commits.settle()
        commits = env.retry.call("read the group's commits", partial(self._membership.committed, every))
        entered = enter(env, infos, tps, commits)
        for tp in entered.fresh:
            entered.inputs[tp].revision = self._revising.current
        self._inputs |= entered.inputs
        for topic, read in recreated.items():
            entered.recreated.setdefault(topic, {}).update(read)
        tell_entered(env, entered, infos)
        fresh = entered.fresh + entered.retyped
        if fresh:
            self._commit(fresh)
            env.commits.settle()

    def _leave_recreated(self, infos: Infos) -> Recreated:
        """Forget the progress in topics without envelopes that were created again: the new topic is another root.

        Raises:
            RecreatedTopic: a topic with envelopes was.
        """
        recreated: Recreated = {}
        for (topic, partition), progress in list(self._inputs.items()):
            known_id = progress.topic_id.hex()
            if same_inputs.is_new_root(self.env.flow, topic, known_id, infos.get(topic)):
                recreated.setdefault((topic, known_id), {})[topic, partition] = progress.offset
                del self._inputs[topic, partition]
            else:
                info = infos.get(topic)
                check_read_id(topic, progress.topic_id, None if info is None else info.topic_id)
        return recreated

    @property
    def _membership(self) -> Membership:
        if self._member is None:
            raise ConfigurationError(f"flow {self.env.flow.name!r}: not started. Call `start` first")
        return self._member

    def _commit(self, tps: list[TopicPartition], *, renew: bool = False) -> None:
        """Commit the progress of these partitions; now and then of all, see `RENEW_MS`."""
        env, now_ms = self.env, self.env.clock.now_ms()
        if renew or abs(now_ms - self._renewed_ms) > RENEW_MS:
            tps, self._renewed_ms = list(self._inputs), now_ms
        if not tps:
            return
        for tp in tps:
            self._inputs[tp].run = self._run
        commits = {tp: commit_of(env.flow, self._inputs[tp]) for tp in tps}
        ids = {topic: self._inputs[topic, partition].topic_id.hex() for topic, partition in tps}
        # Repeated as one: a commit without an answer may be for partitions that are gone; then the others are committed.
        send = self._membership.commit
        env.commits.commit(partial(inputs.commit, env.ports.log, send, commits, ids))
