"""Roots of what no input causes: of what is due at a moment, and of windows that are closed at the end of the input. Pure.

Its origin is a message that nobody has written, of a topic that does not exist. The topic is named after the stage, and its partition
is the state partition. Its offset is a number that rises: a moment of event time, the batch's clock, or how many times windows were
closed. So chains, lanes and positions are as for every root. The position rises, is the same in a redo, and goes on rising after a
rebuild. The flow's name is no part of it, because a rebuild has another one; the name of the output that follows has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from sqe_chain.chain import TOPIC_ID_LENGTH, event_id, read_lane, root_position
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.flow.context import Carried, Origin, TopicIdPartition
from sqe_chain.task.event_times import Taking

CLOSED: Final = "sqe-chain.closing."
"""What the name of the topic of closed windows begins with, before the stage's."""
TIMERS: Final = "timers"
"""Under this name stages report when their timers are due; see `Report.sections`."""
_TICKED: Final = "-timers."
"""The same of timers. Topics are hardly named so; in the order of names it comes first, so that it never waits for another input."""
DUE: Final = "due"
"""Under this name stages report when they are due next by event time; see `Report.sections`."""
MISSED: Final = "missed"
"""Under this name windows report how many late records were not in all of their windows."""
NEVER_MS: Final = 1 << 62
"""What they report when nothing is due; a moment may be negative."""
_DUE: Final = "-due."
"""What the name of the topic of a moment begins with."""
_FIRST_MS: Final = -(1 << 52)
"""Offsets of moments count from here, because moments before 1970 are negative and offsets are not."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What is due by event time when a batch begins, and up to where it is done; see `features.due`.

    Attributes:
        begun_ms: up to where event time had come in the batch before; None: nowhere.
        until_ms: up to where it comes in this one.
        late_ms: the place of inputs that come too late for their own; see `Gate.late_ms`. None: none can be late.
        due: stage and state partition -> when something is due there next.
    """

    begun_ms: int | None
    until_ms: int | None
    late_ms: int | None
    due: Mapping[tuple[str, int], int]

    def is_due(self, stage: str, part: int) -> bool:
        """Whether the batch has something to do there, whether or not an input comes."""
        due_ms = self.due.get((stage, part))
        return due_ms is not None and self.until_ms is not None and due_ms <= self.until_ms

    @property
    def parts(self) -> tuple[int, ...]:
        """The state partitions in which something is due."""
        return tuple(sorted({part for stage, part in self.due if self.is_due(stage, part)}))


@dataclass(frozen=True, slots=True)
class Closing:
    """A batch that reads nothing and closes all windows.

    Attributes:
        number: how many times the flow's windows have been closed, with this time.
        event_ms: the latest event time read before it: that of all results.
    """

    number: int
    event_ms: int


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


def is_closing(topic: str) -> bool:
    """Whether a link of a chain names no topic, but windows that were closed."""
    return topic.startswith(CLOSED)


def is_tick(topic: str) -> bool:
    """Whether the batch's clock has caused what has this topic."""
    return topic.startswith(_TICKED)


def is_moment(topic: str) -> bool:
    """Whether event time has caused what has this topic, by reaching a moment."""
    return topic.startswith(_DUE)


def names_no_topic(topic: str) -> bool:
    """Whether a link of a chain names no topic, but what has caused something in place of an input."""
    return is_closing(topic) or is_tick(topic) or is_moment(topic)


def moment_in(chain: bytes) -> bool:
    """Whether serialized links may begin with such a topic."""
    return _DUE.encode() in chain


def moment_name(topic: str, part: int, offset: int) -> str:
    """The moment that a root stands for, as texts name it; empty: it is none."""
    if not is_moment(topic):
        return ""
    stage = topic.removeprefix(_DUE)
    return f"the moment {offset + _FIRST_MS} ms of stage {stage!r} in state partition {part}"


def moment_origin(stage: str, part: int, moment_ms: int) -> Origin:
    """The origin of all that a stage gives in one state partition when event time reaches a moment.

    Its time is the last millisecond before: nothing of that time is still to come, and what follows has a later one.

    Args:
        stage: the stage's name.
        part: state partition.
        moment_ms: the moment.
    """
    return _root(_DUE + stage, part, moment_ms - _FIRST_MS, moment_ms - 1)


def closing_origin(stage: str, part: int, closing: Closing) -> Origin:
    """The origin of the results of one stage and state partition, when windows are closed."""
    return _root(CLOSED + stage, part, closing.number, closing.event_ms)


def tick_origin(stage: str, part: int, tick_ms: int, taking: Taking | None) -> Origin:
    """The origin of what a stage gives when the batch's clock reaches its timers.

    Its event time is as far as event time has come: earlier, it would be late for readers; later, it would wait.

    Args:
        stage: the stage's name.
        part: state partition.
        tick_ms: the batch's clock.
        taking: which inputs the batch takes, and what its outputs promise; None: not known.
    """
    known = [0]
    if taking is not None:
        known += [*taking.watermarks.values(), taking.frontier.at_ms if taking.frontier else 0]
    return _root(_TICKED + stage, part, tick_ms, min(MAX_TIMESTAMP_MS, max(known)))


def _root(topic: str, part: int, number: int, event_ms: int) -> Origin:
    """An origin with this time, the same as its place in the order of times."""
    tp = TopicIdPartition(topic, blake2b(topic.encode(), digest_size=TOPIC_ID_LENGTH).digest(), part)
    lane, position = read_lane(0, *tp), root_position(0, number)
    carried = Carried(
        timestamp_ms=max(-1, min(event_ms, MAX_TIMESTAMP_MS)), event_id=event_id(lane, position)
    )
    return Origin(tp, number, 0, lane, position, None, None, carried, event_ms)
