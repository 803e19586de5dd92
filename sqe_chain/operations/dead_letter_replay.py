"""Replaying dead letters: sending them back to the flow that left them out, each once.

A letter is sent back as a republished message. Its chain grows by one link, the place where the flow once read it, under
an output name of this replay's own. So lane and position follow from the letter alone, and its readers recognise a
repetition: one by a replay that was killed and run again, or of a letter that a crash of the flow has left twice.

Positions on a lane must rise. They do, since a flow leaves out the inputs of a partition in their order; but after a
rewind, earlier inputs may fail. From such a letter on, another output name is used: a new **round**. Position and round
are committed in a group of the replay's own, the round before anything is sent under its name, so that every repetition
uses the same names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sqe_chain.chain import root_position, stored_epoch
from sqe_chain.envelope.carrier import find_head, passed_on
from sqe_chain.envelope.message import EnvelopeHead, payloads_of
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ConfigurationError, EnvelopeError, ServiceStopped
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import SourceNode
from sqe_chain.operations.dead_letters import DeadLetter, parse_dead_letter
from sqe_chain.ports import Commit, Log, Message, Output, Range, TopicInfo
from sqe_chain.protocol.inputs import METADATA_LENGTH, parse_metadata
from sqe_chain.task.target import RECORD_OVERHEAD, headers_size

CHUNK = 500
"""Letters sent between two commits."""
MAX_REASONS = 20
"""So many letters are listed in the result with the reason why they were not sent."""

Coordinates = tuple[bytes, int, int]
"""Topic id, partition and offset of an input."""


@dataclass(slots=True)
class ReplayResult:
    """What became of the letters.

    Attributes:
        sent: sent back now.
        known: second copies of letters that were sent back before: a crash of the flow has left them twice.
        others: records in the topic that are no letters of this flow.
        lost: offsets that retention has deleted before they were sent back.
        left: letters that cannot be sent back; they stay in their topic.
        reasons: for some of those, which letter and why.
    """

    sent: int = 0
    known: int = 0
    others: int = 0
    lost: int = 0
    left: int = 0
    reasons: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the letters of one partition were sent, as committed.

    Attributes:
        offset: the next letter.
        epoch: leader epoch plus one of the letter before; 0 unknown.
        round: offset of the letter with which the present round began.
        to: the topic given with `to`; "": the topic of each letter.
        sending: letters may have been sent that are not committed yet.
        highest: input partition -> highest offset sent ever, and highest offset sent in this round.
    """

    offset: int
    epoch: int = 0
    round: int = 0
    to: str = ""
    sending: bool = False
    highest: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, commit: Commit | None, topic_id: bytes, begin: int) -> _Progress:
        meta = parse_metadata(commit)
        if commit is None or meta.get("topic_id") != topic_id.hex():
            return cls(begin)  # nothing was sent yet, or the topic of the letters was created again
        known = {name: (int(ever), int(now)) for name, (ever, now) in meta["highest"].items()}  # type: ignore[attr-defined]
        return cls(
            commit.offset,
            int(str(meta["epoch"])),
            int(str(meta["round"])),
            str(meta["to"]),
            bool(meta["sending"]),
            known,
        )

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
                f"the dead letters of one partition come from {len(self.highest)} input partitions, more than a commit can "
                f"tell apart: give the flow more dead_letter_partitions"
            )
        return Commit(self.offset, text)

    def after(self, letter: DeadLetter) -> _Progress:
        """The progress after this letter was sent."""
        return replace(
            self,
            highest={**self.highest, _input(letter): (max(letter.offset, self.ever(letter)), letter.offset)},
        )

    def ever(self, letter: DeadLetter) -> int:
        return self.highest.get(_input(letter), (-1, -1))[0]

    def now(self, letter: DeadLetter) -> int:
        return self.highest.get(_input(letter), (-1, -1))[1]


def _input(letter: DeadLetter) -> str:
    return f"{letter.topic_id.hex()[:8]}/{letter.partition}"


class _CannotBeSentError(Exception):
    """Why a letter stays where it is."""


