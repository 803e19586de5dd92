"""Ingest: the rows of a batch go into a table, all at once, at the end of the batch and only there.

Source: FiloDB's ingestion flushes memtables exactly at the end of a microbatch. So a replay fills the same memtables and writes
the same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqe_chain.errors import ConfigurationError, FlowError, PoisonError
from sqe_chain.ext.tables.addresses import in_memory, max_key_bytes
from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN
from sqe_chain.ext.tables.files import TableFile
from sqe_chain.ext.tables.memtable import MAX_ROW_BYTES, Flushed, Memtable
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.overwriting import OverwritingSink
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import packing_at
from sqe_chain.flow.stage_kind import NOTHING, StageKind, StageTask, StageTraits, StageWork
from sqe_chain.flow.units import Unit, UnitRun, number
from sqe_chain.ports import Sink
from sqe_chain.wings import needing


@dataclass(frozen=True)
class IngestKind(StageKind):
    """The kind of `Stream.ingest`.

    Attributes:
        address: where it lives.
    """

    name = "ingest"
    traits = StageTraits(
        called="table", needs=NOTHING, needs_key=True, apart=True, reversible=True, may_be_last=True
    )

    table: str  # name of the table
    schema: TableSchema  # its columns and keys
    address: str = field(repr=False)  # it may have a password
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the place where it lives
    version: int = 0  # of the table, from 0
    replaces: bool = False  # rows are meant to replace what is there
    max_row_bytes: int = MAX_ROW_BYTES  # largest row

    def __getstate__(self) -> dict[str, object]:
        """Refuse to be sent to another process, which would have a table of its own. Raises ConfigurationError: the table is in memory."""
        if in_memory(self.address):
            raise ConfigurationError(
                f"table {self.table!r} is at {self.address}, in the memory of this process. Other processes would have one each. "
                "Give it a directory (at=), or run the flow in one process"
            )
        return self.__dict__

    @property
    def sink(self) -> Sink:
        with needing(f"table {self.table!r}", "tables"):
            storage = storage_at(self.address, self.options)
        return OverwritingSink(storage, self.schema, self.table, self.version, self.replaces)

    def check(self, where: str, *, dead_letters: bool) -> None:
        del dead_letters
        if type(self.max_row_bytes) is not int or self.max_row_bytes < 1:
            raise FlowError(f"{where}: max_row_bytes={self.max_row_bytes!r}; a whole number, 1 or more")

    def start(self, task: StageTask) -> Ingest:
        def memtable() -> Memtable:
            return Memtable(
                self.schema,
                table=self.table,
                version=self.version,
                max_row_bytes=self.max_row_bytes,
                max_key_bytes=max_key_bytes(self.address),
            )

        return Ingest(task, memtable(), memtable(), packing_at(self.address))


class Ingest(StageWork):
    """One table's work on one state partition in one batch.

    Args:
        task: what it is given.
        memtable: gathers the rows; empty.
        trial: another one, for rows of inputs that are retried alone.
        files_of: how what a flush gives becomes bytes.
    """

    def __init__(
        self,
        task: StageTask,
        memtable: Memtable,
        trial: Memtable,
        files_of: Callable[[Flushed], list[TableFile]],
    ) -> None:
        self._task = task
        self._memtable = memtable
        self._trial = trial
        self._files_of = files_of

    def apply(self, units: Sequence[Unit]) -> None:
        # A row that the table does not take skips its whole input
        run = UnitRun.of(units, timed=False)
        candidates = self._task.candidates
        if candidates:
            tried = {index for index in range(len(run)) if run.origin(index).order in candidates}
            for index in sorted(tried):
                self._add(self._trial, run.chosen([index]))
            self._trial.clear()
            run = run.chosen([index for index in range(len(run)) if index not in tried])
        self._add(self._memtable, run)

    def _add(self, memtable: Memtable, run: UnitRun) -> None:
        def failed(index: int, error: PoisonError) -> None:
            self._task.failed(run.origin(index), error, run.keys[index])

        if run.values:
            memtable.ingest_all(run.values, failed)

    def finish(self) -> None:
        # The flush. What it gives is written in step 6, once the plan is sealed.
        if not self._memtable.rows:
            return
        flushed = self._memtable.flush(self._task.number * ROWS_OF_A_PLAN)
        self._memtable.clear()
        for index, file in enumerate(self._files_of(flushed)):
            self._task.table.put(number(index), file.packed())
