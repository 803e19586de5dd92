"""A table of chunks as it was when it was looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sqe_chain.errors import FlowError, TableAltered, Unavailable
from sqe_chain.ext.tables.arrow import OWN_FIELDS, arrow_type
from sqe_chain.ext.tables.chunk_rows import ChunkRows, ChunkSet, Definition, PartHead
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.storage import Head, StoredFile

_NAME: Final = re.compile(
    r"(\d{12}-[0-9a-f]{1,16}-\d{5})-\d{4}-[0-9a-f]{16}|\d{12}-merged-\d{8}-[0-9a-f]{16}"
)
_ROUNDS: Final = 20

Loaded = tuple[PartHead, list[ChunkSet]]
"""A head and the chunk sets that it was seen with."""


def name_in(path: str) -> tuple[int, str]:
    """State partition and name of a chunk set, of its path."""
    part, _, name = path.partition("/")
    return int(part), name


def chunk_id_in(name: str) -> str | None:
    """The chunk id in the name of a flush's chunk set; None: a compaction has written it.

    Raises:
        ValueError: another program has.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(name)
    return found[1]


@dataclass(frozen=True, slots=True)
class ChunkSnapshot:
    """A `Snapshot`. What it has read of a state partition stays as it is; the heads are always the newest.

    Attributes:
        rows: the rows of the table.
        definition: of the table.
    """

    rows: ChunkRows
    definition: Definition
    _loaded: dict[int, Loaded] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """See `Snapshot`."""
        return 0

    @property
    def table_id(self) -> str:
        """See `Snapshot`."""
        return self.definition.table_id

    @property
    def description(self) -> str:
        """See `Snapshot`."""
        return self.definition.description

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """See `Snapshot`."""
        try:
            columns = [(name, arrow_type(Column(name, of))) for name, of in self.definition.columns]
        except FlowError as error:
            raise TableAltered(
                f"table {self.rows.address}: another program has changed its row in sqe_tables: {error}; restore it"
            ) from error
        return pa.schema([*columns, *OWN_FIELDS])

    @property
    def parts(self) -> int:
        """How many state partitions the flow has."""
        return int(json.loads(self.description)["sqe-chain"]["state_partitions"])

    def heads(self, flow: str, stage: str, parts: Sequence[int]) -> dict[int, Head]:
        """See `Snapshot`."""
        del flow, stage  # the description says whose table it is
        found = zip(parts, self.rows.heads(parts), strict=True)
        return {part: Head(head.number, head.plan, head.epoch or 0, head.run) for part, head in found}

    def loaded(self, part: int) -> Loaded:
        """The chunk sets of a state partition, and the head that they belong to."""
        self._load([part])
        return self._loaded[part]

    def files(self, part: int | None = None) -> list[StoredFile]:
        """See `Snapshot`."""
        parts = range(self.parts) if part is None else [part]
        self._load(parts)
        return [
            StoredFile(f"{one}/{found.name}", found.size, one, found.statistics)
            for one in parts
            for found in self._loaded[one][1]
        ]

    def foreign_file(self) -> str | None:
        """See `Snapshot`."""
        for file in self.files():
            try:
                chunk_id_in(name_in(file.path)[1])
            except ValueError:
                return f"chunk set {file.path}"
        return None

    def foreign_commit(self, since: int) -> str | None:
        """See `Snapshot`: nothing tells of it."""
        del since
        return None

    def _load(self, parts: Sequence[int]) -> None:
        """Read chunk sets until they are those of a head that is known to stand."""
        for _ in range(_ROUNDS):
            missing = [part for part in parts if part not in self._loaded]
            if not missing:
                return
            found = self.rows.sets(missing)
            heads = self.rows.heads(missing)
            for part, loaded, head in zip(missing, found, heads, strict=True):
                if _state(loaded[0]) == _state(head):
                    self._loaded[part] = loaded
        raise Unavailable(f"table {self.rows.address}: it changes faster than it can be read")


def _state(head: PartHead) -> tuple[int | None, int | None]:
    """What changes with the chunk sets."""
    return head.number, head.compactions
