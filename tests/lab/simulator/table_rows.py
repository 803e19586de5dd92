"""What a table must hold, and what is wrong with it. Needs no Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.lab.reference.expected import TableRow
from tests.lab.reference.world import TABLE

if TYPE_CHECKING:
    from sqe_chain.ext.tables.memory import MemorySnapshot

_COMPACTED: Final = "/compacted-"


class Markers(NamedTuple):
    """The markers of a state partition; -1 and 0: they were never set."""

    number: int = -1
    plan: int = 0
    epoch: int = 0


def markers_of(snapshot: MemorySnapshot, flow: str, part: int) -> Markers:
    """The markers of a state partition."""
    head = snapshot.heads(flow, TABLE, [part])[part]
    return Markers(-1 if head.number is None else head.number, head.plan or 0, head.epoch)


def is_compacted(snapshot: MemorySnapshot, part: int) -> bool:
    """Whether replaced rows of a state partition may be gone."""
    return any(_COMPACTED in file.path for file in snapshot.files(part))


def difference(found: Iterable[tuple[int, TableRow]], wanted: Iterable[TableRow], *, compacted: bool) -> str:
    """What is wrong with the rows of a state partition, in words; empty: nothing.

    Args:
        found: rows in its files, each with its sequence number.
        wanted: all versions of all rows, in the order in which they were written.
        compacted: replaced rows may be gone.
    """
    listed = [*found]
    rows, versions = Counter(row for _, row in listed), [*wanted]
    twice = [row for row, count in rows.items() if count > 1]
    if twice:
        return f"there twice: {twice}"
    extra = rows.keys() - set(versions)
    if extra:
        return f"must not be there: {sorted(extra)}"
    latest: Mapping[tuple[str, str], TableRow] = {(row.key, row.slot): row for row in versions}
    must = set(latest.values()) if compacted else set(versions)
    missing = must - rows.keys()
    if missing:
        return f"missing: {sorted(missing)}"
    newest = {(row.key, row.slot): row for _, row in sorted(listed)}
    wrong = {key: (newest[key], row) for key, row in latest.items() if newest[key] != row}
    return f"(latest, must be): {wrong}" if wrong else ""
