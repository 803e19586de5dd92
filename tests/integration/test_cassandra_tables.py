"""What only a real Cassandra can show of tables in it: whole flows through crashes, lost answers, a killed server, large rows.

The contract of all places of tables is in tests/contract/test_table_storage.py, and runs on this server too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import duckdb
import msgspec
import polars as pl
import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraStore, schema
from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.dev import CassandraServer
from sqe_chain.ext.tables import chunk_sets, open_table
from sqe_chain.ext.tables.chunk_table import PIECE_BYTES
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.sink import TableSink
from sqe_chain.testing.faults import FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_sink
from tests.support.lossy_proxy import LossyProxy
from tests.support.table_flows import TablePipeline
from tests.support.waiting import retry_until_available
from tests.support.written_tables import Row, WrittenTable

KEYS = 6


class Noted(msgspec.Struct):
    robot: str
    at: int
    bar: float = 0.0
    note: bytes = b""


def rows_of(number: int) -> list[Row]:
    return [Row(f"r{n}", n % 3, float(number)) for n in range(KEYS)]


def new_table() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def flush_with(written: WrittenTable, sink: TableSink, rows: list[Row]) -> None:
    """Flush a plan, each state partition again and again until there is an answer, as the protocol does."""
    written.number += 1
    for one in written.flushes(rows, written.number):
        _, written.known[one.part] = retry_until_available(partial(sink.flush, one))
    written.expected |= {(row.robot, row.at): row.bar for row in rows}


def writes_of(written: WrittenTable) -> int:
    """How many writes a flush is."""
    script = FaultScript()
    sink = faulty_sink(written.sink, script)
    flush_with(written, sink, rows_of(written.number))  # type: ignore[arg-type]
    return len(script.written)


def test_a_flow_goes_through_a_crash_at_every_write(
    cassandra_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flow, one table: it crashes at the first write, goes on, crashes at the second, and so on."""
    monkeypatch.setattr(TablePipeline, "place", lambda _: cassandra_url)
    pipeline = TablePipeline(Path(), state_partitions=2)
    number, when = 0, "before"
    while True:
        pipeline.feed(8)
        pipeline.service.crash_at_call(number, when, of="table", writes=True)  # type: ignore[arg-type]
        pipeline.service.run_until_caught_up()
        pipeline.check()
        beyond = bool(pipeline.service.script.injected)
        pipeline.service.cancel()
        if beyond:
            break
        number, when = number + 1, "after" if when == "before" else "before"
    assert number > 6
    pipeline.table.compact()
    pipeline.check()


def test_a_lost_answer_or_request_of_any_write_adds_nothing_twice(cassandra_url: str) -> None:
    with LossyProxy(port_of(cassandra_url)) as wire:
        address = f"cassandra://127.0.0.1:{wire.port}/sqe_chain/{new_table()}?timeout_s=0.5"
        written = WrittenTable(storage_at(address)).claim()
        writes = writes_of(written)
        assert writes == 2 * KEYS + 2, (
            "a chunk for each key, its row in the index, a head for each state partition"
        )
        for number in (0, KEYS, writes - 1):
            for what in ("responses_to_drop", "requests_to_drop"):
                script = FaultScript()
                lose = InjectedFault(
                    partial(setattr, wire, what, 1), "table", "before", writes=True, passes=number
                )
                script.injected.append(lose)
                flush_with(written, faulty_sink(written.sink, script), rows_of(written.number))  # type: ignore[arg-type]
                assert not script.injected
                wire.responses_to_drop = wire.requests_to_drop = 0
        written.check()
        assert sum(chunk.rows for chunk in written.table.chunks()) == KEYS * written.number
        CassandraClient.forget(written.storage.rows.settings)  # type: ignore[attr-defined]


@pytest.fixture
def mortal() -> Iterator[CassandraServer]:
    """A server that this test may kill."""
    with CassandraServer() as server:
        made = open_store(server.url)
        assert isinstance(made, CassandraStore)
        made.make_schema({"": 1})
        made.close()
        yield server


