"""Looks in a mirror for what a flow has published: by plans, each output partition has to have the ends of these lanes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from sqe_chain.envelope.carrier import find_head
from sqe_chain.errors import EnvelopeError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.planning import published_by
from sqe_chain.plans.published import PublishedLanes
from sqe_chain.ports import Bounds, Log, Range, TopicPartition

_WINDOW: Final = 5_000
"""Records that are read first, from the end; each time the next ones before them, and ten times as many."""


class MissingRecords(NamedTuple):
    """What the mirror has not received of a lane.

    Attributes:
        tp: topic as the flow declares it, and partition.
        lane: the lane, 16 hexadecimal digits; TOPIC[PARTITION] if nobody knows what was published there.
        text: what is missing.
    """

    tp: TopicPartition
    lane: str
    text: str


def missing_outputs(flow: CompiledFlow, last: Plan, log: Log) -> list[MissingRecords]:
    """What the mirror lacks of that which a flow has published.

    Args:
        flow: the flow, as it is declared now. Topics to which it no longer publishes are not looked at.
        last: the last plan whose outputs are all published.
        log: the other cluster, by the names that the flow has for topics.
    """
    published = published_by(last)
    missing, written = list[MissingRecords](), {output.topic: 0 for output in flow.outputs}
    for output in flow.outputs:
        written[output.topic] = max(written[output.topic], output.partitions)
    tps = [(topic, number) for topic, partitions in written.items() for number in range(partitions)]
    known = [tp for tp in tps if tp in published.ends]
    ids = log.topic_ids({topic for topic, _ in known}) if known else {}
    bounds = log.bounds(known)
    for tp in tps:
        if tp in bounds:
            missing += _missing_at(tp, published.ends[tp], log, ids[tp[0]], bounds[tp])
        elif published.since:
            text = "plans have not noted what was published last, so what the mirror lacks is not known"
            missing.append(MissingRecords(tp, f"{tp[0]}[{tp[1]}]", text))
    return missing


def published_there(last: Plan, by: Plan, missing: Collection[MissingRecords]) -> PublishedLanes | None:
    """Where the lanes of outputs end in the other cluster, once all is published there that is not lost. None: nobody has noted it.

    Args:
        last: the last plan.
        by: the last one whose outputs were published in the cluster before. What the plan after it publishes is published there.
        missing: what is lost.
    """
    lost = {records.lane for records in missing}
    if last.published is None or by is last:
        return last.published and last.published.without(lost)
    before = published_by(by)
    if last.published.since == last.number:  # it holds nothing of before
        return last.published
    fresh = {tp: ends for tp, ends in last.published.ends.items() if ends != before.ends.get(tp)}
    kept = before.without(lost)
    return replace(kept, ends={**kept.ends, **fresh})


def _missing_at(
    tp: TopicPartition, ends: Mapping[int, bytes], log: Log, topic_id: bytes, bounds: Bounds
) -> list[MissingRecords]:
    wanted, stop, window = dict(ends), bounds.stable_end, _WINDOW
    while wanted and stop > bounds.begin:
        # From the end: the last records are found by a look at few, however long the topic is.
        begin = max(bounds.begin, stop - window)
        for block in log.read(Range(tp[0], topic_id, tp[1], begin, stop)):
            for message in block:
                with suppress(EnvelopeError):  # others may write to the topic, too
                    head = find_head(message.value(), message.headers())
                    if head.lane in wanted and head.position >= wanted[head.lane]:
                        del wanted[head.lane]
        stop, window = begin, 10 * window
    return [
        MissingRecords(
            tp,
            f"{lane:016x}",
            f"{tp[0]}[{tp[1]}] ends there before position {position.hex()}, which was published, so readers there lack it and what came before it",
        )
        for lane, position in sorted(wanted.items())
    ]
