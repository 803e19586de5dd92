"""A reader of committed records that knows nothing of positions: it must get each output of a transactional service once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqe_chain.adapters.memory import MemoryLog, MemoryMessage
from sqe_chain.envelope.message import Envelope, read
from sqe_chain.testing.invariants import Violation
from tests.lab.reference.lanes import is_new, lane_position_of


class PlainReader:
    """Reads topics as far as they are stable, again and again.

    Args:
        log: the broker, without injected faults.
        topics: what the service writes.
        writer: how the names of its outputs begin, since others may write there, too.
    """

    def __init__(self, log: MemoryLog, topics: Iterable[str], writer: str) -> None:
        self._log, self._topics, self._writer = log, sorted(topics), writer
        self._next = dict[tuple[str, int], int]()
        self._marks = dict[object, tuple[int, ...]]()

    def read(self) -> list[tuple[str, Envelope]]:
        """What is new, with its topic.

        Raises:
            Violation: an output comes again, or before an earlier one of its lane.
        """
        new = ((message.topic(), self._take(message)) for message in self._new())
        return [(topic, envelope) for topic, envelope in new if envelope is not None]

    def _new(self) -> Iterator[MemoryMessage]:
        for topic, info in self._log.describe(self._topics).items():
            for tp, bound in self._log.bounds([(topic, at) for at in range(info.partitions)]).items():
                start, self._next[tp] = self._next.get(tp, 0), bound.stable_end
                if start < bound.stable_end:
                    kept = self._log.kept(*tp)
                    yield from (kept[at] for at in range(start, bound.stable_end) if at in kept)

    def _take(self, message: MemoryMessage) -> Envelope | None:
        headers = message.headers()
        if headers and headers[-1][0] in {"sqe-decision", "sqe-text"}:  # dead-letter records
            return None
        envelope = read(message.value(), headers=headers)
        links = envelope.chain.links
        if not links[-1].output.startswith(self._writer):
            return None
        way, where = lane_position_of(links), (message.topic(), message.partition())
        if not is_new(self._marks, (where, way.lane), way.position):
            raise Violation(
                "once", f"{where} at {message.offset()}: {envelope.chain} came before, or is late"
            )
        return envelope
