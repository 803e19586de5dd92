"""All mutants, by what they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.lab.mutants import (
    cassandra,
    chunks,
    claims,
    collections_,
    exclusions,
    files,
    filters,
    gate,
    lanes,
    marks,
    moving,
    overwrites,
    past,
    plans,
    ranges,
    rebuilding,
    recovery,
    redis,
    redoing,
    replays,
    shuffles,
    steps,
    stores,
    stream_time,
    tables,
    windows,
    wire,
    write_ahead_log,
)
from tests.lab.mutants.mutant import Mutant

CATALOGUE: Final[Mapping[str, Sequence[Mutant]]] = {
    "steps": steps.MUTANTS,
    "plans": plans.MUTANTS,
    "claims": claims.MUTANTS,
    "marks and witnesses": marks.MUTANTS,
    "marks that are kept": replays.MUTANTS,
    "lanes": lanes.MUTANTS,
    "the shuffle's order": shuffles.MUTANTS,
    "recovery": recovery.MUTANTS,
    "redo": redoing.MUTANTS,
    "exclusions and dead letters": exclusions.MUTANTS,
    "collections": collections_.MUTANTS,
    "filters": filters.MUTANTS,
    "windows": windows.MUTANTS,
    "stream time": stream_time.MUTANTS,
    "the order of event time": gate.MUTANTS,
    "wire format": wire.MUTANTS,
    "ranges": ranges.MUTANTS,
    "rebuilding": rebuilding.MUTANTS,
    "rebuilding and moving": moving.MUTANTS,
    "stores": stores.MUTANTS,
    "stores: Redis": redis.MUTANTS,
    "stores: Cassandra": cassandra.MUTANTS,
    "tables and files": tables.MUTANTS,
    "overwrites": overwrites.MUTANTS,
    "chunks": chunks.MUTANTS,
    "files": files.MUTANTS,
    "write-ahead log": write_ahead_log.MUTANTS,
    "past defects": past.MUTANTS,
}
"""Subject -> its mutants. Each has a table of its own in docs/reliability.md."""
ALL: Final[Sequence[Mutant]] = [one for own in CATALOGUE.values() for one in own]
