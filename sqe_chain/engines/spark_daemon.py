"""The daemon that forks Spark's Python workers on this machine: PySpark's own, with SIGTERM and SIGINT blocked.

A supervisor may send SIGTERM to every process of a service. Without this, Spark's workers would die in the middle
of the batch that the service is finishing. They still end with the service. When it ends or is killed, Java's input
ends. Then Java closes the input of this process, which ends all workers.

It is not in the package `spark`, because that imports libraries which start threads, and forking with threads is
unsafe.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import daemon

_daemon: Any = daemon
_work = _daemon.worker


def worker(sock: object, authenticated: object) -> int:
    """PySpark's worker, but quiet when Java closes the connection: the service is ending."""
    try:
        return int(_work(sock, authenticated))
    except (EOFError, ConnectionError):
        os._exit(1)


def main() -> None:
    """Fork workers until the standard input ends."""
    _daemon.worker = worker
    # Blocked, not ignored: PySpark installs its own handlers, but keeps the mask, and workers inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    _daemon.manager()


if __name__ == "__main__":
    main()
