"""What a table is for those who write and read it: versions, files, and commits that carry markers. Two places have it.

`tables.directory` keeps tables as Delta Lake does, `tables.memory` in the memory of this process. Both make a commit as a whole or not at
all, and both refuse it if one of its markers was set since the snapshot on which it was decided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

MARK: Final = "sqe-chain"
"""In the commits of this library."""


class Conflict(Exception):
    """Another commit has set one of the markers, or has changed the columns, since the snapshot was taken."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a table.

    Attributes:
        path: from the table's directory on.
        size: bytes.
        part: state partition.
        statistics: of its columns, as Delta's log has them: numRecords, minValues, maxValues, nullCount.
    """

    path: str
    size: int
    part: int
    statistics: str

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(json.loads(self.statistics)["numRecords"])


class Snapshot(Protocol):
    """A table at one version. It stays as it is, whatever is committed later."""

    @property
    def version(self) -> int:
        """Number of the commit."""

    @property
    def table_id(self) -> str:
        """Another one for each table that was ever created."""

    @property
    def description(self) -> str:
        """What was given at its creation."""

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """What readers see, as an Arrow schema."""

    def marker(self, name: str) -> int | None:
        """The number under a marker; None: it was never set."""

    def files(self) -> list[StoredFile]:
        """The files that make up the table, in the order of their paths."""

    def foreign_file(self) -> str | None:
        """The path of a file that this library has not written; None: there is none."""

    def foreign_commit(self, since: int) -> str | None:
        """A commit of another program after a version, in words; None: there is none that is still known of."""


class Directory(Protocol):
    """Where one table lives."""

    address: str

    def snapshot(self) -> Any:  # noqa: ANN401 - a `Snapshot` of its own kind, or None
        """The newest version; None: there is no table.

        Raises:
            Unavailable: no answer.
            TableAltered: a program has made it into something that this library cannot write.
        """

    def create(self, schema: Any, name: str, description: str) -> None:  # noqa: ANN401 - an Arrow schema
        """Create the table, if it is not there."""

    def add_columns(self, snapshot: Any, columns: Sequence[Any]) -> None:  # noqa: ANN401 - see `snapshot`
        """Add columns, which are null in the rows that are there.

        Args:
            snapshot: on which it was decided.
            columns: Arrow fields.

        Raises:
            Conflict: somebody has changed the columns since.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write a file that no commit names yet; it is there as a whole or not at all. One that is there stays.

        Raises:
            Unavailable: it could not be written, or perhaps it was; call again.
        """

    def chunks(self, path: str) -> Any:  # noqa: ANN401 - (list of `ChunkInfo`, size in bytes), or None
        """The chunks in a file, from its footer, and its size in bytes; None: there is no whole file."""

    def commit(
        self,
        snapshot: Any,  # noqa: ANN401 - see `snapshot`
        markers: Mapping[str, int],
        added: Sequence[StoredFile] = (),
        removed: Sequence[StoredFile] = (),
        *,
        what: str,
    ) -> None:
        """Add and remove files and set markers, all in one step. When it returns it stays, whatever crashes.

        Args:
            snapshot: on which it was decided.
            markers: to set.
            added: files that were `put`.
            removed: files of the snapshot. That another commit has removed one of them meanwhile is no conflict: who removes files
                needs a marker for it.
            what: what is done, for the table's history.

        Raises:
            Conflict: nothing was done.
            Unavailable: it is not known whether it was done.
        """

    def vacuum(self, retain_hours: int) -> list[str]:
        """Delete files that no version of the last hours needs; returns their paths.

        Raises:
            ConfigurationError: less than an hour: a flush at work has files that no version names yet.
        """

    def open_file(self, path: str) -> Any:  # noqa: ANN401 - an Arrow file
        """A file of the table, for reading."""

    def uri(self, path: str) -> str:
        """The address of one of its files."""
