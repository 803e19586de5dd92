"""All mutants, by what they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.lab.mutants import event_time, marks, parking, past, rebuilding, redoing, steps, stores, values
from tests.lab.mutants.mutant import Mutant

CATALOGUE: Final[Mapping[str, Sequence[Mutant]]] = {
    "order of steps, plans, claims": steps.MUTANTS,
    "recovery, redo, exclusions": redoing.MUTANTS,
    "marks, lanes, the shuffle's order, bytes": marks.MUTANTS,
    "values between functions, states": values.MUTANTS,
    "event time, windows, filters": event_time.MUTANTS,
    "reading, rebuilding, moving": rebuilding.MUTANTS,
    "stores, tables, files, write-ahead log": stores.MUTANTS,
    "parked records": parking.MUTANTS,
    "past defects": past.MUTANTS,
}
"""Subject -> its mutants."""
ALL: Final[Sequence[Mutant]] = [one for own in CATALOGUE.values() for one in own]

QUICK: Final = frozenset(
    {
        "a batch is committed before its states are persisted",
        "a batch is published before it is sealed",
        "a plan does not name the last records that it has read",
        "a run that ends gives back whoever's claim there is",
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
