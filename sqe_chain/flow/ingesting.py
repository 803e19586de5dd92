"""The end of a stream in a table. The wing `sqe_chain.ext.tables` does it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from sqe_chain.flow.declaration import caller_line, check_name, refused_at
from sqe_chain.flow.functions import Value
from sqe_chain.flow.part import StreamPart
from sqe_chain.wings import WINGS, load


class IngestSteps(StreamPart[Value]):
    """The end of a stream in a table."""

    __slots__ = ()

    def ingest(  # noqa: PLR0913 - a declaration names what it needs
        self,
        table: str,
        *,
        partition_key: str | Sequence[str],
        row_key: str | Sequence[str],
        columns: Mapping[str, str] | Sequence[str | object] | None = None,
        payload: type | None = None,
        at: str | os.PathLike[str] | None = None,
        options: Mapping[str, str] | None = None,
        version: int = 0,
        replaces: bool = False,
        max_row_bytes: int = 16 * 1024 * 1024,
        store: str | None = None,
    ) -> None:
        """Write each value as a row of a table in Delta Lake or Cassandra: exactly once, at the end of the batch (docs/tables.md).

        Partition key and row key identify a row; a later row replaces an earlier one for readers. What is not a row
        of the table goes to the poison policy.

        Args:
            table: name of the table and of the stage; permanent.
            partition_key: the column, or columns, by which rows are spread over state partitions and lie together.
            row_key: the column, or columns, by which the rows of a partition key are sorted and identified.
            columns: name -> type (see `sqe_chain.ext.tables.Column`); or names of fields, and `Column` objects. By default all
                fields of the values' type: a protobuf message, a msgspec Struct or a dataclass. Columns may be added later.
            payload: type of the values, where the flow cannot know it: after `map`, `flat_map` and stages.
            at: the directory or address under which the table gets a directory of its own, or a keyspace
                (``cassandra://host[:port]/keyspace``, as for stores). By default the environment variable SQE_CHAIN_TABLES
                when the flow is declared, else the directory ``tables``.
            options: logins and settings of an object store, for delta-rs; or options of stores in Cassandra.
            version: of the table, from 0: another one is another table, under the stage name ``TABLE.vN``.
            replaces: rows are replayed in order to replace what is there: no chunk is skipped because it looks the same.
            max_row_bytes: largest row, in bytes of its cells.
            store: name of the store for the stage's headers; by default the service's.

        Raises:
            FlowError: a name clash, a field that cannot be a column, a key that is none, or a stage after `changes()`.
        """
        where = caller_line()
        check_name("table", table, where)
        with refused_at(f"{where}: table {table!r}"):
            declare = load(WINGS, "ingest", "tables")
        name, kind, key = declare(
            where,
            table,
            payload or self._value_type(),
            partition_key=partition_key,
            row_key=row_key,
            columns=columns,
            at=at,
            options=options,
            version=version,
            replaces=replaces,
            max_row_bytes=max_row_bytes,
        )
        self._stage(name, kind, where, store=store, key=key)
