"""Describes a table from its log alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import Snapshot, TableDeclaration


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

    def __add__(self, other: StatePartition) -> StatePartition:
        return StatePartition(self.files + other.files, self.rows + other.rows, self.size + other.size)


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
        return sum(self.state_partitions.values(), StatePartition())


def describe(snapshot: Snapshot, schema: TableSchema) -> Description:
    """Describe a table that has this schema."""
    table = TableDeclaration.of(snapshot)
    parts: dict[int, StatePartition] = defaultdict(StatePartition)
    for file in snapshot.files():
        parts[file.part] += StatePartition(1, file.rows, file.size)
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
