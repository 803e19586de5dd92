"""Commands as processes that need not import everything first: forked from one that has.

A test that kills a service twelve times starts it twelve times, and a second of the processor goes into imports each time. So a
starter imports what the command imports, without running any of it, and forks. What comes of a fork is a process like any other:
with a session, a group, an environment and a log of its own, killed by the kernel when those that started it are gone. It runs
the installed script, imports flows itself, and leaves by way of the interpreter's end.

Two starters take turns, so that a run and the one after it order sets differently, as if each was started by itself.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import NoReturn

from sqe_chain.dev.process import ProcessIdentity, wait_until
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
_LARGEST_REQUEST = 1 << 17
_MOST_FILES = 1 << 16
_PR_SET_PDEATHSIG = 1


class WarmProcess:
    """A running command.

    Args:
        command: its script, and arguments.
        log: file to which its output is appended.
        environment: added to this process's.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._starter = next(_starters())
        self.identity = self._starter.start(command, log, {**os.environ, **environment})

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._starter.status_of(self.identity.pid)

    def wait(self) -> int:
        """Wait until it has ended; returns its exit status."""
        assert wait_until(lambda: self.poll() is not None, PATIENCE_S), f"{self.identity} still runs"
        status = self.poll()
        assert status is not None
        return status

    def terminate(self) -> None:
        """Send SIGTERM to this process alone."""
        if self.poll() is None:
            os.kill(self.identity.pid, signal.SIGTERM)


class _Starter:
    """The end of a starter in this process: requests go there, and come back with pids and exit statuses."""

    def __init__(self) -> None:
        self._channel, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = Lock()
        self._started: list[ProcessIdentity] = []
        self._statuses: dict[int, int] = {}
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONHASHSEED", None)
        command = [sys.executable, "-m", __name__, str(its_end.fileno())]
        with its_end:
            self._process = subprocess.Popen(
                command,
                pass_fds=[its_end.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for pytest
            )
        # It ends when it hears nothing from here any more, and with it all that it has started.
        self._end = weakref.finalize(self, _end, self._channel, self._process)

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ProcessIdentity:
        request = {"command": [*command], "log": str(log), "cwd": str(Path.cwd()), "environment": environment}
        with self._one_at_a_time:
            self._channel.send(json.dumps(request).encode())
            while not self._started:
                assert self._hear(PATIENCE_S), f"{command} was not started within {PATIENCE_S} s"
            found = self._started.pop()
            self._statuses.pop(found.pid, None)  # that of a process long gone, which had this pid
            return found

    def status_of(self, pid: int) -> int | None:
        with self._one_at_a_time:
            while self._hear(0):
                pass
            return self._statuses.get(pid)

    def _hear(self, timeout_s: float) -> bool:
        if not select.select([self._channel], [], [], timeout_s)[0]:
            return False
        text = self._channel.recv(_LARGEST_REQUEST)
        assert text, "the process that starts others has ended"
        said = json.loads(text)
        if "status" in said:
            self._statuses[said["pid"]] = said["status"]
        else:
            self._started.append(ProcessIdentity(said["pid"], said["started"]))
        return True


def _end(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    process.wait(PATIENCE_S)


@cache
def _starters() -> cycle[_Starter]:
    return cycle([_Starter(), _Starter()])


# ---------------------------------------------------------------------- in the starter's process


def _serve(channel: socket.socket) -> list[str]:
    """Fork for each request, and report what has ended; returns in the fork, with the command to run."""
    libc = ctypes.CDLL(None, use_errno=True)
    running: dict[int, int] = {}
    while True:
        watched: list[socket.socket | int] = [channel, *running]
        ready, _, _ = select.select(watched, [], [])
        for pidfd in [one for one in ready if isinstance(one, int)]:
            pid = running.pop(pidfd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(pidfd)
            channel.send(json.dumps({"pid": pid, "status": status}).encode())
        if channel not in ready:
            continue
        text = channel.recv(_LARGEST_REQUEST)
        if not text:
            _leave()
        starter = os.getpid()
        pid = os.fork()
        if pid:
            running[os.pidfd_open(pid)] = pid
            continue
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != starter:
            _leave()
        return _settle(json.loads(text), channel)


def _settle(request: dict[str, object], channel: socket.socket) -> list[str]:
    """Make a process of its own out of this fork, and say so."""
    os.setsid()
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    found = ProcessIdentity.of(os.getpid())
    assert found is not None
    channel.send(json.dumps({"pid": found.pid, "started": found.started}).encode())
    channel.detach()
    os.closerange(3, _MOST_FILES)
    os.chdir(str(request["cwd"]))
    environment, command = request["environment"], request["command"]
    assert isinstance(environment, dict)
    assert isinstance(command, list)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.path[0] = str(Path(command[0]).parent)
    return command


def _leave() -> NoReturn:
    raise SystemExit(0)


def _import_all() -> None:
    """Import what `sqe-chain run` and `sqe-chain load` import, but for flows, Spark, and what reads files."""
    import sqe_chain.cli.app  # noqa: PLC0415 - not in the process that asks for services
    import sqe_chain.engines.inprocess  # noqa: PLC0415
    import sqe_chain.logs.kafka  # noqa: PLC0415
    import sqe_chain.runtime.service  # noqa: PLC0415
    import sqe_chain.stores.redis  # noqa: PLC0415
    import sqe_chain.stores.sqlite  # noqa: F401, PLC0415


if __name__ == "__main__":
    _import_all()
    gc.collect()
    gc.freeze()
    sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_path(sys.argv[0], run_name="__main__")
