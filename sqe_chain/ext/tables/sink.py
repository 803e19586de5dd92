"""Writes flushes into a table, each exactly once: the table's commit and the plan's persist are one decision.

The sealed plan decides. A commit of the table carries the `Head` of its state partition: number and id of the plan, epoch and
run of the writer. It is made only on a head that allows it, and the table refuses it if the head has moved since. So:

* no plan is added twice, because the head has its number and id;
* a superseded run adds nothing, because the head has a larger epoch;
* a table or a store that went back in time is noticed, because the numbers do not follow each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa

from sqe_chain.errors import ConfigurationError, Superseded, TableAltered, TableInconsistent, Unavailable
from sqe_chain.ext.tables.chunk import ChunkIndex, ChunkInfo, chunk_id
from sqe_chain.ext.tables.files import TableFile
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import (
    AFTER_A_LOSS,
    Conflict,
    Head,
    Snapshot,
    Storage,
    StoredFile,
    TableChange,
    TableDeclaration,
    Written,
    retried,
    word,
)
from sqe_chain.ports.readers import flow_of
from sqe_chain.ports.sink import Flush, Replacement, Sink, SinkClaim, SinkState

RESTORE_BOTH: Final = (
    "restore both as they were at the same time; or ingest into another table under another stage name, from where inputs "
    "still are"
)
_checked: dict[tuple[str, str], int] = {}
"""(address, table id) -> the version up to which this process knows that nobody else has written."""


@dataclass(frozen=True, slots=True)
class TableSink(Sink):
    """A `Sink` into one table."""

    storage: Storage  # where it lives
    schema: TableSchema  # its columns and keys
    table: str  # its name
    version: int = 0  # of the table, from 0
    replaces: bool = False  # rows are meant to replace what is there: no chunk is skipped

    def wrapped(self, wrap: Callable[[Any], Any]) -> Self:
        return replace(self, storage=self.storage.wrapped(wrap))

    def check(self) -> list[str]:
        return self.storage.check()

    def remarks(self) -> list[str]:
        return self.storage.remarks()

    def look(self, flow: str, stage: str, parts: range) -> SinkState:
        snapshot: Snapshot | None = self.storage.snapshot()
        if snapshot is None:
            return SinkState()
        heads = snapshot.heads(flow, stage, parts).values()
        return SinkState(
            max((head.epoch for head in heads), default=0),
            frozenset(head.number for head in heads if head.number is not None),
        )

    def claim(self, claim: SinkClaim) -> None:
        if flow_of(claim.flow) != claim.flow and not self.storage.one_log:
            raise ConfigurationError(
                f"{self.storage}: tables there have one writer: run flow {flow_of(claim.flow)!r} without --partitions, or let it "
                "write a table of Delta Lake (at=)"
            )
        retried(self.storage, partial(self._claim, claim))

    def _claim(self, claim: SinkClaim) -> None:
        flow, stage = claim.flow, claim.stage
        snapshot = self._table(claim)
        since = version_of(claim.known.values())
        self._check_untouched(snapshot, flow, stage, everything=True, since=since)
        self._check_whole(snapshot)
        heads = snapshot.heads(flow, stage, sorted(claim.known))
        for part, head in heads.items():
            self._check_not_superseded(head, claim, part)
            self._check_history(snapshot, part, head, claim.known[part], claim.plans)
        mine = word(claim.run_id)
        claimed = {part: replace(head, epoch=claim.epoch, run=mine) for part, head in heads.items()}
        self.storage.commit(snapshot, TableChange("claim", flow, stage, heads, claimed))

    def flush(self, flush: Flush) -> tuple[int, bytes]:
        return retried(self.storage, partial(self._flush, flush, files_in(flush)))

    def _flush(self, flush: Flush, files: list[TableFile]) -> tuple[int, bytes]:
        snapshot, heads = self._look(flush, {flush.part: flush.known})
        head = heads[flush.part]
        if head.number is not None and head.number >= flush.number:
            self._check_same_plan(head, flush, flush.part)
            return 0, known_of(snapshot, head.number)
        self._check_number(snapshot, flush.part, head, flush.known)
        added, after = self._put(flush, files), {flush.part: head_of(flush)}
        change = TableChange(f"plan {flush.number}", flush.flow, flush.stage, heads, after, added)
        self.storage.commit(snapshot, change)
        return sum(file.rows for file in files), known_of(snapshot, flush.number)

    def _look(
        self, flush: Flush | Replacement, known: Mapping[int, bytes | None]
    ) -> tuple[Snapshot, dict[int, Head]]:
        """The newest snapshot and its heads. This run is their owner, and no other program has written."""
        snapshot: Snapshot | None = self.storage.snapshot_again()
        if snapshot is None:
            raise TableInconsistent(
                f"{self.storage}: the table is gone, while stage {flush.stage!r} of flow {flush.flow!r} writes to it; {RESTORE_BOTH}"
            )
        heads = snapshot.heads(flush.flow, flush.stage, sorted(known))
        for part, head in heads.items():
            self._check_owner(head, flush, part)
        self._check_untouched(snapshot, flush.flow, flush.stage, since=version_of(known.values()))
        return snapshot, heads

    def _put(self, flush: Flush, files: list[TableFile]) -> list[StoredFile]:
        """Write the files, except the chunks that an earlier attempt at this flush has written."""
        own = chunk_id(flush.number, flush.plan_id, flush.part)
        stored = []
        for number, file in enumerate(files):
            path = self.storage.path(flush.part, own, number, file.digest)
            written = self.storage.written(path, file)
            missing = _missing(file, written, own, replaces=self.replaces)
            if missing or written is None:
                self.storage.put(path, file, missing)
                written = self.storage.written(path, file)
                if written is None or _missing(file, written, own):
                    raise Unavailable(f"{self.storage}: {path} was written, and cannot be read")
            stored.append(StoredFile(path, written.size, flush.part, file.statistics))
        return stored

    def _table(self, claim: SinkClaim) -> Snapshot:
        """The table, created if there was none, with all columns."""
        declared = self._declaration(claim.flow, claim.stage, len(claim.known))
        snapshot: Snapshot | None = self.storage.snapshot()
        if snapshot is None:
            lost = [part for part, known in claim.known.items() if known is not None]
            if lost:
                raise TableInconsistent(
                    f"{self.storage}: there is no table, but stage {claim.stage!r} of flow {claim.flow!r} has flushed rows into one; "
                    f"{RESTORE_BOTH}"
                )
            with suppress(Conflict):  # another reader has created it in between
                self.storage.create(self.schema.for_readers, self.table, declared.to_text())
            snapshot = self.storage.snapshot()
            if snapshot is None:
                raise Unavailable(f"{self.storage}: was created, and is not there")
        self._check_writer(snapshot, claim.flow, claim.stage)
        missing = self._check_columns(snapshot)
        if missing:
            with suppress(Conflict):  # another writer has changed columns: the next look checks them
                self.storage.add_columns(snapshot, missing)
            return self._table(claim)
        return snapshot

    def _declaration(self, flow: str, stage: str, parts: int) -> TableDeclaration:
        keys = list(self.schema.partition_key), list(self.schema.row_key)
        return TableDeclaration(
            flow_of(flow), stage, self.version, parts, *keys
        )  # readers of one flow share it

    def _check_writer(self, snapshot: Snapshot, flow: str, stage: str) -> None:
        try:
            stored = TableDeclaration.of(snapshot)
        except ValueError:
            raise TableAltered(
                f"{self.storage}: holds a table that this library has not created. Give the stage a directory of its own"
            ) from None
        own = self._declaration(flow, stage, stored.state_partitions)
        if (stored.flow, stored.stage, stored.version) != (own.flow, stage, self.version):
            raise TableAltered(
                f"{self.storage}: is the table of stage {stored.stage!r} of flow {stored.flow!r}, version {stored.version}. Expected "
                f"{stage!r} of {own.flow!r}, version {self.version}. Give each stage a directory of its own"
            )
        for name in ("partition_key", "row_key"):
            if getattr(stored, name) != getattr(own, name):
                raise TableAltered(
                    f"{self.storage}: {name} is {getattr(stored, name)}, and declared as {getattr(own, name)}. Keys are permanent. "
                    "Ingest into another table"
                )

    def _check_columns(self, snapshot: Snapshot) -> list[Any]:
        """The columns that the table does not have yet, as Arrow fields."""
        wanted, stored_columns = self.schema.for_readers, snapshot.schema
        missing = []
        for column in wanted:
            if column.name not in stored_columns.names:
                missing.append(column)
                continue
            stored = stored_columns.field(column.name).type
            if not _same_type(stored, column.type):
                raise TableAltered(
                    f"{self.storage}: column {column.name!r} is {stored}, and declared as {column.type}. A column keeps its type. Give "
                    "the changed one another name"
                )
        unknown = [name for name in stored_columns.names if name not in wanted.names]
        if unknown:
            raise TableAltered(
                f"{self.storage}: has columns that stage does not declare: {', '.join(unknown)}. Another program has added them, or a "
                "field was removed. Columns can be added, not taken away. Declare them again"
            )
        return missing

    def _check_untouched(
        self, snapshot: Snapshot, flow: str, stage: str, *, everything: bool = False, since: int | None = None
    ) -> None:
        """Check that no other program has written to the table since the last check of this process, or of the flow."""
        at = self.storage.address, snapshot.table_id
        looked = _checked.get(at)
        if everything or looked is None:
            path = snapshot.foreign_file()
            if path is not None:
                raise TableAltered(
                    f"{self.storage}: holds a file of another program: {path}; {_not_alone(flow, stage)}"
                )
            looked = since if since is not None else snapshot.version
        commit = snapshot.foreign_commit(looked)
        if commit is not None:
            raise TableAltered(
                f"{self.storage}: another program has written to it: {commit}; {_not_alone(flow, stage)}"
            )
        self._check_writer(snapshot, flow, stage)
        if self._check_columns(snapshot) and not everything:
            raise TableAltered(f"{self.storage}: columns were taken away; {_not_alone(flow, stage)}")
        _checked[at] = snapshot.version

    def _check_whole(self, snapshot: Snapshot) -> None:
        """Check that all files of the table exist."""
        lost = self.storage.lost(snapshot)
        if lost:
            raise TableAltered(
                f"{self.storage}: {len(lost)} of its files are gone or have another size, such as {lost[0]}: {AFTER_A_LOSS}"
            )

    def _check_not_superseded(self, head: Head, run: SinkClaim | Flush | Replacement, part: int) -> None:
        if head.epoch > run.epoch or (head.epoch == run.epoch and head.run != word(run.run_id)):
            raise Superseded(
                f"{self.storage}, state partition {part}: a run with epoch {head.epoch} has claimed it, this one has {run.epoch}"
            )

    def _check_owner(self, head: Head, flush: Flush | Replacement, part: int) -> None:
        self._check_not_superseded(head, flush, part)
        if head.epoch < flush.epoch:
            raise self._inconsistent(
                part,
                f"claimed with epoch {flush.epoch} by this run, now {head.epoch}: the table went back in time",
            )

    def _inconsistent(self, part: int, what: str) -> TableInconsistent:
        """The error for a table and a store that are of several times."""
        return TableInconsistent(f"{self.storage}, state partition {part}: {what}; {RESTORE_BOTH}")

    def _check_same_plan(self, head: Head, flush: Flush | Replacement, part: int) -> None:
        """Check that the plan in the table is this one. Later plans were checked by `claim`."""
        if head.number == flush.number and head.plan != word(flush.plan_id):
            raise self._inconsistent(
                part,
                f"holds the rows of another plan {flush.number} than {flush.plan_id}: two histories are mixed, the store went back in time",
            )

    def _check_number(self, snapshot: Snapshot, part: int, head: Head, known: bytes | None) -> int | None:
        """The number of the last plan in the table, if the store does not know it. The table has all plans that the store knows."""
        told: dict[str, Any] = {"plan": None, "table": snapshot.table_id}
        if known is not None:
            told = json.loads(known)
        if told["table"] != snapshot.table_id:
            raise TableInconsistent(
                f"{self.storage}: is another table than the one that rows were flushed to: it was deleted, and created again; {RESTORE_BOTH}"
            )
        number, expected = head.number, told["plan"]
        if expected is not None and (number is None or number < expected):
            raise self._inconsistent(
                part,
                f"rows up to plan {expected} were flushed, and it holds those up to {number}: the table went back in time",
            )
        return None if number == expected else number

    def _check_history(
        self, snapshot: Snapshot, part: int, head: Head, known: bytes | None, plans: Mapping[int, str]
    ) -> None:
        """Check that a plan that only the table has is one of this history."""
        number = self._check_number(snapshot, part, head, known)
        if number is None:
            return
        plan_id = plans.get(number)
        if plan_id is None or head.plan != word(plan_id):
            raise self._inconsistent(
                part,
                f"holds rows of a plan {number} that the store does not know. The store went back in time, or the flow was forgotten "
                "and begun again",
            )


def _missing(
    file: TableFile, written: Written | None, minimum: str, *, replaces: bool = False
) -> list[ChunkInfo]:
    """The chunks of a file that have to be written; see `ChunkIndex.has`."""
    if written is None:
        return list(file.chunks)
    index = ChunkIndex(chunk.with_id(minimum) for chunk in written.chunks)
    return [
        chunk for chunk in file.chunks if not index.has(chunk.with_id(minimum), minimum, replaces=replaces)
    ]


def files_in(flush: Flush) -> list[TableFile]:
    """The files whose rows a flush has."""
    return [TableFile.unpacked(content) for _, content in flush.rows if content is not None]


def head_of(flush: Flush | Replacement) -> Head:
    """The head of a state partition that holds the rows of a plan."""
    return Head(flush.number, word(flush.plan_id), flush.epoch, word(flush.run_id))


def known_of(snapshot: Snapshot, number: int | None, staged: Sequence[int] | None = None) -> bytes:
    """What the store keeps. The version is that of the snapshot: another program may have written before the commit."""
    told: dict[str, Any] = {"plan": number, "table": snapshot.table_id, "version": snapshot.version}
    return json.dumps(told | ({} if staged is None else {"staged": staged})).encode()


def version_of(known: Iterable[bytes | None]) -> int | None:
    """The version up to which the flow knows that no other program has written."""
    told = [json.loads(text)["version"] for text in known if text is not None]
    return max(told, default=None)


def _not_alone(flow: str, stage: str) -> str:
    return (
        f"stage {stage!r} of flow {flow!r} must be its only writer: stop the other one, and restore the table to the version before (RESTORE), "
        "before anything else is written to it; if that would take back rows of the stage, restore table and store as they were at the same time. "
        "Table.compact and Table.vacuum may be used at any time"
    )


def _same_type(stored: Any, declared: Any) -> bool:  # noqa: ANN401 - Arrow types
    """Whether Delta's type of a column is the declared one; Delta has no names for list elements."""
    if pa.types.is_list(stored) and pa.types.is_list(declared):
        return bool(stored.value_type == declared.value_type)
    return bool(stored == declared)
