"""How many records a second the write-ahead log makes durable, against plain `write` and `fsync` with groups of the same size.

The plain side joins a group of values that are there already, writes and syncs them: no keys, partitions, checksums, nor
a way to find where they end. The log takes the same values with keys: its callers encode them, one thread at a time writes
a group, and every caller gets a receipt. Both write into files of one directory, and take turns of about a tenth of a second, so
that both find the disk in the same mood. What is compared is the median of their turns: a turn in which somebody else kept the disk
busy, or the processor, says nothing. Afterwards the log is read again, and all records must be there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.table import Table

from sqe_chain.wal import Limits, LocalFiles, Record, WriteAheadLog
from sqe_chain.wal.group_commit import GroupCommit
from sqe_chain.wal.reader import Reader

VALUE_BYTES: Final = 1_000
KEYS: Final = 100
GROUPS: Final = (1, 16, 256)
PARTITIONS: Final = 4
TARGET: Final = 0.8
_TURNS: Final = 16
"""Of each side in a round."""
_TURN_S: Final = 0.1
"""About what a turn takes."""
_TRIAL: Final = 8
"""Groups, to find out how many a turn has."""


class Plain:
    """A file that is written and synced."""

    def __init__(self, path: Path, group: int) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._values = [bytes(VALUE_BYTES) for _ in range(group)]

    def turn(self, groups: int) -> None:
        """Write and sync some groups."""
        for _ in range(groups):
            os.write(self._file, b"".join(self._values))
            os.fsync(self._file)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class Ours:
    """A log, and callers that append groups to it, each as soon as its last one is durable."""

    def __init__(self, directory: Path, group: int, callers: int) -> None:
        limits = Limits(max_bytes=4 << 30, segment_bytes=256 << 20, group_records=group, group_bytes=8 << 20)
        self.log = WriteAheadLog(LocalFiles(directory), "bench", PARTITIONS, limits=limits)
        self._commit = GroupCommit(self.log, on_durable=lambda: None)
        self._records = [Record(bytes(VALUE_BYTES), b"key-%d" % (n % KEYS)) for n in range(group)]
        self._pool = ThreadPoolExecutor(callers)
        self._callers = callers

    def turn(self, groups: int) -> None:
        """Append some groups, shared among the callers."""
        shares = [groups // self._callers + (n < groups % self._callers) for n in range(self._callers)]
        for each in [self._pool.submit(self._append, share) for share in shares]:
            each.result()

    def _append(self, groups: int) -> None:
        for _ in range(groups):
            receipts = self._commit.append(self._records, 60)
            assert len(receipts) == len(self._records)

    def close(self) -> None:
        """Close it."""
        self._pool.shutdown()
        self._commit.close()
        self.log.close()


def measure(directory: Path, group: int, callers: int) -> tuple[float, float, float]:
    """Records a second of the log and of the plain file, by the medians of their turns; and how busy the log kept a core."""
    with (
        closing(Ours(directory / "log", group, callers)) as ours,
        closing(Plain(directory / "plain", group)) as plain,
    ):
        sides: Sequence[Callable[[int], None]] = (ours.turn, plain.turn)
        for turn in sides:
            turn(callers)
        trial = _TRIAL * callers
        groups = max(callers, round(trial * _TURN_S / _timed(plain.turn, trial)))
        took: tuple[list[float], list[float]] = ([], [])
        worked = 0.0
        for number in range(_TURNS):
            for side in (0, 1) if number % 2 else (1, 0):
                began = time.process_time()
                took[side].append(_timed(sides[side], groups))
                if side == 0:
                    worked += time.process_time() - began
        _check(ours.log, (callers + _TURNS * groups) * group)
    own, theirs = (groups * group / median(times) for times in took)
    return own, theirs, worked / sum(took[0])


def _timed(turn: Callable[[int], None], groups: int) -> float:
    began_s = time.perf_counter()
    turn(groups)
    return time.perf_counter() - began_s


def _check(log: WriteAheadLog, records: int) -> None:
    reader, found = Reader(log, 0), 0
    while entries := reader.read(10_000, 8 << 20):
        found += len(entries)
        assert all(len(entry.record.value or b"") == VALUE_BYTES for entry in entries)
    assert found == records


def write_ahead_log(out: Console, rounds: int) -> None:
    """Measure all sizes of groups, and print a table."""
    table = Table(title="write-ahead log")
    columns = ("records in a group", "callers", "log", "plain", "ratio", "rounds", "processor", "target")
    for column in columns:
        table.add_column(column)
    for group in GROUPS:
        for callers in (1, 4):
            found = []
            for _ in range(rounds):
                with TemporaryDirectory(prefix="bench-wal-", dir=Path.cwd()) as directory:
                    found.append(measure(Path(directory), group, callers))
            ratios = [ours / plain for ours, plain, _ in found]
            row = (
                f"{group:,}",
                str(callers),
                f"{median(ours for ours, _, _ in found):,.0f}/s",
                f"{median(plain for _, plain, _ in found):,.0f}/s",
                f"{median(ratios):.2f}",
                ", ".join(f"{ratio:.2f}" for ratio in ratios),
                f"{median(worked for _, _, worked in found):.0%}",
                f">= {TARGET}",
            )
            out.print("  ".join(row), style="dim")
            table.add_row(*row)
    out.print(table)
