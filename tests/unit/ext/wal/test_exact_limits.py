"""Goal: a segment and a log are full when they are, not a byte earlier or later. Method: records that fill them to the last byte."""

from __future__ import annotations

import pytest

from sqe_chain.errors import LogFull
from sqe_chain.ext.wal import Limits, MemoryFiles, Record, WriteAheadLog
from sqe_chain.ext.wal.record import FRAME_OVERHEAD
from sqe_chain.ext.wal.segment import GROUP_OVERHEAD, header_size
from tests.support.wal_faults import PARTITIONS, open_log

SEGMENT = 1_024
HEADER = header_size(PARTITIONS)
GROUP = (SEGMENT - HEADER) // 2
"""Two of them fill a segment."""
FILLING = Record(bytes(GROUP - GROUP_OVERHEAD - FRAME_OVERHEAD - len(b"key")), b"key")


def log_of(most: int) -> WriteAheadLog:
    return open_log(MemoryFiles(), limits=Limits(most, SEGMENT, SEGMENT, 10, SEGMENT))


def segments(log: WriteAheadLog) -> int:
    return sum(name.endswith(".wal") for name in log.files.names())


def test_a_segment_takes_what_fills_it_to_the_last_byte() -> None:
    assert HEADER + 2 * GROUP == SEGMENT
    log = log_of(100_000)
    for number, expected in enumerate((1, 1, 2, 2, 3)):
        assert log.append(FILLING) == number
        assert segments(log) == expected


@pytest.mark.parametrize("more", [0, 1, HEADER, HEADER + GROUP - 1])
def test_a_log_takes_what_fills_it_to_the_last_byte_and_no_more(more: int) -> None:
    """A new segment needs room for its header, too."""
    log = log_of(2 * SEGMENT + more)
    for _ in range(4):
        log.append(FILLING)
    assert log.used_bytes == 2 * SEGMENT
    with pytest.raises(LogFull):
        log.append(FILLING)
    assert log.used_bytes == 2 * SEGMENT


def test_a_log_takes_one_more_group_where_its_segment_s_header_fits_too() -> None:
    log = log_of(2 * SEGMENT + HEADER + GROUP)
    for _ in range(5):
        log.append(FILLING)
    assert log.used_bytes == log.limits.max_bytes
