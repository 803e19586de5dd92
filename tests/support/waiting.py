"""Being patient with a store that is away, as the protocol is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqe_chain.errors import Unavailable

Found = TypeVar("Found")


def until_available(call: Callable[[], Found], patience_s: float = 30) -> Found:
    """Call again and again while the store is away."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < deadline, "the store did not come back"
            time.sleep(0.05)
