"""A store in Cassandra. Needs the extra `cassandra`."""

from sqe_chain.adapters.cassandra.address import open_address
from sqe_chain.adapters.cassandra.client import CassandraSettings
from sqe_chain.adapters.cassandra.store import CassandraStore

__all__ = ["CassandraSettings", "CassandraStore", "open_address"]
