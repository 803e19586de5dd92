"""A clock that jumps in a campaign does so for the whole process, and reports it once."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.other_clock import EVENT

LOOKS = """
import time
from tests.support.other_clock import install
real, began = time.time_ns, time.monotonic()
install("{after_ms}:-86400000")
print(real() - time.time_ns() > 80_000_000_000_000, time.time() < real() / 1e9 - 80_000, time.monotonic() - began < 80_000)
"""


def looked(after_ms: int) -> tuple[str, list[dict[str, object]]]:
    code = LOOKS.format(after_ms=after_ms)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip(), [json.loads(line) for line in done.stderr.splitlines()]


def test_wall_clocks_jump_and_monotonic_ones_stay() -> None:
    shown, said = looked(after_ms=0)
    assert shown == "True True True"
    assert [(one["event"], one["by_ms"]) for one in said] == [(EVENT, -86_400_000)]


def test_before_its_time_nothing_jumps() -> None:
    assert looked(after_ms=600_000) == ("False False True", [])
