"""The batch that a flow without stages has begun: noted in its group's commits before anything of it is published, and redone after a crash.

Receivers may have seen any part of it. So the next run reads the same records, by the same clock, and reads back what
the run before it published. What receivers have is compared with what the code of now makes of the same records: if that
differs, nothing is published. An input whose dead-letter record is there stays skipped.
"""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sqe_chain.chain import Link
from sqe_chain.envelope.message import read
from sqe_chain.envelope.revisions import FIRST, family_of, is_of, label
from sqe_chain.errors import EnvelopeError, PlanMismatch, PoisonError
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.ports import Headers, Message, Output, Range, TopicInfo, TopicPartition
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.task.event_times import Taking
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.reading import Made, run_without_stages
from sqe_chain.task.results import Job, Portion, Report, Sections
from sqe_chain.task.revisions import OutputRevisions, label_of_letter
from sqe_chain.task.states import Transition

Infos = Mapping[str, TopicInfo]
Content = tuple[str, int, int, bytes, bytes, bytes | None, str, tuple[bytes | None, ...]]
Place = tuple[str, int, int]
"""Topic, partition and offset of an input."""


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """A batch of one input partition that was begun; it starts at the commit's offset.

    Attributes:
        until: one past its last offset.
        clock_ms: its clock, for functions that ask for it.
        promised: output -> the watermark that its envelopes bear.
        ends: where some output partitions, and the one of its dead-letter records, ended before it or earlier. The notes of all input
            partitions in the batch have all of them; None: that did not fit.
    """

    until: int
    clock_ms: int
    promised: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """For json.dumps; a commit has little room."""
        known: dict[str, Any] = {"until": self.until, "clock": self.clock_ms}
        if self.promised:
            known["promised"] = dict(self.promised)
        if self.ends is not None:
            rows = [[topic, partition, end] for (topic, partition), end in sorted(self.ends.items())]
            known["ends"] = b85encode(
                zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)
            ).decode()
        return known

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        ends = None
        if "ends" in raw:
            rows = json.loads(zlib.decompress(b85decode(raw["ends"])))
            ends = {(topic, partition): end for topic, partition, end in rows}
        return cls(int(raw["until"]), int(raw["clock"]), raw.get("promised", {}), ends)


def output_ends(env: Environment, infos: Infos) -> dict[TopicPartition, int]:
    """Where the flow's output partitions end now, and those of its dead-letter records."""
    tps = inputs.partitions_of(infos[topic] for topic in env.flow.written_topics)
    return {tp: bound.stable_end for tp, bound in env.log.bounds(tps).items()}


def shares(ends: Mapping[TopicPartition, int], number: int) -> list[dict[TopicPartition, int]]:
    """Where output partitions end, dealt out to the notes of a batch: in each of them all would be the square of the partitions."""
    dealt: list[dict[TopicPartition, int]] = [{} for _ in range(number)]
    for at, (tp, end) in enumerate(sorted(ends.items())):
        dealt[at % number][tp] = end
    return dealt


def noted_ends(begun: Iterable[BegunBatch]) -> dict[TopicPartition, int]:
    """Where output partitions ended by the notes of batches that were begun: the earliest place of each."""
    ends = dict[TopicPartition, int]()
    for known in begun:
        for tp, end in (known.ends or {}).items():
            ends[tp] = min(end, ends.get(tp, end))
    return ends


