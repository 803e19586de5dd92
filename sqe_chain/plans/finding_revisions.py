"""Looks up which revisions of its inputs, and of what lies before them, a flow can follow. Used where it begins, or folds again.

A topic's revisions are in ``<topic>.revisions``. Which topics lie before the inputs is in the chains of what is read: a few records
of each partition show them. If none of these came through a topic, its revisions stay unknown. That is safe: what is not known is
not followed, as a whole, and reported once it is met. The next rebuild knows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sqe_chain.chain import Link
from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.head import parse_chain
from sqe_chain.envelope.lanes_before import lanes_up_to
from sqe_chain.envelope.revisions import (
    RevisionRecord,
    family_of,
    last_settled,
    records_by_family,
    revisions_topic,
)
from sqe_chain.errors import EnvelopeError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.inputs import input_partitions
from sqe_chain.plans.retrying import RetryingLog
from sqe_chain.ports import Log, Message, Range, TopicInfo, TopicPartition

SAMPLE: Final = 200
"""Records at the beginning and at the end of each input partition whose chains show which topics lie before."""


@dataclass(frozen=True, slots=True)
class FoundRevisions:
    """What was found of the revisions before a flow.

    Attributes:
        records: family -> the records of its revisions.
        writers: input topic -> the families that write into it, as far as that was seen.
        chains: input topic -> the chains of lanes that were seen there.
        partitions: name and id of a topic of these chains -> how many partitions it has.
    """

    records: dict[str, list[RevisionRecord]] = field(default_factory=dict)
    writers: dict[str, set[str]] = field(default_factory=dict)
    chains: dict[str, list[tuple[Link, ...]]] = field(default_factory=dict)
    partitions: Mapping[tuple[str, bytes], int] = field(default_factory=dict)

    def begins_late(self, tp: TopicPartition, begin: int, lanes: Iterable[int] = ()) -> bool:
        """Whether nothing counts of what lay before an offset, where a partition begins now: newer revisions have replaced all of it.

        Args:
            tp: an input partition.
            begin: where retention lets it begin.
            lanes: that the flow has counted there: each has to be one that these revisions have replaced, or follow.
        """
        topic, partition = tp
        newest = dict[str, int]()
        for family in self.writers.get(topic, set()):
            records = self.records.get(family, ())
            if not any(
                record.revision.whole and record.ends[partition : partition + 1] >= (begin,)
                for record in records
            ):
                return False
            newest[family] = max(record.revision.number for record in records)
        return bool(newest) and not (
            {*lanes} - lanes_up_to(self.chains.get(topic, ()), newest, self.partitions)
        )


def find_revisions(
    flow: CompiledFlow, log: Log | RetryingLog, infos: Mapping[str, TopicInfo], known: Iterable[str] = ()
) -> FoundRevisions:
    """The newest revisions that can come in a flow's inputs.

    Args:
        flow: a flow with stages.
        log: Kafka.
        infos: its topics.
        known: more topics that lie before the inputs, as far as the flow has met revisions there.

    Raises:
        UnknownRevision: a record cannot be understood.
    """
    upstream = FoundRevisions()
    direct = [topic for topic in flow.input_topics if not _is_raw(flow, topic)]
    if not direct:
        return upstream
    topics = [*direct, *known, *_topics_before(flow, log, infos, upstream)]
    before = {link.topic for chains in upstream.chains.values() for links in chains for link in links}
    partitions = {(info.name, info.topic_id): info.partitions for info in log.describe(before).values()}
    upstream = replace(upstream, partitions=partitions)
    for topic, messages in _records_of(log, list(dict.fromkeys(topics))):
        for family, records in records_by_family(messages).items():
            upstream.records.setdefault(family, records)
            upstream.writers.setdefault(topic, set()).add(family)
    return upstream


def topics_of(links: tuple[Link, ...], topic: str) -> list[str]:
    """The topics that the outputs on a message's way are in, from the last flow with stages on.

    Args:
        links: of the message.
        topic: where it was read.
    """
    return [link.topic for link in links[last_settled(links) + 1 :]] + ([topic] if links else [])


def _is_raw(flow: CompiledFlow, topic: str) -> bool:
    source = flow.source_of[topic]
    return source is not None and source.raw


def _topics_before(
    flow: CompiledFlow, log: Log | RetryingLog, infos: Mapping[str, TopicInfo], upstream: FoundRevisions
) -> list[str]:
    """The topics that a sample of the inputs has come through; notes the writers of each input."""
    tps = [tp for tp in input_partitions(flow, infos) if not _is_raw(flow, tp[0])]
    ranges: list[Range] = []
    for (topic, partition), bound in log.bounds(tps).items():
        first = min(bound.begin + SAMPLE, bound.stable_end)
        last = max(first, bound.stable_end - SAMPLE)
        for start, stop in ((bound.begin, first), (last, bound.stable_end)):
            if start < stop:
                ranges.append(Range(topic, infos[topic].topic_id, partition, start, stop))
    topics: dict[str, None] = {}
    lanes = set[int]()
    for own, messages in zip(ranges, log.read_all(ranges) if ranges else (), strict=True):
        for message in messages:
            with suppress(EnvelopeError):  # the poison policy decides about it, when it is read
                head = find_head(message.value(), message.headers())
                if head.lane and head.lane not in lanes:
                    lanes.add(head.lane)
                    links = parse_chain(head.chain).links
                    upstream.chains.setdefault(own.topic, []).append(links)
                    topics |= dict.fromkeys(topics_of(links, own.topic))
                    upstream.writers.setdefault(own.topic, set()).add(family_of(links[-1].output)[0])
    return list(topics)


def _records_of(log: Log | RetryingLog, topics: list[str]) -> Iterable[tuple[str, Sequence[Message]]]:
    """The records about revisions of outputs in these topics."""
    of = {revisions_topic(topic): topic for topic in topics}
    infos = log.describe(of)
    bounds = log.bounds([(topic, 0) for topic in infos])
    ranges = [
        Range(topic, infos[topic].topic_id, 0, bound.begin, bound.stable_end)
        for (topic, _), bound in bounds.items()
        if bound.begin < bound.stable_end
    ]
    read = log.read_all(ranges) if ranges else ()
    return [(of[own.topic], messages) for own, messages in zip(ranges, read, strict=True)]
