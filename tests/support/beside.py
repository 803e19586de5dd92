"""Work in a thread beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[], None], done: threading.Event) -> Iterator[None]:
    """Do work in a thread as long as the context lasts.

    Args:
        work: ends when `done` is set.
        done: is set at the end of the context, which then waits for the work.
    """
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
