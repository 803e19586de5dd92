"""Describes a table from its log alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import Storage, TableDeclaration


@dataclass(frozen=True, slots=True)
class StatePartition:
    """The files of one state partition.

    Attributes:
        files: how many there are.
        rows: in them, replaced ones included.
        size: their bytes.
    """

    files: int = 0
    rows: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """A table at its newest version.

    Attributes:
        flow: name of the flow that writes it.
        stage: name of its stage.
        version: of the declaration: `ingest(version=...)`.
        commits: number of its newest commit, from 0.
        columns: name -> type.
        partition_key: columns by which rows lie together.
        row_key: columns of the row key.
        state_partitions: number -> its files, where there are any.
    """

    flow: str
    stage: str
    version: int
    commits: int
    columns: Mapping[str, str]
    partition_key: tuple[str, ...]
    row_key: tuple[str, ...]
    state_partitions: Mapping[int, StatePartition]

    @property
    def total(self) -> StatePartition:
        """All files together."""
        parts = list(self.state_partitions.values())
        return StatePartition(
            sum(part.files for part in parts),
            sum(part.rows for part in parts),
            sum(part.size for part in parts),
        )


def describe(storage: Storage, schema: TableSchema) -> Description:
    """Describe a table.

    Raises:
        ConfigurationError: there is no table.
        Unavailable: no answer.
    """
    snapshot = storage.snapshot()
    if snapshot is None:
        raise ConfigurationError(f"{storage}: there is no table")
    table = TableDeclaration.of(snapshot)
    parts: dict[int, StatePartition] = {}
    for file in snapshot.files():
        before = parts.get(file.part, StatePartition())
        parts[file.part] = StatePartition(before.files + 1, before.rows + file.rows, before.size + file.size)
    return Description(
        table.flow,
        table.stage,
        table.version,
        snapshot.version,
        {column.name: column.type for column in schema.columns},
        schema.partition_key,
        schema.row_key,
        dict(sorted(parts.items())),
    )
