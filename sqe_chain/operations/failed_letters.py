"""Releases or discards what a flow has skipped: its dead-letter topic is the log of what was decided.

A release processes dead-letter records with the code of now, as if the flow read the inputs where it did. It publishes on lanes of
its own. Of a flow without stages the order is: process, append the decision with a digest of all outputs, read the topic again,
publish, append `done`. A release that finds a decision which holds and is not done makes the same outputs of it, and publishes them
again. Receivers take that for replays. So it may be killed and repeated, and several may run at once. What fails again stays as it
is. A flow with plans decides by a plan, which publishes the decision; see `sqe_chain.features.parking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, NoReturn, Protocol

from sqe_chain.engines.task import publish
from sqe_chain.errors import ConfigurationError, PlanMismatch, ServiceStopped
from sqe_chain.features.parking import MAX_BYTES
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import (
    UNDECIDED,
    DiscardResult,
    FailedRecord,
    FailedSelection,
    ReleaseResult,
)
from sqe_chain.operations.processing_letters import LettersMade, parked_record, place_of, process_letters
from sqe_chain.operations.replayed_before import forget_replayed, read_replayed
from sqe_chain.plans import inputs
from sqe_chain.plans.own_revisions import OwnRevisions, declared_revision
from sqe_chain.ports import Log, TopicInfo
from sqe_chain.ports.log import shown_place
from sqe_chain.protocol.committed import check_no_plans
from sqe_chain.task.dead_letters import Identity
from sqe_chain.task.failed_log import (
    MOST_LETTERS,
    Decision,
    DecisionKind,
    FailedLog,
    Letter,
    read_failed_log,
    read_on,
)
from sqe_chain.task.revisions import OutputRevisions, label_of_letter
from sqe_chain.task.target import RECORD_OVERHEAD

_BYTES_OF_LETTER: Final = 200
"""What a record takes of a decision, with its lane and an ordinary position."""


Selects = Callable[[FailedRecord], bool]
"""Which failed records are meant, such as a `FailedSelection`."""


@dataclass(frozen=True, slots=True)
class LettersReleased:
    """What became of dead-letter records that a plan has released.

    Attributes:
        outputs: records published for them.
        dropped: see `ReleaseResult`.
        failed: why others have failed again, by topic, partition and offset of their inputs.
    """

    outputs: int
    dropped: Mapping[str, int]
    failed: Mapping[tuple[str, int, int], str]


class Decider(Protocol):
    """A run of a flow with plans that decides about its dead-letter records. It has claimed the flow, so no other one decides."""

    def reason_stuck(self, letter: Letter) -> str:
        """Why a record cannot be processed by this run; empty: it can be."""

    def release(self, partition: int, letters: Sequence[Letter]) -> LettersReleased:
        """Process records of a partition of the dead-letter topic, and publish that they are released."""

    def discard(self, partition: int, letters: Sequence[Identity]) -> None:
        """Publish that records are discarded."""


@dataclass(slots=True)
class FailedLetters:
    """The records that a flow has skipped and kept.

    Args:
        flow: the flow, with the code of now.
        log: Kafka.
        now_ms: gives the time, in milliseconds since 1970.
        new_name: gives a random name, unique for each release and discard.
        stopped: whether to end before anything more is decided.
        plans: the run of a flow with plans, which decides; None: the flow has no plans, or nothing is decided.
    """

    flow: CompiledFlow
    log: Log
    now_ms: Callable[[], int]
    new_name: Callable[[], str]
    stopped: Callable[[], bool] = lambda: False
    plans: Decider | None = None
    _made: dict[str, LettersMade] = field(default_factory=dict)
    _revisions: OutputRevisions | None = None

    def list(self, known: Iterable[FailedLog] | None = None) -> Iterator[FailedRecord]:
        """All that the flow has skipped and its dead-letter topic still has, in the order of that topic. Reading disturbs nobody.

        Args:
            known: the partitions of the topic as they were read; None: they are read.

        Raises:
            ConfigurationError: there is no such topic.
        """
        info = self._topic()
        replayed = read_replayed(self.log, self.flow.declared_name, info)
        for own in self._logs(info) if known is None else known:
            decided = own.decided | dict.fromkeys(replayed.of(own), replayed.decision)
            now = replace(own, decided=decided)
            yield from (self._record(now, identity) for identity in now.letters)

    def release(self, selection: Selects = FailedSelection()) -> ReleaseResult:  # noqa: B008 - frozen
        """Let the selected records count, once; first finish the releases that were interrupted.

        Returns:
            What became of them. What fails again stays open, and so does what others decide about meanwhile.

        Raises:
            ConfigurationError: there is no such topic, or a replay by an older version is under way.
            PlanMismatch: the flow is declared without stages, and has plans. Or an interrupted release was begun by code that gives
                something else. Nothing was published now.
            ServiceStopped: dead-letter records of an interrupted release are gone.
            OutputTooLarge, Unavailable: as writers do; run it again.
        """
        own = self._check_decides()
        info, result = self._topic(), ReleaseResult()
        described = inputs.describe(self.flow, self.log) | {info.name: info}
        self._take_over(info)
        if own is not None and own.is_overtaken():
            # A release may have been begun just before the record of a revision was written. Only this code can finish it.
            for known in self._logs(info):
                self._finish(known, result)
                self._count_left(known, selection, described, result)
            if not result.released:
                own.check_declared()  # raises: it begins nothing
            return result
        for known in self._logs(info):
            tried = set[Identity]()
            while True:  # bounded: each round finishes releases, or tries records that were not tried yet
                self._finish(known, result)
                batch = self._next(known, selection, tried, described)
                if not batch or self.stopped():
                    break
                self._begin(known, batch, tried, described, result)
            self._count_left(known, selection, described, result)
        return result

    def discard(self, selection: Selects = FailedSelection()) -> DiscardResult:  # noqa: B008 - frozen
        """Let the selected records never count.

        Raises:
            ConfigurationError: there is no such topic, or a replay by an older version is under way.
            PlanMismatch: the flow is declared without stages, and has plans.
            Unavailable: as writers do; run it again.
        """
        own = self._check_decides()
        if own is not None:
            own.check_declared()
        info, discarded, left = self._topic(), 0, 0
        self._take_over(info)
        for known in self._logs(info):
            while not self.stopped():  # bounded: each round decides about records, or others have
                chosen = [
                    identity
                    for identity in known.letters
                    if known.status(identity) in {"open", "unsure", "unreadable"}
                    and selection(self._record(known, identity))
                ][: _most_letters(info)]
                if not chosen:
                    break
                discarded += self._discard(known, chosen)
            left += sum(known.status(identity) in UNDECIDED for identity in known.letters)
        return DiscardResult(discarded, left)

    def _check_decides(self) -> OwnRevisions | None:
        """Refuse a flow with plans without its run, however it is declared: a decision that only the topic has would be one of two.

        Returns:
            The revisions of its outputs; None: a run decides, which knows them. One that has begun after that which is declared has not
            been refused yet.
        """
        if self.flow.keeps_plans and self.plans is None:
            raise ConfigurationError(
                f"flow {self.flow.name!r} keeps plans, which know what it has skipped. Expected a run of it, which decides by a plan"
            )
        if self.plans is None:
            tps = inputs.partitions_of(self.log.describe(self.flow.input_topics).values())
            check_no_plans(self.flow, self.log.committed(self.flow.declared_name, tps))
            own = OwnRevisions.read(self.flow, self.log)
            if own.is_overtaken():
                self._revisions = own.up_to(declared_revision(self.flow)).for_tasks()
                return own
            own.check_declared()
            self._revisions = own.for_tasks()
            return own
        return None

    def _discard(self, known: FailedLog, chosen: Sequence[Identity]) -> int:
        """Decide that these never count; returns for how many that holds."""
        if self.plans is not None:
            self.plans.discard(known.partition, chosen)
            read_on(self.log, known)
            return len(chosen)
        name = self._new_name(known, "discard")
        self._append(known, Decision(self.flow.declared_name, "discard", tuple(chosen), by=name))
        return len(chosen) if name in known.decisions else 0

    def _topic(self) -> TopicInfo:
        topic = self.flow.dead_letter_topic
        info = self.log.describe([topic]).get(topic)
        if info is None:
            raise ConfigurationError(
                f"there is no topic {topic!r}. Expected the dead-letter topic of flow {self.flow.name!r}, which has sent nothing there"
            )
        return info

    def _logs(self, info: TopicInfo) -> Iterator[FailedLog]:
        """Its partitions, each as it is when it is asked for."""
        for partition in range(info.partitions):
            bounds = self.log.bounds([(info.name, partition)])[info.name, partition]
            yield read_failed_log(self.log, self.flow.declared_name, info, partition, bounds)

    def _record(self, known: FailedLog, identity: Identity) -> FailedRecord:
        letter = known.letters[identity]
        dead, message, decision = letter.dead, letter.message, known.decided.get(identity)
        return FailedRecord(
            dead.topic,
            dead.topic_id,
            dead.partition,
            dead.offset,
            *identity,
            known.status(identity),
            dead.error,
            dead.text,
            message.key(),
            dead.timestamp_ms,
            "" if decision is None else decision.by,
            shown_place(message),
        )

    def _take_over(self, info: TopicInfo) -> None:
        """Discard what replays by an older version have sent, by decisions as all are; then forget their progress."""
        replayed = read_replayed(self.log, self.flow.declared_name, info)
        if not replayed.commits:
            return
        for known in self._logs(info):
            sent, most = replayed.of(known), _most_letters(info)
            for begin in range(0, len(sent), most):
                letters = tuple(sent[begin : begin + most])
                self._append(known, replace(replayed.decision, letters=letters))
        forget_replayed(self.log, self.flow.declared_name)

    def _next(
        self,
        known: FailedLog,
        selection: Selects,
        tried: set[Identity],
        described: dict[str, TopicInfo],
    ) -> Sequence[Letter]:
        """The next records to release together, so that positions rise on each lane as the flow has read them."""
        batch, most, size = list[Letter](), _most_letters(described[known.topic]), 0
        positions, places = dict[int, bytes](), set[tuple[str, int, int]]()
        for identity in sorted(known.letters, key=lambda own: place_of(known.letters[own])):
            lane, position = identity
            letter = known.letters[identity]
            if (
                len(batch) == most
                or identity in tried
                or known.status(identity) != "open"
                or self._reason_stuck(letter, described)
                or not selection(self._record(known, identity))
            ):
                continue
            # After marks were lost, one lane may have been read in another order; then the rest comes with the next release.
            if position > positions.get(lane, b"") and place_of(letter) not in places:
                size += parked_record(letter).size if self.plans is not None else 0
                if batch and size > MAX_BYTES:  # a plan has them
                    break
                batch.append(letter)
                positions[lane] = position
                places.add(place_of(letter))
        return batch

    def _reason_stuck(self, letter: Letter, described: dict[str, TopicInfo]) -> str:
        """Why a record cannot be processed as the flow would have processed it; empty: it can be."""
        dead = letter.dead
        source = self.flow.source_of[dead.topic]
        if source is None:
            return f"the flow does not read {dead.topic!r} any more"
        if self.plans is not None and (reason := self.plans.reason_stuck(letter)):
            return reason
        if source.files is not None:
            return f"it is row {dead.offset} of a file ({dead.topic}), which is read from files only; put what is right into another file"
        info = described.get(dead.topic)
        if info is None or info.topic_id != dead.topic_id:
            return f"{dead.topic!r} was created again since the flow read it"
        return self._reason_of_revisions(letter)

    def _reason_of_revisions(self, letter: Letter) -> str:
        dead = letter.dead
        if self.plans is None and dead.revision > declared_revision(self.flow):
            # The revision has begun since this command looked: this code would publish the record under one that it replaces.
            return f"it belongs to revision {dead.revision}. Release it with the code that declares it"
        if self._revisions is not None:
            newest = label_of_letter(dead, letter.message, self._revisions.all)
            if newest != dead.revision:
                return f"it is superseded by revision {newest}, which has tried the input again. Discard it"
        return ""

    def _begin(
        self,
        known: FailedLog,
        batch: Sequence[Letter],
        tried: set[Identity],
        described: dict[str, TopicInfo],
        result: ReleaseResult,
    ) -> None:
        """Decide about the records of a batch that do not fail again; without plans nothing is published yet."""
        if self.plans is not None:
            released = self.plans.release(known.partition, batch)
            read_on(self.log, known)
            self._note_again(batch, released.failed, tried, result)
            result.released += len(batch) - len(released.failed)
            result.outputs += released.outputs
            result.dropped.update(released.dropped)
            return
        name, clock_ms = self._new_name(known, "release"), self.now_ms()
        decision = Decision(self.flow.declared_name, "release", (), by=name, clock_ms=clock_ms)
        made = None
        while batch:  # bounded: each round has fewer records
            made = process_letters(self.flow, batch, decision, described, self._revisions)
            if not made.failed:
                break
            self._note_again(batch, made.failed, tried, result)
            batch = [letter for letter in batch if place_of(letter) not in made.failed]
        if batch and made is not None:
            letters = tuple(letter.dead.identity for letter in batch)
            self._made[name] = made
            self._append(known, replace(decision, letters=letters, digest=made.digest))

    def _note_again(
        self,
        batch: Sequence[Letter],
        failed: Mapping[tuple[str, int, int], str],
        tried: set[Identity],
        result: ReleaseResult,
    ) -> None:
        """Note those of a batch that have failed again: they stay open."""
        for letter in batch:
            reason = failed.get(place_of(letter))
            if reason is not None:
                tried.add(letter.dead.identity)
                result.again += 1
                result.note(str(letter.dead), reason)

    def _finish(self, known: FailedLog, result: ReleaseResult) -> None:
        """Publish each release that holds and is not done; `known` must be what the topic has now.

        A release of a flow with plans is done when its plan is finished, and the next run of the flow finishes that.
        """
        if self.plans is not None:
            return
        for decision in list(known.releasing.values()):
            made = self._made.pop(decision.by, None) or self._make_again(known, decision)
            publish(self.log, [made.outputs])
            self._append(known, replace(decision, kind="done"))
            result.released += len(decision.letters)
            result.outputs += len(made.outputs)
        self._made.clear()  # another decision came before these

    def _make_again(self, known: FailedLog, decision: Decision) -> LettersMade:
        at = known.place_of(decision)
        letters = [known.letters[own] for own in decision.letters if own in known.letters]
        if len(letters) < len(decision.letters):
            raise ServiceStopped(
                f"release {at} of flow {self.flow.name!r} was interrupted, and {len(decision.letters) - len(letters)} of its "
                f"{len(decision.letters)} dead-letter records are gone. Expected retention to keep them. Some of them may have been "
                "published; readers that must know count again from the inputs"
            ).at(known.topic, known.partition)
        made = process_letters(self.flow, sorted(letters, key=place_of), decision, {}, self._revisions)
        if made.failed or made.digest != decision.digest:
            self._refuse(known, at, made)
        return made

    def _refuse(self, known: FailedLog, at: str, made: LettersMade) -> NoReturn:
        failed = "".join(
            f"; {topic}[{partition}]@{offset} fails: {text}"
            for (topic, partition, offset), text in list(made.failed.items())[:1]
        )
        raise PlanMismatch(
            f"release {at} of flow {self.flow.name!r} was begun by code that gives something else{failed}. Expected that code: some of it may "
            "have been published. Run the release once with that code; nothing was published now"
        ).at(known.topic, known.partition)

    def _append(self, known: FailedLog, decision: Decision) -> None:
        """Append a decision, and read what the topic has now."""
        publish(self.log, [[decision.output(known.topic, known.partition)]])
        read_on(self.log, known)

    def _new_name(self, known: FailedLog, kind: DecisionKind) -> str:
        """A name for a decision: the same for no other one, in whatever cluster."""
        text = repr((known.topic_id, known.partition, known.end, kind, self.new_name()))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def _count_left(
        self,
        known: FailedLog,
        selection: Selects,
        described: dict[str, TopicInfo],
        result: ReleaseResult,
    ) -> None:
        """Count what is undecided now, and what only a discard can end."""
        for identity, letter in known.letters.items():
            status = known.status(identity)
            result.left += status in UNDECIDED
            reason = _REASONS.get(status, "") or (status == "open" and self._reason_stuck(letter, described))
            if reason and selection(self._record(known, identity)):
                result.stuck += 1
                result.note(str(letter.dead), reason)


_REASONS: Final = {
    "unsure": "marks did not fit into commits, or a copy was written late, so it may have been published before. Discard it, or give "
    "the flow a stage",
    "unreadable": "its envelope cannot be read, so nobody knows whether it is a replay. Discard it",
}


def _most_letters(info: TopicInfo) -> int:
    """Dead-letter records that fit into one decision."""
    return max(1, min(MOST_LETTERS, (info.max_message_bytes - RECORD_OVERHEAD) // _BYTES_OF_LETTER))


def list_letters(
    flow: CompiledFlow, log: Log, known: Sequence[FailedLog] | None = None
) -> Iterator[FailedRecord]:
    """The dead-letter records of any flow, if it has any. Reading disturbs nobody.

    Args:
        flow: the flow.
        log: Kafka.
        known: see `FailedLetters.list`.
    """
    if (known is None or known) and flow.dead_letter_topic in log.describe([flow.dead_letter_topic]):
        yield from FailedLetters(flow, log, lambda: 0, str).list(
            known
        )  # listing needs neither time nor names
