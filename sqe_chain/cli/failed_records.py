"""Which failed records a command is about, and how they are listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

from sqe_chain.cli.console import ERR, key_as_json, print_json, print_table, utc
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.values import moment_ms, place_named
from sqe_chain.errors import ConfigurationError
from sqe_chain.operations.failed import UNDECIDED, FailedRecord, FailedSelection
from sqe_chain.operations.patterns import listed_key
from sqe_chain.task.failed_log import FailedStatus

_ALL: Final = "all"
_STATES: Final = get_args(FailedStatus)


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """Which failed records are meant, by what they are."""

    error: Annotated[str | None, Option("Only with this error; * and ? stand for other text.", "PATTERN")] = (
        None
    )
    key: Annotated[
        str | None, Option("Only with this key, as list shows it; * and ? stand for other text.", "PATTERN")
    ] = None
    no_key: Annotated[bool, Option("Only records without a key.")] = False
    topic: Annotated[str | None, Option("Only read from this topic.", "TOPIC")] = None
    since: Annotated[str | None, Option("Only of this time or later: 2026-11-20T10:00:00Z.", "TIME")] = None
    until: Annotated[str | None, Option("Only of an earlier time.", "TIME")] = None

    def selection(self, places: Iterable[str] | None = None) -> FailedSelection:
        """The same, once it is read.

        Args:
            places: only those that were read there; None or none: wherever.

        Raises:
            ConfigurationError: an option is no time or an empty pattern, or a place is none.
        """
        named = frozenset(places or ())
        for place in named:
            place_named(place)
        return FailedSelection(
            error=self.error,
            key=self.key,
            no_key=self.no_key,
            topic=self.topic,
            since_ms=moment_ms("--since", self.since),
            until_ms=moment_ms("--until", self.until),
            places=named or None,
        )


def states_named(texts: Iterable[str] | None) -> frozenset[FailedStatus]:
    """The states that are meant.

    Raises:
        ConfigurationError: there is no such state.
    """
    if texts is None:
        return UNDECIDED
    for text in texts:
        if text not in (*_STATES, _ALL):
            raise ConfigurationError(f"--state {text!r}. Expected one of: {', '.join((*_STATES, _ALL))}")
    named = set(texts)
    return frozenset(state for state in _STATES if state in named or _ALL in named)


def shown_record(record: FailedRecord) -> dict[str, Any]:
    """A failed record for JSON."""
    shown = {
        "read_at": str(record),
        "state": record.status,
        "time_ms": None if record.time_ms < 0 else record.time_ms,
        "key": key_as_json(record.key),
        "error": record.error,
        "text": record.text,
    }
    if record.place:
        shown |= {"kept_at": record.place, "lane": f"{record.lane:016x}", "position": record.position.hex()}
    return shown | {"decided_by": record.decided_by} if record.decided_by else shown


def list_failed(
    records: Iterable[FailedRecord], states: frozenset[FailedStatus], *, limit: int | None, json: bool
) -> None:
    """List failed records as JSON or as a table, and count all of them by error and by state.

    Args:
        records: all that were selected.
        states: which of them are shown.
        limit: how many are shown; None: all as JSON, 100 in a table.
        json: as JSON.
    """
    errors, others, rows = Counter[str](), Counter[str](), list[FailedRecord]()
    most = limit or (None if json else 100)
    for record in records:
        if record.status not in states:
            others[record.status] += 1
            continue
        errors[record.error or "no error known"] += 1
        if most is not None and errors.total() > most:
            continue
        if json:
            print_json(shown_record(record))
        else:
            rows.append(record)
    _print_rows(rows)
    ERR.print(f"failed records: {errors.total()}{_counts(errors)}")
    if others:
        ERR.print(
            f"not shown: {_counts(others).removeprefix(' (').removesuffix(')')}; --state all shows them"
        )


def _print_rows(rows: list[FailedRecord]) -> None:
    cells = (
        (
            record,
            record.status,
            "" if record.time_ms < 0 else utc(record.time_ms),
            "" if record.key is None else listed_key(record.key),
            record.error,
            record.text,
        )
        for record in rows
    )
    print_table(("read at", "state", "time (UTC)", "key", "error", "text"), cells)


def _counts(counts: Mapping[str, int]) -> str:
    """How many have which name, the most frequent first."""
    text = ", ".join(f"{count} {name}" for name, count in Counter(counts).most_common())
    return f" ({text})" if text else ""
