"""The fastenings of `services.fastening` as rows of tables, each once: one table at each address.

    FASTENING_TABLES="warehouse cassandra://HOST:PORT/KEYSPACE" sqe-chain run services.rows:rows --kafka HOST:PORT --store redis://HOST:PORT

The service reads what `standard` republishes. Its rows are exact although `standard` publishes many messages twice
when it is restarted: see `services.demo_ingest`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from services._proto.fastening_pb2 import Fastening
from services.fastening import standard
from sqe_chain.ext.tables.columns import Column
from sqe_chain.flow import Flow

TABLES: Final = "FASTENING_TABLES"
"""Environment variable: addresses of tables, separated by spaces; by default the directory `tables`."""
INPUT: Final = standard.compile().outputs[0].topic
COLUMNS: Final = ("robot", "line", "joint", "report", "fastened", "failed", "torque_mnm")
KEYS: Final = ("robot", "report", "joint")
"""Columns that name a fastening: partition key, then row key."""


def table_name(address: str) -> str:
    """The name of the table at an address: tables of one flow have different names."""
    scheme = urlsplit(address).scheme
    return f"fastenings_{scheme}" if scheme else "fastenings"


def rows_flow(addresses: Sequence[str]) -> Flow:
    """Writes each fastening as a row, into a table at each of these addresses."""
    flow = Flow("fastening-rows", state_partitions=4)
    fastenings = flow.source(INPUT, Fastening)
    columns = [Column(name, "int64") if name == "report" else name for name in COLUMNS]
    for address in addresses:
        fastenings.ingest(
            table_name(address), partition_key=KEYS[0], row_key=KEYS[1:], columns=columns, at=address
        )
    return flow


rows = rows_flow(os.environ.get(TABLES, "tables").split())
