"""`python -m benchmarks.tables`: what `ingest` costs beside writing the same rows with plain pyarrow, and what compaction is for.

Both get the same objects. Ours: memtable, sort, checksums, statistics, Parquet, commit to the Delta table, all on disk when it
returns. Plain: columns by a comprehension each, one `write_table`, on disk when it returns; it sorts nothing and proves nothing.
It is measured twice: as pyarrow writes by default, and with dictionaries for the columns only for which `ingest` writes them.
Rows are checked afterwards. Then the memory of batches of several sizes, each in a process of its own, and the files of an hour. No
server. Then how long a flush takes in tables of many files. With `--cassandra`: see `benchmarks.cassandra_tables`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ext.tables import Memtable, TableSchema, open_table
from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.sink import TableSink
from sqe_chain.ports import Flush, SinkClaim

ROWS, BLOCK, ROUNDS = 1_000_000, 1_000, 5
INTERVAL_S, ROWS_A_SECOND, PARTS = 5, 200, 1
BATCHES, BATCH_ROWS = 3_600 // INTERVAL_S, ROWS_A_SECOND * INTERVAL_S
MEMORY = ((1_000, 1), (10_000, 1), (100_000, 1), (1_000_000, 1), (100_000, 10))
"""Rows of a batch, and batches."""
GROWN = (10, 1_000, 10_000)
"""Files of a table."""
FLUSHES, FLUSH_ROWS = 30, 100
REPEATING = ["robot", "axis", "line"]


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


def plain(rows: list[Reading], at: Path, *, dictionaries: bool | list[str] = True) -> None:
    """What a program without any promise does."""
    names = Reading.__struct_fields__
    columns = [
        pa.array([getattr(row, name) for row in rows], of) for name, of in zip(names, TYPES, strict=True)
    ]
    file = at / "rows.parquet"
    table = pa.table(columns, names=list(names))
    pq.write_table(table, file, compression="zstd", use_dictionary=dictionaries)
    with file.open("rb") as written:
        os.fsync(written.fileno())


def plain_tuned(rows: list[Reading], at: Path) -> None:
    """The same, by somebody who knows which columns repeat."""
    plain(rows, at, dictionaries=REPEATING)


def ours(rows: list[Reading], at: Path) -> None:
    """What `ingest` does with a batch of one state partition, blocks as an engine gives them."""
    sink = TableSink(TableDirectory(str(at / "readings")), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, {0: None}))
    flush_to(sink, rows, 1, 0, None)


def spread(rows: Sequence[Reading], parts: int) -> list[list[Reading]]:
    """The rows of each state partition."""
    found: list[list[Reading]] = [[] for _ in range(parts)]
    for row in rows:
        found[partition_of(row.robot.encode(), parts)].append(row)
    return found


def flush_to(sink: TableSink, rows: list[Reading], number: int, part: int, known: bytes | None) -> bytes:
    """Memtable and flush of one state partition."""
    memtable = Memtable(SCHEMA, table="readings")
    for begin in range(0, len(rows), BLOCK):
        memtable.ingest_all(rows[begin : begin + BLOCK], _never)
    return flushed_to(sink, memtable, number, part, known)


def flushed_to(sink: TableSink, memtable: Memtable, number: int, part: int, known: bytes | None) -> bytes:
    """The flush of one state partition."""
    files = sink.storage.files_of(memtable.flush(number * ROWS_OF_A_PLAN))
    memtable.clear()
    content = [(bytes([index]), file.packed()) for index, file in enumerate(files)]
    _, result = sink.flush(
        Flush("flow", "readings", part, 1, "run", number, f"{number:032x}", content, known)
    )
    return result


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


SIDES: dict[str, Callable[[list[Reading], Path], None]] = {
    "ingest": ours,
    "plain pyarrow": plain,
    "plain pyarrow, dictionaries where values repeat": plain_tuned,
}


def compare(out: Console) -> None:
    """A million rows, all ways in turn."""
    rows = readings(ROWS)
    gc.freeze()
    for do in SIDES.values():
        timed(do, rows[:BLOCK])
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    for number in range(ROUNDS):
        for name, do in list(SIDES.items())[:: 1 if number % 2 else -1]:
            took[name].append(timed(do, rows))
    table = Printed(title=f"{ROWS:,} rows of {len(TYPES)} columns", title_justify="left")
    for column in ("", "rows/s", "cells/s", "ratio (rounds)", "by processor time (rounds)", "wanted"):
        table.add_column(column, overflow="fold")
    for name, times in took.items():
        seconds = median(clock for clock, _ in times)
        table.add_row(
            *(name, f"{ROWS / seconds:,.0f}", f"{ROWS * len(TYPES) / seconds:,.0f}"),
            *(_ratios(times, took["ingest"], of) for of in (0, 1)),
            "" if name == "ingest" else ">= 0.5",
        )
    out.print(table)


def _ratios(theirs: list[tuple[float, float]], own: list[tuple[float, float]], of: int) -> str:
    """How fast ours is beside theirs, by the clock (0) or by processor time (1)."""
    ratios = [their[of] / our[of] for their, our in zip(theirs, own, strict=True)]
    return f"{median(ratios):.2f} ({', '.join(f'{one:.2f}' for one in ratios)})"


def memory(out: Console) -> None:
    """What a batch takes in memory at most."""
    table = Printed(
        title="memory of a flush at its peak, beyond what the process had before", title_justify="left"
    )
    for column in ("rows of a batch", "batches", "MiB", "bytes a row"):
        table.add_column(column, justify="right")
    for rows, batches in MEMORY:
        command = [sys.executable, "-m", "benchmarks.tables", "--peak", str(rows), str(batches)]
        peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        table.add_row(f"{rows:,}", str(batches), f"{peak / (1 << 20):.0f}", f"{peak / rows:,.0f}")
    out.print(table)


def peak_of(rows: int, batches: int) -> int:
    """Bytes that batches have taken at most, one after the other; values come in blocks, and go."""
    at = Path(tempfile.mkdtemp(prefix="bench-tables-"))
    sink = TableSink(TableDirectory(str(at / "readings")), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, {0: None}))
    known = _flush_in_blocks(sink, 1_000, 1, None)  # what is loaded once is no part of a batch
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here: proc(5)
    before = _memory("VmRSS")
    for number in range(2, batches + 2):
        known = _flush_in_blocks(sink, rows, number, known)
    peak = _memory("VmHWM")
    shutil.rmtree(at)
    return peak - before


def _flush_in_blocks(sink: TableSink, rows: int, number: int, known: bytes | None) -> bytes:
    memtable = Memtable(SCHEMA, table="readings")
    for begin in range(0, rows, BLOCK):
        memtable.ingest_all(readings(min(BLOCK, rows - begin), number * rows + begin), _never)
    return flushed_to(sink, memtable, number, 0, known)


def _memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)


def files(out: Console) -> None:
    """The files of an hour before and after a compaction, and what a read of one robot's rows of two batches opens."""
    at = Path(tempfile.mkdtemp(prefix="bench-tables-"))
    sink = TableSink(TableDirectory(str(at / "readings")), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, dict.fromkeys(range(PARTS))))
    known: dict[int, bytes] = {}
    took = []
    for number in range(1, BATCHES + 1):
        rows = readings(BATCH_ROWS, number * BATCH_ROWS)
        began = time.perf_counter()
        for part, own in enumerate(spread(rows, PARTS)):
            if own:
                known[part] = flush_to(sink, own, number, part, known.get(part))
        took.append(time.perf_counter() - began)
    found = open_table(str(at / "readings"))
    low = BATCHES * 4 // 5 * BATCH_ROWS
    printed = Printed("", "files", "MiB", "opened", "left out", "rows read", "ms", title_justify="left")
    printed.title = (
        f"an hour at an interval of {INTERVAL_S} s: {BATCHES} batches of {BATCH_ROWS:,} rows, {PARTS} state partition; "
        "a robot's rows of two batches"
    )
    compacting = 0.0
    for name in ("before compaction", "after"):
        began = time.perf_counter()
        scan = found.scan("robot-7", row_key=(low, low + 2 * BATCH_ROWS - 1))
        seconds = time.perf_counter() - began
        assert scan.rows.num_rows == 2 * BATCH_ROWS // 100
        paths = [Path(file) for file in found.files()]
        size = sum(path.stat().st_size for path in paths) / (1 << 20)
        printed.add_row(
            *(name, str(len(paths)), f"{size:.1f}", str(scan.files), str(scan.files_left_out)),
            *(f"{scan.rows_read:,}", f"{seconds * 1_000:.0f}"),
        )
        if name != "after":
            began = time.perf_counter()
            found.compact()
            compacting = time.perf_counter() - began
    out.print(printed)
    tenth = BATCHES // 10
    out.print(
        f"a batch took {median(took[:tenth]) * 1_000:.0f} ms in the first tenth of the hour, {median(took[-tenth:]) * 1_000:.0f} in "
        f"the last one; the compaction {compacting:.1f} s"
    )
    shutil.rmtree(at)


