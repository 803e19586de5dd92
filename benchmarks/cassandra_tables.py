"""`python -m benchmarks.tables --cassandra`: what `ingest` into Cassandra costs beside writing the same rows one by one.

Both write the same objects to the same node, at the same consistency. Ours: memtable, sort, checksums, statistics, columns of chunks,
index, and a conditional commit for each state partition and batch. Plain: a prepared INSERT for each row, 100 at a time, as the
driver's documentation recommends. It is unconditional, so it proves nothing, and a replay just writes the rows again. Rows are checked
afterwards.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from cassandra.concurrent import execute_concurrent_with_args
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.tables import SCHEMA, Reading, flush_to, readings, spread
from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.ext.dev import CassandraServer
from sqe_chain.ext.tables.cassandra import chunk_table_at
from sqe_chain.ext.tables.reading import Table
from sqe_chain.ext.tables.sink import TableSink
from sqe_chain.ports import SinkClaim, WithSchema

BATCHES: Final = 10
BATCH_ROWS: Final = 10_000
ROUNDS: Final = 3
PARTS: Final = 8
_PLAIN: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.readings_{round} (
    robot text, at_ms bigint, job bigint, axis bigint, bar double, ampere double, celsius double, line text, good boolean,
    part bigint, PRIMARY KEY ((robot), at_ms)
)"""


def ours(url: str, batches: Sequence[Sequence[Reading]], number: int) -> float:
    """What `ingest` does with batches; seconds."""
    sink = TableSink(chunk_table_at(f"{url}/readings-{number}", {}), SCHEMA, "readings")
    sink.claim(SinkClaim("flow", "readings", 1, "run", {}, dict.fromkeys(range(PARTS))))
    known: dict[int, bytes] = {}
    began = time.perf_counter()
    for plan, rows in enumerate(batches, 1):
        for part, own in enumerate(spread(rows, PARTS)):
            if own:
                known[part] = flush_to(sink, own, plan, part, known.get(part))
    took = time.perf_counter() - began
    found = Table(sink.storage).read(columns=["part"])["part"].to_pylist()
    _check(found, batches)
    return took


def plain(url: str, batches: Sequence[Sequence[Reading]], number: int) -> float:
    """What a program without any promise does; seconds."""
    client = CassandraClient.of_this_process(open_store(url).settings)  # type: ignore[attr-defined]
    keyspace = client.settings.keyspace
    client.change_schema(_PLAIN.format(keyspace=keyspace, round=number))
    names = Reading.__struct_fields__
    marks = ", ".join("?" * len(names))
    session = client._session  # noqa: SLF001 - the same connections as ours
    insert = session.prepare(
        f"INSERT INTO {keyspace}.readings_{number} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 - our own names
    )
    began = time.perf_counter()
    for rows in batches:
        values = [tuple([getattr(row, name) for name in names]) for row in rows]
        execute_concurrent_with_args(session, insert, values, concurrency=100)
    took = time.perf_counter() - began
    found = client.rows((f"SELECT part FROM {keyspace}.readings_{number}", ()))  # noqa: S608 - our own names
    _check([part for (part,) in found], batches)
    return took


def _check(found: list[int], batches: Sequence[Sequence[Reading]]) -> None:
    count = sum(map(len, batches))
    assert (len(found), sum(found)) == (count, count * (count - 1) // 2)


def run(out: Console) -> None:
    """Both ways in turn, on a node of their own."""
    batches = [readings(BATCH_ROWS, number * BATCH_ROWS) for number in range(BATCHES)]
    count = BATCHES * BATCH_ROWS
    gc.freeze()
    with CassandraServer() as server:
        store = open_store(server.url)
        assert isinstance(store, WithSchema)
        store.make_schema({"": 1})
        ours(server.url, batches[:1], 1_000)  # both are warm
        plain(server.url, batches[:1], 1_000)
        pairs = [(ours(server.url, batches, n), plain(server.url, batches, n)) for n in range(ROUNDS)]
        store.close()
    ratios = sorted(theirs / own for own, theirs in pairs)
    own, theirs = (median(times) for times in zip(*pairs, strict=True))
    table = Printed("", "rows/s", title_justify="left")
    table.title = (
        f"{BATCHES} batches of {BATCH_ROWS:,} rows of ten columns, {PARTS} state partitions, one node"
    )
    table.add_row("ingest", f"{count / own:,.0f}")
    table.add_row("an INSERT for each row", f"{count / theirs:,.0f}")
    out.print(table)
    out.print(f"ratio {median(ratios):.2f} (rounds: {', '.join(f'{one:.2f}' for one in ratios)}), wanted 0.5")
