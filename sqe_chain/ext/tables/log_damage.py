"""What is wrong with the log of a Delta Lake table in a local directory, where delta-rs only says that it cannot read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DIGITS = 20


def damage_in(table: Path) -> str | None:
    """What is wrong with a table's log, and what to do, as a text; None: nothing is found.

    Args:
        table: its directory.
    """
    log = table / "_delta_log"
    entries = {int(path.stem): path for path in log.glob("*.json") if _is_entry(path)}
    for number, path in sorted(entries.items()):
        if _is_cut(path):
            if number == max(entries):
                return (
                    f"{path} is not whole: if power was lost while it was written, nothing in it was acknowledged: move it away, and start again. "
                    "Should something have been, that is noticed then"
                )
            return f"{path} is damaged, and later versions build on it: restore the table and the store as they were at the same time"
        if _has_infinity(path):
            return (
                f"{path} has Infinity in its statistics, which is no JSON; an earlier version of this library has written it: replace Infinity and "
                "-Infinity there by null, which changes no rows"
            )
    if not entries:
        return None
    first, last = min(entries), max(entries)
    missing = next((number for number in range(first, last) if number not in entries), None)
    if missing is None and first > 0 and not any(log.glob("*.checkpoint*.parquet")):
        missing = first - 1
    if missing is None:
        return None
    return f"{log / f'{missing:0{_DIGITS}d}.json'} is missing: restore it, or the table and the store as they were at the same time"


def _is_entry(path: Path) -> bool:
    return len(path.stem) == _DIGITS and path.stem.isdigit()


def _actions(path: Path) -> Iterator[Any]:
    """What an entry has: a line each, of which texts may hold what Python takes for ends of lines, too."""
    return map(json.loads, path.read_text("utf-8").strip("\n").split("\n"))


def _is_cut(path: Path) -> bool:
    try:
        list(_actions(path))
    except ValueError:
        return True
    return False


def _has_infinity(path: Path) -> bool:
    """Whether an entry has statistics that Python takes for JSON, and delta-rs does not."""
    found: list[str] = []
    for action in _actions(path):
        json.loads(action.get("add", {}).get("stats") or "null", parse_constant=found.append)
    return bool(found)
