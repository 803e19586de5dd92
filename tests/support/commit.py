"""The commit that is checked out, as records of runs name it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


@cache
def commit() -> str:
    """The commit that is checked out; "unknown" where there is no repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
