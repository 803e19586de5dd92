"""How many records a second `DurableProducer` makes durable, against plain `write` and `fsync` of the same bytes.

The log is used as users use it: default settings, `append` from the main thread, `append_many`, several threads. Kafka is away, so
that records wait, or is a broker in memory, so that they are published in the same process meanwhile. The main thread writes the plain
file: groups whose bytes are there already, as many as the log has written and each as long. So there are as many syncs of as many
bytes. Then it calls `fsync`, as a plain program would. Or it fills the file with zeros ahead, as the log does, and calls `fdatasync`.
Then the disk has the same to do on both sides. What remains is the price of records, numbers, checksums and receipts.

All sides write into one directory, and take turns of about a tenth of a second, in an order that changes with each turn. The ratio of
a turn compares it with the plain turns just beside it, the ratio of a round is the median of its turns. Afterwards the log is read, and all
records must be there.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.table import Table

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.ext.wal import DurableProducer, LocalFiles, Record, WriteAheadLog
from sqe_chain.ext.wal.segment import SUFFIX

VALUE_BYTES: Final = 1_000
KEYS: Final = 100
PARTITIONS: Final = 4
TARGET: Final = 0.8
_TURNS: Final = 9
_TURN_S: Final = 0.1
"""About what a turn takes."""
_TRIAL: Final = 16
"""Calls, to find out how many a turn has."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        group: records that a caller appends at once.
        callers: threads; 1: the main thread.
        published: whether records are published meanwhile.
    """

    group: int
    callers: int = 1
    published: bool = False


CASES: Final = (
    Case(1),
    Case(16),
    Case(256),
    Case(1, callers=4),
    Case(16, callers=4),
    Case(256, callers=4),
    Case(1, published=True),
    Case(16, published=True),
    Case(256, published=True),
)


class CountingFiles(LocalFiles):
    """A directory that counts the groups written, and their bytes."""

    groups = 0
    written = 0

    def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
        """See `Files.write`."""
        if name.endswith(SUFFIX):  # not a segment's header
            self.groups += 1
            self.written += len(data)
        super().write(name, at, data, zeros)


class Plain:
    """A file that is written and synced.

    Args:
        path: of the file.
        ahead: bytes to fill with zeros ahead; then `fdatasync` is enough. 0: append, and `fsync`.
    """

    def __init__(self, path: Path, *, ahead: int) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY)
        self._end = self._filled = 0
        self._ahead = bytes(ahead)

    def turn(self, group: bytes, groups: int) -> float:
        """Write and sync some groups; returns seconds."""
        began_s = time.perf_counter()
        for _ in range(groups):
            self._write(group)
        return time.perf_counter() - began_s

    def _write(self, group: bytes) -> None:
        if self._ahead and len(group) <= len(self._ahead) // 4 and self._end + len(group) > self._filled:
            os.pwritev(self._file, (group, self._ahead), self._end)
            self._filled = self._end + len(group) + len(self._ahead)
        else:
            os.pwrite(self._file, group, self._end)
        self._end += len(group)
        if self._ahead:
            os.fdatasync(self._file)
        else:
            os.fsync(self._file)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class Ours:
    """A producer, and callers that append groups to it, each as soon as its last one is durable."""

    def __init__(self, directory: Path, case: Case) -> None:
        self.files, self._case = CountingFiles(directory), case
        broker = MemoryLog("bench-wal")
        broker.clear()
        broker.create_topic("bench", PARTITIONS)
        broker.set_down(down=not case.published)
        self.producer = DurableProducer(
            self.files, "bench", partitions=PARTITIONS, kafka=broker, timeout_s=60
        )
        draw = random.Random(0)
        self._records = [
            Record(draw.randbytes(VALUE_BYTES), b"key-%d" % (n % KEYS), timestamp_ms=1)
            for n in range(case.group)
        ]
        self._pool = ThreadPoolExecutor(case.callers)

    def turn(self, calls: int) -> float:
        """Append some groups, shared among the callers; returns seconds."""
        callers = self._case.callers
        began_s = time.perf_counter()
        if callers == 1:
            self._append(calls)
        else:
            shares = [calls // callers + (n < calls % callers) for n in range(callers)]
            for each in [self._pool.submit(self._append, share) for share in shares]:
                each.result()
        return time.perf_counter() - began_s

    def _append(self, calls: int) -> None:
        producer, records = self.producer, self._records
        if len(records) == 1:
            value, key = records[0].value, records[0].key
            for _ in range(calls):
                producer.append(value, key=key)
        else:
            for _ in range(calls):
                assert len(producer.append_many(records)) == len(records)

    def close(self) -> None:
        """Close it."""
        self._pool.shutdown()
        self.producer.close(timeout_s=0)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found: records a second of each side, the ratios, records in a group as written, and how busy a core was."""

    ours: float
    plain: float
    ratio: float
    strict: float
    written: float
    busy: float