@dataclass(slots=True)
class BegunBatches:
    """Redoes batches that another run has begun: see the module.

    Args:
        env: the flow and its ports.
        given: what tasks get, beside what was promised.
        infos: its topics.
        portions: what the batches read, with their marks.
        begun: of each input partition.
    """

    env: Environment
    given: Sections
    infos: Infos
    portions: list[Portion]
    begun: Mapping[TopicPartition, BegunBatch]
    _reads: dict[tuple[bytes, int], Range] = field(init=False)

    def __post_init__(self) -> None:
        """Look up what is read by topic id and partition, as links and dead-letter records name it."""
        self._reads = {(own.read.topic_id, own.read.partition): own.read for own in self.portions}

    def run(self) -> Report:
        """Compute the batches again, compare, and publish them.

        Raises:
            PlanMismatch: receivers have something else.
            PoisonError: an input fails now whose outputs receivers have, or the policy is `stop`.
        """
        kept = list(self._kept_letters())
        made = self._compute(kept)
        published = list(self._published())
        self._check_failing(made.report, {place for place, _, _ in published})
        self._check_same(published, made.outputs)
        # Unconditionally again: receivers ignore what they have.
        writer = self.env.ports.log.writer()
        try:
            for records in (made.letters, made.outputs):
                writer.write(records)
                writer.flush()
        finally:
            writer.close()
        return made.report

    def _compute(self, kept: list[Exclusion]) -> Made:
        """All that the batches give, by the code of now. In this process: it is rare, and nothing may be published yet."""
        together = dict[tuple[int, tuple[tuple[str, int], ...]], list[Portion]]()
        for portion in self.portions:
            tp = portion.read.topic, portion.read.partition
            own = tuple(known for known in kept if (known.topic, known.partition) == tp)
            batch = self.begun[tp].clock_ms, tuple(self.begun[tp].promised.items())
            together.setdefault(batch, []).append(replace(portion, exclusions=own))
        made = Made()
        for (clock_ms, promised), portions in together.items():
            job = Job(
                Transition.without_plans(self.env.flow.name),
                clock_ms,
                compacted=inputs.compacted_topics(self.infos),
                sections=Sections.of(Taking(dict(promised)), *self.given.values()),
            )
            made.add(run_without_stages(self.env.flow, job, portions, self.env.ports.log.read))
        there = {(known.topic, known.partition, known.offset) for known in kept}
        made.letters = [letter for letter in made.letters if _place_of_letter(letter) not in there]
        return made

    def _kept_letters(self) -> Iterator[Exclusion]:
        """Inputs of these batches whose dead-letter records are in their topic."""
        flow, topic = self.env.flow, self.env.flow.dead_letter_topic
        noted = [known.ends for known in self.begun.values()]
        if not flow.dead_letters and all(
            ends is not None and topic not in {name for name, _ in ends} for ends in noted
        ):
            return  # the policy may be another one now
        self.infos = {**self.infos, **self.env.log.describe([topic])}
        for message in self._since_begun([topic] if topic in self.infos else []):
            letter = parse_dead_letter(message)
            if letter is None or letter.flow != flow.name:
                continue
            read = self._read_with(*letter.coordinates)
            revised = self.given.find(OutputRevisions)
            newest = FIRST if revised is None else label_of_letter(letter, message, revised.all)
            if read is not None and letter.revision == newest:
                yield Exclusion(
                    read.topic, read.partition, letter.offset, "dead_letter", letter.error, letter.text
                )

    def _published(self) -> Iterator[tuple[Place, TopicPartition, Message]]:
        """What receivers have of these batches: the input that it is of, and the record."""
        flow = self.env.flow
        names = {f"{flow.name}/{node.name}" for node in flow.outputs}
        for message in self._since_begun(sorted({node.topic for node in flow.outputs})):
            link = last_link(message)
            if link is None or not is_of(link.output, names) or not self._counts(message, link):
                continue
            read = self._read_with(link.topic_id, link.partition, link.offset)
            if read is not None:
                place = read.topic, read.partition, link.offset
                yield place, (message.topic(), message.partition()), message

    def _counts(self, message: Message, link: Link) -> bool:
        """Whether receivers count a record: a paused run of older code publishes under revisions that are superseded."""
        revised = self.given.find(OutputRevisions)
        chain = read(message.value(), headers=message.headers()).chain
        root, position = chain.links[0], chain.position()
        counts = FIRST if revised is None else label(root.topic_id, root.partition, position, revised.all)
        return family_of(link.output)[1] == counts

    def _read_with(self, topic_id: bytes, partition: int, offset: int) -> Range | None:
        """What an input is read with; None: it is not in these batches."""
        read = self._reads.get((topic_id, partition))
        return read if read is not None and read.start <= offset < read.stop else None

    def _since_begun(self, topics: Iterable[str]) -> Iterator[Message]:
        """Records of topics since the batches began."""
        log, ends = self.env.ports.log, noted_ends(self.begun.values())
        tps = inputs.partitions_of(self.infos[topic] for topic in topics)
        for tp, bound in self.env.log.bounds(tps).items():
            begin = min(max(bound.begin, ends.get(tp, bound.stable_end)), bound.stable_end)
            if tp[0] == self.env.flow.dead_letter_topic and tp not in ends:
                begin = bound.begin  # where it ended was too long for the commit; there are few
            part = Range(tp[0], self.infos[tp[0]].topic_id, tp[1], begin, bound.stable_end)
            for block in log.read(part):
                yield from block

    def _check_failing(self, report: Report, published: set[Place]) -> None:
        for failing in report.excluded:
            if (failing.topic, failing.partition, failing.offset) in published:
                raise PoisonError(
                    f"flow {self.env.flow.name!r}: {failing}. It cannot be processed, and its outputs were published before this "
                    "run began, so it cannot be skipped. Expected code that processes it. Fix the code"
                ).at(failing.topic, failing.partition, failing.offset)

    def _check_same(
        self, published: list[tuple[Place, TopicPartition, Message]], outputs: list[Output]
    ) -> None:
        """Check that receivers have nothing else than what is to be published."""
        if not published:
            return
        made = {(topic, partition, key, value) for topic, partition, key, value, _, _ in outputs}
        contents: set[Content] | None = None
        for (topic, partition, offset), (output, at), message in published:
            if (output, at, message.key(), message.value()) in made:
                continue
            if contents is None:  # another cut of batches shows in bytes; what readers count is the same
                contents = {
                    content_of(topic, partition, value, headers)
                    for topic, partition, _, value, headers, _ in outputs
                }
            if content_of(output, at, message.value(), message.headers()) in contents:
                continue
            text = (
                f"flow {self.env.flow.name!r}: {output}[{at}]@{message.offset()} was made of {topic}[{partition}]@{offset} by the run "
                "before, which ended in the middle of its batch. The code of now makes something else of the same input. Expected "
                "the code that began the batch, or functions that give the same each time. Run that code with --once, then "
                "this one; or go on with --accept-changed-batch: receivers keep what they have"
            )
            if not self.env.settings.once.accept_changed_batch:
                raise PlanMismatch(text).at(topic, partition, offset)
            self.env.emit(Notice(text))
            return


def content_of(topic: str, partition: int, value: bytes | None, headers: Headers | None) -> Content:
    """What readers of an output count: where it is, what it is of, and what it holds."""
    it = read(value, headers=headers)
    return topic, partition, it.lane, it.position, it.chain_bytes, it.key, it.type, it.payloads


def last_link(message: Message) -> Link | None:
    """The link that the writer of a record added; None: it is no envelope, or was wrapped at its origin."""
    with suppress(EnvelopeError):
        return next(reversed(read(message.value(), headers=message.headers()).chain.links), None)
    return None


def _place_of_letter(letter: Output) -> Place:
    own = dict(letter[4] or ())  # of names that repeat the last one counts: it is the flow's own
    topic, partition, offset = own["sqe-topic"], own["sqe-partition"], own["sqe-offset"]
    return (topic or b"").decode(), int(partition or b""), int(offset or b"")
