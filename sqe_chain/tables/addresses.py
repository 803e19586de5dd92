"""What addresses of tables say without any driver."""

from __future__ import annotations

from typing import Final

_CASSANDRA: Final = ("cassandra://", "cassandras://")
MEMORY: Final = "memory://"
"""How the address of a table in the memory of this process begins."""
MAX_KEY_BYTES: Final = 8_192
"""Of the keys of a row in Cassandra, which takes 65,535 bytes: as JSON, which it may become, a byte takes up to six."""


def in_cassandra(address: str) -> bool:
    """Whether a table lies in Cassandra."""
    return address.startswith(_CASSANDRA)


def in_memory(address: str) -> bool:
    """Whether a table lies in the memory of this process."""
    return address.startswith(MEMORY)


def max_key_bytes(address: str) -> int | None:
    """The longest keys of a row, in bytes of their texts; None: there is no limit of their own."""
    return MAX_KEY_BYTES if in_cassandra(address) else None


def in_place(place: str, table: str) -> str:
    """The address of a table in a place.

    >>> in_place("cassandra://one,two/sqe_chain?datacenter=dc1", "readings")
    'cassandra://one,two/sqe_chain/readings?datacenter=dc1'

    Args:
        place: a URL; that of Cassandra may have options.
        table: its name.
    """
    url, mark, options = place.partition("?") if in_cassandra(place) else (place, "", "")
    return f"{url.rstrip('/')}/{table}{mark}{options}"
