"""A flow without stages takes up a revision of its outputs: its record first, then one commit.

    correct     fence ─ seam ─ record ─ read back ─ copies ─┐
    start       fence ──────────────── read ────────────────┴─ one commit: revision, offsets and marks moved back

Killed in between, the next start or the same command goes on with the record that holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.chain import ROOT_LENGTH
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.revisions import FIRST, Revision, RevisionRecord, earliest, label
from sqe_chain.errors import ConfigurationError, PlanMismatch, UnknownRevision
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.plans.own_revisions import OwnRevisions, declared_revision, digest_of, topics_of
from sqe_chain.ports import Output, TopicPartition
from sqe_chain.protocol.committed import InputProgress
from sqe_chain.protocol.seams import KeptInput, begin_at
from sqe_chain.task.dead_letters import DeadLetter

Inputs = Mapping[TopicPartition, InputProgress]


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """What an operator wants.

    Attributes:
        time_ms: from when on roots count in the new revision; None: all of them.
        dry: only look.
    """

    time_ms: int | None
    dry: bool = False


@dataclass(frozen=True, slots=True)
class Corrected:
    """A revision that has begun, or would begin.

    Attributes:
        number: which one.
        since: root topic and partition -> leader epoch plus one and offset from which on it counts; None: for all roots.
        offsets: where the flow goes on in its inputs.
        begun_before: its record was there already.
    """

    number: int
    since: Mapping[TopicPartition, tuple[int, int]] | None
    offsets: Mapping[TopicPartition, int]
    begun_before: bool = False


@dataclass(slots=True)
class Revising:
    """The revisions of a flow's outputs, as one run takes them up.

    Attributes:
        env: the flow and its ports.
        own: what the topics of revisions have; known after `read`.
        wanted: what the command `correct` was asked for; None: the run is a service, or does something else.
        result: what it has done.
    """

    env: Environment
    own: OwnRevisions = field(init=False)
    wanted: WantedRevision | None = None
    result: Corrected = field(init=False)

    def __post_init__(self) -> None:
        self.own = OwnRevisions(self.env.flow)

    @property
    def current(self) -> tuple[int, str]:
        """The declared revision and the digest of its record, as commits keep them."""
        record = self.own.record(declared_revision(self.env.flow))
        return (FIRST, "") if record is None else (record.revision.number, digest_of(record))

    def check_has_begun(self, commits: Mapping[TopicPartition, object]) -> None:
        """Check that there is something to correct.

        Raises:
            ConfigurationError: there is not.
        """
        if self.wanted is not None and not commits:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r}: its group has committed nothing, so there is nothing to correct. Expected a flow that has published. "
                "Declare revision=1, or run it with the name that has published"
            )

    def read(self) -> None:
        """Read what has begun. A flow with the first revision alone reads nothing: its commits know whether there was another."""
        if declared_revision(self.env.flow) != FIRST:
            look = self.env.ports.log
            self.own = self.env.retry.call(
                "read the revisions of outputs", lambda: OwnRevisions.read(self.env.flow, look)
            )

    def take_up(self, inputs: Inputs, run: str) -> dict[TopicPartition, InputProgress]:
        """What has to be committed, as one, so that the declared revision is made from where it begins.

        Args:
            inputs: all that is read, and how far.
            run: the run's id, which the record of a new revision has.

        Raises:
            UnknownRevision: the declared revision has not begun, or its record is another one than was taken up.
            ConfigurationError: a later one has begun.
            PlanMismatch: the flow is in the middle of something.
            LostOffsets: what would have to be read again may be gone.
        """
        flow, wanted = self.env.flow, self.wanted
        declared = declared_revision(flow)
        self._check_not_newer(inputs, declared)
        if declared == FIRST:
            return {}
        if wanted is not None and self.own.record(declared) is None:
            record, moved = self._begin(wanted, declared, inputs, run)
            self.result = _corrected(record, {**inputs, **moved})
            return {} if wanted.dry else moved
        unfinished = any(known.begun is not None or known.offset < known.again for known in inputs.values())
        if wanted is None and unfinished:
            # Begun, or rewound, between the record of a correction and its commit, which the run has fenced off then. Only this code can
            # finish it. What it publishes beyond the seam is labelled as of before, so no reader counts it.
            self.own = self.own.up_to(declared)
        record = self._checked()
        self._check_same(inputs, record)
        behind = {tp: known for tp, known in inputs.items() if known.revision[0] < declared}
        moved = self._moved(behind, record)
        self.result = _corrected(record, {**inputs, **moved}, begun_before=True)
        if wanted is not None and not moved:
            raise ConfigurationError(
                f"flow {flow.name!r}: revision {declared} has begun, and the flow was put back to it. Expected a new one. For another "
                f"correction declare revision={declared + 1}; else start the service"
            )
        if wanted is not None and wanted.dry:
            return {}
        self._copy(_taken_up(inputs, declared))
        return moved

    def stays_skipped(self, record: DeadLetter) -> bool:
        """Whether an input stays skipped at its offset. What comes elsewhere again is known by its lane and position."""
        given = self.own.for_tasks()
        source = self.env.flow.source_of[record.topic]
        if given is None:
            return True
        if not record.readable:
            return record.revision == given.newest
        at = record.topic_id, record.partition, record.position
        return source is not None and source.raw and record.revision == label(*at, given.all)

    def marks_of_rewind(
        self, to: Mapping[TopicPartition, int], inputs: Inputs
    ) -> dict[TopicPartition, PartitionMarks]:
        """The marks with which a rewind begins: what the code of an older revision has made is not published again.

        Args:
            to: input partition -> the offset to go back to.
            inputs: all that is read, and how far.

        Returns:
            The marks of the partitions in which that can lie; in others there are none.

        Raises:
            ConfigurationError: the code of now would publish it again under the revision of before.
        """
        record = self.own.record(declared_revision(self.env.flow))
        if record is None:
            return {}
        bounds, marks = self.env.log.bounds(to), dict[TopicPartition, PartitionMarks]()
        for tp, offset in to.items():
            (topic, partition), known = tp, inputs[tp]
            kept = KeptInput(self.env, tp, known, bounds[tp])
            if not kept.raw:
                self._check_marks_kept(tp, known)
                marks[tp] = self.env.retry.call(
                    f"read {topic} again",
                    lambda kept=kept, offset=offset: kept.marks_of_rewind(record.revision, offset),  # type: ignore[misc]
                )
                continue
            begins = record.revision.begins(known.topic_id, partition)
            first = 0 if begins is None else int.from_bytes(begins[ROOT_LENGTH - 8 :])
            if offset < first:
                raise ConfigurationError(
                    f"{topic}[{partition}]: cannot be rewound to offset {offset}. Revision {record.revision.number} begins at {first}, and "
                    f"other code has made what lies before. Expected {first} or later. To correct more, declare the next revision"
                )
        return marks

    def _check_not_newer(self, inputs: Inputs, declared: int) -> None:
        newest = max((known.revision[0] for known in inputs.values()), default=FIRST)
        if newest > declared:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r}: its outputs are declared with revision {declared}, but it has taken up revision {newest}. Expected "
                f"revision={newest}: the code of before would publish under the new one. Run the code that declares it"
            )
        if declared == FIRST and self.wanted is not None:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r}: its outputs are declared with revision 1, which is what they had. Expected the next revision. "
                "Declare to(..., revision=2)"
            )

    def _checked(self) -> RevisionRecord:
        record = self.own.check_declared()
        if record is None:
            raise AssertionError("a revision after the first has a record")
        return record

    def _check_same(self, inputs: Inputs, record: RevisionRecord) -> None:
        for (topic, partition), known in inputs.items():
            if known.revision[0] == record.revision.number and known.revision[1] != digest_of(record):
                raise UnknownRevision(
                    f"flow {self.env.flow.name!r}: {topic}[{partition}] follows another record of revision {known.revision[0]} than "
                    f"{', '.join(topics_of(self.env.flow.outputs))} has now. Expected the one of before: was the topic created again? Declare "
                    f"revision={known.revision[0] + 1} and run sqe-chain correct"
                ).at(topic, partition)

    def _moved(self, inputs: Inputs, record: RevisionRecord) -> dict[TopicPartition, InputProgress]:
        self._check_clean(inputs)
        bounds = self.env.log.bounds(inputs)
        current = record.revision.number, digest_of(record)
        return {
            tp: replace(
                self.env.retry.call(
                    f"read {tp[0]} again",
                    lambda tp=tp, known=known: KeptInput(self.env, tp, known, bounds[tp]).moved_back(  # type: ignore[misc]
                        self._not_taken_up(known, record)
                    ),
                ),
                revision=current,
            )
            for tp, known in inputs.items()
        }

    def _not_taken_up(self, known: InputProgress, record: RevisionRecord) -> Revision:
        """The revisions that an input has to be read again for, as one: a correction may have been killed before its commit."""
        missed = [self.own.record(number) for number in self.own.records if number > known.revision[0]]
        return earliest(own.revision for own in (*missed, record) if own is not None)

    def _check_clean(self, inputs: Inputs) -> None:
        """Check that the code of before has nothing left to do.

        Raises:
            PlanMismatch: it has.
        """
        name = self.env.flow.name
        for (topic, partition), known in inputs.items():
            where = f"flow {name!r}, {topic}[{partition}]"
            if known.begun is not None:
                raise PlanMismatch(
                    f"{where}: a sealed batch is unfinished: offsets {known.offset} to {known.begun.until}. Expected a clean stop. Run the old code "
                    "with --once until it has finished"
                ).at(topic, partition)
            if known.offset < known.again:
                raise PlanMismatch(
                    f"{where}: it was rewound to {known.offset} and has not come back to {known.again}. Expected that it has. Run the old code until "
                    "it has caught up"
                ).at(topic, partition)
            self._check_marks_kept((topic, partition), known)

    def _check_marks_kept(self, tp: TopicPartition, known: InputProgress) -> None:
        if known.unsure:
            raise PlanMismatch(
                f"flow {self.env.flow.name!r}, {tp[0]}[{tp[1]}]: its marks did not fit into commits, so it does not know what it has published. "
                "Expected marks. Give the flow a stage, or its outputs new names"
            ).at(*tp)

    def _begin(
        self, wanted: WantedRevision, number: int, inputs: Inputs, run: str
    ) -> tuple[RevisionRecord, dict[TopicPartition, InputProgress]]:
        """Write the record of a new revision; of two the first one holds. Everything is checked before it is written."""
        env = self.env
        if number < max(self.own.records, default=FIRST):
            self._checked()  # raises
        self._check_clean(inputs)
        self._check_released()
        bounds = env.log.bounds(inputs)
        kept = [KeptInput(env, tp, known, bounds[tp]) for tp, known in inputs.items()]
        begin, names = env.retry.call("look for the roots", lambda: begin_at(env, kept, wanted.time_ms))
        record = RevisionRecord("", Revision(number, begin.since), names, (), run)
        moved = self._moved(inputs, record)
        if wanted.dry:
            return record, moved
        self._create_topics()
        self._append([self.own.begin(record, self._ends())])
        self.read()
        holds = self._checked()
        self._copy(_taken_up(inputs, number))
        return holds, moved if digest_of(holds) == digest_of(record) else self._moved(inputs, holds)

    def _check_released(self) -> None:
        for known in failed_logs(self.env):
            for decision in known.releasing.values():
                raise PlanMismatch(
                    f"flow {self.env.flow.name!r}: the release {known.place_of(decision)} was interrupted. Expected a clean stop. Run `sqe-chain failed "
                    "release` with the old code"
                ).at(known.topic, known.partition)

    def _create_topics(self) -> None:
        topics = topics_of(self.env.flow.outputs)
        for name in topics:
            self.env.log.create_topic(name, 1, kept=True)
        for name, info in self.env.log.describe(topics).items():
            if info.compacted or info.retention_ms >= 0 or info.retention_bytes >= 0:
                raise ConfigurationError(
                    f"topic {name!r} deletes records, and with them what readers have to know of revisions. Expected cleanup.policy=delete, "
                    "retention.ms=-1 and retention.bytes=-1. Set them"
                )

    def _copy(self, taken_up: int) -> None:
        """Write the records that some outputs lack: of revisions that were not taken up, or of the declared one, if they were added later.

        Args:
            taken_up: the highest revision that all inputs have taken up: its records were complete before.
        """
        declared = declared_revision(self.env.flow)
        if not any(self.own.short(number) for number in self.own.records):
            return
        if declared <= taken_up:
            log = self.env.ports.log
            self.env.retry.call(
                "read outputs", lambda: self.own.check_added(log, declared, "sqe-chain correct")
            )
        numbers = {declared, *(number for number in self.own.records if number > taken_up)}
        missing = self.own.missing(self._ends(), numbers)
        if missing:
            self._create_topics()
            self._append(missing)
            self.read()

    def _ends(self) -> dict[str, tuple[int, ...]]:
        """Output topic -> where its partitions end now."""
        topics = {node.topic for node in self.env.flow.outputs}
        infos = self.env.log.describe(topics)
        tps = [(topic, partition) for topic in topics for partition in range(infos[topic].partitions)]
        ends = {tp: bound.stable_end for tp, bound in self.env.log.bounds(tps).items()}
        return {
            topic: tuple(ends[topic, partition] for partition in range(infos[topic].partitions))
            for topic in topics
        }

    def _append(self, records: list[Output]) -> None:
        def publish() -> None:
            writer = self.env.ports.log.writer()
            try:
                writer.write(records)
                writer.flush()
            finally:
                writer.close()

        self.env.retry.call("write a revision", publish)


def _taken_up(inputs: Inputs, declared: int) -> int:
    return min((known.revision[0] for known in inputs.values()), default=declared)


def _corrected(record: RevisionRecord, inputs: Inputs, *, begun_before: bool = False) -> Corrected:
    since = record.revision.since
    places = (
        None
        if since is None
        else {
            (record.topics.get(topic_id, topic_id.hex()), partition): place
            for topic_id, known in since.items()
            for partition, place in known.items()
        }
    )
    offsets = {tp: known.offset for tp, known in inputs.items()}
    return Corrected(record.revision.number, places, offsets, begun_before)
