"""What forks Spark's Python workers on this machine: PySpark's own, but SIGTERM and SIGINT do not reach it.

A supervisor may send SIGTERM to every process of a service. Spark's workers would die of it in the middle of a
batch, which the service itself is about to finish. They end with the service all the same: when it ends, or is
killed, Java sees that its input ends, and closes the input of this process, which then ends all workers.

Not in the package `spark`: that loads libraries that start threads, which must not be before a fork.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import daemon

_daemon: Any = daemon
_work = _daemon.worker


def worker(sock: object, authenticated: object) -> int:
    """PySpark's worker; when Java has closed its connection, it ends without a word: the service ends."""
    try:
        return int(_work(sock, authenticated))
    except (EOFError, ConnectionError):
        os._exit(1)


def main() -> None:
    """Fork workers until the input ends."""
    _daemon.worker = worker
    # Blocked, not ignored: PySpark sets handlers of its own, and workers inherit what is blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    _daemon.manager()


if __name__ == "__main__":
    main()
