"""Flows that load files, and the files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sqe_chain import Flow
from sqe_chain.testing import Rehearsal

Rows = list[dict[str, Any]]


class Fastening(msgspec.Struct):
    robot: str
    screws: int


class Total(msgspec.Struct):
    events: int = 0
    screws: int = 0


def add(total: Total, fastening: Fastening) -> None:
    total.events += 1
    total.screws += fastening.screws


def rows_of(number: int, count: int) -> Rows:
    """Rows of one file: no two files have the same ones."""
    return [{"robot": f"r{row % 3}", "screws": 1 + row + 1_000 * number} for row in range(count)]


def write(path: Path, rows: Rows) -> Path:
    """Write a file in the format of its name."""
    name = path.name.removesuffix(".part").removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)
        return path
    if name.endswith(".csv"):
        text = "robot,screws\n" + "".join(f"{row['robot']},{row['screws']}\n" for row in rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    elif path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(text.encode())
    else:
        path.write_text(text)
    return path


def totals_flow(
    folder: Path,
    suffix: str = "csv",
    *,
    poison: Literal["stop", "dead_letter", "skip"] = "stop",
    **declared: Any,
) -> Flow:
    """Totals by robot, and their changes."""
    flow = Flow("load", state_partitions=2, poison=poison, **declared)
    totals = flow.files("fastenings", Fastening, folder / f"*.{suffix}").aggregate(
        "per-robot", key=lambda one: one.robot, state=Total, fold=add
    )
    totals.changes().to("totals", partitions=1)
    return flow


def rows_flow(folder: Path, suffix: str = "csv") -> Flow:
    """Rows as messages: no stage."""
    flow = Flow("publish")
    flow.files("fastenings", Fastening, folder / f"*.{suffix}").to(
        "rows", key=lambda one: one.robot, partitions=2
    )
    return flow


def expected(files: Sequence[Rows]) -> dict[bytes, Total]:
    """The totals of all rows, each counted once."""
    totals: dict[bytes, Total] = {}
    for rows in files:
        for row in rows:
            add(totals.setdefault(row["robot"].encode(), Total()), Fastening(**row))
    return totals


def published_once(rehearsal: Rehearsal) -> Counter[int]:
    """Screws -> how often, of the published rows that are no replays."""
    seen, found = set(), Counter[int]()
    for envelope in rehearsal.published("rows"):
        at = (envelope.lane, envelope.position)
        if at not in seen:
            seen.add(at)
            found[envelope.payload_as(Fastening).screws] += 1
    return found


def some_files(folder: Path, suffix: str = "csv", sizes: tuple[int, ...] = (9, 5, 0, 6)) -> list[Rows]:
    """Write some files; returns the rows of each."""
    rows = [rows_of(number, size) for number, size in enumerate(sizes)]
    for number, row in enumerate(rows):
        write(folder / f"f{number}.{suffix}", row)
    return rows
