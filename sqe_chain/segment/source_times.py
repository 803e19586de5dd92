"""Event time of one input partition, as its records move it."""

from __future__ import annotations

from collections.abc import Sequence

from sqe_chain.envelope.message import EnvelopeHead, parse_chain
from sqe_chain.flow.context import Origin
from sqe_chain.segment.closing import is_closing
from sqe_chain.segment.event_times import ORIGIN, EventTimes
from sqe_chain.segment.records import Records
from sqe_chain.segment.routes import Hop
from sqe_chain.segment.ticks import is_tick


class SourceTimes:
    """Moves event time.

    Attributes:
        times: event time; None: nobody asks for it.
        writers: lane as envelopes state it -> name of the writer on it; those seen so far.

    Args:
        times: see above.
        by_time: a stage goes by event time, so each record has a place in the order of times.
        own_times: the source's function gives the times.
        static: its messages have no times, so what envelopes state of times says nothing of them.
    """

    def __init__(
        self, times: EventTimes | None, *, by_time: bool, own_times: bool, static: bool = False
    ) -> None:
        self.times, self._by_time, self._own_times = times, by_time, own_times
        self._static = static
        self.writers = {0: ORIGIN}

    def move(self, records: Records) -> None:
        """Move event time by the records that were taken and have not failed; for a redo does not look into the others."""
        times, by_time = self.times, self._by_time
        if times is None:
            return
        orders_ms: dict[int, int] = {}
        for begin, end, as_run in records.segments:
            numbers: Sequence[int] = range(begin, end)
            if records.failures:
                numbers = [number for number in numbers if number not in records.failures]
            if (
                as_run
                and not self._own_times
                and len(numbers) == end - begin
                and self._move_run(times, records, begin, end, orders_ms)
            ):
                continue
            for number in numbers:
                times.begin()
                if by_time or number not in records.trial:
                    orders_ms[number] = self._observe(times, records.origin(number))
                if number in records.trial:
                    times.undo()
        if by_time:
            records.place(orders_ms)

    def _move_run(
        self, times: EventTimes, records: Records, begin: int, end: int, orders_ms: dict[int, int]
    ) -> bool:
        """Move event time by a run at once; False when one of its records needs a closer look, and nothing has moved."""
        from sqe_chain.segment.run_times import observe_run, place_run  # noqa: PLC0415 - needs numpy

        block = records.block
        if block is None:
            return False
        if not self._by_time:
            observe_run(times, self.writer, self.writers, block, begin, end)
            return True
        placed = place_run(times, self.writers, block, begin, end)
        if placed is None:
            return False
        for head in placed.met:
            self.writer(head)
        placed.move(times)
        orders_ms.update(zip(range(begin, end), placed.orders_ms, strict=True))
        return True

    def _observe(self, times: EventTimes, origin: Origin) -> int:
        """Move event time by a record. Returns its place in the order of times; see `EventTimes.observe`."""
        head, at_ms = None if self._static else origin.head, origin.timestamp_ms
        name, stated_ms = (ORIGIN, None) if head is None else (self.writer(head), head.watermark_ms or None)
        if not self._by_time:
            times.observe_all(name, (at_ms,), stated_ms)
            return -1
        return times.observe(name, 0 if head is None else head.lane, at_ms, stated_ms)

    def times_of(self, records: Records, numbers: Sequence[int]) -> list[int]:
        """Event times of records."""
        closely = records.closely | records.given_ms.keys()
        if records.block is None:
            return [records.origin(number).timestamp_ms for number in numbers]
        times_ms: list[int] = records.block.times_ms.tolist()
        return [
            records.origin(number).timestamp_ms if number in closely else times_ms[number]
            for number in numbers
        ]

    def writer(self, head: EnvelopeHead) -> str:
        """The name of the writer on an envelope's lane, which may be met for the first time."""
        known = self.writers.get(head.lane)
        if known is not None:
            return known
        name, hops = writer_of(head)
        self.writers[head.lane] = name
        # What timers gave, or windows that were closed at the end of the input, has no way from a topic: other lanes know more.
        read = tuple(hop for hop in hops if not is_closing(hop[1]) and not is_tick(hop[1]))
        if self.times is not None and (read == hops or not self.times.knows(name)):
            self.times.introduce(name, read)
        return name


def writer_of(head: EnvelopeHead) -> tuple[str, tuple[Hop, ...]]:
    """The name of the writer of a republished message, and the republishers that it has passed."""
    links = parse_chain(head.chain).links
    # What is announced has a name of its own at the end of the output's; it is the same writer.
    name = "/".join(links[-1].output.split("/")[:2])
    return name, tuple((link.output.partition("/")[0], link.topic) for link in links)
