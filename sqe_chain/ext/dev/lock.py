"""A lock between processes that ends with its holder."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqe_chain.errors import Unavailable
from sqe_chain.ext.dev.process import wait_until


@contextmanager
def exclusive(file: Path, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file. The kernel releases it when the process ends, however it ends.

    Args:
        file: created if missing, in a directory that exists.
        timeout_s: how long to wait for another holder, in seconds.
        waiting: called once if another process holds the lock.

    Raises:
        Unavailable: it was not released in time.
    """
    with file.open("w") as lock:

        def acquired() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not acquired():
            waiting()
            if not wait_until(acquired, timeout_s):
                raise Unavailable(
                    f"another process has held {file} for {timeout_s:.0f} s; wait for it or end it"
                )
        yield
