"""A store in Cassandra. Needs the extra `cassandra`."""

from __future__ import annotations

import re
from typing import Final

from sqe_chain.adapters.address import Address, server_options
from sqe_chain.adapters.cassandra.client import CassandraSettings
from sqe_chain.adapters.cassandra.store import MAX_BYTES, MAX_ROWS, CassandraStore
from sqe_chain.errors import ConfigurationError

_PORT: Final = 9042
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")

_LEAST_STATEMENTS: Final = 3
_LEVELS: Final = {"LOCAL_SERIAL": ("LOCAL_QUORUM", "QUORUM", "ALL"), "SERIAL": ("QUORUM", "ALL")}
"""Serial consistency -> the consistencies that see its writes."""


def open_address(address: Address) -> CassandraStore:
    """The store at ``cassandra://host[:port][,host[:port]…]/keyspace`` or ``cassandras://…``; see `settings_of`."""
    max_rows, max_bytes = address.whole("max_rows", MAX_ROWS), address.whole("max_bytes", MAX_BYTES)
    return CassandraStore(settings_of(address), max_rows, max_bytes)


def settings_of(address: Address) -> CassandraSettings:
    """How to reach a cluster, by an address. Its options are described in docs/stores.md; all of them are taken.

    Raises:
        ConfigurationError: no keyspace, a level below quorum, unknown options, a secret that cannot be read.
    """
    consistency, serial = _levels(address)
    statements = address.whole("batch_statements", CassandraSettings().batch_statements)
    if statements < _LEAST_STATEMENTS:
        raise ConfigurationError(
            f"{address.scheme}://: batch_statements={statements}. Expected {_LEAST_STATEMENTS} or more: a header, its anchor and one row"
        )
    settings = CassandraSettings(
        nodes=address.hosts(_PORT) or (("localhost", _PORT),),
        keyspace=_keyspace(address),
        datacenter=address.text("datacenter"),
        consistency=consistency,
        serial_consistency=serial,
        tls=address.scheme == "cassandras",
        check_hostname=address.choice("check_hostname", ("yes", "no")) == "yes",
        protocol_version=int(address.choice("protocol_version", ("5", "4"))),
        batch_statements=statements,
        **server_options(address),
    )
    address.finish()
    return settings


def _keyspace(address: Address) -> str:
    name = address.path.strip("/")
    if not _KEYSPACE.fullmatch(name):
        raise ConfigurationError(
            f"{address.scheme}://: the path must be a keyspace, as in /sqe_chain: a-z first, then a-z 0-9 _, at most "
            f"48 characters{f'; not {name!r}' if name else ''}"
        )
    return name


def _levels(address: Address) -> tuple[str, str]:
    serial = address.choice("serial_consistency", tuple(_LEVELS))
    wanted = address.options.get("consistency", "").upper()
    if wanted and wanted not in _LEVELS[serial]:
        raise ConfigurationError(
            f"{address.scheme}://: consistency {wanted} may miss writes of {serial}: states could be older than their "
            f"header; with serial_consistency={serial} use one of {', '.join(_LEVELS[serial])}"
        )
    return address.choice("consistency", _LEVELS[serial]), serial


__all__ = ["CassandraSettings", "CassandraStore", "open_address"]
