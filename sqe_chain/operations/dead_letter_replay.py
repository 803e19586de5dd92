"""Replays dead-letter records: sends each back once to the flow that skipped it.

It is sent back as a republished message. Its chain grows by one link, the place where the flow once read it, under an
output name of this replay's own. So lane and position follow from the dead-letter record alone. Readers recognise a
repetition: by a replay that was killed and run again, or of a record that a crash of the flow has written twice.

Positions on a lane must rise. They do, since a flow skips the inputs of a partition in their order; but after a rewind,
earlier inputs may fail. From such a record on, another output name is used: a new **round**. A selection skips records
that a later replay sends. So each selection is a **passage** with names of its own. A consumer group of the replay holds
position, round, passage, and what was sent apart. Each is committed before anything is sent under its name, so that every
repetition uses the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.chain import stored_epoch
from sqe_chain.errors import ConfigurationError, EnvelopeError, ServiceStopped
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.dead_letter_progress import Progress
from sqe_chain.operations.dead_letters import (
    CannotBeSentError,
    DeadLetterTargets,
    Selection,
)
from sqe_chain.ports import Commit, Log, Message, Output, Range, TopicPartition
from sqe_chain.task.dead_letters import DeadLetter, parse_dead_letter

CHUNK = 500
"""Records sent between two commits."""
MAX_REASONS = 20
"""The number of records that the result lists with the reason why they were not sent."""


@dataclass(slots=True)
class ReplayResult:
    """What became of the dead-letter records.

    Attributes:
        known: second copies of records that were sent back before: a crash of the flow has written them twice.
        others: records in the topic that are no dead-letter records of this flow.
        lost: offsets that retention has deleted before they were sent back.
        left: records that cannot be sent back; they stay in their topic.
        reasons: for some of those, which record and why.
    """

    sent: int = 0
    known: int = 0
    others: int = 0
    lost: int = 0
    left: int = 0
    reasons: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class DeadLetterReplay:
    """Sends the dead-letter records of a flow back to where it reads them. May be killed and repeated.

    Args:
        flow: the flow, with corrected code.
        log: Kafka.
        to: a topic that the flow reads, with envelopes; None: each record goes to where the flow read it.
        selection: which records are sent, or passed over.
    """

    flow: CompiledFlow
    log: Log
    to: str | None = None
    selection: Selection = field(default_factory=Selection)

    @property
    def group(self) -> str:
        """The Kafka group that remembers which records were sent."""
        return replay_group(self.flow.name)

    def run(self) -> ReplayResult:
        """Send what has not been sent; acknowledged and committed when this returns.

        Raises:
            ConfigurationError: there is no such topic, or records cannot be sent to it exactly once.
            ServiceStopped: it is no longer known whether a record was sent before.
            OutputTooLarge, Unavailable: as writers do; run it again.
        """
        topic, to = self.flow.dead_letter_topic, self.to or ""
        infos = self.log.describe({topic, *self.flow.input_topics})
        info = infos.get(topic)
        if info is None:
            raise ConfigurationError(
                f"there is no topic {topic!r}. Expected the dead-letter topic of flow {self.flow.name!r}, which has sent nothing there"
            )
        targets = DeadLetterTargets(self.flow, infos, to)
        if to:
            targets.check(to)
        tps = [(topic, partition) for partition in range(info.partitions)]
        bounds, commits = self.log.bounds(tps), self.log.committed(self.group, tps)
        result, parts = ReplayResult(), list[_Partition]()
        for tp in tps:
            begin, end = bounds[tp].begin, bounds[tp].stable_end
            sent = Progress.of(commits.get(tp), info.topic_id, begin)
            result.lost += sent.lost(begin)
            if sent.offset < begin:
                sent = sent.done_up_to(begin)
            if sent.offset < end:
                read = Range(topic, info.topic_id, tp[1], sent.offset, end, sent.epoch)
                parts.append(_Partition(self, targets, read, begin, sent, result))
        for part in parts:
            part.begin_sending()
        # All of them before anything is sent or committed: else what was begun could not be finished.
        for part in parts:
            part.check()
        for part in parts:
            part.run()
        return result

    def discard(self, until: Mapping[int, int] | None = None) -> int:
        """Pass over the selected dead-letter records, so that no replay sends them. They stay in their topic.

        Args:
            until: partition of their topic -> offset of the first record that stays; None: all that are there now.

        Returns:
            How many records were passed over; without a selection, how many offsets.

        Raises:
            ConfigurationError: there is no such topic or partition, a replay was interrupted and is not finished, or the
                selected records lie in too many places.
        """
        topic = self.flow.dead_letter_topic
        info = self.log.describe([topic]).get(topic)
        if info is None or any(not 0 <= partition < info.partitions for partition in until or ()):
            raise ConfigurationError(
                f"topic {topic!r} does not exist, or has no such partition. Expected partitions of the dead-letter records of "
                f"flow {self.flow.name!r}"
            )
        tps = [
            (topic, partition) for partition in (range(info.partitions) if until is None else sorted(until))
        ]
        bounds, commits = self.log.bounds(tps), self.log.committed(self.group, tps)
        passed, moved = 0, dict[TopicPartition, Commit]()
        for tp in tps:
            progress = Progress.of(commits.get(tp), info.topic_id, bounds[tp].begin)
            if progress.sending:
                raise ConfigurationError(
                    f"{topic}[{tp[1]}]: a replay was interrupted. Run `sqe-chain failed release` with the same options until it ends, then discard"
                )
            end = bounds[tp].stable_end
            stop = end if until is None else min(end, until[tp[1]])
            start = max(progress.offset, bounds[tp].begin)
            if stop <= start:
                continue
            read = Range(topic, info.topic_id, tp[1], start, stop)
            count, after = self._passed_over(progress, read)
            if count:
                passed += count
                moved[tp] = after.commit(info.topic_id)
        if moved:
            self.log.commit(self.group, moved)
        return passed

    def _passed_over(self, progress: Progress, read: Range) -> tuple[int, Progress]:
        """How many records of a range are passed over, and the progress after that."""
        if not self.selection.text:
            return read.stop - read.start, progress.done_up_to(read.stop)
        count = 0
        for dead, message in self.records(read):
            if (
                dead is not None
                and not progress.has(message.offset())
                and self.selection.takes(dead, message)
            ):
                progress, count = progress.done_apart(message.offset()), count + 1
        return count, progress.done_up_to(progress.offset, progress.epoch)

    def records(self, read: Range) -> Iterator[tuple[DeadLetter | None, Message]]:
        """The records of a range; with None those that are no dead-letter records of this flow."""
        for block in self.log.read(read):
            for message in block:
                dead = parse_dead_letter(message)
                yield dead if dead is not None and dead.flow == self.flow.name else None, message


@dataclass(slots=True)
class _Partition:
    """The dead-letter records of one partition, one after the other."""

    work: DeadLetterReplay
    targets: DeadLetterTargets
    read: Range
    begin: int
    sent: Progress
    result: ReplayResult
    _pending: list[Output] = field(default_factory=list)
    _seen: set[tuple[bytes, int, int]] | None = None

    def begin_sending(self) -> None:
        """Direct the records to this replay's topic, unless an interrupted replay may have sent others, or to another topic.

        Raises:
            ConfigurationError: it may.
        """
        sent, to, selection = self.sent, self.targets.to, self.work.selection.text
        goes_on = sent.sending and (sent.to, sent.selection) == (to, selection)
        before = self._outputs(replace(self.targets, to=sent.to), Selection())
        if sent.sending and not goes_on and not all(isinstance(output, Exception) for output in before):
            raise ConfigurationError(
                f"{self.read.topic}[{self.read.partition}]: a replay to {sent.to or 'where the flow read them'} was interrupted"
                f"{sent.selection and f', of {sent.selection}'}. Expected the same target and selection. Finish it first with `sqe-chain failed "
                "release` and the same places and options. The version that knew --to needs the same --to. If that is refused, look with "
                "`sqe-chain peek` what was sent; if nothing was, delete the group "
                f"{self.work.group!r} with Kafka's tools"
            )
        # What one selection skips comes later, so it cannot come on the same lanes.
        if not goes_on and (selection or sent.selection):
            sent = sent.next_passage()
        self.sent = replace(sent, to=to, selection=selection, sending=True)

    def check(self) -> None:
        """Check that no record goes to a topic that would not recognise a repetition, and that the end can be committed.

        Raises:
            ConfigurationError: one does, or it cannot.
        """
        for output in self._outputs(self.targets, self.work.selection):
            if isinstance(output, ConfigurationError):
                raise output
        if self.sent.selection:
            after = self.sent
            for dead, message in self.work.records(self.read):
                if dead is None or self.work.selection.takes(dead, message):
                    after = after.done_apart(message.offset())
            after.commit(self.read.topic_id)

    def run(self) -> None:
        self._commit()
        selection = self.work.selection
        for dead, message in self.work.records(self.read):
            at = message.offset()
            if self.sent.has(at):
                continue
            if dead is None:
                self.result.others += 1
            elif selection.takes(dead, message):
                self._send(dead, message)
                if self._seen is not None:
                    self._seen.add(dead.coordinates)
            else:
                continue
            if selection.text:
                self.sent = self.sent.done_apart(at)
            else:
                self.sent = self.sent.done_up_to(at + 1, stored_epoch(message.leader_epoch()))
            if len(self._pending) >= CHUNK:
                self._commit()
        stop = self.sent.offset if selection.text else self.read.stop
        self.sent = replace(self.sent.done_up_to(stop, self.sent.epoch), sending=False)
        self._commit()

    def _outputs(self, targets: DeadLetterTargets, selection: Selection) -> Iterator[Output | Exception]:
        """The output for each selected record, or why there is none."""
        for dead, message in self.work.records(self.read):
            if dead is not None and selection.takes(dead, message) and not self.sent.has(message.offset()):
                try:
                    yield targets.output_for(dead, message, self.read, self.sent.lanes)
                except (ConfigurationError, CannotBeSentError, EnvelopeError) as error:
                    yield error

    def _send(self, dead: DeadLetter, message: Message) -> None:
        at, known = message.offset(), self.sent.of_input(dead)
        decided = self.sent.round == at > 0  # a replay that was interrupted has begun the round
        if dead.offset <= max(known.ever, known.apart) and not decided and self._was_sent(dead, at):
            self.result.known += 1
            return
        if dead.offset <= known.now:
            self._commit()
            self.sent = self.sent.next_round(at)
            self._commit()  # before anything is sent under its name: a repetition must use the same one
        try:
            output = self.targets.output_for(dead, message, self.read, self.sent.lanes)
        except (CannotBeSentError, EnvelopeError) as error:
            self.result.left += 1
            if len(self.result.reasons) < MAX_REASONS:
                self.result.reasons.append((str(dead), str(error)))
            return
        self._pending.append(output)
        self.sent = self.sent.after(dead)
        self.result.sent += 1

    def _was_sent(self, dead: DeadLetter, at: int) -> bool:
        """Whether another record of the same input is done. Asked only where offsets do not rise."""
        if self._seen is None:
            kept = replace(self.read, start=self.begin, leader_epoch=0)
            self._seen = {
                other.coordinates
                for other, message in self.work.records(kept)
                if other is not None and self.sent.has(message.offset())
            }
        if dead.coordinates in self._seen:
            return True
        if self.begin and dead.offset <= self.sent.of_input(dead).ever:
            self._commit()
            raise ServiceStopped(
                f"{self.read.topic}[{self.read.partition}]@{at} is the dead-letter record of {dead}, an input before others that were "
                f"sent back. Expected to see whether it was sent, too, but the records before {self.begin} are gone. Look at it with "
                f"`sqe-chain peek`; to pass over it, move the group {self.work.group!r} to {at + 1} with Kafka's tools"
            )
        return False

    def _commit(self) -> None:
        """Send what is pending, and commit it when it is acknowledged."""
        commit = self.sent.commit(self.read.topic_id)
        if self._pending:
            writer = self.work.log.writer()
            try:
                writer.write(self._pending)
                writer.flush()
            finally:
                writer.close()
            self._pending.clear()
        self.work.log.commit(self.work.group, {(self.read.topic, self.read.partition): commit})
