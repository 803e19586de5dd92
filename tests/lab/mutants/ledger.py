"""What was found out about each mutant: a line of JSON for each judgement, and the table of docs/reliability.md made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.lab.mutants.injection import TREE
from tests.lab.mutants.mutant import Mutant

LEDGER: Final = Path(__file__).with_name("ledger.jsonl")
PAGE: Final = TREE / "docs" / "reliability.md"
BY_TESTS, BY_SIMULATOR = "tests", "simulator"


@dataclass(frozen=True)
class Judgement:
    """What was found out about a mutant in one way.

    Attributes:
        mutant: its name.
        digest: of its functions and operations.
        by: `BY_TESTS` or `BY_SIMULATOR`.
        killed_by: the test that failed; or the invariant that did not hold, and by which seed; None: it survived.
        seconds: how long that took.
        commit: on which.
        code: digest of the code that it depends on, as it was then; see `code_of`.
    """

    mutant: str
    digest: str
    by: str
    killed_by: str | None
    seconds: float
    commit: str
    code: str

    @property
    def seed(self) -> int | None:
        """By which schedule the simulator has found it."""
        match = re.search(r", seed (\d+)$", self.killed_by or "")
        return int(match[1]) if match else None


Known = dict[tuple[str, str], Judgement]
"""Name and way -> judgement."""


def read_ledger(file: Path = LEDGER) -> Known:
    """The judgements in the ledger."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(one.mutant, one.by): one for one in (Judgement(**json.loads(line)) for line in lines)}


def write_ledger(known: Mapping[tuple[str, str], Judgement], mutants: Iterable[Mutant]) -> None:
    """Write the judgements of these mutants, in their order; others are forgotten."""
    found = [
        known[mutant.name, by] for mutant in mutants for by in ways_of(mutant) if (mutant.name, by) in known
    ]
    LEDGER.write_text("".join(f"{json.dumps(asdict(one), ensure_ascii=False)}\n" for one in found))


def ways_of(mutant: Mutant) -> list[str]:
    """In which ways a mutant is judged."""
    return [by for by, asked in ((BY_TESTS, mutant.tests), (BY_SIMULATOR, mutant.schedules)) if asked]


def gaps(known: Mapping[tuple[str, str], Judgement], mutants: Iterable[Mutant]) -> list[str]:
    """What the ledger does not show: mutants that were never judged as they are now, or have survived."""
    found = []
    for mutant in mutants:
        for by in ways_of(mutant):
            judged = known.get((mutant.name, by))
            if judged is None or judged.digest != mutant.digest:
                found.append(f"{mutant.name}: not judged by {by} as it is now")
            elif judged.killed_by is None:
                found.append(f"{mutant.name}: survived {by}")
    return found


def table(catalogue: Mapping[str, Sequence[Mutant]], known: Mapping[tuple[str, str], Judgement]) -> str:
    """How many mutants of each subject are killed by a named test, and how many the simulator finds, too."""
    rows = ["| bugs in | there are | a named test fails | the simulator finds |", "|---|---|---|---|"]
    for subject, own in catalogue.items():
        killed = [
            sum(1 for one in own if (found := known.get((one.name, by))) and found.killed_by is not None)
            for by in (BY_TESTS, BY_SIMULATOR)
        ]
        rows.append(f"| {subject} | {len(own)} | {killed[0]} | {killed[1]} |")
    return "\n".join(rows)


def page_with(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables, each between two comments that name it."""
    for name, text in tables.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE}: {begin.strip()} is missing"
        page = f"{before}{begin}\n{text}\n\n{rest[rest.index(end) :]}"
    return page
