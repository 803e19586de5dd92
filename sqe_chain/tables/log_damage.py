"""What is wrong with the log of a Delta Lake table in a local directory, where delta-rs only says that it cannot read it."""

from __future__ import annotations

import json
from pathlib import Path

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


def _is_cut(path: Path) -> bool:
    try:
        for line in path.read_text("utf-8").splitlines():
            json.loads(line)
    except ValueError:
        return True
    return False
