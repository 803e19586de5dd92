"""Reads all rows of a table directly from where it lives, by the layouts in docs/tables.md.

It uses nothing of sqe-chain, as any other program would. Other than `Table.read` it gives every row that was written. The audit
looks for doubled rows, so it needs also those that a later row with the same keys has replaced.
"""

# ruff: noqa: S608 - everything that is not ours is bound

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from deltalake import DeltaTable

from services.stored import cassandra_session

_TABLE: Final = "WHERE name = ? AND version = 0"
_DESCRIPTION: Final = f"SELECT description FROM sqe_tables {_TABLE}"
_SETS: Final = f"SELECT chunk_set FROM sqe_table_heads {_TABLE} AND part = ?"
_KEYS: Final = f"SELECT partition_key FROM sqe_chunk_index {_TABLE} AND part = ?"
_CHUNKS: Final = f"SELECT chunk_set, block, column_name, data FROM sqe_chunks {_TABLE} AND partition_key = ?"
_AT_ONCE: Final = 8


def stored_rows(address: str, columns: Sequence[str]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """All rows of a table, for DuckDB: an Arrow dataset, or an Arrow table."""
    if not address.startswith("cassandra://"):
        return DeltaTable(address).to_pyarrow_dataset()
    with cassandra_session(address) as session:
        return pa.concat_tables(_blocks(session, address.rpartition("/")[2], columns))


def _blocks(session: Session, table: str, columns: Sequence[str]) -> Iterator[Any]:
    """All blocks of all chunks that the table's heads name."""
    described, sets, keys, chunks = map(session.prepare, (_DESCRIPTION, _SETS, _KEYS, _CHUNKS))
    ((description,),) = session.execute(described, (table,))
    for part in range(json.loads(description)["sqe-chain"]["state_partitions"]):
        named = {name for (name,) in session.execute(sets, (table, part))}
        own = sorted({key for (key,) in session.execute(keys, (table, part))})
        results = execute_concurrent_with_args(
            session, chunks, [(table, key) for key in own], concurrency=_AT_ONCE
        )
        for _, rows in results:
            for name, chunk in groupby(rows, itemgetter(0)):
                if name in named:
                    yield from _tables(chunk, columns)


def _tables(rows: Iterable[Any], columns: Sequence[str]) -> Iterator[Any]:
    """The blocks of one chunk. The pieces of a blob follow one another."""
    blobs: dict[int, dict[str, bytes]] = defaultdict(lambda: dict.fromkeys(columns, b""))
    for _, block, column, data in rows:
        if column in columns:
            blobs[block][column] += data
    for block in blobs.values():
        yield pa.table({name: pa.ipc.open_stream(blob).read_all()[name] for name, blob in block.items()})
