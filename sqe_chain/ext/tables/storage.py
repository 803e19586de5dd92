"""What a table needs of the place where it lives; `sink`, `compacting` and `reading` know no more of it.

There are three places: Delta Lake (`directory`), Cassandra (`chunk_table`), and the memory of this process (`memory`). The rest
relies on three guarantees. Nobody sees rows that were `put` before a commit names them. A commit happens as a whole or not at
all. It moves the *head* of a state partition, and fails if another commit has moved that head since the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Final, Protocol, Self, TypeVar

import pyarrow as pa

from sqe_chain.errors import TableAltered, Unavailable
from sqe_chain.ext.tables import chunk_sets
from sqe_chain.ext.tables.addresses import in_cassandra
from sqe_chain.ext.tables.arrow import ArrowSchema, ArrowTable
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.files import TableFile, files_of
from sqe_chain.ext.tables.memtable import Flushed
from sqe_chain.ext.tables.pruning import Bounds

AFTER_A_LOSS: Final = (
    "another program or the disk has done that; restore it from a copy, or restore table and store as they were at the same time; or "
    "ingest into another table (version=), from where inputs still are"
)
"""The end of texts about acknowledged rows that are missing."""


_ROUNDS: Final = 20
Result = TypeVar("Result")


class Conflict(Exception):
    """Another commit has moved the head, or has removed one of the files, since the snapshot. Nothing was done."""


class Outdated(Conflict):
    """A vacuum has deleted what a snapshot names: take a newer one."""


@dataclass(frozen=True, slots=True)
class Head:
    """The markers of one state partition. Ids are digests (`word`), because Delta marks commits with numbers alone."""

    number: int | None = None  # of the last plan whose rows the table holds; None: there is none
    plan: int | None = None  # its id
    epoch: int = 0  # of the run that has claimed it; 0: none has
    run: int | None = None  # its id


def word(text: str) -> int:
    """A number that stands for a text: a digest of 63 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a table: rows that were added together. A table without files has a set of chunks for each."""

    path: str  # from the table's directory on
    size: int  # bytes
    part: int  # state partition
    statistics: str  # of its columns, as Delta's log has them: numRecords, minValues, maxValues, nullCount

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(json.loads(self.statistics)["numRecords"])


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one commit does.

    Attributes:
        after: state partition -> its head from now on. None: files are replaced by others with the same rows.
    """

    what: str  # in words, for the table's history
    flow: str = ""  # whose heads it moves
    stage: str = ""  # whose heads it moves
    before: Mapping[int, Head] = field(default_factory=dict)  # state partition -> its head in the snapshot
    after: Mapping[int, Head] = field(default_factory=dict)
    added: Sequence[StoredFile] = ()  # files that were `put`
    removed: Sequence[StoredFile] = ()  # files of the snapshot


