"""What a run leaves out is drawn by the commit: one commit always runs the same, and commits together run everything."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


@cache
def commit() -> str:
    """The commit that is checked out; "unknown" where there is no repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def drawn(what: str, choices: int, by: str | None = None) -> int:
    """A number from 0 to `choices` - 1, another for each commit and each thing that is drawn."""
    digest = blake2b(f"{by or commit()} {what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % choices


if __name__ == "__main__":  # for the Makefile: WHAT CHOICES
    sys.stdout.write(f"{drawn(sys.argv[1], int(sys.argv[2]))}\n")
