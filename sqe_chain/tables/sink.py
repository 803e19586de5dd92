"""Writes flushes into a table, each exactly once: what makes the table's commit and the plan's persist one decision.

The sealed plan decides. A commit of the table carries, for its state partition, four markers: number and id of the plan, epoch
and run of who writes. It is made only on a snapshot whose markers allow it, and the table refuses it if one of them has moved
since. So, whatever crashes and whoever is believed dead:

* a plan that is there is not added again (its number and id are there);
* a run that was superseded adds nothing (a larger epoch is there);
* a table or a store that went back in time is noticed (numbers do not follow each other).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from sqe_chain.errors import Superseded, TableAltered, TableInconsistent, Unavailable
from sqe_chain.ports.sink import Flush, SinkClaim, SinkState
from sqe_chain.tables.arrow import PARTITION, table_schema
from sqe_chain.tables.chunk import ChunkIndex, chunk_id
from sqe_chain.tables.engine import Conflict, Directory, Snapshot, StoredFile
from sqe_chain.tables.files import TableFile, name_of
from sqe_chain.tables.schema import TableSchema

_ROUNDS: Final = 20
_WAYS_OUT: Final = (
    "restore both as they were at the same time; or ingest into another table under another stage name, from where inputs "
    "still are"
)
_checked: dict[tuple[str, str], int] = {}
"""(address, table id) -> the version up to which this process knows that nobody else has written."""


@dataclass(frozen=True, slots=True)
class TableSink:
    """A `Sink` into one table.

    Attributes:
        directory: where it lives.
        schema: its columns and keys.
        table: its name.
        version: of the table, from 0.
        replaces: rows are meant to replace what is there: no chunk is skipped.
    """

    directory: Directory
    schema: TableSchema
    table: str
    version: int = 0
    replaces: bool = False

    def look(self, flow: str, stage: str, parts: range) -> SinkState:
        """See `Sink`."""
        snapshot = self.directory.snapshot()
        if snapshot is None:
            return SinkState()
        names = [_Markers(flow, stage, part) for part in parts]
        numbers = (snapshot.marker(one.number) for one in names)
        return SinkState(
            max((snapshot.marker(one.epoch) or 0 for one in names), default=0),
            frozenset(number for number in numbers if number is not None),
        )

    def claim(self, claim: SinkClaim) -> None:
        """See `Sink`."""
        for _ in range(_ROUNDS):
            snapshot = self._table(claim)
            since = _version_of(claim.known.values())
            self._check_untouched(snapshot, claim.flow, claim.stage, everything=True, since=since)
            markers: dict[str, int] = {}
            for part, known in claim.known.items():
                names = _Markers(claim.flow, claim.stage, part)
                epoch, run = snapshot.marker(names.epoch) or 0, snapshot.marker(names.run)
                if epoch > claim.epoch or (epoch == claim.epoch and run != word(claim.run_id)):
                    raise Superseded(
                        f"{self.directory}: a run with epoch {epoch} has claimed it, this one has {claim.epoch}"
                    )
                self._check_history(snapshot, names, known, claim.plans)
                markers |= {names.epoch: claim.epoch, names.run: word(claim.run_id)}
            try:
                self.directory.commit(snapshot, markers, what="claim")
            except Conflict:
                continue
            return
        raise Unavailable(f"{self.directory}: others commit to it all the time")

    def flush(self, flush: Flush) -> tuple[int, bytes]:
        """See `Sink`."""
        names = _Markers(flush.flow, flush.stage, flush.part)
        files = [TableFile.unpacked(content) for _, content in flush.rows if content is not None]
        for _ in range(_ROUNDS):
            snapshot = self._opened(flush)
            self._check_owner(snapshot, names, flush)
            self._check_untouched(snapshot, flush.flow, flush.stage, since=_version_of([flush.known]))
            number = snapshot.marker(names.number)
            if number is not None and number >= flush.number:
                self._check_same_plan(snapshot, names, number, flush)
                return 0, _known(snapshot, number)
            self._check_number(snapshot, names, flush.known)
            added = self._put(flush, files)
            markers = {
                names.number: flush.number,
                names.plan: word(flush.plan_id),
                names.epoch: flush.epoch,
                names.run: word(flush.run_id),
            }
            try:
                self.directory.commit(snapshot, markers, added, what=f"plan {flush.number}")
            except Conflict:
                continue  # look again: this plan is there by now, or a newer run is, or the columns are others
            return sum(file.rows for file in files), _known(snapshot, flush.number)
        raise Unavailable(f"{self.directory}: others commit to it all the time")

    # ------------------------------------------------------------------ files

    def _put(self, flush: Flush, files: list[TableFile]) -> list[StoredFile]:
        """Write the files, except those that an earlier attempt at this flush has written."""
        own = chunk_id(flush.number, flush.plan_id, flush.part)
        found = []
        for number, file in enumerate(files):
            path = f"{PARTITION}={flush.part}/{name_of(own, number, file.digest)}"
            size = self._written_already(path, file, own)
            if size is None:
                self.directory.put(path, file.data)
                size = self._written_already(path, file, own, replaces=False)
                if size is None:
                    raise Unavailable(f"{self.directory}: {path} was written, and cannot be read")
            found.append(StoredFile(path, size, flush.part, file.statistics))
        return found

    def _written_already(
        self, path: str, file: TableFile, minimum: str, *, replaces: bool | None = None
    ) -> int | None:
        """The size of a file in which all chunks are written already; None: they are not."""
        stored = self.directory.chunks(path)
        if stored is None:
            return None
        chunks, size = stored
        index = ChunkIndex(one.with_id(minimum) for one in chunks)
        replaces = self.replaces if replaces is None else replaces
        same = all(index.has(one.with_id(minimum), minimum, replaces=replaces) for one in file.chunks)
        return size if same and len(chunks) == len(file.chunks) else None

    # ------------------------------------------------------------------ what must hold

    def _table(self, claim: SinkClaim) -> Snapshot:
        """The table, created if there was none, with all columns."""
        snapshot: Snapshot | None = self.directory.snapshot()
        if snapshot is None:
            lost = [part for part, known in claim.known.items() if known is not None]
            if lost:
                raise TableInconsistent(
                    f"{self.directory}: there is no table, but stage {claim.stage!r} of flow {claim.flow!r} has flushed rows into one; "
                    f"{_WAYS_OUT}"
                )
            description = json.dumps(
                {
                    "sqe-chain": {
                        "flow": claim.flow,
                        "stage": claim.stage,
                        "version": self.version,
                        "state_partitions": len(claim.known),
                        **self._keys(),
                    }
                }
            )
            self.directory.create(table_schema(self.schema), self.table, description)
            snapshot = self.directory.snapshot()
            if snapshot is None:
                raise Unavailable(f"{self.directory}: was created, and is not there")
        self._check_writer(snapshot, claim.flow, claim.stage)
        missing = self._check_columns(snapshot)
        if missing:
            with suppress(
                Conflict
            ):  # somebody else has done it, or has changed something: the next look says which
                self.directory.add_columns(snapshot, missing)
            return self._table(claim)
        return snapshot

    def _keys(self) -> dict[str, Any]:
        return {"partition_key": list(self.schema.partition_key), "row_key": list(self.schema.row_key)}

    def _opened(self, flush: Flush) -> Snapshot:
        snapshot: Snapshot | None = self.directory.snapshot()
        if snapshot is None:
            raise TableInconsistent(
                f"{self.directory}: the table is gone, while stage {flush.stage!r} of flow {flush.flow!r} writes to it; {_WAYS_OUT}"
            )
        return snapshot

    def _check_writer(self, snapshot: Snapshot, flow: str, stage: str) -> None:
        try:
            told = json.loads(snapshot.description)["sqe-chain"]
        except (ValueError, KeyError, TypeError):
            raise TableAltered(
                f"{self.directory}: holds a table that this library has not created: give the stage a directory of its own"
            ) from None
        if (told["flow"], told["stage"], told["version"]) != (flow, stage, self.version):
            raise TableAltered(
                f"{self.directory}: is the table of stage {told['stage']!r} of flow {told['flow']!r}, version {told['version']}, not of "
                f"{stage!r} of {flow!r}, version {self.version}: give each stage a directory of its own"
            )
        for name, own in self._keys().items():
            if told[name] != own:
                raise TableAltered(
                    f"{self.directory}: {name} is {told[name]}, and declared as {own}: keys are permanent; ingest into another table"
                )

    def _check_columns(self, snapshot: Snapshot) -> list[Any]:
        """The columns that the table does not have yet, as Arrow fields."""
        wanted, found = table_schema(self.schema), snapshot.schema
        missing = []
        for column in wanted:
            if column.name not in found.names:
                missing.append(column)
                continue
            stored = found.field(column.name).type
            if not _same_type(stored, column.type):
                raise TableAltered(
                    f"{self.directory}: column {column.name!r} is {stored}, and declared as {column.type}: a column keeps its type; give "
                    "the changed one another name"
                )
        unknown = [name for name in found.names if name not in wanted.names]
        if unknown:
            raise TableAltered(
                f"{self.directory}: has columns that stage does not declare: {', '.join(unknown)}: another program has added them, or a "
                "field was removed; columns can be added, not taken away: declare them again"
            )
        return missing

    def _check_untouched(
        self, snapshot: Snapshot, flow: str, stage: str, *, everything: bool = False, since: int | None = None
    ) -> None:
        """Check that nobody else has written to the table since this process, or the flow, has looked last."""
        at = self.directory.address, snapshot.table_id
        looked = _checked.get(at)
        if everything or looked is None:
            path = snapshot.foreign_file()
            if path is not None:
                raise TableAltered(
                    f"{self.directory}: holds a file of another program: {path}; {_not_alone(flow, stage)}"
                )
            looked = since if since is not None else snapshot.version
        commit = snapshot.foreign_commit(looked)
        if commit is not None:
            raise TableAltered(
                f"{self.directory}: another program has written to it: {commit}; {_not_alone(flow, stage)}"
            )
        self._check_writer(snapshot, flow, stage)
        if self._check_columns(snapshot) and not everything:
            raise TableAltered(f"{self.directory}: columns were taken away; {_not_alone(flow, stage)}")
        _checked[at] = snapshot.version

    def _check_owner(self, snapshot: Snapshot, names: _Markers, flush: Flush) -> None:
        epoch, run = snapshot.marker(names.epoch) or 0, snapshot.marker(names.run)
        if epoch > flush.epoch or (epoch == flush.epoch and run != word(flush.run_id)):
            raise Superseded(
                f"{self.directory}, state partition {flush.part}: a run with epoch {epoch} has claimed it, this one has {flush.epoch}"
            )
        if epoch < flush.epoch:
            raise TableInconsistent(
                f"{self.directory}, state partition {flush.part}: claimed with epoch {flush.epoch} by this run, now {epoch}: the "
                f"table went back in time; {_WAYS_OUT}"
            )

    def _check_same_plan(self, snapshot: Snapshot, names: _Markers, number: int, flush: Flush) -> None:
        """Check that a plan that is there already is this one. Of later ones `claim` has checked that they are of this history."""
        if number == flush.number and snapshot.marker(names.plan) != word(flush.plan_id):
            raise TableInconsistent(
                f"{self.directory}, state partition {flush.part}: holds the rows of another plan {flush.number} than {flush.plan_id}: two "
                f"histories are mixed, the store went back in time; {_WAYS_OUT}"
            )

    def _check_number(self, snapshot: Snapshot, names: _Markers, known: bytes | None) -> int | None:
        """The number of the last plan whose rows the table holds, after a check that it holds what the store knows of."""
        told: dict[str, Any] = {"plan": None, "table": snapshot.table_id}
        if known is not None:
            told = json.loads(known)
        if told["table"] != snapshot.table_id:
            raise TableInconsistent(
                f"{self.directory}: is another table than the one that rows were flushed to: it was deleted, and created again; {_WAYS_OUT}"
            )
        number, expected = snapshot.marker(names.number), told["plan"]
        if expected is not None and (number is None or number < expected):
            raise TableInconsistent(
                f"{self.directory}, state partition {names.part}: rows up to plan {expected} were flushed, and it holds those up to "
                f"{number}: the table went back in time; {_WAYS_OUT}"
            )
        return None if number == expected else number

    def _check_history(
        self, snapshot: Snapshot, names: _Markers, known: bytes | None, plans: Mapping[int, str]
    ) -> None:
        """Check that what the table holds, and the store does not know of, is of a plan of this history."""
        number = self._check_number(snapshot, names, known)
        if number is None:
            return
        plan_id = plans.get(number)
        if plan_id is None or snapshot.marker(names.plan) != word(plan_id):
            raise TableInconsistent(
                f"{self.directory}, state partition {names.part}: holds rows of a plan {number} that the store does not know: the store "
                f"went back in time, or the flow was forgotten and begun again; {_WAYS_OUT}"
            )


@dataclass(frozen=True, slots=True)
class _Markers:
    """Names of the markers of one state partition."""

    flow: str
    stage: str
    part: int

    @property
    def number(self) -> str:
        return f"sqe-chain/{self.flow}/{self.stage}/{self.part}"

    @property
    def plan(self) -> str:
        return f"{self.number}/plan"

    @property
    def epoch(self) -> str:
        return f"{self.number}/epoch"

    @property
    def run(self) -> str:
        return f"{self.number}/run"


def word(text: str) -> int:
    """A number that stands for a text: a digest of 63 bits, for markers hold nothing else."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _known(snapshot: Snapshot, number: int) -> bytes:
    """What the store keeps. The version is the one that was looked at, not the one of the commit: between them another program may have written."""
    return json.dumps({"plan": number, "table": snapshot.table_id, "version": snapshot.version}).encode()


def _version_of(known: Iterable[bytes | None]) -> int | None:
    """The version of the table up to which the flow knows that nobody else has written."""
    told = [json.loads(one)["version"] for one in known if one is not None]
    return max(told, default=None)


def _not_alone(flow: str, stage: str) -> str:
    return (
        f"stage {stage!r} of flow {flow!r} must be its only writer: stop the other one, and restore the table to the version before; "
        "Table.compact and Table.vacuum may be used at any time"
    )


def _same_type(stored: Any, declared: Any) -> bool:  # noqa: ANN401 - Arrow types
    """Whether Delta's type of a column is the declared one; it knows no names of list elements."""
    if pa.types.is_list(stored) and pa.types.is_list(declared):
        return bool(stored.value_type == declared.value_type)
    return bool(stored == declared)
