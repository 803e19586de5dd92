"""Wait for a condition, or for a store to come back; every wait has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqe_chain.dev.process import wait_until
from sqe_chain.errors import Unavailable

Result = TypeVar("Result")

_EVENTUALLY_S = 30


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fail the test when it does not within 30 seconds.

    Args:
        condition: called again and again.
        what: what the condition says, for the error.
    """
    assert wait_until(condition, _EVENTUALLY_S), f"after {_EVENTUALLY_S} s it does not hold that {what}"


def retry_until_available(call: Callable[[], Result], timeout_s: float = 30) -> Result:
    """Call until the store answers, as the protocol does; fail the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < deadline, "the store did not come back"
            time.sleep(0.05)
