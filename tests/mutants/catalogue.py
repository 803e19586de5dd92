"""All mutants, by what they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.mutants import (
    claims,
    collections_,
    exclusions,
    filters,
    lanes,
    marks,
    moving,
    past,
    plans,
    ranges,
    rebuilding,
    recovery,
    redoing,
    steps,
    stores,
    stream_time,
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
    "exclusions and dead letters": exclusions.MUTANTS,
    "collections": collections_.MUTANTS,
    "filters": filters.MUTANTS,
    "windows": windows.MUTANTS,
    "stream time": stream_time.MUTANTS,
    "wire format": wire.MUTANTS,
    "ranges": ranges.MUTANTS,
    "rebuilding": rebuilding.MUTANTS,
    "rebuilding and moving": moving.MUTANTS,
    "stores": stores.MUTANTS,
    "tables and files": tables.MUTANTS,
    "past defects": past.MUTANTS,
}
"""Subject -> its mutants. Each has a table of its own in docs/reliability.md."""
ALL: Final[Sequence[Mutant]] = [one for own in CATALOGUE.values() for one in own]
