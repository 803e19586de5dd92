"""How many mutants the first stage of `make test` notices, by the ledger: those of the core, within a minute."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.mutants.ledger import BY_SIMULATOR, Judgement
from tests.mutants.mutant import Mutant

TREE: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("protocol", "segment", "stages", "replays", "stores/memory.py")
"""The core: where it is decided what counts once."""


def table(mutants: Sequence[Mutant], known: Mapping[tuple[str, str], Judgement]) -> str:
    """A row for each room: its mutants, and those that the first look notices.

    Args:
        mutants: all there are.
        known: what is known of them.
    """
    tests, schedules = _first_tests(), _first_schedules()
    there, noticed = Counter[str](), Counter[str]()
    for one in mutants:
        rooms = {room for each in one.replacements for room in ROOMS if each.file.startswith(room)}
        if len(rooms) != 1:
            continue
        (room,) = rooms
        there[room] += 1
        judged = known.get((one.name, BY_SIMULATOR))
        found = judged is not None and judged.seed is not None and judged.seed < schedules
        noticed[room] += found or any(test.startswith(tests) for test in one.tests)
    rows = [f"| `{room}` | {there[room]} | {noticed[room]} |" for room in ROOMS]
    rows.append(f"| together | {there.total()} | {noticed.total()} |")
    return "\n".join(
        ["| deliberate bugs in | there are | noticed by the first look |", "|---|---|---|", *rows]
    )


def _first_tests() -> tuple[str, ...]:
    found = tuple(re.findall(r"tests/\S+", _recipe("first-tests")))
    assert found, "make first-tests runs no tests"
    return found


def _first_schedules() -> int:
    (found,) = re.findall(r"--schedules (\d+)", _recipe("first-schedules"))
    return int(found)


def _recipe(target: str) -> str:
    """What `make` would do."""
    command = ["make", "--dry-run", "--silent", "--no-print-directory", target]
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout
