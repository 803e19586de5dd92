"""All mutants, by what they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.mutants import (
    claims,
    filters,
    lanes,
    marks,
    past,
    plans,
    ranges,
    rebuilding,
    recovery,
    redoing,
    steps,
    stores,
    tables,
    windows,
    wire,
)
from tests.mutants.mutant import Mutant

CATALOGUE: Final[Mapping[str, Sequence[Mutant]]] = {
    "steps": steps.MUTANTS,
    "plans": plans.MUTANTS,
    "claims": claims.MUTANTS,
    "marks and witnesses": marks.MUTANTS,
    "lanes": lanes.MUTANTS,
    "recovery": recovery.MUTANTS,
    "redo": redoing.MUTANTS,
    "filters": filters.MUTANTS,
    "windows": windows.MUTANTS,
    "wire format": wire.MUTANTS,
    "ranges": ranges.MUTANTS,
    "rebuilding": rebuilding.MUTANTS,
    "stores": stores.MUTANTS,
    "tables and files": tables.MUTANTS,
    "past defects": past.MUTANTS,
}
"""Subject -> its mutants. Each has a table of its own in docs/reliability.md."""
ALL: Final[Sequence[Mutant]] = [one for own in CATALOGUE.values() for one in own]
