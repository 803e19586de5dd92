"""What runs the tasks of a batch: Spark, worker processes on this machine, or this process (tests, notebooks, small flows)."""

from __future__ import annotations

from typing import Final

MOST_WORKERS: Final = 64
"""Worker processes of one service at most: one machine has not many more cores."""
