"""Inputs that a flow has skipped and not kept: plans and commits remember where the newest were read."""

from __future__ import annotations

from collections.abc import Iterator

from sqe_chain.features.decided import Place
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import FailedRecord
from sqe_chain.plans.inputs import parse_metadata, partitions_of
from sqe_chain.plans.stored_plans import kept_plans
from sqe_chain.ports import Log, StateStore
from sqe_chain.task.parking import Discarded


def skipped_in_plans(home: StateStore, name: str) -> Iterator[FailedRecord]:
    """What the kept plans of a flow skip, the newest first, also what there is a dead-letter record of.

    Args:
        home: the store with its plans.
        name: name of the flow, or of one of its readers.
    """
    for plan in kept_plans(home, name):
        ids = {(planned.topic, planned.partition): planned.topic_id for planned in plan.ranges}
        for skipped in plan.exclusions:
            if skipped.policy != "park" and skipped.error != Discarded.__name__:
                topic_id = ids.get((skipped.topic, skipped.partition), "")
                place = skipped.topic, topic_id, skipped.partition, skipped.offset
                yield discarded_at(place, f"poison={skipped.policy!r}", skipped.error, skipped.text)


def skipped_in_commits(flow: CompiledFlow, log: Log) -> Iterator[FailedRecord]:
    """What a flow without plans has skipped with `poison="skip"`, as far as its commits remember it."""
    infos = log.describe(flow.input_topics)
    tps = partitions_of(infos.values())
    for (topic, partition), commit in sorted(log.committed(flow.declared_name, tps).items()):
        meta = parse_metadata(commit)
        offsets = meta.get("skipped")
        if meta.get("topic_id") == infos[topic].topic_id.hex() and isinstance(offsets, list):
            for offset in offsets:
                place = topic, infos[topic].topic_id.hex(), partition, int(offset)
                yield discarded_at(place, "poison='skip'")


def discarded_at(place: Place, why: str, error: str = "", text: str = "") -> FailedRecord:
    """An input that never counts, and that nobody has kept.

    Args:
        place: where it was read.
        why: what has decided about it.
        error: class of the error; empty: it is not known.
        text: the error's text.
    """
    topic, topic_id, partition, offset = place
    at = (topic, bytes.fromhex(topic_id), partition, offset)
    return FailedRecord(*at, 0, b"", "discarded", error, text, None, -1, why)
