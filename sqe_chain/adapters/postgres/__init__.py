"""A store in PostgreSQL. Needs the extra `postgres`."""

from __future__ import annotations

import re
from typing import Any, Final

from sqe_chain.adapters.address import Address, server_options
from sqe_chain.adapters.postgres.client import PostgresSettings
from sqe_chain.adapters.postgres.store import MAX_BYTES, MAX_ROWS, PostgresStore
from sqe_chain.errors import ConfigurationError

_PORT: Final = 5432
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def open_address(address: Address) -> PostgresStore:
    """The store at ``postgres://host[:port][,host[:port]…]/database``; its options are described in docs/stores.md.

    Raises:
        ConfigurationError: no database, unknown options, a secret that cannot be read.
    """
    max_rows, max_bytes = address.whole("max_rows", MAX_ROWS), address.whole("max_bytes", MAX_BYTES)
    settings = PostgresSettings(
        servers=address.hosts(_PORT) or (("localhost", _PORT),),
        database=_database(address),
        schema=_schema(address),
        **_tls(address, server_options(address)),
    )
    address.finish()
    return PostgresStore(settings, max_rows, max_bytes)


def _database(address: Address) -> str:
    name = address.path.strip("/")
    if not name or "/" in name:
        raise ConfigurationError(
            f"{address.scheme}://: the path must be a database, as in /totals{f'; not {name!r}' if name else ''}"
        )
    return name


def _schema(address: Address) -> str:
    name = address.text("schema", PostgresSettings().schema)
    if not _SCHEMA.fullmatch(name):
        raise ConfigurationError(
            f"{address.scheme}://: schema={name!r}. Expected a-z or _ first, then a-z 0-9 _, at most 63 characters"
        )
    return name


def _tls(address: Address, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with `sslmode` and what follows from it."""
    mode = address.choice("sslmode", ("prefer", "disable", "verify-full", "verify-ca"))
    verifies = mode.startswith("verify")
    files = [name for name in ("ca_file", "cert_file", "key_file") if options[name]]
    if files and not verifies:
        raise ConfigurationError(
            f"{address.scheme}://: {', '.join(files)} with sslmode={mode}, which verifies no server. Expected sslmode=verify-full"
        )
    return {**options, "sslmode": mode, "tls": verifies}


__all__ = ["PostgresSettings", "PostgresStore", "open_address"]
