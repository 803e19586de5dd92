"""A service as a process of its own: started, listened to, killed with all its children, stopped."""

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
"""Place of the session in /proc/PID/stat, counted from the state (proc(5): fields 6 and 3)."""


class Process:
    """A command in a session of its own. Its output goes to a file, and line by line to a queue.

    Args:
        name: how the queue's readers know it.
        command: program and arguments.
        log: file that its output is appended to.
        heard: gets ``(name, seconds on the monotonic clock, line)`` for each line.
        directory: working directory.
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
        # The kernel kills it when the demo dies, however that happens.
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else list(command)
        self._popen = subprocess.Popen(
            bound,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **environment},
            start_new_session=True,  # the driver, its JVM and the workers: one session, killed as one
            text=True,
            errors="replace",
        )
        self._listener = threading.Thread(target=self._listen, args=(_pipe(self._popen.stdout),), daemon=True)
        self._listener.start()

    @property
    def ended(self) -> int | None:
        """Exit status; None while it runs."""
        return self._popen.poll()

    def tell(self, line: str) -> None:
        """Write a line to its standard input; nothing happens if it has ended."""
        pipe = _pipe(self._popen.stdin)
        if pipe.closed:
            return
        with suppress(BrokenPipeError):
            pipe.write(f"{line}\n")
            pipe.flush()

    def hold(self) -> None:
        """SIGSTOP to all that a kill would hit: what it has done by now can be looked at in peace."""
        self._held = members_of_session(self._popen.pid)
        for pid in self._held:
            _send(pid, signal.SIGSTOP)

    def let_go(self) -> None:
        """SIGCONT to all of them, also to one that has begun a session of its own meanwhile."""
        for pid in self._held:
            _send(pid, signal.SIGCONT)
        self._held = []

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its workers; returns when all are gone and all is heard.

        Raises:
            TimeoutError: the kernel could not take them away in time.
        """
        deadline = time.monotonic() + KILL_WITHIN_S
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
        # Spark's worker daemon makes a group of its own within the session.
        while left := members_of_session(self._popen.pid):
            for pid in left:
                _send(pid, signal.SIGKILL)
            self._popen.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: processes {left} survive SIGKILL")
            time.sleep(0.005)
        self._finish(deadline)

    def stop(self) -> int:
        """SIGTERM to the driver alone, which finishes its batch; returns its exit status.

        Raises:
            TimeoutError: it did not end in time; it has been killed.
        """
        self._popen.terminate()
        try:
            status = self._popen.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {STOP_WITHIN_S:.0f} s of SIGTERM") from None
        self.kill()  # nothing of it may be left
        return status

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; returns its exit status when all that it said is heard.

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
            with suppress(BrokenPipeError):  # what it was told and did not read any more
                _pipe(pipe).close()

    def _listen(self, pipe: IO[str]) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            for line in pipe:
                self._heard.put((self.name, time.monotonic(), line))
                log.write(line)
                log.flush()


def members_of_session(session: int) -> list[int]:
    """Pids of a session's processes that still run; those that only wait to be reaped do not."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The command's name, in parentheses, may itself contain spaces and parentheses.
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
    assert pipe is not None  # noqa: S101 - asked for above; for the type checker
    return pipe
