"""How to reach Redis: one server, a cluster, or the master behind sentinels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

HostPort: TypeAlias = tuple[str, int]
"""Host and port of a server."""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How to reach the server or servers. Pickled with a store, passwords included, so that tasks can log in.

    Attributes:
        kind: one server, a Redis Cluster, or the master behind sentinels.
        host: name or address; for one server only.
        port: TCP port; for one server only.
        nodes: for a cluster: nodes to begin with, any one of them is enough. With sentinels: these.
        service: the sentinels' name for the master.
        db: number of the database; 0 in a cluster.
        username: ACL user; empty for the default user.
        password: empty for none; never shown.
        sentinel_username: ACL user of the sentinels.
        sentinel_password: password for the sentinels; empty for none; never shown.
        tls: encrypt, and verify the server's certificate and name.
        ca_file: certificates to trust; empty for the system's.
        cert_file: the client's own certificate; empty for none.
        key_file: its key.
        protocol: 2 or 3, the version of RESP; 0: what redis-py prefers.
        timeout_s: longest wait for an answer, in seconds.
        connect_timeout_s: longest wait for a connection, in seconds.
        wait_replicas: replicas that must have a write before it counts as acknowledged (WAIT); 0: none.
        wait_aof_replicas: replicas that must have it on disk (WAITAOF, Redis 7.2); 0: none.
        wait_ms: longest wait for these replicas, in milliseconds; shorter than `timeout_s`.
    """

    kind: Literal["server", "cluster", "sentinel"] = "server"
    host: str = "localhost"
    port: int = 6379
    nodes: tuple[HostPort, ...] = ()
    service: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    protocol: int = 0
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    wait_replicas: int = 0
    wait_aof_replicas: int = 0
    wait_ms: int = 1_000

    def __str__(self) -> str:
        """The address without its passwords."""
        scheme = "rediss" if self.tls else "redis"
        user = f"{self.username}@" if self.username else ""
        nodes = ",".join(map(shown, self.nodes))
        match self.kind:
            case "cluster":
                return f"{scheme}+cluster://{user}{nodes}"
            case "sentinel":
                return f"{scheme}+sentinel://{user}{nodes}/{self.service}/{self.db}"
            case _:
                return f"{scheme}://{user}{shown((self.host, self.port))}/{self.db}"


def shown(address: HostPort) -> str:
    """Host and port as written in an address.

    >>> shown(("::1", 7000))
    '[::1]:7000'
    """
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
