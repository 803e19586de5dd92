"""`python -m benchmarks.tables`: what `ingest` costs beside writing the same rows with plain pyarrow, and what compaction is for.

Both get the same objects. Ours: memtable, sort, checksums, statistics, Parquet, commit to the Delta table, all on disk when it
returns. Plain: columns by a comprehension each, one `write_table`, on disk when it returns; it sorts nothing and proves nothing.
Rows are checked afterwards. No server. With `--cassandra`: see `benchmarks.cassandra_tables`.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.machine import facts
from sqe_chain.partitioner import partition_of
from sqe_chain.ports import Flush, SinkClaim
from sqe_chain.tables import Memtable, TableSchema, open_table
from sqe_chain.tables.arrow import ROWS_OF_A_PLAN
from sqe_chain.tables.directory import TableDirectory
from sqe_chain.tables.sink import TableSink

ROWS, BLOCK, ROUNDS = 1_000_000, 1_000, 3
BATCHES, BATCH_ROWS, PARTS = 50, 2_000, 8


class Reading(msgspec.Struct):
    """Ten cells."""

    robot: str
    at_ms: int
    job: int
    axis: int
    bar: float
    ampere: float
    celsius: float
    line: str
    good: bool
    part: int


TYPES = [
    *(pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.float64(), pa.float64()),
    *(pa.float64(), pa.string(), pa.bool_(), pa.int64()),
]
SCHEMA = TableSchema.of(Reading, partition_key="robot", row_key="at_ms")


def readings(count: int, first: int = 0, robots: int = 100) -> list[Reading]:
    """Rows as they come: one robot after the other."""
    return [
        Reading(
            *(f"robot-{i % robots}", i, i * 7, i % 13, i * 0.5, i * 0.25),
            *(i * 0.125, f"line {i % 1000}", i % 2 == 0, i),
        )
        for i in range(first, first + count)
    ]


def plain(rows: list[Reading], at: Path) -> None:
    """What a program without any promise does."""
    names = Reading.__struct_fields__
    columns = [
        pa.array([getattr(row, name) for row in rows], of) for name, of in zip(names, TYPES, strict=True)
    ]
    file = at / "rows.parquet"
    pq.write_table(pa.table(columns, names=list(names)), file, compression="zstd")
    with file.open("rb") as written:
        os.fsync(written.fileno())


def ours(rows: list[Reading], at: Path) -> None:
    """What `ingest` does with a batch of one state partition, blocks as an engine gives them."""
    sink = TableSink(TableDirectory(str(at / "readings")), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, {0: None}))
    flush_to(sink, rows, 1, 0, None)


def flush_to(sink: TableSink, rows: list[Reading], number: int, part: int, known: bytes | None) -> bytes:
    """Memtable and flush of one state partition."""
    memtable = Memtable(SCHEMA, table="readings")
    for begin in range(0, len(rows), BLOCK):
        memtable.ingest_all(rows[begin : begin + BLOCK], _never)
    files = sink.storage.files_of(memtable.flush(number * ROWS_OF_A_PLAN))
    content = [(bytes([index]), file.packed()) for index, file in enumerate(files)]
    _, told = sink.flush(Flush("flow", "readings", part, 1, "run", number, f"{number:032x}", content, known))
    return told


def _never(index: int, error: Exception) -> None:
    raise AssertionError(index) from error


def timed(do: Callable[[list[Reading], Path], None], rows: list[Reading]) -> tuple[float, float]:
    """Seconds on the clock, and of processor time, into a directory of its own."""
    at = Path(tempfile.mkdtemp(prefix="bench-tables-"))
    gc.collect()
    began, worked = time.perf_counter(), time.process_time()
    do(rows, at)
    took = time.perf_counter() - began, time.process_time() - worked
    found: Any = None
    if do is ours:
        found = DeltaTable(str(at / "readings")).to_pyarrow_table(columns=["part"])
    else:
        found = pq.read_table(at, columns=["part"])
    assert sum(found["part"].to_pylist()) == len(rows) * (len(rows) - 1) // 2
    shutil.rmtree(at)
    return took


def compare(out: Console) -> None:
    """A million rows, both ways in turn."""
    rows = readings(ROWS)
    gc.freeze()
    pairs = [(timed(ours, rows), timed(plain, rows)) for _ in range(ROUNDS)]
    ratios = sorted(theirs[0] / own[0] for own, theirs in pairs)
    work = sorted(theirs[1] / own[1] for own, theirs in pairs)
    own, theirs = (median(took for took, _ in times) for times in zip(*pairs, strict=True))
    table = Printed(
        "", "rows/s", "cells/s", title=f"{ROWS:,} rows of {len(TYPES)} columns", title_justify="left"
    )
    for name, took in (("ingest", own), ("plain pyarrow", theirs)):
        table.add_row(name, f"{ROWS / took:,.0f}", f"{ROWS * len(TYPES) / took:,.0f}")
    out.print(table)
    out.print(f"ratio {median(ratios):.2f} (rounds: {', '.join(f'{one:.2f}' for one in ratios)}), wanted 0.5")
    out.print(f"by processor time {median(work):.2f} (rounds: {', '.join(f'{one:.2f}' for one in work)})")


def files(out: Console) -> None:
    """Small files before and after a compaction, and what a read of one robot's hour opens."""
    at = Path(tempfile.mkdtemp(prefix="bench-tables-"))
    sink = TableSink(TableDirectory(str(at / "readings")), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, dict.fromkeys(range(PARTS))))
    known: dict[int, bytes] = {}
    for number in range(1, BATCHES + 1):
        rows = readings(BATCH_ROWS, number * BATCH_ROWS)
        spread: list[list[Reading]] = [[] for _ in range(PARTS)]
        for row in rows:
            spread[partition_of(row.robot.encode(), PARTS)].append(row)
        for part, own in enumerate(spread):
            if own:
                known[part] = flush_to(sink, own, number, part, known.get(part))
    found = open_table(str(at / "readings"))
    low = 40 * BATCH_ROWS
    printed = Printed("", "files", "MiB", "opened", "left out", "rows read", "ms", title_justify="left")
    printed.title = (
        f"{BATCHES} batches of {BATCH_ROWS:,} rows, {PARTS} state partitions; a robot's rows of two batches"
    )
    for name in ("before compaction", "after"):
        began = time.perf_counter()
        scan = found.scan("robot-7", row_key=(low, low + 2 * BATCH_ROWS - 1))
        took = (time.perf_counter() - began) * 1_000
        assert scan.rows.num_rows == 2 * BATCH_ROWS // 100
        paths = [Path(file) for file in found.files()]
        size = sum(path.stat().st_size for path in paths) / (1 << 20)
        printed.add_row(
            *(name, str(len(paths)), f"{size:.1f}", str(scan.files), str(scan.files_left_out)),
            *(f"{scan.rows_read:,}", f"{took:.0f}"),
        )
        if name != "after":
            found.compact()
    out.print(printed)
    shutil.rmtree(at)


def main() -> None:
    """Print all of it."""
    out = Console(highlight=False, soft_wrap=True)
    for name, fact in facts().items():
        out.print(f"{name}: {fact}")
    if "--cassandra" in sys.argv[1:]:
        from benchmarks import cassandra_tables  # noqa: PLC0415 - a driver

        cassandra_tables.run(out)
        return
    compare(out)
    files(out)


if __name__ == "__main__":
    main()
