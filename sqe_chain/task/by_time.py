"""Which records of a range a batch takes, where the flow goes by event time: those that the gate lets pass, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sqe_chain.task.deciding import Deciding
from sqe_chain.task.gate import Gate, TimeFacts
from sqe_chain.task.records import Records
from sqe_chain.task.source_times import SourceTimes, without_replays


def taken_by_time(
    read: Sequence[Records],
    times: SourceTimes,
    gate: Gate,
    deciding: Deciding,
    since: int,
    given_times: Callable[[Records], Mapping[int, int] | None],
) -> Iterator[Records]:
    """What a batch takes of a range; see `sqe_chain.task.gate`.

    Args:
        read: all of the range, block by block.
        times: event time of the partition; it moves.
        gate: that of the partition.
        deciding: what decides about its records.
        since: first offset that was not read before.
        given_times: gives the times that the source's function gives; None: it has none.
    """
    facts = without_replays(
        read, [times.facts(records, given_times(records)) for records in read], times.guard, deciding
    )
    for own in facts:
        times.observe(own)
    places, begin = gate.take(TimeFacts.joined(facts), times.times, _known(read, deciding, since)), 0
    for records in read:
        end = begin + len(records.messages)
        numbers = [number for number in range(end - begin) if begin + number in places]
        if numbers:
            if len(numbers) < end - begin:
                records = deciding.records_of([records.messages[number] for number in numbers])  # noqa: PLW2901
            records.place({at: places[begin + number] for at, number in enumerate(numbers)})
            yield records
        begin = end


def _known(read: Sequence[Records], deciding: Deciding, since: int) -> set[int]:
    """Numbers of the messages that are read again, and were taken before or skipped unread: of those that did not wait."""
    known, begin = set[int](), 0
    for records in read:
        for number, message in enumerate(records.messages):
            if message.offset() >= since:
                return known
            if deciding.has_taken(records, number):
                known.add(begin + number)
        begin += len(records.messages)
    return known
