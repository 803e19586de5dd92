"""Goal: reading ahead gives what reading gives. Method: a log in memory that notes who reads when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from sqe_chain.adapters.memory import MemoryLog, MemoryMessage
from sqe_chain.engines.ahead import SMALL_RECORDS, ahead
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import Unavailable
from sqe_chain.ports import Range
from sqe_chain.task.results import Portion

PARTITIONS = 3


class CountingLog(MemoryLog):
    """Counts how often it is asked."""

    asked = 0

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[MemoryMessage]]:
        CountingLog.asked += 1
        return super().read_all(ranges)


def portions(log: MemoryLog, records: int) -> list[Portion]:
    log.create_topic("t", PARTITIONS)
    topic_id = log.topic_ids(["t"])["t"]
    for partition in range(PARTITIONS):
        for number in range(records):
            log.append("t", partition, b"%d/%d" % (partition, number))
    return [
        Portion(Range("t", topic_id, partition, 0, records), PartitionMarks("t", topic_id, partition))
        for partition in range(PARTITIONS)
    ]


def test_a_small_batch_is_read_together_and_given_in_any_order() -> None:
    log, before = CountingLog(uuid4().hex), CountingLog.asked
    small = portions(log, 5)
    read = ahead(log, small)
    for portion in [*reversed(small), small[0]]:  # the first of them a second time
        found = [message.value() for block in read(portion.read) for message in block]
        assert found == [b"%d/%d" % (portion.read.partition, number) for number in range(5)]
    assert CountingLog.asked == before + 1


def test_what_compaction_has_emptied_gives_nothing() -> None:
    log = MemoryLog(uuid4().hex)
    first = portions(log, 2)[0]
    log.compact("t", 0)
    emptied = replace(first.read, stop=1)
    assert list(ahead(log, [replace(first, read=emptied)])(emptied)) == []


def test_a_large_batch_is_not_kept_in_memory() -> None:
    log = MemoryLog(uuid4().hex)
    assert ahead(log, portions(log, SMALL_RECORDS // PARTITIONS + 1)) == log.read


def test_an_error_is_raised_where_its_range_is_read() -> None:
    log = MemoryLog(uuid4().hex)
    small = portions(log, 1)
    log.set_down(down=True)
    read = ahead(log, small)
    with pytest.raises(Unavailable):
        list(read(small[0].read))
