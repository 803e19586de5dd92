"""One version of a Delta table: what is read of its log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sqe_chain.ext.tables.arrow import PARTITION
from sqe_chain.ext.tables.files import chunk_id_in
from sqe_chain.ext.tables.parquet_storage import heads_of
from sqe_chain.ext.tables.storage import Head, StoredFile

MARK: Final = "sqe-chain"
"""In the commits of this library."""
HARMLESS: Final = frozenset({"VACUUM START", "VACUUM END"})
"""What other programs may do: it changes no rows."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class DeltaSnapshot:
    """A table at one version. It stays as it is, whatever is committed later.

    Its log is read when it is asked, so it raises as `TableDirectory.snapshot` does.

    Attributes:
        entry: what the log had at this version when it was looked at; None: a checkpoint alone has said it.
    """

    _table: Any
    _mapped: Callable[[], AbstractContextManager[None]]
    entry: bytes | None = None

    @property
    def version(self) -> int:
        """Number of the commit."""
        return int(self._table.version())

    @property
    def table_id(self) -> str:
        """Another one for each table that was ever created."""
        return str(self._table.metadata().id)

    @property
    def description(self) -> str:
        """What was given at its creation."""
        return str(self._table.metadata().description or "")

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """What readers see, as an Arrow schema."""
        return pa.schema(self._table.schema().to_arrow())

    def marker(self, name: str) -> int | None:
        """The number under a marker; None: it was never set."""
        with self._mapped():
            found: int | None = self._table.transaction_version(name)
        return found

    def heads(self, flow: str, stage: str, parts: Sequence[int]) -> dict[int, Head]:
        """See `Snapshot`."""
        return heads_of(self.marker, flow, stage, parts)

    def files(self, part: int | None = None) -> list[StoredFile]:
        """The files that make up the table, or a state partition, in the order of their paths."""
        rows = self._actions().to_pylist()
        found = [
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
        wanted = [one for one in found if part is None or one.part == part]
        return sorted(wanted, key=lambda one: one.path)

    def foreign_file(self) -> str | None:
        """The path of a file that this library has not written; None: there is none."""
        for path in self._actions().column("path").to_pylist():
            try:
                chunk_id_in(path)
            except ValueError:
                return str(path)
        return None

    def foreign_commit(self, since: int) -> str | None:
        """A commit of another program after a version, in words; None: there is none that is still known of, and that was not undone.

        A RESTORE undoes what came between: that is the way out where another program has written. One that takes back a commit of this
        library is none: its markers stay, and its rows would be missing.
        """
        if since >= self.version:
            return None
        with self._mapped():
            commits = self._table.history(self.version - since)
        restore: Mapping[str, Any] = {}
        restored = self.version
        for commit in commits:
            ours, undone = MARK in commit, commit["version"] > restored
            if (ours and not undone) or commit.get("operation") in HARMLESS:
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
    """The version that a commit has restored; -1: it is none that restores one, or does not say which."""
    if commit.get("operation") != "RESTORE":
        return -1
    return int((commit.get("operationParameters") or {}).get("version") or -1)


def _in_words(commit: Mapping[str, Any]) -> str:
    return f"version {commit['version']}: {commit.get('operation')} by {commit.get('engineInfo', 'an unknown program')}"
