"""What was found out about each mutant: a line of JSON for each judgement, and the tables of docs/reliability.md made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tests.lab.mutants.injection import PACKAGE, TREE
from tests.lab.mutants.mutant import Mutant

LEDGER: Final = Path(__file__).with_name("ledger.jsonl")
PAGE: Final = TREE / "docs" / "reliability.md"
BY_TESTS, BY_SIMULATOR = "tests", "simulator"


@dataclass(frozen=True)
class Judgement:
    """What was found out about a mutant in one way.

    Attributes:
        mutant: its name.
        digest: of its texts.
        by: `BY_TESTS` or `BY_SIMULATOR`.
        killed_by: the test that failed; or the invariant that did not hold, and by which seed; None: it survived.
        seconds: how long that took.
        command: that was run, in a copy of the tree with the mutant in it.
        commit: on which.
        files: digest of the files that it depends on, as they were when that was found out or confirmed; see `files_of`.
    """

    mutant: str
    digest: str
    by: str
    killed_by: str | None
    seconds: float
    command: str
    commit: str
    files: str = ""

    @property
    def seed(self) -> int | None:
        """By which schedule the simulator has found it."""
        found = re.search(r", seed (\d+)$", self.killed_by or "")
        return int(found[1]) if found else None


Known = dict[tuple[str, str], Judgement]
"""Name and way -> judgement."""


def files_of(one: Mutant, by: str, tests: Iterable[str] = ()) -> str:
    """Digest of what a judgement depends on most: the files that the mutant changes, and its tests, or the simulator.

    Args:
        one: the mutant.
        by: `BY_TESTS` or `BY_SIMULATOR`.
        tests: those that are run; by default those that it names.
    """
    paths = {PACKAGE / each.file for each in one.replacements}
    if by == BY_TESTS:
        paths |= {TREE / test.partition("::")[0] for test in tests or one.tests}
    else:
        paths |= set((PACKAGE / "testing" / "simulator").glob("*.py"))
    digest = blake2b(digest_size=6)
    for path in sorted(paths):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def read_ledger(file: Path = LEDGER) -> Known:
    """The judgements in the ledger."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(one.mutant, one.by): one for one in (Judgement(**json.loads(line)) for line in lines)}


def write_ledger(known: Mapping[tuple[str, str], Judgement], mutants: Iterable[Mutant]) -> None:
    """Write the judgements of these mutants, in their order; others are forgotten."""
    lines = [
        json.dumps(asdict(known[one.name, by]), ensure_ascii=False)
        for one in mutants
        for by in (BY_TESTS, BY_SIMULATOR)
        if (one.name, by) in known
    ]
    LEDGER.write_text("".join(f"{line}\n" for line in lines))


def gaps(known: Mapping[tuple[str, str], Judgement], mutants: Iterable[Mutant]) -> list[str]:
    """What the ledger does not show: mutants that were never judged as they are now, or have survived."""
    found = []
    for one in mutants:
        for by, wanted in ((BY_TESTS, bool(one.tests)), (BY_SIMULATOR, one.schedules > 0)):
            judged = known.get((one.name, by))
            if wanted and (judged is None or judged.digest != one.digest):
                found.append(f"{one.name}: not judged by {by} as it is now")
            elif wanted and judged is not None and judged.killed_by is None:
                found.append(f"{one.name}: survived {by}")
    return found


def table(mutants: Sequence[Mutant], known: Mapping[tuple[str, str], Judgement]) -> str:
    """A table of mutants, and of what kills them."""
    rows = ["| mutant | killed by | after | simulator | after |", "|---|---|---|---|---|"]
    for one in mutants:
        cells = [one.name]
        for by in (BY_TESTS, BY_SIMULATOR):
            judged = known.get((one.name, by))
            if by == BY_SIMULATOR and not one.schedules:
                cells += [one.unsimulated, ""]
            elif judged is None or judged.killed_by is None:
                cells += ["", ""]
            else:
                killer = judged.killed_by
                cells += [f"`{_short(killer)}`" if by == BY_TESTS else killer, f"{judged.seconds:.1f} s"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(re.sub(r" +\|", " |", row) for row in rows)


def page_with(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables, each between two comments that name it."""
    for name, text in tables.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE}: {begin.strip()} is missing"
        page = f"{before}{begin}\n{text}\n\n{rest[rest.index(end) :]}"
    return page


def _short(test: str) -> str:
    """The name of a test, without its path and without the values of its parameters."""
    path, _, name = test.partition("::")
    return f"{Path(path).stem}::{name.partition('[')[0]}"
