"""Stores of states: memory, SQLite, Redis, Cassandra, PostgreSQL. Importing this package loads no driver.

`open_store` turns an address into a store and imports only the module that it needs. `sqe_chain.ports.StateStore`
defines what a store must guarantee; docs/stores.md describes how each one lays out its data.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from sqe_chain.adapters.address import Address
from sqe_chain.errors import ConfigurationError
from sqe_chain.wings import installed, load, needing

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqe_chain.ports import StateStore

__all__ = ["SCHEMES", "Address", "open_store"]

SCHEMES: Final[dict[str, tuple[str, str]]] = {
    "memory": ("sqe_chain.adapters.memory.store", ""),
    "sqlite": ("sqe_chain.adapters.sqlite", ""),
    "redis": ("sqe_chain.adapters.redis", "redis"),
    "rediss": ("sqe_chain.adapters.redis", "redis"),
    "redis+cluster": ("sqe_chain.adapters.redis", "redis"),
    "rediss+cluster": ("sqe_chain.adapters.redis", "redis"),
    "redis+sentinel": ("sqe_chain.adapters.redis", "redis"),
    "rediss+sentinel": ("sqe_chain.adapters.redis", "redis"),
    "cassandra": ("sqe_chain.adapters.cassandra", "cassandra"),
    "cassandras": ("sqe_chain.adapters.cassandra", "cassandra"),
    "postgres": ("sqe_chain.adapters.postgres", "postgres"),
    "postgresql": ("sqe_chain.adapters.postgres", "postgres"),
}
"""Scheme of an address -> module that opens it, and the extra that installs its driver ("": none)."""
ENTRY_POINTS: Final = "sqe_chain.stores"
"""Group of entry points, for stores of other packages: scheme of an address -> function ``Address -> StateStore``."""


def open_store(url: str, **options: str) -> StateStore:
    """The store at an address. Does not connect; `StateStore.check` does.

    Stores of other packages are found by the schemes of their entry points (docs/extending.md).

    Options may also be given in the address (``sqlite:///var/lib/totals.db?timeout_s=10``); those given
    as arguments override them. Every store takes `max_rows` and `max_bytes`, which limit a single write.

    >>> open_store("memory://totals")
    MemoryStore(memory://totals)
    >>> open_store("redis://:secret@example.org/2")
    RedisStore(redis://example.org:6379/2)
    >>> open_store("cassandra://one,two/sqe_chain?datacenter=dc1")
    CassandraStore(cassandra://one:9042,two:9042/sqe_chain)

    Args:
        url: ``memory://name``, ``sqlite:///absolute/path``, ``redis://[user[:password]@]host[:port][/db]``,
            ``redis+cluster://…host[:port][,host[:port]…]``,
            ``redis+sentinel://…host[:port][,host[:port]…]/service[/db]``, or one of these three with
            ``rediss`` (TLS); ``cassandra://[user[:password]@]host[:port][,host[:port]…]/keyspace`` or
            ``cassandras://…`` (TLS); ``postgres://[user[:password]@]host[:port][,host[:port]…]/database``. Special characters of a password are percent-encoded.
        options: settings of the store's module, as text.

    Raises:
        ConfigurationError: unknown scheme or option, a driver that is not installed, a bad address.
    """
    address = Address.parse(url, options)
    others = installed(ENTRY_POINTS)
    opener: Callable[[Address], StateStore]
    if address.scheme in SCHEMES:
        module, extra = SCHEMES[address.scheme]
        with needing(f"{address.scheme}://", extra):
            opener = importlib.import_module(module).open_address
    elif address.scheme in others:
        opener = load(ENTRY_POINTS, address.scheme)
    else:
        known = ", ".join(f"{scheme}://" for scheme in (*SCHEMES, *sorted(others)))
        raise ConfigurationError(
            f"no store is known for {address.scheme or 'an address without scheme'}"
            f"{'://' if address.scheme else ''}; use one of {known}"
        )
    return opener(address)
