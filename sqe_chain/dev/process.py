"""One process of ours: told apart from a later one with the same pid, signalled, ended, waited for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02
"""How often a condition is looked at."""

_START_TIME_FIELD = 19
"""Place of the start time in /proc/PID/stat, counted from the state (proc(5): fields 22 and 3)."""

# The kernel's death signal fires when the *thread* that started the child ends. This one lives as long as
# the interpreter, so servers may be started from threads that do not.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqe-chain-dev-starter")

# Who died before the death signal was set sends none: the shell looks who its parent is, then becomes the command.
_UNLESS_ORPHANED = ("/bin/sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')

# A collected Popen of a running child warns; a detached child is meant to be left running.
_detached: list[subprocess.Popen[bytes]] = []


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a condition holds.

    Returns:
        Whether it held within `timeout_s` seconds; it is looked at once at least.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


@dataclass(frozen=True)
class ProcessIdentity:
    """A process and the moment it started, so that a reused pid is never mistaken for it.

    The process leads a group of its own (`spawn` sees to that), and signals go to the whole group.

    Args:
        pid: process id.
        started: start time in clock ticks since boot, from /proc.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has this pid now, or None if there is none."""
        found = _state_and_start(pid)
        return cls(pid, found[1]) if found else None

    def alive(self) -> bool:
        """Whether this very process runs, or is paused. A process that only waits to be reaped is dead."""
        found = _state_and_start(self.pid)
        return found is not None and found[1] == self.started and found[0] not in "ZX"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children; nothing happens if it is gone."""
        if self.alive():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel has stopped it; `send` SIGCONT to let it go on."""
        self.send(signal.SIGSTOP)
        wait_until(self._stopped, timeout_s=10)

    def end(self, grace_s: float) -> bool:
        """Ask the process to end, wait, and kill it when it takes longer than `grace_s` seconds.

        Returns:
            Whether it ended by itself.
        """
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a paused process takes no other signal
        if wait_until(lambda: not self.alive(), grace_s):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken the process away."""
        self.send(signal.SIGKILL)
        wait_until(lambda: not self.alive(), timeout_s=10)

    def _stopped(self) -> bool:
        found = _state_and_start(self.pid)
        return found is None or found[0] == "T"


def spawn(
    command: Sequence[str], *, log: Path, detached: bool, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session and group of its own, its output appended to a file.

    Args:
        command: program and arguments.
        log: file for both of its outputs.
        detached: False: the kernel kills it when this process ends, however that happens (Linux with
            `setpriv`; elsewhere it survives a crash of this process). True: it goes on.
        environment: added to this process's environment.
    """
    setpriv = None if detached else shutil.which("setpriv")
    bound = (setpriv, "--pdeathsig", "KILL", "--", *_UNLESS_ORPHANED, str(os.getpid())) if setpriv else ()
    with log.open("ab") as output:
        process = _starter.submit(
            subprocess.Popen,
            [*bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C in a terminal is for us, not for the servers
        ).result()
    if detached:
        _detached.append(process)
    return process


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in parentheses, may itself contain spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[_START_TIME_FIELD])
