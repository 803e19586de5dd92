"""A service as a separate process: start it, read its output, kill it with all its children, or stop it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

KILL_WITHIN_S = 20.0
STOP_WITHIN_S = 60.0
_SESSION_FIELD = 3
"""Index of the session in /proc/PID/stat, counted from the state (proc(5): fields 6 and 3)."""


class Process:
    """A command in its own session. Its output goes to a file, and line by line to a queue.

    Args:
        name: its name in the queue.
        log: file that its output is appended to.
        heard: receives ``(name, seconds on the monotonic clock, line)`` for each line.
        environment: added to this process's environment.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        heard: SimpleQueue[tuple[str, float, str]],
        directory: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.log = log
        self._heard = heard
        self._held: list[int] = []
        # The kernel kills it when the demo dies, however it dies.
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else list(command)
        self._popen = subprocess.Popen(
            bound,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **environment},
            start_new_session=True,  # driver, JVM and workers share the session, so that all can be killed
            text=True,
            errors="replace",
        )
        self._listener = threading.Thread(target=self._listen, args=(_pipe(self._popen.stdout),), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Its process id, which is also its session's."""
        return self._popen.pid

    @property
    def ended(self) -> int | None:
        """Exit status; None while it is running."""
        return self._popen.poll()

    def tell(self, line: str) -> None:
        """Write a line to its standard input; does nothing if it has ended."""
        pipe = _pipe(self._popen.stdin)
        if pipe.closed:
            return
        with suppress(BrokenPipeError):
            pipe.write(f"{line}\n")
            pipe.flush()

    def hold(self) -> None:
        """Send SIGSTOP to all processes that `kill` would kill, so that its progress can be read in a fixed state."""
        self._held = members_of_session(self._popen.pid)
        for pid in self._held:
            _send(pid, signal.SIGSTOP)

    def let_go(self) -> None:
        """Send SIGCONT to all processes that `hold` stopped, whatever session they are in now."""
        for pid in self._held:
            _send(pid, signal.SIGCONT)
        self._held = []

    def kill(self) -> None:
        """Send SIGKILL to the driver, its JVM and its workers; returns when all are gone and all output is read.

        Raises:
            TimeoutError: they are not gone in time.
        """
        deadline = time.monotonic() + KILL_WITHIN_S
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
        # Spark's worker daemon has its own process group within the session.
        while left := members_of_session(self._popen.pid):
            for pid in left:
                _send(pid, signal.SIGKILL)
            self._popen.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: processes {left} survive SIGKILL")
            time.sleep(0.005)
        self._finish(deadline)

    def stop(self) -> int:
        """Send SIGTERM to the driver only, which then finishes its batch; returns its exit status.

        Raises:
            TimeoutError: it did not end in time; it has been killed.
        """
        self._popen.terminate()
        try:
            status = self._popen.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {STOP_WITHIN_S:.0f} s of SIGTERM") from None
        self.kill()  # also ends children that outlived the driver
        return status

    def wait(self, timeout_s: float) -> int:
        """Wait until it ends; returns its exit status when all its output is read.

        Raises:
            TimeoutError: not in time.
        """
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not end within {timeout_s:.0f} s") from None
        self._finish(time.monotonic() + KILL_WITHIN_S)
        return status

    def _finish(self, deadline: float) -> None:
        self._popen.wait(max(0.1, deadline - time.monotonic()))
        self._listener.join(max(0.1, deadline - time.monotonic()))
        for pipe in (self._popen.stdin, self._popen.stdout):
            with suppress(BrokenPipeError):  # it ended before it read all of its input
                _pipe(pipe).close()

    def _listen(self, pipe: IO[str]) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            for line in pipe:
                self._heard.put((self.name, time.monotonic(), line))
                log.write(line)
                log.flush()


def members_of_session(session: int) -> list[int]:
    """Pids of the running processes of a session, without zombies."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The command's name, in parentheses, may contain spaces and parentheses.
        fields = text[text.rindex(")") + 2 :].split()
        if int(fields[_SESSION_FIELD]) == session and fields[0] not in "ZX":
            members.append(int(entry.name))
    return members


def tail(path: Path, lines: int) -> str:
    """The last lines of a file; empty when there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # noqa: S101 - opened above; for the type checker
    return pipe
