"""Servers that outlive the command that started them: `sqe-chain dev up`, `status`, `down`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev.apicurio import ApicurioServer
from sqe_chain.ext.dev.cassandra import CassandraServer
from sqe_chain.ext.dev.kafka import KafkaServer
from sqe_chain.ext.dev.lock import exclusive
from sqe_chain.ext.dev.packages import KINDS
from sqe_chain.ext.dev.postgres import PostgresServer
from sqe_chain.ext.dev.process import ProcessIdentity
from sqe_chain.ext.dev.redis import RedisServer
from sqe_chain.ext.dev.server import Server, port_is_free

DEFAULT_KINDS = ("kafka", "redis")
"""What `up` starts by default."""

_LOCK_TIMEOUT_S = 300

_CLASSES: Mapping[str, type[Server]] = {
    server.kind: server
    for server in (KafkaServer, RedisServer, CassandraServer, PostgresServer, ApicurioServer)
}


@dataclass(frozen=True)
class DevServer:
    """One server of a machine.

    Args:
        started: start time of the process in clock ticks since boot; with the pid it identifies the process.
    """

    kind: str  # one of `KINDS`
    address: str  # `host:port` of Kafka, URL of the others
    port: int  # its port
    pid: int  # process id
    started: int
    data_dir: str  # its data
    log_file: str  # its log
    running: bool  # whether it was running when it was checked

    @property
    def identity(self) -> ProcessIdentity:
        """The process; a later one with the same pid is another identity."""
        return ProcessIdentity(self.pid, self.started)


@dataclass(frozen=True)
class DevMachine:
    """The servers started in one directory."""

    directory: Path  # their data, and the file that lists them
    servers: tuple[DevServer, ...]  # all of them, running or not

    def server(self, kind: str) -> DevServer | None:
        """The server of this kind, running or not, if there is one."""
        return next((server for server in self.servers if server.kind == kind), None)

    def as_json(self) -> str:
        """JSON: the directory, and the server of each kind; for scripts, for example `kafka.address`."""
        servers = {server.kind: asdict(server) for server in self.servers}
        return json.dumps({"directory": str(self.directory), **servers}, indent=2)


def _default_directory() -> Path:
    """The default directory of `up`: `sqe-chain/dev` in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser().absolute() / "sqe-chain" / "dev"


