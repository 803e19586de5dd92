"""A store in Redis: one server, a cluster, or a master behind sentinels. Needs the extra `redis`."""

from __future__ import annotations

from typing import Final, Literal

from sqe_chain.adapters.address import Address, HostPort, is_number, server_options
from sqe_chain.adapters.redis.connections import RedisSettings
from sqe_chain.adapters.redis.store import MAX_BYTES, MAX_ROWS, RedisStore
from sqe_chain.errors import ConfigurationError

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379


def open_address(address: Address) -> RedisStore:
    """The store at ``redis://…``, ``redis+cluster://…``, ``redis+sentinel://…``, or one of them with ``rediss``.

    Its options are described in docs/stores.md.

    Raises:
        ConfigurationError: a path that this kind of address does not have, unknown or contradictory options, a
            secret that cannot be read.
    """
    base, _, suffix = address.scheme.partition("+")
    kind: Literal["server", "cluster", "sentinel"]
    kind = "cluster" if suffix == "cluster" else "sentinel" if suffix == "sentinel" else "server"
    hosts = address.hosts(_SENTINEL_PORT if kind == "sentinel" else _PORT)
    if kind == "server" and len(hosts) > 1:
        raise ConfigurationError(
            f"{base}:// takes one server; for several write {base}+cluster:// or {base}+sentinel://"
        )
    host, port = hosts[0] if hosts else ("localhost", _PORT)
    service, db = _path(address, kind)
    settings = RedisSettings(
        kind=kind,
        host=host,
        port=port,
        nodes=() if kind == "server" else _named(address, hosts),
        service=service,
        db=db,
        sentinel_username=address.text("sentinel_username") if kind == "sentinel" else "",
        sentinel_password=address.secret("sentinel_") if kind == "sentinel" else "",
        tls=base == "rediss",
        protocol=_protocol(address),
        wait_replicas=address.whole("wait_replicas", 0),
        wait_aof_replicas=address.whole("wait_aof_replicas", 0),
        wait_ms=address.whole("wait_ms", 1_000),
        durability="declared" if _is_declared(address) else "checked",
        **server_options(address),
    )
    _check_waiting(address, settings)
    max_rows, max_bytes = address.whole("max_rows", MAX_ROWS), address.whole("max_bytes", MAX_BYTES)
    address.finish()
    return RedisStore(settings, max_rows, max_bytes)


def _path(address: Address, kind: str) -> tuple[str, int]:
    """Name of the sentinels' master, and number of the database."""
    service, db = "", address.path.strip("/")
    if kind == "sentinel":
        service, _, db = db.partition("/")
        if not service:
            raise ConfigurationError(
                f"{address.scheme}:// needs the sentinels' name for the master, as in "
                f"{address.scheme}://host:26379/mymaster/0"
            )
    if not is_number(db or "0"):
        raise ConfigurationError(f"{address.scheme}://: the path must end with a database number, as in /0")
    if kind == "cluster" and int(db or "0"):
        raise ConfigurationError(f"{address.scheme}://: a cluster has only the database 0; write no path")
    return service, int(db or "0")


def _named(address: Address, hosts: tuple[HostPort, ...]) -> tuple[HostPort, ...]:
    if not hosts:
        raise ConfigurationError(f"{address.scheme}:// needs a host, as in {address.scheme}://host:port")
    return hosts


def _protocol(address: Address) -> int:
    value = address.text("protocol")
    if value not in {"", "2", "3"}:
        raise ConfigurationError(f"{address.scheme}://: option protocol must be 2 or 3")
    return int(value or 0)


def _is_declared(address: Address) -> bool:
    return address.choice("durability", ("checked", "declared")) == "declared"


def _check_waiting(address: Address, settings: RedisSettings) -> None:
    if settings.wait_replicas and settings.wait_aof_replicas:
        raise ConfigurationError(
            f"{address.scheme}://: give only one of wait_replicas and wait_aof_replicas; what is on a replica's disk "
            "has also reached the replica"
        )
    waits = settings.wait_replicas or settings.wait_aof_replicas
    if waits and settings.wait_ms >= settings.timeout_s * 1_000:
        raise ConfigurationError(
            f"{address.scheme}://: wait_ms must be shorter than timeout_s, or answers come too late"
        )


__all__ = ["RedisSettings", "RedisStore", "open_address"]
