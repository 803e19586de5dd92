"""Goal: reading ahead gives what reading gives. Method: a log in memory that notes who reads when."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest

from sqe_chain.engines.ahead import SMALL_RECORDS, ahead
from sqe_chain.errors import Unavailable
from sqe_chain.logs.memory import MemoryLog
from sqe_chain.ports import Message, Range
from sqe_chain.replays.marks import PartitionMarks
from sqe_chain.segment.results import Portion

PARTITIONS = 3


class MeetingLog(MemoryLog):
    """Each of its readers waits for all others, as long as `meeting` is set."""

    meeting: threading.Barrier | None = None

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:  # type: ignore[override]
        if MeetingLog.meeting is not None:
            MeetingLog.meeting.wait(60)
        yield from super().read(read_range)


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


def test_a_small_batch_is_read_at_once_and_given_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MeetingLog(uuid4().hex)
    small = portions(log, 5)
    monkeypatch.setattr(MeetingLog, "meeting", threading.Barrier(PARTITIONS))
    read = ahead(log, small)
    for portion in reversed(small):
        found = [message.value() for block in read(portion.read) for message in block]
        assert found == [b"%d/%d" % (portion.read.partition, number) for number in range(5)]
    monkeypatch.setattr(MeetingLog, "meeting", None)
    assert [len(block) for block in read(small[0].read)] == [5], "it may be read once more"


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
