"""Wait for a condition, or for a store to come back; every wait has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqe_chain.errors import Unavailable
from sqe_chain.ext.dev.process import wait_until

PATIENT = "timeout_s=300&connect_timeout_s=300"
"""Parameters of a store's address for the same machine."""
Result = TypeVar("Result")

PATIENCE_S = 200
"""Longer than anything takes, even while other programs have most of this machine: what still lasts, hangs."""


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fail the test when it does not within `PATIENCE_S`.

    Args:
        condition: called again and again.
        what: the condition in words, for the error.
    """
    assert wait_until(condition, PATIENCE_S), f"after {PATIENCE_S} s it does not hold that {what}"


def retry_until_available(call: Callable[[], Result], timeout_s: float = PATIENCE_S) -> Result:
    """Call until the store answers, as the protocol does; fail the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < deadline, "the store did not come back"
            time.sleep(0.05)
