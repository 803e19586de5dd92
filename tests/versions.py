"""Which versions passed what, at which commit: each part of a run is noted, and docs/stability.md has the newest of each.

    python -m tests.versions run PYTHON PART COMMAND...      as scripts/test-python does with each part
    python -m tests.versions report                          write the tables again, as each part does

`tests/versions.jsonl` has a line of JSON for each part. A part that failed is noted, too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.lab.mutants.ledger import page_with
from tests.reliability.ledger import tree
from tests.support.commit import TREE

NOTES: Final = TREE / "tests" / "versions.jsonl"
PAGE: Final = TREE / "docs" / "stability.md"
UNIT, ENGINES, README, DEMO, CONTRACT = "unit and protocol tests", "engines", "README", "demo", "contract"
TABLES: Final = {
    "pythons": (
        "Python",
        {UNIT: UNIT, ENGINES: "engines on a real Kafka", README: "README's program", DEMO: "demo"},
    ),
    "servers": ("server", {CONTRACT: "its contract", DEMO: "demo with two kills"}),
}
"""Name of a table -> its first column, and what its parts are called there."""


@dataclass(frozen=True)
class Note:
    """What came of one part of a run.

    Attributes:
        table: of `TABLES`.
        version: of what was tried, as in "3.12.1".
        part: of the run.
        came: counts of tests, or the last line of another program; "FAILED" and the status if it failed.
        commit: that was checked out; "and changes" if files were changed since.
        date: when it ended, UTC.
    """

    table: str
    version: str
    part: str
    came: str
    commit: str
    date: str


def run(
    table: str,
    version: str,
    part: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    file: Path = NOTES,
) -> int:
    """Run a part, show what it writes, and note what came of it.

    Args:
        table: see `Note`, as the next two.
        version: ditto.
        part: ditto.
        command: whose last line counts.
        environment: of the command; None: of this process.
        file: of the notes.

    Returns:
        The status of the command.
    """
    ran, last = tree(NOTES, PAGE), ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
    suite = os.environ.get("SUITE")
    came = came_of(last) + (f", {suite} set" if suite and part == UNIT else "")
    if program.returncode and " failed" not in came:
        came = f"FAILED ({program.returncode})"
    commit = ran.commit if ran.clean else f"{ran.commit} and changes"
    note(Note(table, version, part, came, commit, datetime.now(UTC).strftime("%Y-%m-%d")), file)
    if file is NOTES:
        report()
    return program.returncode


def came_of(line: str) -> str:
    """What counts of the last line that a program wrote: pytest's numbers of tests without its warnings; else all, but not which Python ran it."""
    if counted := re.fullmatch(r"[= ]*(\d+ (?:passed|failed).*) in [\d.]+s.*", line):
        return ", ".join(
            one for one in counted[1].split(", ") if "warning" not in one and "deselected" not in one
        )
    return line.partition(": ")[2] if line.startswith("Python ") else line


def note(one: Note, file: Path = NOTES) -> None:
    """Add a part."""
    with file.open("a") as opened:
        opened.write(json.dumps(asdict(one), ensure_ascii=False) + "\n")


def notes(file: Path = NOTES) -> list[Note]:
    """All parts that were noted, in their order."""
    return [Note(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def table(name: str, noted: Iterable[Note]) -> str:
    """A table of the page: a row for each version, with the newest of each part."""
    first, parts = TABLES[name]
    rows = [f"| {' | '.join((first, *parts.values(), 'commit'))} |", "|---" * (len(parts) + 2) + "|"]
    versions: dict[str, dict[str, Note]] = {}
    for one in noted:
        if one.table == name:
            versions.setdefault(one.version, {})[one.part] = one
    for version in sorted(versions, key=_in_order):
        own = [versions[version].get(part) for part in parts]
        commits = dict.fromkeys(f"`{one.commit}`, {one.date}" for one in own if one)
        cells = (version, *(one.came if one else "not run" for one in own), "; ".join(commits))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _in_order(version: str) -> list[tuple[str, int]]:
    """Versions by their numbers: 3.9 before 3.11."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", version)]


def report() -> None:
    """Write the tables of the page."""
    PAGE.write_text(page_with(PAGE.read_text(), {name: table(name, notes()) for name in TABLES}))


def main(arguments: Sequence[str]) -> int:
    """Run a part, or write the page; returns the exit status."""
    match arguments:
        case ["run", version, part, *command] if part in TABLES["pythons"][1] and command:
            return run("pythons", version, part, command)
        case ["report"]:
            report()
            return 0
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
