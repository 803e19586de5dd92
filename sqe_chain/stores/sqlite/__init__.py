"""A store in one SQLite file: the embedded default."""

from sqe_chain.stores.sqlite.store import SqliteStore, open_address

__all__ = ["SqliteStore", "open_address"]