def flushes(out: Console) -> None:
    """How long a flush of a few rows takes in a table of many files, and with a log of as many commits."""
    printed = Printed(
        *("files and commits", "a flush, ms", "of processor time", "flushes/s", "entries of the log"),
        title_justify="left",
    )
    printed.title = f"{FLUSHES} flushes of {FLUSH_ROWS} rows each, one state partition"
    for count in GROWN:
        at = Path(tempfile.mkdtemp(prefix="bench-tables-"))
        sink, known = _grown(at / "readings", count)
        took = []
        for number in range(count + 1, count + 1 + FLUSHES):
            rows = readings(FLUSH_ROWS, number * FLUSH_ROWS)
            began, worked = time.perf_counter(), time.process_time()
            known = flush_to(sink, rows, number, 0, known)
            took.append((time.perf_counter() - began, time.process_time() - worked))
        entries = len(list((at / "readings/_delta_log").glob("*.json")))
        clock, processor = (median(times) for times in zip(*took, strict=True))
        printed.add_row(
            *(f"{count:,}", f"{clock * 1_000:.0f}", f"{processor * 1_000:.0f}"),
            *(f"{1 / clock:.1f}", f"{entries:,}"),
        )
        shutil.rmtree(at)
    out.print(printed)


def _grown(at: Path, count: int) -> tuple[TableSink, bytes]:
    """A table after a number of flushes. All but the first are written into its log alone: a flush reads no file of an earlier one."""
    sink = TableSink(TableDirectory(str(at)), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, {0: None}))
    known = flush_to(sink, readings(FLUSH_ROWS), 1, 0, None)
    log = at / "_delta_log"
    first = max(int(entry.stem) for entry in log.glob("*.json"))
    actions = [json.loads(line) for line in (log / f"{first:020d}.json").read_text("utf-8").splitlines()]
    for number in range(2, count + 1):
        for action in actions:
            if "add" in action:
                digest = f"{number:016x}"
                action["add"]["path"] = f"_sqe_partition=0/{number:012d}-{digest}-00000-0000-{digest}.parquet"
            if action.get("txn", {}).get("appId") == "sqe-chain/flow/readings/0":
                action["txn"]["version"] = number
        entry = log / f"{first + number - 1:020d}.json"
        entry.write_text("\n".join(map(json.dumps, actions)) + "\n", "utf-8")
    DeltaTable(str(at)).create_checkpoint()
    return sink, json.dumps(json.loads(known) | {"plan": count}).encode()


PARTS_OF_IT: dict[str, Callable[[Console], None]] = {
    "compare": compare,
    "memory": memory,
    "files": files,
    "flushes": flushes,
}


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables")
    parser.add_argument("--only", choices=PARTS_OF_IT, help="one part")
    parser.add_argument("--peak", nargs=2, type=int, help=argparse.SUPPRESS, metavar=("ROWS", "BATCHES"))
    parser.add_argument(
        "--cassandra", action="store_true", help="into Cassandra, beside one INSERT for each row"
    )
    chosen = parser.parse_args()
    if chosen.peak:
        print(peak_of(*chosen.peak))
        return
    out = Console(highlight=False, soft_wrap=True)
    for name, fact in facts().items():
        out.print(f"{name}: {fact}")
    if chosen.cassandra:
        from benchmarks import cassandra_tables  # noqa: PLC0415 - a driver

        cassandra_tables.run(out)
        return
    for name, part in PARTS_OF_IT.items():
        if chosen.only in (None, name):
            part(out)


if __name__ == "__main__":
    main()
