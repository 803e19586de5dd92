"""Goal: what no crash leaves behind is damage by name, and what one does leave is cleared away. Method: files are made by hand."""

from __future__ import annotations

import pytest

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal import MemoryFiles, Record, WriteAheadLog
from sqe_chain.ext.wal.record import encode
from sqe_chain.ext.wal.segment import group, segment_name
from tests.support.wal_faults import PARTITIONS, SMALL, TOPIC, open_log

LARGE = bytes(600)
"""A record so large that each has a segment of its own."""


def segments(files: MemoryFiles) -> list[str]:
    return sorted(name for name in files.names() if name.endswith(".wal"))


def closed(*values: bytes) -> MemoryFiles:
    """A log with these records, closed: no zeros are ahead of them."""
    files = MemoryFiles()
    with open_log(files) as log:
        for value in values:
            log.append(Record(value, b"key"))
    return files


def with_more(files: MemoryFiles, more: bytes) -> MemoryFiles:
    """The same, with more bytes at the end of the last segment."""
    contents = files.contents()
    last = segments(files)[-1]
    return MemoryFiles({**contents, last: contents[last] + more})


FRAME = encode(Record(b"more", b"key"), 0)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (group([encode(Record(b"more", b"key"), PARTITIONS)], 1, 2), "wrong checksum"),
        (group([FRAME, b"rest"], 1, 2), "4 bytes follow its last record"),
        (group([FRAME], 1, 3), "from offset 3 on follows 2"),
        (b"xyz", "no group of records begins here"),
    ],
    ids=["a partition that is not there", "bytes after the last record", "a hole in the offsets", "no group"],
)
def test_what_was_never_written_so_is_damage(more: bytes, found: str) -> None:
    with pytest.raises(LogDamaged, match=found):
        open_log(with_more(closed(b"one", b"two"), more))


def test_what_was_written_so_is_read() -> None:
    """The same group as above, with nothing wrong."""
    with open_log(with_more(closed(b"one", b"two"), group([FRAME], 1, 2))) as log:
        assert [one.record.value for one in log.read(0)] == [b"one", b"two", b"more"]


def test_a_segment_under_another_name_is_refused() -> None:
    files = closed(b"one")
    (name,) = segments(files)
    contents = files.contents()
    contents[segment_name(0, 1_234)] = contents.pop(name)
    with pytest.raises(LogDamaged, match="not a segment of this log"):
        open_log(MemoryFiles(contents))


def test_a_single_record_that_is_missing_between_two_segments_is_missed() -> None:
    files = closed(LARGE, LARGE, LARGE)
    first, second, third = segments(files)
    files.remove(second)
    assert first != third
    with pytest.raises(LogDamaged, match="offsets 1 to 1"):
        open_log(files)


def test_opening_the_log_deletes_segments_that_were_published_entirely() -> None:
    """A crash came after the position was saved, and before they were deleted."""
    files = MemoryFiles()
    log = open_log(files)
    for _ in range(3):
        log.append(Record(LARGE, b"key"))
    log.acknowledge(1)
    log.save()
    left = files.killed()
    before = segments(left)
    with open_log(left) as again:
        assert (again.begin, again.position, again.end) == (1, 1, 3)
    assert segments(left) == before[1:]


def test_what_was_being_created_when_the_process_died_is_removed() -> None:
    files = closed(b"one")
    for name in (f"{segment_name(1, 5_000)}.new", "position.new"):
        files.create(name)
    with WriteAheadLog(files, TOPIC, PARTITIONS, limits=SMALL) as log:
        assert log.end == 1
    assert [name for name in files.names() if name.endswith(".new")] == []
