"""Tables of Parquet files: names of files, reading, and heads as *markers*, names with numbers that a commit sets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sqe_chain.errors import TableAltered
from sqe_chain.ext.tables.arrow import PARTITION, SEQUENCE
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.files import TableFile, chunk_id_in, chunks_in, compacted_name, name_of
from sqe_chain.ext.tables.pruning import group_may_hold
from sqe_chain.ext.tables.storage import (
    AFTER_A_LOSS,
    Head,
    Outdated,
    OwnSnapshot,
    Pieces,
    Storage,
    StoredFile,
    TableChange,
    TableDeclaration,
    Wanted,
    Written,
)

_BLOCK: Final = 1 << 20
_NOT_OURS: Final = (pa.ArrowException, OSError, KeyError, TypeError, ValueError)
"""What pyarrow, and reading a footer, raise for bytes that are none of our Parquet."""


def _markers(flow: str, stage: str, part: int) -> list[str]:
    """Names of the markers of one state partition, in the order of `Head`."""
    number = f"sqe-chain/{flow}/{stage}/{part}"
    return [number, f"{number}/plan", f"{number}/epoch", f"{number}/run"]


def _set_to(flow: str, stage: str, heads: Mapping[int, Head]) -> dict[str, int]:
    """The markers as a commit sets them: what is None is left as it is."""
    numbers: dict[str, int | None] = {}
    for part, head in heads.items():
        numbers |= zip(_markers(flow, stage, part), astuple(head), strict=True)
    return {name: number for name, number in numbers.items() if number is not None}


def heads_of(
    marker: Callable[[str], int | None], flow: str, stage: str, parts: Sequence[int]
) -> dict[int, Head]:
    """The heads of state partitions, by the numbers under their markers; None: it was never set."""
    heads = {}
    for part in parts:
        number, plan, epoch, run = map(marker, _markers(flow, stage, part))
        heads[part] = Head(number, plan, epoch or 0, run)
    return heads


class ParquetStorage(Storage):
    """The part of a `Storage` that is the same wherever files and commits are kept."""

    @property
    def one_log(self) -> bool:
        # Markers carry the name of a flow, and that of a reader is its own
        return True

    def check(self) -> list[str]:
        # What is acknowledged was synced, or is in an object store
        return []

    @abstractmethod
    def open_file(self, path: str) -> Any:  # noqa: ANN401 - an Arrow file
        """A file of the table, for reading.

        Raises:
            FileNotFoundError: it is gone.
            Unavailable: no answer.
        """

    address: str = ""

    def uri(self, path: str) -> str:
        return f"{self.address.rstrip('/')}/{path}"

    def written(self, path: str, file: TableFile | None = None) -> Written | None:
        # The chunks in the footer of a whole file
        del file
        try:
            with self.open_file(path) as opened, self._mapped():
                return Written(chunks_in(pq.read_metadata(opened)), int(opened.size()))
        except (FileNotFoundError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
            return None

    @abstractmethod
    def commit_markers(self, snapshot: OwnSnapshot, markers: Mapping[str, int], change: TableChange) -> None:
        """Add and remove the files of a change and set markers, all in one step.

        That another commit has removed a removed file meanwhile is no conflict: a change that removes files needs a marker for it.

        Raises:
            Conflict: one of the markers was set since the snapshot, or the columns were changed. Nothing was done.
        """

    def path(self, part: int, chunk_id: str, number: int, digest: str) -> str:
        return f"{PARTITION}={part}/{name_of(chunk_id, number, digest)}"

    def merged_path(self, snapshot: OwnSnapshot, part: int, digest: str) -> str:
        del snapshot
        return f"{PARTITION}={part}/{compacted_name(part, digest)}"

    def commit(self, snapshot: OwnSnapshot, change: TableChange) -> None:
        markers = _set_to(change.flow, change.stage, change.after)
        markers |= _other_files(snapshot, sorted({file.part for file in change.removed}))
        self.commit_markers(snapshot, markers, change)

    def read(self, snapshot: OwnSnapshot, files: Sequence[StoredFile], wanted: Wanted) -> Pieces:
        # Row groups by the files' footers
        del snapshot
        pieces = Pieces()
        for file in files:
            with self._opened(file) as opened:
                _read(opened, wanted, pieces)
        return pieces

    def chunks(
        self,
        snapshot: OwnSnapshot,
        files: Sequence[StoredFile],
        partition_key: bytes | None = None,
    ) -> list[ChunkInfo]:
        # Footers have the chunks, names of files the chunk ids of flushes
        del snapshot
        infos: list[ChunkInfo] = []
        for file in files:
            own = chunk_id_in(file.path)
            with self._opened(file) as opened:
                chunks = chunks_in(pq.read_metadata(opened))
            infos += [chunk if own is None else chunk.with_id(own) for chunk in chunks]
        return [info for info in infos if partition_key is None or info.name.partition_key == partition_key]

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[Any]:
        """A file that a snapshot names. Errors about a missing or damaged file name it."""
        path = file.path
        try:
            with self.open_file(path) as opened:
                if opened.size() != file.size:
                    raise TableAltered(
                        f"{self}: {path} is cut off or damaged (it has {opened.size():,} bytes, and had {file.size:,}): {AFTER_A_LOSS}"
                    )
                yield opened
        except FileNotFoundError as error:
            newest = self.snapshot()
            if newest is None or path not in {known.path for known in newest.files()}:
                raise Outdated(f"{self}: {path} was deleted by a vacuum") from error
            raise TableAltered(
                f"{self}: {path} is gone, which belongs to the table: {AFTER_A_LOSS}"
            ) from error
        except _NOT_OURS as error:
            self._check_readable(path)
            text = str(error).partition("\n")[0].rstrip(".")
            raise TableAltered(f"{self}: {path} is cut off or damaged ({text}): {AFTER_A_LOSS}") from error

    def _check_readable(self, path: str) -> None:
        """Check that the disk gives the bytes of a file, so that the bytes are wrong."""
        with suppress(FileNotFoundError), self.open_file(path) as opened, self._mapped():
            while opened.read(_BLOCK):
                pass

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Errors of what reads files as those of `Storage`."""
        yield


