"""What the stores must hold after each plan of the flow that is explored: words by their first letter, and all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope.message import read
from sqe_chain.envelope.partitioner import cell_of
from tests.lab.reference.expected import Record
from tests.lab.reference.lanes import LanePosition, is_new, lane_position_of
from tests.lab.reference.plans import StoredPlan, TopicPartition

INPUT = "words"
LETTERS, ALL = "letters", "all"


def words_of(value: bytes | None) -> tuple[LanePosition, tuple[str, ...]]:
    """Lane and position of an envelope, by its links alone, and its words."""
    envelope = read(value, strict=True)
    words = tuple(StringValue.FromString(payload or b"").value for payload in envelope.payloads)
    return lane_position_of(envelope.chain.links), words


@dataclass(slots=True)
class Expected:
    """What states must be after a plan.

    Attributes:
        states: stage -> key -> words, in order.
        marks: (input partition, lane) -> position of the last word counted.
        words: all of them.
        ends: input partition -> offset after the last record read.
        parked: words that wait.
    """

    states: dict[str, dict[str, str]] = field(default_factory=lambda: {LETTERS: {}, ALL: {}})
    marks: dict[object, tuple[int, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    parked: tuple[str, ...] = ()


class Books:
    """What the states of a flow must be, from its plans and the records of its input.

    Args:
        records: of its input.
        state_partitions: of the flow.
    """

    def __init__(self, records: Iterable[Record], state_partitions: int) -> None:
        self._state_partitions = state_partitions
        self._records = {record.coordinates[1:]: words_of(record.value()) for record in records}
        self.ends: dict[TopicPartition, int] = {}
        for partition, offset in self._records:
            tp = INPUT, partition
            self.ends[tp] = max(self.ends.get(tp, 0), offset + 1)

    def after(self, plan: StoredPlan, before: Expected | None) -> Expected:
        """What states must be after a plan, from what they were after the one before."""
        known = before or Expected()
        expected = Expected(
            {stage: dict(states) for stage, states in known.states.items()}, dict(known.marks), known.words
        )
        expected.parked = tuple(word for place in sorted(plan.parked) for word in self._records[place[1:]][1])
        for planned in plan.ranges:
            expected.ends[planned.tp] = planned.stop
            for offset in range(planned.start, planned.stop):
                way, words = self._records[planned.partition, offset]
                if not is_new(expected.marks, (planned.tp, way.lane), way.position):
                    continue
                if (*planned.tp, offset) not in plan.parked:
                    _count(expected, words)
        for place in sorted(plan.released - plan.parked):
            _count(expected, self._records[place[1:]][1])
        return expected

    def waiting(self, broken: str) -> Counter[str]:
        """The words that wait at rest: the one that fails, and those after it with its initial."""
        alike = sorted(place for place, (_, words) in self._records.items() if words[0][0] == broken[0])
        words = [self._records[place][1][0] for place in alike]
        return Counter(set(words[words.index(broken) :]))

    def whole(self) -> dict[str, int]:
        """Word -> how often it must be counted at rest: once."""
        return {word: 1 for _, words in self._records.values() for word in words}

    def cell(self, expected: Expected, stage: str, cell: int) -> dict[bytes, bytes]:
        """The states of one cell, as they are stored."""
        return {
            key.encode(): StringValue(value=words).SerializeToString()
            for key, words in expected.states[stage].items()
            if cell_of(key.encode(), self._state_partitions, 1) == cell
        }


def _count(expected: Expected, words: tuple[str, ...]) -> None:
    for word in words:
        _add(expected.states[LETTERS], word[0], word)
        _add(expected.states[ALL], ALL, word)
    expected.words += words


def _add(states: dict[str, str], key: str, word: str) -> None:
    states[key] = states.get(key, "") + f"{word} "
