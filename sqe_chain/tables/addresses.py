"""Which kind of table is at an address. Importing this loads no driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqe_chain.tables.engine import Directory

MEMORY: Final = "memory://"
"""How the address of a table in the memory of this process begins."""


def directory_at(address: str, options: Mapping[str, str] | None = None) -> Directory:
    """The table at an address, without looking at it.

    Args:
        address: a directory, a URL that delta-rs understands, or ``memory://NAME/TABLE``.
        options: for delta-rs.

    Raises:
        ImportError: a package is missing.
    """
    if address.startswith(MEMORY):
        from sqe_chain.tables.memory import MemoryTable  # noqa: PLC0415 - without delta-rs

        return MemoryTable(address)
    from sqe_chain.tables.directory import TableDirectory  # noqa: PLC0415 - a driver

    return TableDirectory(address, options)
