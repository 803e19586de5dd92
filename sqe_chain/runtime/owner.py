"""The owner of a claim, and whether its process is known to be dead.

If a service was killed on this machine, its successor need not wait: it sees that the process has ended. On other
machines the heartbeat decides, which takes a few seconds.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD = 19
"""Index of the start time in /proc/PID/stat, counted from the state (proc(5): fields 22 and 3)."""
_PID_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Owner:
    """Identifies a process among all processes of all machines.

    Attributes:
        host: name of the machine, for people.
        boot: the kernel's id of this boot; empty where there is none.
        namespace: the kernel's id of the PID namespace (each container has its own).
        started: start time in clock ticks since boot, because process ids are reused; 0 unknown.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    def as_text(self) -> str:
        """JSON, as a claim carries it."""
        return json.dumps(asdict(self), sort_keys=True)


def this_process() -> Owner:
    """This process."""
    boot, namespace = _boot()
    process = state_and_start(os.getpid())
    return Owner(socket.gethostname(), boot, namespace, os.getpid(), process[1] if process else 0)


def is_dead(owner: str) -> bool:
    """Whether the process that an owner text names has ended; False for any text that `Owner.as_text` did not make.

    True only when that is certain: same machine, same boot, same PID namespace, and no process has
    that id, or one with another start time.
    """
    try:
        known = Owner(**json.loads(owner))
        pid, started = int(known.pid), int(known.started)
    except (ValueError, TypeError):
        return False
    mine = this_process()
    where = (known.host, known.boot, known.namespace)
    if not all(where) or not started or where != (mine.host, mine.boot, mine.namespace):
        return False
    if state_and_start(pid) is None:
        return not _exists(pid)
    return not is_alive(pid, started)


def is_alive(pid: int, started: int) -> bool:
    """Whether the process with this id and start time is running or paused. A zombie counts as dead."""
    process = state_and_start(pid)
    return process is not None and process[1] == started and process[0] not in "ZX"


def _exists(pid: int) -> bool:
    """Whether there is a process with this id; the one of another user may be hidden in /proc (proc(5): hidepid)."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def _boot() -> tuple[str, str]:
    """Boot id and PID namespace; empty on systems other than Linux."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip(), os.readlink(_PID_NAMESPACE)  # noqa: PTH115 - no path
    except OSError:
        return "", ""


def state_and_start(pid: int) -> tuple[str, int] | None:
    """State and start time of a process, as the kernel shows them; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in parentheses, may contain spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[_START_TIME_FIELD])
