"""Addresses of tables: where they lead. Needs no driver."""

from __future__ import annotations

import os
import re
from typing import Final

from sqe_chain.errors.safe_text import without_secrets

_CASSANDRA: Final = ("cassandra://", "cassandras://")
MEMORY: Final = "memory://"
"""How the address of a table in the memory of this process begins."""
MAX_KEY_BYTES: Final = 8_192
"""Of the keys of a row in Cassandra, which takes 65,535 bytes: as JSON, which it may become, a byte takes up to six."""
_FILE: Final = "file://"
_CUT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
"""A URL that has lost a slash, as `pathlib.Path` makes it."""


_NOT_IN_PATHS: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\^|\x00-\x1f\x7f\ud800-\udfff]")
"""What delta-rs takes for something else, in part of what it does, or cannot take: it handles paths as URLs."""


def text_of(address: object) -> str:
    """The text of an address that was given as text or as a path; of ``file://`` the path.

    >>> text_of("file:///warehouse")
    '/warehouse'

    Raises:
        ValueError: neither text nor path, empty, a URL as a path, or a path that Delta Lake cannot use.
    """
    given = os.fspath(address) if isinstance(address, str | os.PathLike) else None
    if not isinstance(given, str) or not given:
        raise ValueError("a directory or an address, as text or a path")
    if not isinstance(address, str) and _CUT.match(given):
        raise ValueError(f"a URL loses a slash in a path ({without_secrets(given)}): give it as text")
    path = given.removeprefix(_FILE)
    wrong = None if "://" in path else _NOT_IN_PATHS.search(os.path.abspath(path))  # noqa: PTH100 - of a text
    if wrong is not None:
        raise ValueError(
            f"{os.path.abspath(path)!r} has {wrong[0]!r}, which a path of Delta Lake cannot have: rename the directory, or choose another one"  # noqa: PTH100
        )
    return path


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
    """
    url, mark, options = place.partition("?") if in_cassandra(place) else (place, "", "")
    return f"{url.rstrip('/')}/{table}{mark}{options}"
