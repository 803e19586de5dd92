"""What the batch's clock causes: inputs have no part in it, so it has roots of its own. Pure.

The origin of all that timers give in one stage, state partition and batch is a message that nobody has written. Its topic is
named after the stage, its partition is the state partition, its offset the batch's clock. So chains, lanes and positions are
as for every root. The position rises from batch to batch, is the same in a redo, and goes on rising after a rebuild. The flow's
name is no part of it, because a rebuild has another one; the name of the output that follows has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from sqe_chain.chain import event_id, read_lane, root_position
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.flow.context import Carried, Origin, TopicIdPartition
from sqe_chain.flow.nodes import StageNode
from sqe_chain.task.frontier import Taking

TIMERS: Final = "timers"
"""Under this name stages report when their timers are due; see `Report.sections`."""
_PREFIX: Final = "-timers."
"""Topics are hardly named so; in the order of names it comes before them, so that it never waits for another input."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Timers of the batch's clock fire.

    Attributes:
        tick_ms: up to this time.
        due: stage and state partition -> when the clock reaches the next of its timers.
    """

    tick_ms: int
    due: Mapping[tuple[str, int], int]

    def is_due(self, stage: str, part: int) -> bool:
        """Whether the clock has reached a timer of an earlier batch."""
        due_ms = self.due.get((stage, part))
        return due_ms is not None and due_ms <= self.tick_ms


def tick_origin(stage: StageNode, part: int, tick_ms: int, taking: Taking | None) -> Origin:
    """The origin of what a stage gives when the batch's clock reaches its timers.

    Its event time is as far as event time has come: earlier, it would be late for readers; later, it would wait.

    Args:
        stage: the stage.
        part: state partition.
        tick_ms: the batch's clock.
        taking: which inputs the batch takes, and what its outputs promise; None: not known.
    """
    topic = f"{_PREFIX}{stage.name}"
    tp = TopicIdPartition(topic, blake2b(topic.encode(), digest_size=16).digest(), part)
    known = (
        ()
        if taking is None
        else (*taking.watermarks.values(), taking.frontier.at_ms if taking.frontier else 0)
    )
    at_ms = min(MAX_TIMESTAMP_MS, max((0, *known)))
    lane = read_lane(0, topic, tp.topic_id, part)
    position = root_position(0, tick_ms)
    carried = Carried(timestamp_ms=at_ms, event_id=event_id(lane, position))
    return Origin(tp, tick_ms, 0, lane, position, None, None, carried, at_ms)


def is_tick(topic: str) -> bool:
    """Whether the batch's clock has caused what has this topic, and no input is to blame."""
    return topic.startswith(_PREFIX)
