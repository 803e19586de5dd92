"""Results of storms, one a line of JSON, so that a run goes on where another one ended, and a page can be made again."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.storm.outcome import Outcome

HERE = Path(__file__).resolve().parent
LEDGER = HERE / "ledger.jsonl"
"""What docs/storm.md is made of."""

_CODE = ("benchmarks", "services", "sqe_chain", "pyproject.toml", "requirements.lock")


@dataclass(frozen=True, slots=True)
class Entry:
    """One storm over one system.

    Attributes:
        commit: of this project, with `-dirty` behind it if its code was changed.
        date: when it ended, in UTC.
        kafka: version of the broker.
        system: its name.
        versions: of what it consists of.
        seed: of the storm.
        facts: in the storm.
        outcome: what came of it; None if it did not get to its end.
        stuck: then the reason.
    """

    commit: str
    date: str
    kafka: str
    system: str
    versions: str
    seed: int
    facts: int
    outcome: Outcome | None = None
    stuck: str = ""


def read(file: Path) -> list[Entry]:
    """All entries, in the order in which they were added; none if there is no such file."""
    if not file.exists():
        return []
    return [msgspec.json.decode(line, type=Entry) for line in file.read_bytes().splitlines()]


def append(file: Path, entry: Entry) -> None:
    """Add an entry."""
    with file.open("ab") as out:
        out.write(msgspec.json.encode(entry) + b"\n")


def commit() -> str:
    """What is checked out. Pages and the ledger may have changed: they are written by runs."""
    git = shutil.which("git") or "git"

    def ask(*command: str) -> str:
        done = subprocess.run(
            [git, *command], cwd=HERE.parents[1], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = ask("status", "--porcelain", "--", *_CODE, f":!{LEDGER.relative_to(HERE.parents[1])}")
    return f"{ask('rev-parse', '--short=8', 'HEAD') or 'unknown'}{'-dirty' if changed else ''}"
