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

from sqe_chain.runtime.process import ProcessIdentity

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Owner:
    """Identifies a process among all processes of all machines.

    Attributes:
        host: name of the machine, for people.
        boot: the kernel's id of this boot; empty where there is none.
        namespace: the kernel's id of the PID namespace (each container has its own).
        pid: process id.
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
    identity = ProcessIdentity.of(os.getpid())
    return Owner(socket.gethostname(), boot, namespace, os.getpid(), identity.started if identity else 0)


def is_dead(owner: str) -> bool:
    """Whether the process that an owner text names has ended.

    True only when that is certain: same machine, same boot, same PID namespace, and no process has
    that id, or one with another start time.

    Args:
        owner: as `Owner.as_text` made it; for any other text, False.
    """
    try:
        known = Owner(**json.loads(owner))
        identity = ProcessIdentity(int(known.pid), int(known.started))
    except (ValueError, TypeError):
        return False
    mine = this_process()
    where = (known.host, known.boot, known.namespace)
    if not all(where) or not identity.started or where != (mine.host, mine.boot, mine.namespace):
        return False
    return not identity.alive()


def _boot() -> tuple[str, str]:
    """Boot id and PID namespace; empty on systems other than Linux."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip(), os.readlink(_PID_NAMESPACE)  # noqa: PTH115 - no path
    except OSError:
        return "", ""
