"""The base class of the servers here: start, stop, kill, pause, and restart with the same data."""

from __future__ import annotations

import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.dev.process import ProcessIdentity, spawn, wait_until

HOST = "127.0.0.1"

_TAIL_LINES = 25
_ERROR = re.compile(r"\b(ERROR|FATAL)\b|Exception|rror:")
_PORT_ATTEMPTS = 100
_START_ATTEMPTS = 3
_PORT_TAKEN = (
    "ddress already in use"  # the text of the C library and of Java, without the first letter's case
)
_LOWEST_PORT = 10_000
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def port_is_free(port: int) -> bool:
    """Whether a server could now listen on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A free port outside the range from which the kernel gives ports to clients.

    Inside that range, a client that reconnects to a dead server's port may get the same port and connect to itself. Then the
    server cannot start there again.

    Raises:
        Unavailable: no free port was found.
    """
    try:
        end = int(_EPHEMERAL_PORTS.read_text(encoding="ascii").split()[0])
    except OSError:
        end = 32_768
    for _ in range(_PORT_ATTEMPTS):
        port = random.randrange(_LOWEST_PORT, max(end, _LOWEST_PORT + 1))  # noqa: S311  no secret
        if port_is_free(port):
            return port
    raise Unavailable(f"found no free port in {_LOWEST_PORT}..{end} on {HOST} in {_PORT_ATTEMPTS} attempts")


class Server(ABC):
    """A server process, with a port and a data directory that survive restarts.

    Use it as a context manager, or call `start` and finally `close`. The process is killed when the Python
    process that started it ends, unless it is `detached`.

    Args:
        data_dir: kept by `stop` and `close`. None: a temporary directory, removed by `close`.
        port: fixed port on 127.0.0.1. None: a free one, which it keeps for restarts.
        detached: leave the process running when this one ends.
    """

    kind: ClassVar[str]
    """Its name in the log file's name and in error texts."""

    start_timeout_s: ClassVar[float]
    stop_timeout_s: ClassVar[float]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self, data_dir: Path | str | None = None, port: int | None = None, *, detached: bool = False
    ) -> None:
        self._port = port
        self._detached = detached
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None
        self._discard: weakref.finalize[..., Server] | None = None
        if data_dir is None:
            self.data_dir = Path(tempfile.mkdtemp(prefix=f"sqe-chain-{self.kind}-"))
            self._discard = weakref.finalize(self, shutil.rmtree, self.data_dir, ignore_errors=True)
        else:
            self.data_dir = Path(data_dir).expanduser().absolute()

    @abstractmethod
    def _prepare(self) -> None:
        """Write the configuration and prepare the data directory. Called before each start."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Program and arguments."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server is ready for requests. Must not take longer than about a second."""

    def _environment(self) -> Mapping[str, str]:
        return {}

    @property
    def port(self) -> int:
        """The port. Raises ConfigurationError: the server was never started, so it has no port yet."""
        if self._port is None:
            raise ConfigurationError(f"{self.kind} has no port yet; call start() first")
        return self._port

    @property
    def identity(self) -> ProcessIdentity:
        """Pid and start time of the last process started. Raises ConfigurationError: the server was never started."""
        if self._identity is None:
            raise ConfigurationError(f"{self.kind} was not started yet; call start() first")
        return self._identity

    @property
    def log_file(self) -> Path:
        """The server's log, of all its starts."""
        return self.data_dir / f"{self.kind}.log"

    @property
    def running(self) -> bool:
        """Whether the process is alive; also true while it is paused."""
        return self._identity is not None and self._identity.alive()

    def start(self) -> Self:
        """Start the server and wait until it is ready. Does nothing if it is running.

        Raises:
            ConfigurationError: the fixed port is in use, or the server refuses its configuration.
            Unavailable: it was not ready in time; the text has the end of its log.
        """
        if self.running:
            return self
        self.data_dir.mkdir(parents=True, exist_ok=True)
        may_move = self._port is None
        tail = ""
        for _ in range(_START_ATTEMPTS):
            self._choose_port()
            start_of_log = self.log_file.stat().st_size if self.log_file.exists() else 0
            self._prepare()
            try:
                self._launch()
                settled = wait_until(self._has_settled, self.start_timeout_s)
            except BaseException:  # Ctrl-C: nobody would know of a detached server that goes on starting
                self.kill()
                raise
            ended = self._process is None or self._process.poll() is not None
            if settled and not ended:
                return self
            self.kill()
            tail = self._log_tail(start_of_log)
            if not settled:
                break
            if may_move and _PORT_TAKEN in tail:
                self._port = None  # another process took the port between our check and the start
            # Otherwise it ended by itself; the cause may be temporary, so try again.
        raise Unavailable(f"{self.kind} did not start; the end of {self.log_file}:\n{tail}")

    def stop(self) -> None:
        """Send `stop_signal`, and SIGKILL after a timeout. Data and port stay. Does nothing if it is stopped."""
        if self._identity is not None:
            self._identity.end(self.stop_timeout_s, self.stop_signal)
            self._reap()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone. Data and port stay."""
        if self._identity is not None:
            self._identity.kill()
            self._reap()

    def pause(self) -> None:
        """Send SIGSTOP: the server keeps its connections, but does not answer."""
        self.identity.pause()

    def resume(self) -> None:
        """Send SIGCONT: the server continues after `pause`."""
        self.identity.send(signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server if it is running, then start it with the same port and data.

        Raises:
            ConfigurationError: another process has taken the port.
            Unavailable: it was not ready in time.
        """
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server; if its data directory is temporary, kill it and remove the directory."""
        if self._discard is None:
            self.stop()
        else:
            self.kill()
            self._discard()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _choose_port(self) -> None:
        if self._port is None:
            self._port = free_port()
        elif not port_is_free(self._port):
            raise ConfigurationError(
                f"{self.kind} cannot listen on {HOST}:{self._port}: another process has the port. "
                f"Stop that process, or give another port."
            )

    def _launch(self) -> None:
        self._process = spawn(
            self._command(), log=self.log_file, detached=self._detached, environment=self._environment()
        )
        self._identity = ProcessIdentity.of(self._process.pid)

    def _has_settled(self) -> bool:
        return not self.running or self._answers()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=60)

    def _log_tail(self, start: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(start)
            lines = log.read().decode("utf-8", "replace").splitlines()
        # The cause is often far above the end of a Java log, so errors from before are shown, too.
        errors = [line for line in lines[:-_TAIL_LINES] if _ERROR.search(line)]
        return "\n".join(errors[-_TAIL_LINES:] + lines[-_TAIL_LINES:])


class JavaServer(Server):
    """A server that runs in Java.

    Args:
        data_dir: configuration, logs and data. None: a temporary directory, removed by `close`.
        port: port for clients. None: a free one, the same over restarts.
        heap_mb: size of the Java heap in MiB.
        properties: settings of the server; they override the defaults of the class.
        detached: leave it running when this process ends.

    Raises:
        ConfigurationError: Java or pyspark (its Ivy fetches the jars) are missing.
        Unavailable: the jars cannot be downloaded.
    """

    start_timeout_s: ClassVar[float] = 300
    stop_timeout_s: ClassVar[float] = 20

    def __init__(
        self,
        data_dir: Path | str | None = None,
        port: int | None = None,
        *,
        heap_mb: int = 256,
        properties: Mapping[str, object] | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._own_port: int | None = None

    @property
    def _scratch(self) -> Path:
        return self.data_dir / "tmp"

    def _prepare(self) -> None:
        # Native libraries are unpacked here; a killed server leaves them behind.
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        self._own_port = free_port()  # only the server itself uses it, so it may change