@dataclass(frozen=True, slots=True)
class Written:
    """The part of a file that is written already."""

    chunks: list[ChunkInfo]  # those that are whole, without chunk id
    size: int  # bytes of all of them


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants. A storage may give more rows, but gives all of these.

    Attributes:
        others: bounds of other columns, for the latest rows: an older version of a row may not be found by them.
    """

    columns: Sequence[str]  # names of the columns to read
    partition_key: bytes | None = None  # only its rows, as bytes; None: of all
    keys: Mapping[str, Bounds] = field(default_factory=dict)  # bounds of key columns
    others: Mapping[str, Bounds] = field(default_factory=dict)


@dataclass(slots=True)
class Pieces:
    """What was read, and counts of what was skipped.

    Attributes:
        tables: Arrow tables, each with the columns that it has of those wanted, and the sequence numbers.
    """

    tables: list[ArrowTable] = field(default_factory=list)
    row_groups: int = 0  # parts of files that were read
    row_groups_left_out: int = 0  # parts of files that have no wanted row


class Snapshot(Protocol):
    """A table at one moment."""

    @property
    def version(self) -> int:
        """Number of the commit, where commits are numbered; else 0."""

    @property
    def table_id(self) -> str:
        """Another one for each table that was ever created."""

    @property
    def description(self) -> str:
        """The text that was given at its creation."""

    @property
    def schema(self) -> ArrowSchema:
        """What readers see, as an Arrow schema."""

    def heads(self, flow: str, stage: str, parts: Sequence[int]) -> dict[int, Head]:
        """The heads of state partitions, with every acknowledged commit."""

    def files(self, part: int | None = None) -> list[StoredFile]:
        """The files that make up the table, or a state partition, in the order of their paths."""

    def foreign_file(self) -> str | None:
        """A file that this library has not written; None: there is none."""

    def foreign_commit(self, since: int) -> str | None:
        """A commit of another program after a version, in words; None: none is known."""
        del since
        return None


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """What a table has as its description since it was created."""

    flow: str
    stage: str
    version: int  # as `ingest(version=...)`
    state_partitions: int  # of the flow
    partition_key: list[str]
    row_key: list[str]

    def to_text(self) -> str:
        """The description."""
        return json.dumps({"sqe-chain": asdict(self)})

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """The declaration of a table. Raises ValueError: this library has not created it."""
        try:
            return cls(**json.loads(snapshot.description)["sqe-chain"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("this library has not created the table") from error


OwnSnapshot = Any
"""A `Snapshot` that the same `Storage` has given, or None."""


class Storage(Protocol):
    """Where one table lives. It holds settings only and can be pickled; each process opens its own connections.

    Every call raises `Unavailable` where there is no answer, and may be repeated then.
    """

    @property
    def address(self) -> str:
        """Where, without secrets."""

    @property
    def one_log(self) -> bool:
        """Whether all state partitions have one log of commits, and heads are those of one reader of a flow.

        Then one commit can change all state partitions, and several readers of one flow may write side by side.
        """
        return False

    def wrapped(self, wrap: Callable[[Any], Any]) -> Storage:
        """The same place; see `WrappableSink.wrapped`."""
        whole: Storage = wrap(self)
        return whole

    def check(self) -> list[str]:
        """Weaknesses of its durability; see `Sink.check`."""

    def remarks(self) -> list[str]:
        """Remarks about its durability; see `Sink.remarks`."""
        return []

    def snapshot(self) -> OwnSnapshot:
        """The newest one; None: there is no table.

        Raises:
            TableAltered: a program has made it into something that this library cannot write, or it is damaged.
        """

    def snapshot_again(self) -> OwnSnapshot:
        """The same for a writer: it may continue from what this process has read of the table's log before."""
        return self.snapshot()

    def create(self, schema: ArrowSchema, name: str, description: str) -> None:
        """Create the table, if it is not there."""

    def add_columns(self, snapshot: OwnSnapshot, columns: Sequence[Any]) -> None:
        """Add columns (Arrow fields), which are null in the rows that are there.

        Raises:
            Conflict: somebody has changed the columns since.
        """

    def files_of(self, flushed: Flushed) -> list[TableFile]:
        """The files of a flush; the same bytes for the same rows."""
        return packing_at(self.address)(flushed)

    def path(self, part: int, chunk_id: str, number: int, digest: str) -> str:
        """Where a file of a flush is put, so that a repeated flush finds it."""

    def merged_path(self, snapshot: OwnSnapshot, part: int, digest: str) -> str:
        """Where a file of a compaction is put."""

    def written(self, path: str, file: TableFile) -> Written | None:
        """The part of a file that is written already; None: nothing."""

    def put(self, path: str, file: TableFile, missing: Sequence[ChunkInfo]) -> None:
        """Write a file that no commit names yet, at least its missing chunks. Existing bytes stay."""

    def commit(self, snapshot: OwnSnapshot, change: TableChange) -> None:
        """Make a change. When this returns, the change is durable.

        A change with files is one step, of one state partition; of several where there is `one_log`.

        Raises:
            Conflict: a head is another one by now, or a removed file was replaced by another commit. No file was added.
        """

    def absent(self, files: Sequence[StoredFile]) -> list[str]:
        """Paths of the files that are gone or changed since they were `put`, where the place can check that."""
        del files
        return []

    def lost(self, snapshot: OwnSnapshot) -> list[str]:
        """The same for files of a snapshot, as far as that is cheap."""
        return self.absent(snapshot.files())

    def read(self, snapshot: OwnSnapshot, files: Sequence[StoredFile], wanted: Wanted) -> Pieces:
        """Rows of files of a snapshot.

        Raises:
            Outdated: they are not all there any more.
            TableAltered: the newest snapshot names them, and one is gone or damaged.
        """

    def chunks(
        self,
        snapshot: OwnSnapshot,
        files: Sequence[StoredFile],
        partition_key: bytes | None = None,
    ) -> list[ChunkInfo]:
        """The chunks in files of a snapshot, all or those of one partition key, with their chunk ids.

        Raises:
            Outdated: they are not all there any more.
            TableAltered: see `read`.
        """

    def uri(self, path: str) -> str:
        """The address of a file, for other programs. Raises ConfigurationError: there are no files that other programs could read."""

    def vacuum(self, retain_hours: int) -> list[str]:
        """Delete what no reader has needed for a number of hours, at least 1. Returns what was deleted, in words or as paths."""


def retried(storage: Storage, attempt: Callable[[], Result]) -> Result:
    """What an attempt gives that met no other commit. Each attempt looks at the newest snapshot.

    Raises:
        Unavailable: there was a conflict each time.
    """
    for _ in range(_ROUNDS):
        with suppress(Conflict):
            return attempt()
    raise Unavailable(f"{storage}: gave up after {_ROUNDS} conflicts with other commits. Try again")


def packing_at(address: str) -> Callable[[Flushed], list[TableFile]]:
    """`Storage.files_of` of an address. Needs no driver."""
    if in_cassandra(address):
        return chunk_sets.files_of
    return files_of


_OTHER_CONTENT: Final = (pa.ArrowException, ValueError, KeyError, TypeError)
"""Errors of reading what this library has not written."""


@contextmanager
def named_if_foreign(storage: Storage, snapshot: Snapshot) -> Iterator[None]:
    """Within it, an error is reported as a file of another program, if the snapshot has one.

    Raises:
        TableAltered: in place of what reading such a file raises.
    """
    try:
        yield
    except _OTHER_CONTENT as error:
        path = snapshot.foreign_file()
        if path is None:
            raise
        raise TableAltered(
            f"{storage}: holds a file of another program: {path}; restore the table to the version before"
        ) from error
