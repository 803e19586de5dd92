"""Replays dead-letter records: sends each back once to the flow that skipped it.

It is sent back as a republished message. Its chain grows by one link, the place where the flow once read it, under an
output name of this replay's own. So lane and position follow from the dead-letter record alone. Readers recognise a
repetition: by a replay that was killed and run again, or of a record that a crash of the flow has written twice.

Positions on a lane must rise. They do, since a flow skips the inputs of a partition in their order; but after a rewind,
earlier inputs may fail. From such a record on, another output name is used: a new **round**. A consumer group of the replay
holds position and round. The round is committed before anything is sent under its name, so that every repetition uses the
same names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.chain import stored_epoch
from sqe_chain.errors import ConfigurationError, EnvelopeError, ServiceStopped
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.dead_letters import (
    CannotBeSentError,
    DeadLetter,
    DeadLetterTargets,
    parse_dead_letter,
)
from sqe_chain.ports import Commit, Log, Message, Output, Range, TopicPartition
from sqe_chain.protocol.inputs import METADATA_LENGTH, parse_metadata

CHUNK = 500
"""Records sent between two commits."""
MAX_REASONS = 20
"""The number of records that the result lists with the reason why they were not sent."""


@dataclass(slots=True)
class ReplayResult:
    """What became of the dead-letter records.

    Attributes:
        sent: sent back now.
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


@dataclass(frozen=True, slots=True)
class _Sent:
    """How far the dead-letter records of one partition were sent, as committed.

    Attributes:
        offset: the next record.
        epoch: leader epoch plus one of the record before; 0 unknown.
        round: offset of the record with which the present round began.
        to: the topic given with `to`; "": the topic of each record.
        sending: more may have been sent than is committed.
        highest: input partition -> highest offset sent ever, and highest offset sent in this round.
    """

    offset: int
    epoch: int = 0
    round: int = 0
    to: str = ""
    sending: bool = False
    highest: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, commit: Commit | None, topic_id: bytes, begin: int) -> _Sent:
        meta = parse_metadata(commit)
        if commit is None or meta.get("topic_id") != topic_id.hex():
            return cls(begin)  # nothing was sent yet, or the dead-letter topic was created again
        highest = {name: (int(ever), int(now)) for name, (ever, now) in meta["highest"].items()}  # type: ignore[attr-defined]
        epoch, begun = int(str(meta["epoch"])), int(str(meta["round"]))
        return cls(commit.offset, epoch, begun, str(meta["to"]), bool(meta["sending"]), highest)

    def commit(self, topic_id: bytes) -> Commit:
        meta = {
            "topic_id": topic_id.hex(),
            "epoch": self.epoch,
            "round": self.round,
            "to": self.to,
            "sending": self.sending,
            "highest": self.highest,
        }
        text = json.dumps(meta, separators=(",", ":"))
        if len(text) > METADATA_LENGTH:
            raise ConfigurationError(
                f"the dead-letter records of one partition come from {len(self.highest)} input partitions. Expected fewer: a commit "
                "cannot hold the progress of each. Give the flow more dead_letter_partitions"
            )
        return Commit(self.offset, text)

    def after(self, dead: DeadLetter) -> _Sent:
        """The progress after this record was sent."""
        ever, _ = self.of_input(dead)
        return replace(self, highest={**self.highest, _input_of(dead): (max(dead.offset, ever), dead.offset)})

    def of_input(self, dead: DeadLetter) -> tuple[int, int]:
        """Of its input partition the highest offset sent ever, and in this round; -1 none."""
        return self.highest.get(_input_of(dead), (-1, -1))


def _input_of(dead: DeadLetter) -> str:
    return f"{dead.topic_id.hex()[:8]}/{dead.partition}"