@pytest.mark.release
def test_a_server_that_is_killed_in_the_middle_of_a_flush(mortal: CassandraServer) -> None:
    """What was acknowledged is there afterwards, and what was under way is done once."""
    address = f"{mortal.url}/{new_table()}?timeout_s=2&connect_timeout_s=2"
    written = WrittenTable(storage_at(address)).claim()
    writes = writes_of(written)
    script = FaultScript()
    script.injected.append(
        InjectedFault(lambda: restart(mortal), "table", "after", writes=True, passes=writes - 2)
    )
    flush_with(written, faulty_sink(written.sink, script), rows_of(7))  # type: ignore[arg-type]
    assert not script.injected
    assert retry_until_available(written.rows) == written.expected
    assert sum(chunk.rows for chunk in written.table.chunks()) == KEYS * written.number
    CassandraClient.forget(written.storage.rows.settings)  # type: ignore[attr-defined]


def restart(server: CassandraServer) -> None:
    server.kill()
    server.start()
    raise Unavailable("the answer is lost with the server")


def test_large_rows_are_kept_in_small_pieces(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_sets, "BLOCK_ROWS", 60)
    name = new_table()
    written = WrittenTable(storage_at(f"{cassandra_url}/{name}"), Noted).claim()
    content = Random(1).randbytes(5 * PIECE_BYTES)
    rows = [Noted("r1", at, at / 7, b"" if at else content) for at in range(100)]
    written.flush(*rows)
    client = CassandraClient.of_this_process(written.storage.rows.settings)  # type: ignore[attr-defined]
    read = "SELECT column_name, data FROM sqe_chain.sqe_chunks WHERE name = ? AND version = 0 AND partition_key = ?"
    (pieces,) = client.together([(read, (name, b"r1"))], count=8)
    assert max(len(data) for _, data in pieces) == PIECE_BYTES
    assert len(pieces) > 5 * 2, "two blocks of each column, one of them in pieces"
    scan = written.table.scan("r1", row_key=(0, 0))
    assert scan.rows["note"].to_pylist() == [content]
    assert (scan.row_groups, scan.row_groups_left_out) == (1, 1)
    written.check()


def test_arrow_tables_go_to_duckdb_and_polars(cassandra_url: str) -> None:
    written = WrittenTable(storage_at(f"{cassandra_url}/{new_table()}")).claim()
    written.flush(*rows_of(1))
    written.flush(*rows_of(2))
    rows = written.table.read()
    assert duckdb.execute("SELECT count(*), sum(bar) FROM rows").fetchone() == (KEYS, 2.0 * KEYS)
    assert pl.from_arrow(rows).select(pl.col("bar").sum()).item() == 2.0 * KEYS  # type: ignore[union-attr]
    del rows


def test_a_vacuum_frees_the_rows_of_old_chunks(cassandra_url: str) -> None:
    name = new_table()
    written = WrittenTable(storage_at(f"{cassandra_url}/{name}")).claim()
    for number in range(4):
        written.flush(*rows_of(number))
    client = CassandraClient.of_this_process(written.storage.rows.settings)  # type: ignore[attr-defined]
    count = "SELECT count(*) FROM sqe_chain.sqe_chunks WHERE name = ? AND version = 0 AND partition_key = ?"

    def stored() -> int:
        return int(client.rows((count, (name, b"r1")))[0][0])

    columns = stored() // 4
    written.table.compact()
    assert stored() == 5 * columns
    for part in (0, 1):
        written.storage._vacuum(part, 1 << 60)  # type: ignore[attr-defined]
    assert stored() == columns
    written.check()


def test_a_keyspace_without_these_tables_is_named_with_the_command(cassandra_url: str) -> None:
    url = cassandra_url.replace("/sqe_chain", "/without_chunks")
    store = open_store(url)
    assert isinstance(store, CassandraStore)
    client = CassandraClient.of_this_process(store.settings)
    schema.migrate(client, {"": 1}, schema.MIGRATIONS[:2])
    with pytest.raises(ConfigurationError, match=f"sqe-chain store init {url}"):
        open_table(f"{url}/readings")
    store.make_schema({})
    with pytest.raises(ConfigurationError, match="there is no table"):
        open_table(f"{url}/readings")
    store.close()
