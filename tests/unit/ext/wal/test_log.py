"""Goal: what was acknowledged is found again, or its loss is an error by name. Method: files are cut, changed and moved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from struct import pack
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import (
    ConfigurationError,
    LogClosed,
    LogDamaged,
    LogFull,
    LogLocked,
    LogUnwritable,
    PartitionsMismatch,
    RecordTooLarge,
)
from sqe_chain.ext.wal import Limits, LocalFiles, MemoryFiles, Record, WriteAheadLog
from sqe_chain.ext.wal.record import decode, encode
from sqe_chain.ext.wal.recovery import UNNOTED
from tests.support.waiting import PATIENCE_S
from tests.support.wal_faults import SMALL, open_log

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=9),
    st.none() | HEADERS.filter(bool),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


ROOMY = Limits(max_bytes=100_000, segment_bytes=10_000, max_record_bytes=5_000, group_bytes=5_000)


def segments(files: MemoryFiles) -> list[str]:
    return sorted(name for name in files.names() if name.endswith(".wal"))


def values(log: WriteAheadLog, offset: int = 0) -> list[bytes | None]:
    return [one.record.value for one in log.read(offset)]


def read_all(log: WriteAheadLog) -> None:
    for offset in range(log.end):
        log.read(offset)


def append_without_end(log: WriteAheadLog) -> None:
    while True:
        log.append(Record(bytes(100)))


def filled(groups: int = 3) -> MemoryFiles:
    """A log with one group of one record after the other, killed."""
    files = MemoryFiles()
    log = open_log(files)
    for number in range(groups):
        log.append(Record(b"value %d" % number, b"key"))
    return files.killed()


@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_records_come_back_as_they_were(records: list[Record]) -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        offsets = [log.append(record) for record in records]
        assert [one.record for one in log.read(0)] == records
    with open_log(files.killed()) as again:
        found = again.read(0)
        assert [one.record for one in found] == records
        assert [one.offset for one in found] == offsets == list(range(len(records)))
        for partition in range(again.partitions):
            numbers = [one.sequence for one in found if one.partition == partition]
            assert numbers == list(range(len(numbers)))


def test_a_tail_that_was_cut_anywhere_is_recognised() -> None:
    """Whole groups stay, whatever remains of the next one; zeros after it, as some file systems show them, do not matter."""
    files = filled()
    (name,) = segments(files)
    content = files.contents()[name].rstrip(b"\0")
    starts = [place for place in range(len(content)) if content[place : place + 4] == b"WALg"]
    for length in range(starts[0], len(content)):
        for zeros in (0, 1, 5_000):
            whole = sum(end <= length for end in [*starts[1:], len(content)])
            torn = MemoryFiles({**without_position(files), name: content[:length] + bytes(zeros)})
            with open_log(torn) as log:
                assert (log.end, len(values(log))) == (whole, whole), length
                assert log.append(Record(b"next", b"key")) == whole
                assert values(log) == [b"value %d" % n for n in range(whole)] + [b"next"]


def without_position(files: MemoryFiles) -> dict[str, bytes]:
    """The files of a log that has not noted yet what was synced."""
    return {name: content for name, content in files.contents().items() if name != "position"}


def test_a_group_with_sectors_that_were_not_written_is_a_torn_tail() -> None:
    """Disks write in any order: before a sync returns, the end of a group may be there, and its beginning or middle not."""
    for filler in (1, 100, 300, 330, 480, 500):
        files = MemoryFiles()
        log = open_log(files, limits=ROOMY)
        log.append(Record(b"x" * filler, b"key"))
        (name,) = segments(files)
        begin = len(files.contents()[name].rstrip(b"\0"))
        log.append(Record(b"y" * 700, b"key"))
        contents = without_position(files)
        assert b"gLAW" + bytes(1_024) in contents[name], "the rest is zeros"
        contents[name] = contents[name].rstrip(b"\0")
        sectors = range(begin - begin % 512, len(contents[name]), 512)
        for missing in range(1, 1 << len(sectors)):
            torn = bytearray(contents[name])
            for index, at in enumerate(sectors):
                if missing >> index & 1:
                    first, end = max(at, begin), min(at + 512, len(torn))
                    torn[first:end] = bytes(end - first)
            zeros = bytes(missing % 2 * 1_000)
            with open_log(MemoryFiles({**contents, name: bytes(torn) + zeros})) as again:
                assert values(again) == [b"x" * filler], (filler, missing)
                assert again.append(Record(b"next", b"key")) == 1
                assert values(again) == [b"x" * filler, b"next"]


@pytest.mark.parametrize(
    ("followed", "noted"),
    [(True, False), (False, True), (False, False)],
    ids=["followed", "noted", "neither"],
)
def test_sectors_that_are_zeros_after_they_were_synced_are_damage(followed: bool, noted: bool) -> None:
    """If it is known that they were: by the position, or because another group follows."""
    files = MemoryFiles()
    log = open_log(files, limits=ROOMY)
    log.append(Record(b"y" * 1_000, b"key"))
    if followed:
        log.append(Record(b"z", b"key"))
    log.close()
    contents = files.contents() if noted else without_position(files)
    (name,) = segments(files)
    changed = bytearray(contents[name])
    changed[512:1_024] = bytes(512)
    again = MemoryFiles({**contents, name: bytes(changed)})
    if followed or noted:
        with pytest.raises(LogDamaged, match="wrong checksum"):
            open_log(again)
    else:
        assert open_log(again).end == 0


def test_a_changed_bit_anywhere_is_an_error_and_nothing_is_skipped() -> None:
    files = filled()
    (name,) = segments(files)
    for place in range(len(files.contents()[name].rstrip(b"\0"))):
        for bit in (0, 3, 7):
            contents = {file: bytearray(content) for file, content in files.contents().items()}
            contents[name][place] ^= 1 << bit
            with pytest.raises(LogDamaged, match=r"accept_loss|Move it back"):
                open_log(MemoryFiles({file: bytes(content) for file, content in contents.items()}))


def test_a_changed_bit_in_the_zeros_ahead_loses_nothing() -> None:
    files = filled()
    (name,) = segments(files)
    size = files.size(name)
    first = len(files.contents()[name].rstrip(b"\0"))
    assert size > first + 512, "small groups are written into zeros"
    for place in range(first, size):
        contents = files.contents()
        changed = bytearray(contents[name])
        changed[place] ^= 16
        try:
            with open_log(MemoryFiles({**contents, name: bytes(changed)})) as log:
                assert values(log) == [b"value 0", b"value 1", b"value 2"]
        except LogDamaged:
            assert place < first + 512, "nothing was written so far behind"


def test_zeros_ahead_are_cut_off_when_a_log_is_closed_and_when_it_is_opened_after_a_kill(
    tmp_path: Path,
) -> None:
    closed = WriteAheadLog(LocalFiles(tmp_path / "closed"), "t", 1)
    closed.append(Record(b"value", b"key"))
    (file,) = (tmp_path / "closed").glob("*.wal")
    assert file.stat().st_size > 100_000
    closed.close()
    assert file.stat().st_size < 200
    files = filled()
    (name,) = segments(files)
    with open_log(files) as log:
        assert log.used_bytes == files.size(name) < 500


def test_zeros_ahead_stay_within_the_limits_of_a_segment_and_of_the_log() -> None:
    files = MemoryFiles()
    with open_log(files, limits=Limits(5_000, 2_048, 1_024, 10, 1_024)) as log:
        for _ in range(35):
            log.append(Record(bytes(60)))
            sizes = [files.size(name) for name in segments(files)]
            assert max(sizes) <= 2_048
            assert sum(sizes) <= 5_000
        with pytest.raises(LogFull):
            append_without_end(log)
        assert log.used_bytes > 4_800


def test_a_changed_bit_in_an_earlier_segment_is_found_when_it_is_read() -> None:
    files = filled(40)
    first, *rest = segments(files)
    assert rest
    for place in range(200, files.size(first)):
        contents = files.contents()
        changed = bytearray(contents[first])
        changed[place] ^= 16
        with open_log(MemoryFiles({**contents, first: bytes(changed)})) as log, pytest.raises(LogDamaged):
            read_all(log)


def test_what_was_saved_and_is_cut_off_is_missed() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        for number in range(3):
            log.append(Record(b"value %d" % number, b"key"))
    (name,) = segments(files)
    files.truncate(name, files.size(name) - 1)
    with pytest.raises(LogDamaged, match="offsets 2 to 2"):
        open_log(files.killed())


def test_lost_records_are_noted_when_that_is_accepted() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        for number in range(40):
            log.append(Record(b"value %d" % number, b"key"))
        _, *ends = (int(name.partition("-")[0]) for name in segments(files))
        log.acknowledge(2)
    files.remove(segments(files)[1])
    with pytest.raises(LogDamaged, match=f"offsets {ends[0]} to {ends[1] - 1}"):
        open_log(files.killed())
    with open_log(files, accept_loss=True) as log:
        assert log.losses == ((ends[0], ends[1]),)
        log.append(Record(b"next", b"key"))
    with open_log(files) as log:
        assert log.losses == ((ends[0], ends[1]),)
        found, offset = list[int](), log.position
        while batch := log.read(offset):
            found += [one.offset for one in batch]
            offset = found[-1] + 1
        assert found == [*range(2, ends[0]), *range(ends[1], 41)]


def test_a_lost_tail_is_given_up_without_using_its_offsets_again() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        for number in range(3):
            log.append(Record(b"value %d" % number, b"key"))
    (name,) = segments(files)
    files.truncate(name, files.size(name) - 1)
    for life in range(3):
        with open_log(files, accept_loss=life == 0) as log:
            assert log.losses == ((2, 3 + UNNOTED),), "nobody knows whether more was acknowledged"
            assert log.append(Record(b"next", b"key")) == 3 + UNNOTED + life


def test_a_position_is_damaged_only_if_both_slots_are() -> None:
    files = filled()
    with open_log(files) as log:
        log.acknowledge(1)
        log.save()
        log.acknowledge(2)
        log.save()
    for place in (10, 4_096 + 10):
        contents = files.contents()
        changed = bytearray(contents["position"])
        changed[place] ^= 1
        with open_log(MemoryFiles({**contents, "position": bytes(changed)})) as log:
            assert log.position in {1, 2}
    files.overwrite("position", 0, bytes(8_192))
    with pytest.raises(LogDamaged, match="Delete it"):
        open_log(files.killed())
    files.remove("position")
    with open_log(files.killed()) as log:
        assert log.position == 0


def test_log_json_is_checked() -> None:
    files = filled()
    content = files.contents()["log.json"]
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises((LogDamaged, PartitionsMismatch)):
            open_log(MemoryFiles({**files.contents(), "log.json": bytes(changed)}))
    files.remove("log.json")
    with pytest.raises(LogDamaged, match=r"log\.json is missing"):
        open_log(files.killed())


def test_a_segment_of_another_log_is_refused() -> None:
    other = MemoryFiles()
    with WriteAheadLog(other, "t", 2, limits=SMALL, now_ms=lambda: 1, new_id=lambda: b"another!") as log:
        log.append(Record(b"x"))
    (name,) = segments(other)
    with pytest.raises(LogDamaged, match=b"another!".hex()):
        open_log(MemoryFiles({**filled().contents(), name: other.contents()[name]}))


def test_topic_and_partitions_are_permanent() -> None:
    files = filled()
    for topic, partitions in (("robot.raw", 3), ("other", 2)):
        with pytest.raises(PartitionsMismatch, match="permanent"):
            WriteAheadLog(files.killed(), topic, partitions)


def test_the_epoch_rises_with_each_opening_even_if_the_clock_does_not() -> None:
    files, found = MemoryFiles(), []
    for now_ms in (1_000, 1_000, 5_000, 2_000):
        with open_log(files, now_ms) as log:
            log.append(Record(b"x", b"key"))
            found.append(log.read(log.end - 1)[0].epoch)
            found.append(log.read(log.end - 1)[0].sequence)
    assert found == [1_000, 0, 1_001, 1, 5_000, 2, 5_001, 3]


def test_a_full_log_raises_and_has_room_again_after_publishing() -> None:
    with open_log(MemoryFiles(), limits=Limits(4_096, 1_024, 1_024, 10, 1_024)) as log:
        with pytest.raises(LogFull, match=r"records wait for Kafka.*robot\.raw"):
            append_without_end(log)
        assert log.end > 10
        assert log.used_bytes <= 4_096
        log.acknowledge(log.end)
        assert log.trim() > 0
        log.append(Record(bytes(100)))
        assert log.begin > 0
        with pytest.raises(ValueError, match="was deleted"):
            log.read(0)


def test_too_large_a_record_is_refused() -> None:
    with open_log(MemoryFiles()) as log:
        with pytest.raises(RecordTooLarge, match="max_record_bytes"):
            log.append(Record(bytes(1_024)))
        log.append(Record(bytes(1_024 - 30)))
        with pytest.raises(RecordTooLarge, match="headers"):
            log.append(Record(b"", headers=[("h", b"")] * 70_000))
        with pytest.raises(ValueError, match="64 bits"):
            log.append(Record(b"", timestamp_ms=1 << 63))


def test_a_closed_log_takes_nothing() -> None:
    log = open_log(MemoryFiles())
    log.close()
    log.close()
    with pytest.raises(LogClosed):
        log.append(Record(b"x"))


def test_one_object_at_a_time_has_a_directory(tmp_path: Path) -> None:
    where = tmp_path / "new" / "log"
    with open_log(LocalFiles(where)) as log:
        log.append(Record(b"x"))
        with pytest.raises(LogLocked, match="open already"):
            open_log(LocalFiles(where))
    with open_log(LocalFiles(where)) as log:
        assert values(log) == [b"x"]


def test_an_unwritable_directory_is_an_error_by_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(LogUnwritable, match="cannot be opened"):
        open_log(LocalFiles(file / "below"))


FILLS_ITS_DISK = """
import resource, sys
from sqe_chain.errors import LogUnwritable
from sqe_chain.ext.wal import LocalFiles, Record, WriteAheadLog
with WriteAheadLog(LocalFiles(sys.argv[1]), "t", 1) as log:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, unlimited[1]))
    taken = []
    for number in range(30):
        try:
            log.append(Record(b"%d" % number + bytes(997)))
            taken.append(number)
        except LogUnwritable as error:
            assert "File too large" in str(error)
            if number == 20:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
