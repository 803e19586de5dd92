"""The log of a Delta table: one version of it, damage in it, and handles that continue from what was read."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from sqe_chain.ext.tables.arrow import PARTITION
from sqe_chain.ext.tables.files import foreign_in
from sqe_chain.ext.tables.parquet_storage import heads_of
from sqe_chain.ext.tables.storage import Head, Snapshot, StoredFile

_MOST: Final = 8
"""Tables for which a process keeps handles. A handle holds the entry of each file in the log."""
Key = tuple[object, ...]
"""Which table, and how it is reached."""
_kept: OrderedDict[tuple[int, Key], Handle] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Handle:
    """A table of delta-rs at one version, with which this process has committed, so that it does not read the whole log for each commit.

    Opening a table reads its newest checkpoint and up to a hundred commits after it. Moving a handle on reads the commits since
    then. A snapshot must not change, so a handle is taken only when its snapshot is gone, and by one caller at a time. That caller
    checks that the log still has the last entry of the handle. Otherwise the table was deleted or restored.
    """

    table: Any  # of delta-rs
    version: int  # its version
    entry: bytes  # what the log had at that version, when it was loaded
    _user: weakref.ref[object]


def keep_handle(key: Key, table: Any, version: int, entry: bytes, user: object) -> None:  # noqa: ANN401 - of delta-rs
    """Keep a handle for the next caller. Nobody gets it while its user lives."""
    own = os.getpid(), key  # delta-rs does not work on in a forked child
    with _lock:
        _kept[own] = Handle(table, version, entry, weakref.ref(user))
        _kept.move_to_end(own)
        if len(_kept) > _MOST:
            _kept.popitem(last=False)


def take_handle(key: Key) -> Handle | None:
    """Take the handle that was kept, if its user is gone."""
    with _lock:
        handle = _kept.pop((os.getpid(), key), None)
    return handle if handle is not None and handle._user() is None else None  # noqa: SLF001 - of this module


_DIGITS = 20


def damage_in(table: Path) -> str | None:
    """What is damaged in the log of a table in a local directory, and what to do; None: nothing. Delta-rs names no cause."""
    log = table / "_delta_log"
    entries = {int(path.stem): path for path in log.glob("*.json") if _is_entry(path)}
    for number, path in sorted(entries.items()):
        try:
            infinite = _has_infinity(path)
        except ValueError:
            if number == max(entries):
                return (
                    f"{path} is not whole: if power was lost while it was written, nothing in it was acknowledged: move it away, and start again. "
                    "Should something have been, that is noticed then"
                )
            return f"{path} is damaged, and later versions build on it: restore the table and the store as they were at the same time"
        if infinite:
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


def _has_infinity(path: Path) -> bool:
    """Whether an entry has statistics that Python takes for JSON, and delta-rs does not. Raises ValueError: it is not whole."""
    constants: list[str] = []
    for line in path.read_text("utf-8").strip("\n").split("\n"):  # a text may hold other line ends of Python
        statistics = json.loads(line).get("add", {}).get("stats")
        json.loads(statistics or "null", parse_constant=constants.append)
    return bool(constants)


MARK: Final = "sqe-chain"
"""In the commits of this library."""
_HARMLESS: Final = frozenset({"VACUUM START", "VACUUM END"})
"""Operations of other programs that change no rows."""


@dataclass(frozen=True, slots=True)
class DeltaSnapshot(Snapshot):
    """A table at one version. It stays as it is, whatever is committed later.

    Its log is read when it is asked, so it raises as `TableDirectory.snapshot` does.

    Attributes:
        entry: the entry of this version in the log; None: only a checkpoint has it.
    """

    _table: Any
    _mapped: Callable[[], AbstractContextManager[None]]
    entry: bytes | None = None

    @property
    def version(self) -> int:
        return int(self._table.version())

    @property
    def table_id(self) -> str:
        return str(self._table.metadata().id)

    @property
    def description(self) -> str:
        return str(self._table.metadata().description or "")

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        return pa.schema(self._table.schema().to_arrow())

    def marker(self, name: str) -> int | None:
        """The number under a marker; None: it was never set."""
        with self._mapped():
            number: int | None = self._table.transaction_version(name)
        return number

    def heads(self, flow: str, stage: str, parts: Sequence[int]) -> dict[int, Head]:
        return heads_of(self.marker, flow, stage, parts)

    def files(self, part: int | None = None) -> list[StoredFile]:
        rows = self._actions().to_pylist()
        stored = [
            StoredFile(
                row["path"],
                row["size_bytes"],
                int((row["partition"] or {}).get(PARTITION) or 0),
                json.dumps(
                    {
                        "numRecords": row["num_records"],
                        "minValues": row["min"] or {},
                        "maxValues": row["max"] or {},
                        "nullCount": row["null_count"] or {},
                    },
                    default=str,
                ),
            )
            for row in rows
        ]
        wanted = [file for file in stored if part is None or file.part == part]
        return sorted(wanted, key=lambda stored_file: stored_file.path)

    def foreign_file(self) -> str | None:
        return foreign_in(self._actions().column("path").to_pylist())

    def foreign_commit(self, since: int) -> str | None:
        """A commit of another program after a version that was not undone, in words; None: none is known.

        A RESTORE undoes the commits in between. One that takes back a commit of this library is reported itself: its markers stay,
        and its rows would be missing.
        """
        if since >= self.version:
            return None
        with self._mapped():
            commits = self._table.history(self.version - since)
        restore: Mapping[str, Any] = {}
        restored = self.version
        for commit in commits:
            ours, undone = MARK in commit, commit["version"] > restored
            if (ours and not undone) or commit.get("operation") in _HARMLESS:
                continue
            if ours:
                return _in_words(restore)
            if not undone:
                restore, restored = commit, _restored_by(commit)
                if not since <= restored:
                    return _in_words(commit)
        return None

    def _actions(self) -> Any:  # noqa: ANN401 - an Arrow table
        with self._mapped():
            return pa.table(self._table.get_add_actions(flatten=False))


def _restored_by(commit: Mapping[str, Any]) -> int:
    """The version that a commit has restored; -1: it restores none, or does not name it."""
    if commit.get("operation") != "RESTORE":
        return -1
    return int((commit.get("operationParameters") or {}).get("version") or -1)


def _in_words(commit: Mapping[str, Any]) -> str:
    return f"version {commit['version']}: {commit.get('operation')} by {commit.get('engineInfo', 'an unknown program')}"
