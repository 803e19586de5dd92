"""Groups of real Redis servers: a cluster, and a master with a replica and sentinels."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from sqe_chain.ext.dev.redis import RedisServer
from sqe_chain.ext.dev.server import HOST
from tests.support.ports import own_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS = 16_384
SERVICE = "totals"
"""Name under which the sentinels know the master."""
DOWN_AFTER_MS = 3_000
"""A replica whose link broke ten times as long before a sentinel noticed is never promoted."""
NEVER_MS = 24 * 3_600_000

LEAST_RIGHTS = (
    "+evalsha", "+eval", "+hget", "+hmget", "+hset", "+hdel", "+hkeys", "+hlen", "+hscan", "+get", "+incr", "+ping",
)  # fmt: skip
"""The rights that an ACL user needs by docs/stores.md, whatever the address is."""


def send_command(server: RedisServer, *command: str | int) -> object:
    """Send a command directly to a server, without a store."""
    with Redis(port=server.port, protocol=2, decode_responses=True) as client:
        return client.execute_command(*command)


def server_info(server: RedisServer, section: str) -> dict[str, object]:
    """One section of INFO; empty when the server does not answer."""
    with Redis(port=server.port, protocol=2, decode_responses=True) as client:
        try:
            return cast("dict[str, object]", client.info(section))
        except RedisError:
            return {}


def tls_arguments(certificate: Path, port: int, *, replication: bool = False) -> tuple[str, ...]:
    """Arguments of redis-server for a second port with TLS; the directory has ca.pem and key.pem."""
    return (
        "--tls-port", str(port), "--tls-auth-clients", "no",
        "--tls-cert-file", str(certificate / "ca.pem"), "--tls-key-file", str(certificate / "key.pem"),
        "--tls-ca-cert-file", str(certificate / "ca.pem"),
        "--tls-replication", "yes" if replication else "no",
    )  # fmt: skip


class ClusterNode(RedisServer):
    """One node of a cluster.

    Args:
        certificate: directory with ca.pem and key.pem; the nodes and their clients then use TLS.
        data_dir: its data; None: a temporary directory.
    """

    def __init__(self, certificate: Path | None = None, data_dir: Path | None = None) -> None:
        self.bus_port = own_port()
        self.tls_port = own_port() if certificate else 0
        tls = (*tls_arguments(certificate, self.tls_port), "--tls-cluster", "yes") if certificate else ()
        super().__init__(
            data_dir=data_dir,
            extra_args=(
                "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
                "--cluster-port", str(self.bus_port), "--cluster-replica-validity-factor", "0",
                "--repl-diskless-sync-delay", "0", *tls,
            )
        )  # fmt: skip

    @property
    def node_id(self) -> str:
        """The id of this node in the cluster."""
        return str(send_command(self, "CLUSTER", "MYID"))

    def knows(self, node_id: str) -> bool:
        """Whether this node knows another one."""
        return node_id in str(send_command(self, "CLUSTER", "NODES"))


class RedisCluster:
    """Three masters, each with as many replicas as asked for.

    Args:
        disk: directory for the data of all nodes; None: temporary ones.
        replicas: replicas of each master.
        certificate: directory with ca.pem and key.pem; the URL then uses TLS.
    """

    def __init__(
        self, disk: Path | None = None, *, replicas: int = 0, certificate: Path | None = None
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._disk = disk
        self._nodes = 0
        self._certificate = certificate
        self._replicas = replicas
        self.masters: list[ClusterNode] = []
        self.replicas: list[ClusterNode] = []
        """Number i belongs to master i % 3."""

    @property
    def url(self) -> str:
        """The URL, naming two of the nodes."""
        scheme = "rediss+cluster" if self._certificate else "redis+cluster"
        return f"{scheme}://" + ",".join(f"{HOST}:{_client_port(node)}" for node in self.masters[:2])

    def owner(self, key: str) -> ClusterNode:
        """The master that owned the key's slot initially."""
        return self.masters[key_slot(key.encode()) * 3 // SLOTS]

    def is_up(self) -> bool:
        """Whether every node sees the whole cluster as up, replicas included."""
        nodes = [*self.masters, *self.replicas]
        for node in nodes:
            about = str(send_command(node, "CLUSTER", "INFO"))
            if "cluster_state:ok" not in about or f"cluster_slots_ok:{SLOTS}" not in about:
                return False
            lines = str(send_command(node, "CLUSTER", "NODES")).splitlines()
            if len(lines) != len(nodes) or sum("slave" in line for line in lines) != len(self.replicas):
                return False
        return True

    def start_migration(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Begin to move a slot: from now on its keys can be moved one by one."""
        send_command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        send_command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)

    def move_key(self, key: str, source: ClusterNode, target: ClusterNode) -> None:
        """Move one key, atomically."""
        send_command(source, "MIGRATE", HOST, target.port, key, 0, 10_000)

    def finish_migration(self, slot: int, target: ClusterNode) -> None:
        """Make the target the owner of the slot; other nodes redirect clients to it."""
        for node in (target, *self.masters):
            send_command(node, "CLUSTER", "SETSLOT", slot, "NODE", target.node_id)

    def __enter__(self) -> Self:
        """Start all nodes, assign the slots, and let the nodes meet."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all nodes."""
        self._stack.close()

    def _start(self) -> None:
        self.masters = [self._node() for _ in range(3)]
        self.replicas = [self._node() for _ in range(3 * self._replicas)]
        for number, master in enumerate(self.masters):
            first, last = -(-number * SLOTS // 3), -(-(number + 1) * SLOTS // 3) - 1
            send_command(master, "CLUSTER", "ADDSLOTSRANGE", first, last)
            send_command(master, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in [*self.masters[1:], *self.replicas]:
            send_command(self.masters[0], "CLUSTER", "MEET", HOST, _client_port(node), node.bus_port)
        for number, replica in enumerate(self.replicas):
            master_id = self.masters[number % 3].node_id
            eventually(partial(replica.knows, master_id), "the nodes have met")
            send_command(replica, "CLUSTER", "REPLICATE", master_id)
        eventually(self.is_up, "the cluster is up")

    def _node(self) -> ClusterNode:
        self._nodes += 1
        data_dir = self._disk and self._disk / f"node-{self._nodes}"
        return self._stack.enter_context(ClusterNode(self._certificate, data_dir))


def _client_port(node: ClusterNode) -> int:
    return node.tls_port or node.port


class Sentinel(RedisServer):
    """A sentinel. It rewrites its own configuration file, which survives restarts.

    Args:
        configuration: lines for its file.
        certificate: directory with ca.pem and key.pem, for a second port with TLS.
    """

    kind = "sentinel"

    def __init__(self, configuration: str, certificate: Path | None = None) -> None:
        super().__init__()
        self.tls_port = own_port() if certificate else 0
        arguments = tls_arguments(certificate, self.tls_port, replication=True) if certificate else ()
        lines = [f"{name[2:]} {value}" for name, value in zip(arguments[::2], arguments[1::2], strict=True)]
        self._configuration = "\n".join([configuration, *lines, ""])

    def sees_group(self, sentinels: int) -> bool:
        """Whether it sees a healthy master, its replica and this many sentinels."""
        about = server_info(self, "sentinel").get("master0")
        return isinstance(about, dict) and (
            about.get("status"), about.get("slaves"), about.get("sentinels")
        ) == ("ok", 1, sentinels)  # fmt: skip

    @property
    def _file(self) -> Path:
        return self.data_dir / "sentinel.conf"

    def _prepare(self) -> None:
        if not self._file.exists():
            where = f"bind {HOST}\nport {self.port}\ndir {self.data_dir}\n"
            self._file.write_text(where + self._configuration)

    def _command(self) -> Sequence[str]:
        return [str(self._program.path), str(self._file), "--sentinel"]


class SentinelGroup:
    """A master, its replica, and sentinels that promote the replica when the master fails.

    Args:
        sentinels: how many; more than half must agree.
        certificate: directory with ca.pem and key.pem; the URL then uses TLS.
    """

    def __init__(self, sentinels: int = 1, certificate: Path | None = None) -> None:
        self._stack = contextlib.ExitStack()
        self._certificate = certificate
        self._count = sentinels
        self.sentinels: list[Sentinel] = []
        self.master: RedisServer
        self.replica: RedisServer

    @property
    def url(self) -> str:
        """The URL, naming all sentinels."""
        places = ",".join(f"{HOST}:{sentinel.tls_port or sentinel.port}" for sentinel in self.sentinels)
        return f"{'rediss' if self._certificate else 'redis'}+sentinel://{places}/{SERVICE}"

    def replica_caught_up(self) -> bool:
        """Whether the replica has everything the master wrote, on disk too; a full copy takes a while."""
        disk = server_info(self.replica, "persistence")
        master, replica = server_info(self.master, "replication"), server_info(self.replica, "replication")
        return (
            master.get("connected_slaves") == 1
            and replica.get("master_link_status") == "up"
            and master.get("master_repl_offset") == replica.get("slave_repl_offset")
            and disk.get("aof_rewrite_in_progress") == disk.get("aof_rewrite_scheduled") == 0
        )

    def replica_is_master(self) -> bool:
        """Whether the replica was promoted and every sentinel names it as the master."""
        return server_info(self.replica, "replication").get("role") == "master" and all(
            send_command(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            == [HOST, str(self.replica.port)]
            for sentinel in self.sentinels
        )

    def __enter__(self) -> Self:
        """Start all servers; wait until the sentinels know the replica and each other."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all."""
        self._stack.close()

    def _start(self) -> None:
        self.master, port = self._server()
        self.replica, _ = self._server("--replicaof", HOST, str(port))
        eventually(self.replica_caught_up, "the replica follows")
        lines = (
            f"sentinel monitor {SERVICE} {HOST} {port} {self._count // 2 + 1}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 2000\n"
        )
        self.sentinels = [
            self._stack.enter_context(Sentinel(lines, self._certificate)) for _ in range(self._count)
        ]
        for sentinel in self.sentinels:
            # A sentinel that stood still for 2 s looks away for 30 s. If the master dies meanwhile, the replica's
            # link was down for too long when the sentinel looks again, and nobody is ever promoted.
            send_command(sentinel, "SENTINEL", "DEBUG", "TILT-TRIGGER", NEVER_MS)
            eventually(partial(sentinel.sees_group, self._count), "the sentinels know all")

    def _server(self, *arguments: str) -> tuple[RedisServer, int]:
        """A server, and the port at which others reach it."""
        port = own_port() if self._certificate else 0
        tls = tls_arguments(self._certificate, port, replication=True) if self._certificate else ()
        extra_args = (*tls, "--repl-diskless-sync-delay", "0", *arguments)
        server = self._stack.enter_context(RedisServer(extra_args=extra_args))
        return server, port or server.port
