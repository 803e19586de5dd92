"""One PostgreSQL server on the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from sqe_chain.engines.java import cache_directory
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev.packages import fetch_postgres
from sqe_chain.ext.dev.process import ProcessIdentity
from sqe_chain.ext.dev.server import HOST, Server

USER: Final = "sqe"
DATABASE: Final = "postgres"
_PROBE_TIMEOUT_S: Final = 1.0
_INITDB_TIMEOUT_S: Final = 120

_IN_MEMORY: Final = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
_NOT_ROOT: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
"""PostgreSQL refuses to run as root. In a user namespace it is somebody else, with the same rights on files."""


class PostgresServer(Server):
    """A real PostgreSQL in processes of its own.

    Args:
        data_dir: log and data. None: a temporary directory, removed by `close`.
        port: its port. None: a free one, the same over restarts.
        durable: True: acknowledged writes are on disk, as sqe-chain requires. False: they may be lost at a crash of the machine.
        extra_args: more arguments of postgres; they override the ones set here.
        detached: leave it running when this process ends.

    Raises:
        ConfigurationError: there is no PostgreSQL, and downloading failed; the error names what to install.
    """

    kind: ClassVar[str] = "postgres"
    start_timeout_s: ClassVar[float] = 120
    stop_timeout_s: ClassVar[float] = 20
    stop_signal: ClassVar[signal.Signals] = (
        signal.SIGINT
    )  # after SIGTERM it waits until the last client has gone

    def __init__(
        self,
        data_dir: Path | str | None = None,
        port: int | None = None,
        *,
        durable: bool = True,
        extra_args: Sequence[str] = (),
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self._durable = durable
        self._extra_args = tuple(extra_args)
        self._programs: Path | None = None

    @property
    def url(self) -> str:
        """Address as `postgres://user@host:port/database`. Raises ConfigurationError: the server was never started."""
        return f"postgres://{USER}@{HOST}:{self.port}/{DATABASE}"

    def kill(self) -> None:
        # Each connection has a process, with a group of its own; all must be gone before the next start.
        children = list(self._children()) if self.running else []
        super().kill()
        for child in children:
            child.kill()

    def pause(self) -> None:
        super().pause()
        for child in self._children():
            child.pause()

    def resume(self) -> None:
        for child in self._children():
            child.send(signal.SIGCONT)
        super().resume()

    def _children(self) -> Iterator[ProcessIdentity]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and _parent(entry) == self.identity.pid:
                child = ProcessIdentity.of(int(entry.name))
                if child is not None:
                    yield child

    @property
    def _data(self) -> Path:
        return self.data_dir / "data"

    @property
    def _bin(self) -> Path:
        if self._programs is None:
            self._programs = fetch_postgres()
        return self._programs

    def _program(self, name: str) -> list[str]:
        return [*(_NOT_ROOT if os.geteuid() == 0 else ()), str(self._bin / name)]

    def _environment(self) -> Mapping[str, str]:
        """Libraries that were unpacked beside the programs, as in ROOT/usr/lib/postgresql/15/bin."""
        libraries = sorted(self._bin.parents[4].glob("usr/lib/*-linux-gnu*")) if self._is_unpacked else []
        return {"LD_LIBRARY_PATH": ":".join(map(str, libraries))} if libraries else {}

    @property
    def _is_unpacked(self) -> bool:
        return self._bin.is_relative_to(cache_directory())

    def _prepare(self) -> None:
        if self._data.exists():
            return
        draft = self.data_dir / "partial"
        command = [
            *self._program("initdb"),
            *("--pgdata", str(draft), "--username", USER, "--auth", "trust"),
            *("--encoding", "UTF8", "--no-locale"),
        ]
        try:
            subprocess.run(  # noqa: S603 - no shell
                command,
                capture_output=True,
                timeout=_INITDB_TIMEOUT_S,
                check=True,
                text=True,
                env={**os.environ, **self._environment()},
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or error
            raise ConfigurationError(
                f"PostgreSQL cannot be prepared in {draft}: {said}. Expected a user other than root, or the right to make a user "
                "namespace. Run it as such a user, and delete that directory first"
            ) from error
        draft.rename(self._data)

    def _command(self) -> Sequence[str]:
        return [
            *self._program("postgres"),
            *("-D", str(self._data), "-p", str(self.port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
            *("-c", "shared_buffers=32MB", "-c", "dynamic_shared_memory_type=mmap"),
            *(() if self._durable else _IN_MEMORY),
            *self._extra_args,
        ]

    def _answers(self) -> bool:
        """Whether it lets the user in; while it starts or recovers, it answers with an error."""
        login = b"user\0%s\0database\0%s\0\0" % (USER.encode(), DATABASE.encode())
        try:
            with socket.create_connection((HOST, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(struct.pack(">ii", len(login) + 8, 3 << 16) + login)
                return connection.recv(1) == b"R"
        except OSError:
            return False


def _parent(process: Path) -> int:
    """The pid of a process's parent; 0: the process is gone."""
    try:
        text = (process / "stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])
