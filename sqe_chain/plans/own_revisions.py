"""The revisions of a flow's own outputs: what it declares, and what their topics have.

Each output has its records in ``<topic>.revisions``, and all outputs of a flow have the same revisions and seams. Of two
operators who begin a revision at once, the record that comes first in the topic of the first output holds. Only then is it
copied to the other topics, so no two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Self

from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.head import parse_chain
from sqe_chain.envelope.revisions import (
    FIRST,
    RevisionRecord,
    family_of,
    records_by_family,
    revision_to_json,
    revisions_topic,
)
from sqe_chain.errors import ConfigurationError, EnvelopeError, UnknownRevision
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import OutputNode
from sqe_chain.ports import Log, Output, Range
from sqe_chain.task.revisions import OutputRevisions


def declared_revision(flow: CompiledFlow) -> int:
    """The revision that a flow's outputs are declared with: all have the same one."""
    return max((node.revision for node in flow.outputs), default=FIRST)


def family(flow: CompiledFlow, node: OutputNode) -> str:
    """The name of an output in links, without a revision."""
    return f"{flow.declared_name}/{node.name}"


@dataclass(frozen=True, slots=True)
class OwnRevisions:
    """The revisions that a flow's outputs have begun.

    Attributes:
        flow: the flow.
        records: number -> its record in each output's topic that has one, by the name of the output.
    """

    flow: CompiledFlow
    records: Mapping[int, Mapping[str, RevisionRecord]] = field(default_factory=dict)

    @classmethod
    def read(cls, flow: CompiledFlow, log: Log) -> Self:
        """What the topics of revisions have now; a topic that does not exist has none.

        Raises:
            UnknownRevision: a record cannot be understood.
            Unavailable: the broker does not answer.
        """
        topics = {revisions_topic(node.topic) for node in flow.outputs}
        infos = log.describe(topics)
        read = {
            name: records_by_family(
                message
                for block in log.read(Range(name, info.topic_id, 0, bound.begin, bound.stable_end))
                for message in block
            )
            for name, info in infos.items()
            for bound in log.bounds([(name, 0)]).values()
        }
        records: dict[int, dict[str, RevisionRecord]] = {}
        for node in flow.outputs:
            for record in read.get(revisions_topic(node.topic), {}).get(family(flow, node), ()):
                records.setdefault(record.revision.number, {})[node.name] = record
        return cls(flow, records)

    def up_to(self, number: int) -> Self:
        """Without later ones."""
        return replace(self, records={own: known for own, known in self.records.items() if own <= number})

    def is_overtaken(self) -> bool:
        """Whether a later revision has begun than the one that is declared."""
        return max(self.records, default=FIRST) > declared_revision(self.flow)

    def record(self, number: int) -> RevisionRecord | None:
        """The record that holds for all outputs; None: the revision has not begun."""
        own = self.records.get(number, {})
        first = next((node.name for node in self._in_order() if node.name in own), None)
        return None if first is None else own[first]

    def short(self, number: int) -> list[OutputNode]:
        """The outputs that lack their record of a revision."""
        return [node for node in self._in_order() if node.name not in self.records.get(number, {})]

    def missing(self, ends: Mapping[str, tuple[int, ...]], numbers: Iterable[int]) -> list[Output]:
        """The records of these revisions that some outputs lack: one was added, or the command was killed between two topics.

        Args:
            ends: topic -> where its partitions end.
            numbers: revisions; one that has not begun is in no topic.
        """
        return [
            self.output(node, replace(record, family=family(self.flow, node), ends=ends[node.topic]))
            for number in sorted(numbers)
            if (record := self.record(number)) is not None
            for node in self.short(number)
        ]

    def check_added(self, log: Log, number: int, command: str) -> None:
        """Check that outputs which were added after a revision had begun have published nothing before.

        Their record would replace that, and nobody would publish it again.

        Args:
            log: Kafka.
            number: of the revision.
            command: that begins the next one.

        Raises:
            ConfigurationError: one has, or retention has taken records of its topic, so nobody knows.
        """
        for node in self.short(number):
            name = family(self.flow, node)
            info = log.describe([node.topic])[node.topic]
            tps = [(info.name, partition) for partition in range(info.partitions)]
            for (topic, partition), bound in log.bounds(tps).items():
                read = Range(topic, info.topic_id, partition, bound.begin, bound.stable_end)
                if bound.begin > 0 or _has_published(log, read, name):
                    raise ConfigurationError(
                        f"{name} is declared with revision {number}, which has begun without it: what it had published before, in "
                        f"{topic}[{partition}], would count no more. Expected an output that is new, in an empty topic. Declare "
                        f"revision={number + 1} for all outputs of flow {self.flow.name!r}, and run {command}"
                    )

    def begin(self, record: RevisionRecord, ends: Mapping[str, tuple[int, ...]]) -> Output:
        """The record to append for a new revision; it is in the topic of the first output."""
        node = self._in_order()[0]
        return self.output(node, replace(record, family=family(self.flow, node), ends=ends[node.topic]))

    @staticmethod
    def output(node: OutputNode, record: RevisionRecord) -> Output:
        """What to publish."""
        return revisions_topic(node.topic), 0, record.key, record.to_bytes(), None, 0

    def check_declared(self) -> RevisionRecord | None:
        """The record of the declared revision; None: it is the first one.

        Raises:
            UnknownRevision: it has not begun.
            ConfigurationError: a later one has begun.
        """
        number, newest = declared_revision(self.flow), max(self.records, default=FIRST)
        names = ", ".join(family(self.flow, node) for node in self._in_order())
        if newest > number:
            raise ConfigurationError(
                f"flow {self.flow.name!r}: {names} is declared with revision {number}, but revision {newest} has begun. Expected "
                f"revision={newest}: the code of before would publish under the new one. Run the code that declares it"
            )
        record = self.record(number)
        if record is None and number != FIRST:
            raise UnknownRevision(
                f"flow {self.flow.name!r}: {names} is declared with revision {number}, which has no beginning. Run sqe-chain correct first"
            )
        return record

    def for_tasks(self) -> OutputRevisions | None:
        """What tasks get; None: there is the first revision alone."""
        revisions = tuple(
            record.revision for number in self.records if (record := self.record(number)) is not None
        )
        return OutputRevisions({node.name: revisions for node in self.flow.outputs}) if revisions else None

    def _in_order(self) -> list[OutputNode]:
        return sorted(self.flow.outputs, key=lambda node: (node.topic, node.name))


def _has_published(log: Log, read: Range, name: str) -> bool:
    for block in log.read(read) if read.start < read.stop else ():
        for message in block:
            with suppress(EnvelopeError):
                head = find_head(message.value(), message.headers())
                links = parse_chain(head.chain).links if head.chain else ()
                if links and family_of(links[-1].output)[0] == name:
                    return True
    return False


def digest_of(record: RevisionRecord) -> str:
    """A digest of what a revision is, the same for all outputs of a flow, which commits keep."""
    text = repr(sorted(revision_to_json(record.revision, record.topics).items()))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def topics_of(outputs: Iterable[OutputNode]) -> list[str]:
    """The topics of revisions that these outputs need."""
    return sorted({revisions_topic(node.topic) for node in outputs})
