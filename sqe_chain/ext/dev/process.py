"""Starts processes, and identifies them safely: a later process with the same pid is never taken for one."""

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

from sqe_chain.runtime.owner import is_alive, state_and_start

POLL_S = 0.02
"""How often a condition is checked."""

# The kernel sends the death signal when the *thread* that started the child ends. This thread lives as long as
# the interpreter, so short-lived threads can start servers, too.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqe-chain-dev-starter")

# If the parent died before the death signal was set, no signal comes. So the shell checks its parent first.
_UNLESS_ORPHANED = ("/bin/sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')

# Popen warns when it is garbage-collected while the child runs, but detached children are meant to keep running.
_detached: list[subprocess.Popen[bytes]] = []


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a condition holds. Returns whether it held within `timeout_s` seconds; it is checked at least once."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


@dataclass(frozen=True)
class ProcessIdentity:
    """A process by pid and start time, so that a reused pid is never mistaken for it.

    The process leads a group of its own (`spawn` sees to that), and signals go to the whole group.
    """

    pid: int  # process id
    started: int  # start time in clock ticks since boot, from /proc

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has this pid now; None if there is none."""
        state = state_and_start(pid)
        return cls(pid, state[1]) if state else None

    def alive(self) -> bool:
        """Whether this process is running or paused. A zombie counts as dead."""
        return is_alive(self.pid, self.started)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children; does nothing if it is gone."""
        if self.alive():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return

    def pause(self) -> None:
        """Send SIGSTOP and wait until it has stopped; `send` SIGCONT to resume it."""
        self.send(signal.SIGSTOP)
        wait_until(self._stopped, timeout_s=60)

    def end(self, grace_s: float, ask: signal.Signals = signal.SIGTERM) -> bool:
        """Ask the process to end, by a signal, and kill it after `grace_s` seconds. Returns whether it ended by itself."""
        self.send(ask)
        self.send(signal.SIGCONT)  # a paused process does not handle signals until it is resumed
        if wait_until(lambda: not self.alive(), grace_s):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        self.send(signal.SIGKILL)
        wait_until(lambda: not self.alive(), timeout_s=60)

    def _stopped(self) -> bool:
        state = state_and_start(self.pid)
        return state is None or state[0] == "T"


def spawn(
    command: Sequence[str], *, log: Path, detached: bool, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in its own session and process group; its output is appended to a file.

    Args:
        command: program and arguments.
        log: file for its standard output and standard error.
        detached: False: the kernel kills it when this process ends, however it ends (on Linux with `setpriv`; elsewhere it survives a
            crash of this process). True: it keeps running.
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