def up(  # noqa: PLR0913 - a port for each server
    kinds: Sequence[str] = DEFAULT_KINDS,
    directory: Path | str | None = None,
    *,
    kafka_port: int | None = None,
    redis_port: int | None = None,
    cassandra_port: int | None = None,
    postgres_port: int | None = None,
    apicurio_port: int | None = None,
    heap_mb: int = 384,
    starting: Callable[[str], None] = lambda _kind: None,
) -> DevMachine:
    """Start the servers that are not running yet; they outlive this process. Data of an earlier `up` are kept.

    Args:
        kinds: some of `KINDS`.
        directory: for data and the list of servers; None: `_default_directory()`.
        kafka_port: fixed port; a running server must have it. None: the previous one if it is free, else any free one.
        redis_port: the same for Redis.
        cassandra_port: the same for Cassandra.
        postgres_port: the same for PostgreSQL.
        apicurio_port: the same for Apicurio, a schema registry.
        heap_mb: Kafka's Java heap in MiB.
        starting: is called with each kind before it starts, which takes seconds.

    Raises:
        ConfigurationError: an unknown kind, a port that is in use, a server that runs on another port, or something missing on the
            machine. Nothing was started.
        Unavailable: a download failed, or a server did not start in time. Servers started before it keep running and are listed.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ConfigurationError(f"cannot start {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    ports = {"kafka": kafka_port, "redis": redis_port, "cassandra": cassandra_port, "postgres": postgres_port}
    ports["apicurio"] = apicurio_port
    with _locked(directory) as path:
        _check_ports(_read(path), ports)
        for kind in (kind for kind in KINDS if kind in kinds):
            known = _read(path)
            before = known.server(kind)
            if before is None or not before.running:
                starting(kind)
                started = _start(kind, path, _port(ports[kind], before), heap_mb)
                others = tuple(server for server in known.servers if server.kind != kind)
                _write(DevMachine(path, (*others, started)))
        return _read(path)


def status(directory: Path | str | None = None) -> DevMachine:
    """The servers started in this directory, and whether they are still running.

    Args:
        directory: None: `_default_directory()`.

    Raises:
        ConfigurationError: the list of servers cannot be read.
    """
    return _read(_path(directory))


def down(directory: Path | str | None = None, *, grace_s: float = 20, delete: bool = False) -> DevMachine:
    """Stop everything that was started in this directory. Data and addresses stay for the next `up`.

    Only processes that `up` started are stopped, never later ones with the same pid.

    Args:
        directory: None: `_default_directory()`.
        grace_s: seconds that each server has to end by itself.
        delete: delete the data, too: the next `up` begins with empty servers.

    Returns:
        The servers as they were before; those marked as running have been stopped.

    Raises:
        ConfigurationError: the list of servers cannot be read.
        Unavailable: another `up` or `down` in this directory does not end.
    """
    if not (_path(directory) / "lock").exists():  # `up` has never begun here
        return status(directory)
    with _locked(directory) as path:
        before = _read(path)
        for server in before.servers:
            server.identity.end(grace_s, _CLASSES[server.kind].stop_signal)
        if delete:
            for kind in (server.kind for server in before.servers if (path / server.kind).exists()):
                shutil.rmtree(path / kind)
            _write(DevMachine(path, ()))
        return before


def reset(directory: Path | str | None = None) -> DevMachine:
    """Stop everything at once and delete its data; see `down`."""
    return down(directory, grace_s=0, delete=True)


def _check_ports(machine: DevMachine, ports: Mapping[str, int | None]) -> None:
    for server in machine.servers:
        wanted = ports[server.kind]
        if server.running and wanted is not None and wanted != server.port:
            raise ConfigurationError(
                f"{server.kind} is running already, on port {server.port}, not {wanted} ({machine.directory}): stop it first "
                f"(sqe-chain dev down), run without --{server.kind}-port, or start another one with --dir"
            )


def _start(kind: str, path: Path, port: int | None, heap_mb: int) -> DevServer:
    server: KafkaServer | RedisServer | CassandraServer | PostgresServer | ApicurioServer
    if kind == "kafka":
        server = KafkaServer(path / kind, port, heap_mb=heap_mb, detached=True)
    elif kind == "redis":
        server = RedisServer(path / kind, port, detached=True)
    elif kind == "apicurio":
        server = ApicurioServer(path / kind, port, detached=True)
    elif kind == "postgres":
        server = PostgresServer(path / kind, port, detached=True)
    else:
        server = CassandraServer(path / kind, port, detached=True)
    server.start()
    address = server.bootstrap if isinstance(server, KafkaServer) else server.url
    return DevServer(
        kind=kind,
        address=address,
        port=server.port,
        pid=server.identity.pid,
        started=server.identity.started,
        data_dir=str(server.data_dir),
        log_file=str(server.log_file),
        running=True,
    )


def _port(wanted: int | None, before: DevServer | None) -> int | None:
    if wanted is None and before is not None and port_is_free(before.port):
        return before.port
    return wanted


def _path(directory: Path | str | None) -> Path:
    path = _default_directory() if directory is None else Path(directory).expanduser().absolute()
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}. Expected a directory that this user may read and write"
        ) from error
    return path


@contextmanager
def _locked(directory: Path | str | None) -> Iterator[Path]:
    """Only one `up` or `down` at a time in one directory."""
    path = _path(directory)
    path.mkdir(parents=True, exist_ok=True)
    with exclusive(path / "lock", _LOCK_TIMEOUT_S):
        yield path


def _read(path: Path) -> DevMachine:
    listing = path / "servers.json"
    if not listing.exists():
        return DevMachine(path, ())
    try:
        servers = tuple(DevServer(**entry) for entry in json.loads(listing.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{listing} cannot be read ({error}); stop its servers by hand, then remove it"
        ) from error
    return DevMachine(path, tuple(replace(server, running=server.identity.alive()) for server in servers))


def _write(machine: DevMachine) -> None:
    text = json.dumps([asdict(server) for server in machine.servers], indent=2)
    partial = machine.directory / "servers.json.partial"  # renamed, because `status` reads without the lock
    partial.write_text(text, encoding="utf-8")
    partial.replace(machine.directory / "servers.json")
