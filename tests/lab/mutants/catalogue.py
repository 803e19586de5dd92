"""All mutants, by what they break: the table of catalogue.txt.

A line is a mutant: the rule that it breaks, a function, what happens to it, the tests that notice, and how the simulator does.
Columns are between bars. A line without a rule is one more operation of the mutant above; operations are those of `edits`. Where tests
need servers, the last column has the word `servers`; a number there is `Mutant.schedules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.lab.mutants.edits import Edit, MisplacedError, operation
from tests.lab.mutants.mutant import Mutant, mutant

TABLE: Final = Path(__file__).with_name("catalogue.txt")


def read_catalogue(text: str) -> dict[str, list[Mutant]]:
    """Subject -> its mutants.

    Args:
        text: lines as in catalogue.txt.

    Raises:
        MisplacedError: a line is no mutant; the error names it.
    """
    found: dict[str, list[Mutant]] = {}
    own: list[Mutant] = []
    for line in text.splitlines():
        if line.startswith("# "):
            own = found[line[2:]] = []
        elif line.strip():
            rule, place, done, *rest = [column.strip() for column in f"{line} ".split(" | ")]
            try:
                edit = place, operation(done)
            except (MisplacedError, SyntaxError) as error:
                raise MisplacedError(f"mutant {rule or own[-1].name!r}: {error}") from None
            own.append(_mutant(rule, edit, *rest) if rule else _with(own.pop(), edit))
    return found


def _mutant(rule: str, edit: Edit, tests: str, more: str = "") -> Mutant:
    words = more.split()
    schedules = sum(int(word) for word in words if word.isdigit())
    return mutant(
        rule, edit, killed_by=tuple(tests.split(", ")), schedules=schedules, servers="servers" in words
    )


def _with(one: Mutant, edit: Edit) -> Mutant:
    return mutant(
        one.name, *one.edits, edit, killed_by=one.tests, schedules=one.schedules, servers=one.servers
    )


CATALOGUE: Final[Mapping[str, Sequence[Mutant]]] = read_catalogue(TABLE.read_text(encoding="utf-8"))
"""Subject -> its mutants."""
ALL: Final[Sequence[Mutant]] = [one for own in CATALOGUE.values() for one in own]

QUICK: Final = frozenset(
    {
        "a batch is committed before its states are persisted",
        "a batch is published before it is sealed",
        "a plan does not name the last records that it has read",
        "a run that ends gives back the claim of any run",
        "headers are not stamped",
        "a redo publishes nothing",
        "code that has changed may finish a plan",
        "of an unfinished plan the key at the cursor is folded again",
        "what was left out before the first stage goes into no plan",
        "the first message of a lane is not asked for its predecessor",
        "a previous position that equals the mark is a gap",
        "the partition that a message is read from does not belong to its lane",
        "in one process units come in the order in which they were made",
        "a chain of 33 links is accepted",
        "what comes on a lane after one that waits is taken before it",
        "records of open transactions are read",
    }
)
"""Those that `make test` judges each time: of each rule of the core the one that is killed soonest."""