def measure(directory: Path, case: Case) -> Round:
    """One round of a case."""
    with (
        closing(Ours(directory / "log", case)) as ours,
        closing(Plain(directory / "plain", ahead=0)) as plain,
        closing(Plain(directory / "filled", ahead=256 << 10)) as filled,
    ):
        ours.turn(_TRIAL)
        calls = max(case.callers, round(_TRIAL * _TURN_S / max(ours.turn(_TRIAL), 1e-6)))
        calls = min(calls, (48 << 20) // (case.group * VALUE_BYTES))  # all turns stay below max_bytes
        turns = list[tuple[float, float, float]]()
        worked = 0.0
        files = ours.files
        groups_before = files.groups
        for number in range(_TURNS):
            before = files.groups, files.written
            began = time.process_time()
            took: dict[str, float] = {"ours": ours.turn(calls)}
            worked += time.process_time() - began
            groups, size = files.groups - before[0], files.written - before[1]
            group = os.urandom(size // groups)
            sides: list[tuple[str, Callable[[bytes, int], float]]] = [
                ("plain", plain.turn),
                ("filled", filled.turn),
            ]
            for name, turn in sides if number % 2 else reversed(sides):
                took[name] = turn(group, groups)
            turns.append((took["ours"], took["plain"], took["filled"]))
        groups = files.groups - groups_before
        if not case.published:
            _check(ours.producer.log, (2 * _TRIAL + _TURNS * calls) * case.group)
    records = calls * case.group
    return Round(
        records / median(own for own, _, _ in turns),
        records / median(plain for _, plain, _ in turns),
        median(plain / own for own, plain, _ in turns),
        median(filled / own for own, _, filled in turns),
        _TURNS * records / groups,
        worked / sum(own for own, _, _ in turns),
    )


def _check(log: WriteAheadLog, records: int) -> None:
    reader, found = log.reader(0), 0
    while entries := reader.read(10_000, 8 << 20):
        found += len(entries)
        assert all(len(entry.record.value or b"") == VALUE_BYTES for entry in entries)
    assert found == records, (found, records)


def write_ahead_log(out: Console, rounds: int) -> None:
    """Measure all cases, and print a table."""
    table = Table(title="write-ahead log")
    columns = (
        "at once",
        "callers",
        "published",
        "in a group",
        "log",
        "plain",
        "ratio",
        "rounds",
        "filled ahead",
        "processor",
        "target",
    )
    for column in columns:
        table.add_column(column)
    for case in CASES:
        found = []
        for _ in range(rounds):
            with TemporaryDirectory(prefix="bench-wal-", dir=Path.cwd()) as directory:
                found.append(measure(Path(directory), case))
        row = (
            f"{case.group:,}",
            str(case.callers),
            "meanwhile" if case.published else "later",
            f"{median(one.written for one in found):,.1f}",
            f"{median(one.ours for one in found):,.0f}/s",
            f"{median(one.plain for one in found):,.0f}/s",
            f"{median(one.ratio for one in found):.2f}",
            ", ".join(f"{one.ratio:.2f}" for one in found),
            f"{median(one.strict for one in found):.2f}",
            f"{median(one.busy for one in found):.0%}",
            f">= {TARGET}",
        )
        out.print("  ".join(row), style="dim")
        table.add_row(*row)
    out.print(table)
