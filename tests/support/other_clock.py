"""A wall clock that jumps while a process is at work, for all its Python code; monotonic clocks stay.

The driver of Kafka keeps the wall clock of the system. It waits by that one, and under libfaketime its waits do not end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "CHAOS_CLOCK"
EVENT: Final = "clock_jumped"


def jumping(after_ms: int, by_ms: int) -> Mapping[str, str]:
    """Environment variables of a process whose clock jumps.

    Args:
        after_ms: when, since the process has imported its flow, in milliseconds.
        by_ms: how far, ahead or back, in milliseconds.
    """
    return {VARIABLE: f"{after_ms}:{by_ms}"}


def install(setting: str) -> None:
    """Let this process's clock jump. The first one who looks at it after the jump leaves a line in the log."""
    after_ms, by_ms = map(int, setting.split(":"))
    jumps_at, own = time.monotonic() + after_ms / 1_000, time.time_ns
    shown = False

    def time_ns() -> int:
        nonlocal shown
        if time.monotonic() < jumps_at:
            return own()
        if not shown:
            shown = True
            sys.stderr.write(json.dumps({"event": EVENT, "pid": os.getpid(), "by_ms": by_ms}) + "\n")
            sys.stderr.flush()
        return own() + by_ms * 1_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
