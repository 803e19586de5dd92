"""The lanes of an output's older revisions that an input partition no longer holds.

Marks know lanes as numbers alone. Retention takes what older revisions have published, once a newer one counts for all roots. Whether a
lane that is gone was one of these is computed: from the chains of what is kept, with other partitions and older revisions. What is not
among them was another writer's, of another root topic, or released: no revision is known to have replaced it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqe_chain.chain import Link, read_lane, written_lane
from sqe_chain.envelope.revisions import FIRST, family_of, name_with

MOST: Final = 200_000
"""Lanes that are computed at most; what is beyond counts as unknown."""

_Hop = tuple[str, bytes, str, bool]


def lanes_up_to(
    chains: Iterable[Sequence[Link]],
    newest: Mapping[str, int],
    partitions: Mapping[tuple[str, bytes], int],
) -> set[int]:
    """The lanes, as their writers state them, that revisions of some outputs up to given ones can have.

    Args:
        chains: of messages that are kept.
        newest: family -> the revision up to which its lanes are wanted; others have none.
        partitions: name and id of a topic -> how many it has; of others there are those that chains show.
    """
    shapes: dict[tuple[_Hop, ...], None] = {}
    counts, shards, revisions = dict(partitions), dict[str, int](), dict[str, int]()
    for links in chains:
        hops = list[_Hop]()
        for link in links:
            family, number = family_of(link.output)
            at = link.topic, link.topic_id
            counts[at] = max(counts.get(at, 0), link.partition + 1)
            shards[family] = max(shards.get(family, 0), -1 if link.shard is None else link.shard)
            revisions[family] = max(revisions.get(family, FIRST), number)
            hops.append((*at, family, link.shard is not None))
        if hops and hops[-1][2] in newest:
            shapes[tuple(hops)] = None
    computed, left = set[int](), MOST
    for shape in shapes:
        lanes = {0}
        for index, (topic, topic_id, family, sharded) in enumerate(shape):
            last = newest[family] if index == len(shape) - 1 else revisions[family]
            names = [name_with(family, number) for number in range(FIRST, last + 1)]
            own = [*range(shards[family] + 1)] if sharded else [None]
            left -= len(lanes) * counts[topic, topic_id] * len(names) * len(own)
            if left < 0:
                return computed
            lanes = {
                written_lane(read_lane(lane, topic, topic_id, partition), name, shard)
                for lane in lanes
                for partition in range(counts[topic, topic_id])
                for name in names
                for shard in own
            }
        computed |= lanes
    return computed
