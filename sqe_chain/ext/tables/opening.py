"""Opens the place of a table at an address, and imports only the driver that it needs."""

from __future__ import annotations

from collections.abc import Mapping

from sqe_chain.ext.tables.addresses import in_cassandra, in_memory
from sqe_chain.ext.tables.storage import Storage
from sqe_chain.wings import needing


def storage_at(address: str, options: Mapping[str, str] | None = None) -> Storage:
    """The place at an address. Does not connect.

    Args:
        address: a directory, a URL that delta-rs understands, ``cassandra://…/keyspace/table``, or ``memory://NAME/TABLE``.
        options: logins and settings of that place.

    Raises:
        ConfigurationError: it cannot be read, or a package is missing.
    """
    if in_cassandra(address):
        with needing("a table in Cassandra", "tables,cassandra"):
            from sqe_chain.ext.tables.cassandra import chunk_table_at  # noqa: PLC0415 - a driver
        return chunk_table_at(address, options or {})
    if in_memory(address):
        from sqe_chain.ext.tables.memory import MemoryStorage  # noqa: PLC0415 - without delta-rs

        return MemoryStorage(address)
    from sqe_chain.ext.tables.directory import TableDirectory  # noqa: PLC0415 - a driver

    return TableDirectory(address, options)
