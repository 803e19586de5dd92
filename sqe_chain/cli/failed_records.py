"""What the commands for records that failed share: which records are meant, how they are listed, and the question before a discard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from sqe_chain.cli.console import ERR, as_json, print_json, print_table, utc
from sqe_chain.cli.option_table import Option
from sqe_chain.errors import ConfigurationError
from sqe_chain.operations.patterns import listed_key


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """Which records are meant, by patterns."""

    error: Annotated[str | None, Option("Only with this error; * and ? stand for other text.", "PATTERN")] = (
        None
    )
    key: Annotated[
        str | None, Option("Only with this key, as list shows it; * and ? stand for other text.", "PATTERN")
    ] = None
    no_key: Annotated[bool, Option("Only records without a key.")] = False


def _key_cell(key: bytes | None) -> str:
    return "" if key is None else listed_key(key)


_COLUMNS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "at": ("at", str),
    "read_at": ("was read at", str),
    "time_ms": ("time (UTC)", utc),
    "key": ("key", _key_cell),
    "error": ("error", str),
    "text": ("text", str),
}
"""Name in JSON -> title of the column, and its cell."""


def list_failed(records: Iterable[Mapping[str, Any]], what: str, *, limit: int | None, json: bool) -> None:
    """List records as JSON or as a table, and count all of them by error.

    Args:
        records: what JSON shows of each, with its key in bytes.
        what: a word for them.
        limit: how many are shown; None: all as JSON, 100 in a table.
        json: as JSON.
    """
    counts, rows = Counter[str](), list[Mapping[str, Any]]()
    most = limit or (None if json else 100)
    for record in records:
        counts[record["error"]] += 1
        if most is not None and counts.total() > most:
            continue
        if json:
            print_json({**record, "key": as_json(record["key"])})
        else:
            rows.append(record)
    columns = [name for name in _COLUMNS if rows and name in rows[0]]
    cells = ([_COLUMNS[name][1](row[name]) for name in columns] for row in rows)
    print_table([_COLUMNS[name][0] for name in columns], cells)
    ERR.print(f"{counts.total()} {what}: {by_error(counts) or 'none'}")


def by_error(counts: Counter[str]) -> str:
    """How many records have which error, the most frequent first."""
    return ", ".join(f"{count} {error}" for error, count in counts.most_common())


def confirm_discard(flow: str, which: str, *, yes: bool) -> None:
    """Ask for the name of the flow before its records are discarded, unless that is confirmed already.

    Raises:
        ConfigurationError: the answer is another name.
    """
    if not yes and typer.prompt(f"Type {flow} to discard {which} of that flow", err=True) != flow:
        raise ConfigurationError("that is another name. Nothing was discarded")
