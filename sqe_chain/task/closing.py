"""Closing all windows at the end of a finite input: under which origin their results go out. Pure.

Nothing is read for it, so results need an origin of their own. It looks like a record of a topic that does not exist. The topic
has a partition for each state partition, and the number of the closing is the offset. So what is published has a lane of its
own for each stage and state partition. There, positions rise from closing to closing, and nothing else is ever written.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from sqe_chain.chain import TOPIC_ID_LENGTH, event_id, read_lane, root_position
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.flow.context import Carried, Origin, TopicIdPartition

TOPIC: Final = "sqe-chain.closing."
"""What the name of the topic begins with, before the stage's."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A batch that reads nothing and closes all windows.

    Attributes:
        number: how many times the flow's windows have been closed, with this time.
        event_ms: the latest event time read before it: that of all results.
    """

    number: int
    event_ms: int


def is_closing(topic: str) -> bool:
    """Whether a link of a chain names no topic, but windows that were closed."""
    return topic.startswith(TOPIC)


def closing_origin(stage: str, part: int, closing: Closing) -> Origin:
    """The origin of the results of one stage and state partition.

    The flow's name is no part of it, because a rebuild has another one; the name of the output that follows has it.

    Args:
        stage: the stage's name.
        part: the state partition.
        closing: the batch.
    """
    topic = TOPIC + stage
    tp = TopicIdPartition(topic, blake2b(topic.encode(), digest_size=TOPIC_ID_LENGTH).digest(), part)
    lane, position = read_lane(0, *tp), root_position(0, closing.number)
    moment = max(-1, min(closing.event_ms, MAX_TIMESTAMP_MS))
    carried = Carried(timestamp_ms=moment, event_id=event_id(lane, position))
    return Origin(tp, closing.number, 0, lane, position, None, None, carried, closing.event_ms)