@dataclass(slots=True)
class DeadLetterReplay:
    """Sends the dead-letter records of a flow back to where it reads them. May be killed and repeated.

    Args:
        flow: the flow, with corrected code.
        log: Kafka.
        to: a topic that the flow reads, with envelopes; None: each record goes to where the flow read it.
    """

    flow: CompiledFlow
    log: Log
    to: str | None = None

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
            sent = _Sent.of(commits.get(tp), info.topic_id, begin)
            start = max(sent.offset, begin)
            result.lost += start - sent.offset
            if start < end:
                read = Range(topic, info.topic_id, tp[1], start, end, sent.epoch)
                parts.append(_Partition(self, targets, read, begin, replace(sent, offset=start), result))
        for part in parts:
            part.begin_sending()
        # All of them before anything is sent or committed: else what was begun could not be finished.
        for part in parts:
            part.check()
        for part in parts:
            part.run()
        return result

    def discard(self, until: Mapping[int, int] | None = None) -> int:
        """Pass over dead-letter records, so that no replay sends them. They stay in their topic.

        Args:
            until: partition of their topic -> offset of the first record that stays; None: all that are there now.

        Returns:
            How many offsets were passed over.

        Raises:
            ConfigurationError: there is no such topic or partition, or a replay was interrupted and is not finished.
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
            progress = _Sent.of(commits.get(tp), info.topic_id, bounds[tp].begin)
            if progress.sending:
                raise ConfigurationError(
                    f"{topic}[{tp[1]}]: a replay was interrupted. Run `sqe-chain dead-letters replay` until it ends, then discard"
                )
            end = bounds[tp].stable_end
            stop = end if until is None else min(end, until[tp[1]])
            if stop > progress.offset:
                passed += stop - max(progress.offset, bounds[tp].begin)
                moved[tp] = replace(progress, offset=stop, epoch=0).commit(info.topic_id)
        if moved:
            self.log.commit(self.group, moved)
        return passed


@dataclass(slots=True)
class _Partition:
    """The dead-letter records of one partition, one after the other."""

    work: DeadLetterReplay
    targets: DeadLetterTargets
    read: Range
    begin: int
    sent: _Sent
    result: ReplayResult
    _pending: list[Output] = field(default_factory=list)
    _seen: set[tuple[bytes, int, int]] | None = None

    def begin_sending(self) -> None:
        """Direct the records to this replay's topic, unless an interrupted replay may have sent some to another one.

        Raises:
            ConfigurationError: it may.
        """
        sent, to = self.sent, self.targets.to
        before = self._outputs(replace(self.targets, to=sent.to))
        if sent.sending and sent.to != to and not all(isinstance(output, Exception) for output in before):
            raise ConfigurationError(
                f"{self.read.topic}[{self.read.partition}]: a replay to {sent.to or 'where the flow read them'} was interrupted. Expected "
                "the same target; finish it first, with the same --to. If that is refused, look with `sqe-chain peek` what was sent; if "
                f"nothing was, delete the group {self.work.group!r} with Kafka's tools"
            )
        self.sent = replace(sent, to=to, sending=True)

    def check(self) -> None:
        """Check that no record goes to a topic that would not recognise a repetition.

        Raises:
            ConfigurationError: one does.
        """
        for output in self._outputs(self.targets):
            if isinstance(output, ConfigurationError):
                raise output

    def run(self) -> None:
        self._commit()
        for dead, message in self._records(self.read):
            if dead is None:
                self.result.others += 1
            else:
                self._send(dead, message)
                if self._seen is not None:
                    self._seen.add(dead.coordinates)
            epoch = stored_epoch(message.leader_epoch())
            self.sent = replace(self.sent, offset=message.offset() + 1, epoch=epoch)
            if len(self._pending) >= CHUNK:
                self._commit()
        self.sent = replace(self.sent, offset=self.read.stop, sending=False)
        self._commit()

    def _records(self, read: Range) -> Iterator[tuple[DeadLetter | None, Message]]:
        """The records of a range; with None those that are no dead-letter records of this flow."""
        for block in self.work.log.read(read):
            for message in block:
                dead = parse_dead_letter(message)
                yield dead if dead is not None and dead.flow == self.work.flow.name else None, message

    def _outputs(self, targets: DeadLetterTargets) -> Iterator[Output | Exception]:
        """The output for each record, or why there is none."""
        for dead, message in self._records(self.read):
            if dead is not None:
                try:
                    yield targets.output_for(dead, message, self.read, self.sent.round)
                except (ConfigurationError, CannotBeSentError, EnvelopeError) as error:
                    yield error

    def _send(self, dead: DeadLetter, message: Message) -> None:
        at, (ever, now) = message.offset(), self.sent.of_input(dead)
        decided = self.sent.round == at > 0  # a replay that was interrupted has begun the round
        if dead.offset <= ever and not decided and self._was_sent(dead, at):
            self.result.known += 1
            return
        if dead.offset <= now:
            self._begin_round(at)
        try:
            output = self.targets.output_for(dead, message, self.read, self.sent.round)
        except (CannotBeSentError, EnvelopeError) as error:
            self.result.left += 1
            if len(self.result.reasons) < MAX_REASONS:
                self.result.reasons.append((str(dead), str(error)))
            return
        self._pending.append(output)
        self.sent = self.sent.after(dead)
        self.result.sent += 1

    def _was_sent(self, dead: DeadLetter, at: int) -> bool:
        """Whether a record of the same input comes before this one. Asked only where offsets do not rise."""
        if self._seen is None:
            before = replace(self.read, start=self.begin, stop=at, leader_epoch=0)
            records = self._records(before) if at > self.begin else ()
            self._seen = {earlier.coordinates for earlier, _ in records if earlier is not None}
        if dead.coordinates in self._seen:
            return True
        if self.begin:
            self._commit()
            raise ServiceStopped(
                f"{self.read.topic}[{self.read.partition}]@{at} is the dead-letter record of {dead}, an input before others that were "
                f"sent back. Expected to see whether it was sent, too, but the records before {self.begin} are gone. Look at it with "
                f"`sqe-chain peek`; to pass over it, move the group {self.work.group!r} to {at + 1} with Kafka's tools"
            )
        return False

    def _begin_round(self, at: int) -> None:
        highest = {name: (ever, -1) for name, (ever, _) in self.sent.highest.items()}
        self._commit()
        self.sent = replace(self.sent, offset=at, round=at, highest=highest)
        self._commit()  # before anything is sent under its name: a repetition must use the same one

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