def is_awaited(snapshot: OwnSnapshot, path: str) -> bool:
    """Whether a commit may still name a file: its plan is later than all plans in its state partition.

    An overwrite that is not decided has staged it, or a running flush. A vacuum must not delete it, however old it is.
    """
    try:
        chunk_id = chunk_id_in(path)
    except ValueError:
        return False
    if chunk_id is None:
        return False
    number, part = int(chunk_id.partition("-")[0]), int(chunk_id.rpartition("-")[2])
    table = TableDeclaration.of(snapshot)
    head = snapshot.heads(table.flow, table.stage, [part])[part]
    return head.epoch > 0 and (head.number is None or number > head.number)


def _other_files(snapshot: OwnSnapshot, parts: Sequence[int]) -> dict[str, int]:
    """Markers for a commit that replaces files: the second of two that replace the same files fails."""
    names = [f"sqe-chain/compaction/{part}" for part in parts]
    return {name: (snapshot.marker(name) or 0) + 1 for name in names}


def _read(opened: Any, wanted: Wanted, result: Pieces) -> None:  # noqa: ANN401 - an Arrow file
    parquet = pq.ParquetFile(opened, page_checksum_verification=True)
    known = parquet.schema_arrow.names
    groups = [
        number
        for number in range(parquet.metadata.num_row_groups)
        if group_may_hold(parquet.metadata.row_group(number), wanted.keys)
    ]
    result.row_groups += len(groups)
    result.row_groups_left_out += parquet.metadata.num_row_groups - len(groups)
    if groups:
        own = [name for name in wanted.columns if name in known]
        result.tables.append(parquet.read_row_groups(groups, columns=[*own, SEQUENCE]))