@dataclass(slots=True)
class DeadLetterReplay:
    """Sends the dead letters of a flow back to where it reads them. May be killed and repeated.

    Args:
        flow: the flow, with corrected code.
        log: Kafka.
        to: a topic that the flow reads, with envelopes; None: each letter goes where it was read.
    """

    flow: CompiledFlow
    log: Log
    to: str | None = None
    _infos: dict[str, TopicInfo] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The Kafka group that remembers which letters were sent."""
        return replay_group(self.flow.name)

    def run(self) -> ReplayResult:
        """Send what has not been sent; acknowledged and committed when this returns.

        Raises:
            ConfigurationError: there is no such topic, or letters cannot be sent to it exactly once.
            ServiceStopped: it is no longer known whether a letter was sent before.
            OutputTooLarge, Unavailable: as writers do; run it again.
        """
        topic = self.flow.dead_letter_topic
        self._infos = self.log.describe({topic, *self.flow.input_topics})
        info = self._infos.get(topic)
        if info is None:
            raise ConfigurationError(
                f"there is no topic {topic!r}: flow {self.flow.name!r} has sent no dead letters"
            )
        if self.to is not None:
            self._target(self.to)
        tps = [(topic, partition) for partition in range(info.partitions)]
        bounds, commits = self.log.bounds(tps), self.log.committed(self.group, tps)
        result, parts = ReplayResult(), list[_Partition]()
        for tp in tps:
            begin, end = bounds[tp].begin, bounds[tp].stable_end
            progress = _Progress.of(commits.get(tp), info.topic_id, begin)
            other = progress.sending and progress.to != (self.to or "")
            if other and self._could_send(
                Range(topic, info.topic_id, tp[1], max(progress.offset, begin), end), progress
            ):
                raise ConfigurationError(
                    f"{topic}[{tp[1]}]: letters were being sent to {progress.to or 'where they were read'} when that was "
                    f"interrupted; finish it first, with the same --to. If that is refused, see what was sent with `sqe-chain peek`; if "
                    f"nothing was, delete the group {self.group!r} with Kafka's tools"
                )
            result.lost += max(0, begin - progress.offset)
            start = max(progress.offset, begin)
            if start < end:
                read = Range(topic, info.topic_id, tp[1], start, end, progress.epoch)
                progress = replace(progress, offset=start, to=self.to or "", sending=True)
                parts.append(_Partition(self, read, begin, progress, result))
        for part in (
            parts
        ):  # all of them before anything is sent or committed: else what was begun could not be finished
            part.check()
        for part in parts:
            part.run()
        return result

    def _could_send(self, read: Range, progress: _Progress) -> bool:
        """Whether a replay that was interrupted, or refused, may have sent any of these letters to where it was sending them."""
        before = replace(self, to=progress.to or None)
        for message in (one for block in self.log.read(read) for one in block):
            letter = parse_dead_letter(message)
            if letter is not None and letter.flow == self.flow.name:
                with suppress(ConfigurationError, _CannotBeSentError, EnvelopeError):
                    before.record(letter, message, read, progress.round)
                    return True
        return False

    def record(self, letter: DeadLetter, message: Message, read: Range, begun: int) -> Output:
        """The record to send for a letter: the same in every repetition.

        Args:
            letter: its headers.
            message: the letter itself.
            read: the range in which it was read.
            begun: the round.

        Raises:
            ConfigurationError: it cannot be sent exactly once to where it should go.
            EnvelopeError, _CannotBeSentError: it cannot be sent at all.
        """
        source = self._source(letter.topic)
        if source is not None and source.files is not None:
            raise _CannotBeSentError(
                f"it is row {letter.offset} of a file ({letter.topic}), which is read from files only; put what is right into another file"
            )
        topic = self.to or letter.topic
        target = self._target(topic)
        head = self._head(letter, message)
        if target.codec is not None and not target.codec.reads(head.type):
            raise _CannotBeSentError(f"it is a {head.type}, topic {topic!r} is declared with another type")
        template = OutputTemplate(
            lane=head.lane,
            topic=letter.topic,
            topic_id=letter.topic_id,
            partition=letter.partition,
            output=f"{self.flow.name}/dead-letters-replay.{read.topic_id.hex()[:8]}.{begun}",
        )
        position = head.position or letter.position
        epoch = 0 if head.position else int.from_bytes(position[:4], "big")
        if not head.position and position != root_position(epoch, letter.offset):
            raise _CannotBeSentError(
                f"its position {position.hex()!r} does not belong to offset {letter.offset}"
            )
        value, _ = template.encode(
            head.chain,
            letter.offset,
            epoch,
            0,
            1,
            position,
            head.timestamp_ms,
            head.key if head.HasField("key") else None,
            head.type,
            payloads_of(head),
        )
        info, key = self._infos[topic], message.key()
        size = len(value) + len(key or b"") + headers_size(letter.headers)
        if size > info.max_message_bytes - RECORD_OVERHEAD:
            raise _CannotBeSentError(
                f"it has {size} bytes, topic {topic!r} accepts {info.max_message_bytes} (max.message.bytes)"
            )
        headers = passed_on(letter.headers, carrier="value") or None
        return topic, letter.partition % info.partitions, key, value, headers, message.timestamp()[1]

    def _head(self, letter: DeadLetter, message: Message) -> EnvelopeHead:
        """The letter as an envelope; a letter from a raw source gets the envelope that it would have had."""
        source, value = self._source(letter.topic), message.value()
        if source is None or not source.raw:
            return find_head(value, letter.headers)
        if source.codec is None:
            raise ConfigurationError(
                f"{source.declared_at}: {letter.topic!r} is read without envelopes and by a decoder of your own, so its letters "
                "have no protobuf type and cannot be sent back; " + _WAY_OUT
            )
        if value is None:
            raise _CannotBeSentError("it has no value")
        head = EnvelopeHead(type=source.codec.type_name, payload=value, timestamp_ms=message.timestamp()[1])
        key = message.key()
        if key is not None:
            head.key = key
        return head

    def _source(self, topic: str) -> SourceNode | None:
        return self.flow.source_of[topic]

    def _target(self, topic: str) -> SourceNode:
        node = self._source(topic)
        if node is None or topic not in self._infos:
            known = ", ".join(one for one in self.flow.input_topics if one in self._infos)
            raise ConfigurationError(f"flow {self.flow.name!r} does not read {topic!r}; it reads: {known}")
        if node.raw:
            raise ConfigurationError(
                f"{node.declared_at}: {topic!r} is read without envelopes, so a repetition could not be recognised there. Let the "
                "flow read a topic of its own with envelopes of the same type as well, and give it as --to; or "
                + _WAY_OUT
            )
        return node


_WAY_OUT = "fold again with the right code instead: sqe-chain rebuild, or rewind"


@dataclass(slots=True)
class _Partition:
    """The letters of one partition, one after the other."""

    work: DeadLetterReplay
    read: Range
    begin: int
    progress: _Progress
    result: ReplayResult
    _pending: list[Output] = field(default_factory=list)
    _seen: set[Coordinates] | None = None

    def check(self) -> None:
        """Check that letters can be sent to where they should go.

        Raises:
            ConfigurationError: to there they cannot be sent exactly once.
        """
        for message in (one for block in self.work.log.read(self.read) for one in block):
            letter = parse_dead_letter(message)
            if letter is not None and letter.flow == self.work.flow.name:
                with suppress(_CannotBeSentError, EnvelopeError):
                    self.work.record(letter, message, self.read, self.progress.round)

    def run(self) -> None:
        self._commit()
        for message in (one for block in self.work.log.read(self.read) for one in block):
            letter = parse_dead_letter(message)
            if letter is None or letter.flow != self.work.flow.name:
                self.result.others += 1
            else:
                self._letter(letter, message)
                if self._seen is not None:
                    self._seen.add(_coordinates(letter))
            epoch = stored_epoch(message.leader_epoch())
            self.progress = replace(self.progress, offset=message.offset() + 1, epoch=epoch)
            if len(self._pending) >= CHUNK:
                self._commit()
        self.progress = replace(self.progress, offset=self.read.stop, sending=False)
        self._commit()

    def _letter(self, letter: DeadLetter, message: Message) -> None:
        at = message.offset()
        decided = self.progress.round == at > 0  # the round was begun by a replay that was interrupted
        if letter.offset <= self.progress.ever(letter) and not decided and self._was_sent(letter, at):
            self.result.known += 1
            return
        if letter.offset <= self.progress.now(letter):
            self._begin_round(at)
        try:
            record = self.work.record(letter, message, self.read, self.progress.round)
        except (_CannotBeSentError, EnvelopeError) as error:
            self.result.left += 1
            if len(self.result.reasons) < MAX_REASONS:
                self.result.reasons.append((str(letter), str(error)))
            return
        self._pending.append(record)
        self.progress = self.progress.after(letter)
        self.result.sent += 1

    def _was_sent(self, letter: DeadLetter, at: int) -> bool:
        """Whether a letter of the same input comes before this one. Asked only where offsets do not rise."""
        if self._seen is None:
            before = replace(self.read, start=self.begin, stop=at, leader_epoch=0)
            blocks = self.work.log.read(before) if at > self.begin else ()
            found = (parse_dead_letter(message) for block in blocks for message in block)
            name = self.work.flow.name
            self._seen = {_coordinates(one) for one in found if one is not None and one.flow == name}
        if _coordinates(letter) in self._seen:
            return True
        if self.begin:
            self._commit()
            raise ServiceStopped(
                f"{self.read.topic}[{self.read.partition}]@{at} is a letter of {letter}, an input before others whose letters "
                f"were sent back. Whether it was sent, too, cannot be seen: letters before {self.begin} are gone. Look at it "
                f"with `sqe-chain peek`; to pass over it, move the group {self.work.group!r} to {at + 1} with Kafka's tools"
            )
        return False

    def _begin_round(self, at: int) -> None:
        highest = {name: (ever, -1) for name, (ever, _) in self.progress.highest.items()}
        self._commit()
        self.progress = replace(self.progress, offset=at, round=at, highest=highest)
        self._commit()  # before anything is sent under its name: a repetition must use the same one

    def _commit(self) -> None:
        """Send what is pending, and commit it when it is acknowledged."""
        commit = self.progress.commit(self.read.topic_id)
        if self._pending:
            writer = self.work.log.writer()
            try:
                writer.write(self._pending)
                writer.flush()
            finally:
                writer.close()
            self._pending.clear()
        self.work.log.commit(self.work.group, {(self.read.topic, self.read.partition): commit})


def _coordinates(letter: DeadLetter) -> Coordinates:
    return letter.topic_id, letter.partition, letter.offset
