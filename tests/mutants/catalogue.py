"""All mutants, by what they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.mutants import (
    claims,
    past,
    rebuilding,
    recovery,
    steps,
    tables,
)
from tests.mutants.mutant import Mutant

CATALOGUE: Final[Mapping[str, Sequence[Mutant]]] = {
    "steps": steps.MUTANTS,
    "claims": claims.MUTANTS,
    "recovery": recovery.MUTANTS,
    "rebuilding": rebuilding.MUTANTS,
    "tables and files": tables.MUTANTS,
    "past defects": past.MUTANTS,
}
"""Subject -> its mutants. Each has a table of its own in docs/reliability.md."""
ALL: Final[Sequence[Mutant]] = [one for own in CATALOGUE.values() for one in own]
