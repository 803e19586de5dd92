"""How many mutants the schedules and the fast tests of `make test` notice, by the ledger: those of the core."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.lab.mutants.ledger import BY_SIMULATOR, Judgement
from tests.lab.mutants.mutant import Mutant
from tests.support.suites import is_fast

TREE: Final = Path(__file__).resolve().parents[3]
ROOMS: Final = ("protocol", "task", "stages", "envelope", "adapters/memory/store.py")
"""The core: where it is decided what counts once."""


def table(mutants: Sequence[Mutant], known: Mapping[tuple[str, str], Judgement]) -> str:
    """A row for each room: its mutants, and those that fast tests or schedules notice.

    Args:
        mutants: all there are.
        known: what is known of them.
    """
    schedules = _schedules()
    there, noticed = Counter[str](), Counter[str]()
    for one in mutants:
        rooms = {room for each in one.replacements for room in ROOMS if each.file.startswith(room)}
        if len(rooms) != 1:
            continue
        (room,) = rooms
        there[room] += 1
        judged = known.get((one.name, BY_SIMULATOR))
        found = judged is not None and judged.seed is not None and judged.seed < schedules
        noticed[room] += found or any(is_fast(test) for test in one.tests)
    rows = [f"| `{room}` | {there[room]} | {noticed[room]} |" for room in ROOMS]
    rows.append(f"| together | {there.total()} | {noticed.total()} |")
    return "\n".join(
        ["| deliberate bugs in | there are | noticed by fast tests or schedules |", "|---|---|---|", *rows]
    )


def _schedules() -> int:
    """How many `make test` runs."""
    (found,) = re.findall(r"^test: SCHEDULES := (\d+)$", (TREE / "Makefile").read_text(), re.MULTILINE)
    return int(found)
