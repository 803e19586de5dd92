"""The service of `services.rows` with three mistakes, so that the demo of tables has something to find.

Only for a process of its own: importing this lets rows with the same keys all stay, in every table of the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from services._proto.fastening_pb2 import Fastening
from services.rows import COLUMNS, INPUT, KEYS, TABLES, table_name
from sqe_chain.ext.tables import Column, memtable
from sqe_chain.flow import Flow
from tests.support.row_mistakes import CHANGED, LOST, TWICE, kind


def broken(fastening: Fastening) -> Iterator[Fastening]:
    """Lose some, repeat some, change some."""
    found = kind(fastening.report)
    if found == CHANGED:
        fastening.torque_mnm += 1
    if found != LOST:
        yield fastening
    if found == TWICE:
        again = Fastening()
        again.CopyFrom(fastening)
        yield again


def _all(rows: Any, schema: object) -> Any:
    """Rows with the same keys all stay."""
    return rows


memtable.newest = _all
rows = Flow("fastening-rows", state_partitions=4)
wrong = rows.source(INPUT, Fastening).flat_map(broken)
for address in os.environ.get(TABLES, "tables").split():
    wrong.ingest(
        table_name(address),
        partition_key=KEYS[0],
        row_key=KEYS[1:],
        columns=[Column(name, "int64") if name == "report" else name for name in COLUMNS],
        payload=Fastening,
        at=address,
    )