print(taken)
"""


def test_a_real_file_that_cannot_grow_is_like_a_full_disk(tmp_path: Path) -> None:
    """A write that was done in part leaves nothing behind; a limit for files is the nearest thing to a small disk."""
    command = [sys.executable, "-c", FILLS_ITS_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    taken = json.loads(done.stdout)
    assert len(taken) < 30
    with WriteAheadLog(LocalFiles(tmp_path), "t", 1) as log:
        found = [int((one.record.value or b"").rstrip(b"\0")) for one in log.read(0)]
    assert found == taken


def test_files_of_attempts_are_removed(tmp_path: Path) -> None:
    (tmp_path / "log.json.new").write_bytes(b"half")
    open_log(LocalFiles(tmp_path)).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "log.json", "position"]


def test_a_file_that_vanishes_is_damage(tmp_path: Path) -> None:
    with open_log(LocalFiles(tmp_path)) as log:
        log.append(Record(b"x"))
        next(tmp_path.glob("*.wal")).unlink()
        with pytest.raises(LogDamaged, match="gone"):
            log.read(0)


@pytest.mark.parametrize(
    "limits", [{"segment_bytes": 1}, {"max_bytes": 1 << 20}, {"max_record_bytes": 0}, {"group_records": 0}, {"group_bytes": 1 << 30}]
)  # fmt: skip
def test_limits_are_checked(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**limits)


def test_the_format_is_the_one_that_is_documented() -> None:
    """Vectors: changed bytes would make logs of older versions unreadable."""
    files = MemoryFiles()
    with open_log(files) as log:
        log.append(Record(b"3 screws", b"robot-7", [("h", None)], 5))
        log.acknowledge(1)
    contents = files.contents()
    assert list(contents) == ["00000000000000000000-00000000000000001000.wal", "log.json", "position"]
    segment = next(iter(contents.values()))
    head = bytes.fromhex(
        "5351 4557 414c 310a 6120 6c6f 6720 6964 e803 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000"
        "0000 0000 0000 0000 0000 0000 0000 0000 0200 0000 0000 0000 0000 0000 0000 0000 0000 0000"
    )
    frame = (
        bytes.fromhex("3000 0000 0000 0000 0500 0000 0000 0000 0700 0000 0800 0000 0100")
        + b"robot-73 screws"
        + bytes.fromhex("0100 ffff ffff")
        + b"h"
    )
    group = b"WALg" + bytes.fromhex("3400 0000 0100 0000 0000 0000 0000 0000")
    parts = [(head, True), (group, True), (frame, True), (b"gLAW", False)]
    assert segment == b"".join(
        part + (crc32(part).to_bytes(4, "little") if checked else b"") for part, checked in parts
    )
    for at, numbers in ((4_096, (1, 0, 1)), (0, (2, 1, 1))):  # with the first record, and closed
        slot = b"SQEPOS1\n" + b"".join(number.to_bytes(8, "little") for number in numbers)
        assert contents["position"][at : at + 36] == slot + crc32(slot).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("at", "packed"),
    [
        (16, pack("<i", 50)),  # size of the key
        (16, pack("<i", 2)),
        (20, pack("<i", 2**31 - 1)),  # of the value
        (24, pack("<H", 2)),  # number of headers
        (24, pack("<H", 0)),
        (36, pack("<i", 2**31 - 1)),  # size of a header's content
        (40, b"\xff"),  # its name
    ],
)
def test_a_frame_whose_fields_do_not_fill_it_is_damaged_whatever_its_checksum(at: int, packed: bytes) -> None:
    frame = bytearray(encode(Record(b"value", b"key", [("n", b"c")]), 0)[:-4])
    assert decode(bytes(frame) + pack("<I", crc32(frame)), 0) is not None
    frame[at : at + len(packed)] = packed
    assert decode(bytes(frame) + pack("<I", crc32(frame)), 0) is None
