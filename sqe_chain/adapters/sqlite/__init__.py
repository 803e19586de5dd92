"""A store in one SQLite file: the embedded default."""

from sqe_chain.adapters.sqlite.store import SqliteStore, open_address

__all__ = ["SqliteStore", "open_address"]
