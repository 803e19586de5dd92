"""Overwrites: files are staged by flushes, and one commit replaces rows of a table by theirs: all rows, or those of some partition keys."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import pyarrow as pa

from sqe_chain.errors import ConfigurationError, TableInconsistent
from sqe_chain.ext.tables.compacting import merged_rows, put_merged
from sqe_chain.ext.tables.contents import chunks_of
from sqe_chain.ext.tables.memtable import Flushed
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.sink import RESTORE_BOTH, TableSink, files_in, head_of, known_of
from sqe_chain.ext.tables.storage import Head, Snapshot, Storage, StoredFile, TableChange, retried
from sqe_chain.ports.sink import Flush, Replacement, ReplacingSink, Staged


@dataclass(frozen=True, slots=True)
class OverwritingSink(TableSink, ReplacingSink):
    """A sink into a table that an overwrite can replace."""

    def check_replaces(self) -> None:
        if not self.storage.one_log:
            raise ConfigurationError(
                f"{self.storage}: an overwrite needs one commit for all state partitions. A table in Cassandra has one for each, and readers "
                "would see old rows of some beside new rows of others. Let the flow write a table of Delta Lake (at=), or load into a "
                "new version of the table (version=) and let readers change over"
            )

    def stage(self, flush: Flush, since: int) -> Staged:
        # Files are written as for a flush, and no commit names them
        files = files_in(flush)
        snapshot, heads = self._look(flush, {flush.part: flush.known})
        head = heads[flush.part]
        self._check_number(snapshot, flush.part, head, flush.known)
        staged = self._put(flush, files)
        count = _StagedCount.of(flush.known, since).with_files(flush.number, len(staged))
        known = known_of(snapshot, head.number, count)
        return Staged(sum(file.rows for file in files), known, _told_of(staged))

    def check_staged(self, replacement: Replacement) -> list[str]:
        return self.storage.absent(_staged_files(replacement, self.storage))

    def replace(self, replacement: Replacement) -> bytes:
        # One commit removes the old files and adds the staged ones
        return retried(self.storage, partial(self._replace, replacement))

    def _replace(self, replacement: Replacement) -> bytes:
        snapshot, heads = self._look(replacement, replacement.known)
        if not self._is_there(heads, replacement):
            for part, head in heads.items():
                self._check_number(snapshot, part, head, replacement.known[part])
            staged = _staged_files(replacement, self.storage)
            absent = self.storage.absent(staged)
            if absent:
                raise TableInconsistent(
                    f"{self.storage}: plan {replacement.number} has decided that staged rows replace what is there, and "
                    f"{len(absent)} of their files are gone or changed, such as {absent[0]}. Another program has deleted them (VACUUM with a "
                    "retention that is shorter than the load has taken?). Nothing was replaced. Restore them"
                )
            added, removed = _change_of(self.storage, snapshot, self.schema, staged, whole=replacement.whole)
            after = dict.fromkeys(heads, head_of(replacement))
            what = f"overwrite by plan {replacement.number}"
            flow, stage = replacement.flow, replacement.stage
            self.storage.commit(snapshot, TableChange(what, flow, stage, heads, after, added, removed))
        return known_of(snapshot, replacement.number)

    def _is_there(self, heads: Mapping[int, Head], replacement: Replacement) -> bool:
        """Whether the replacement is done: in all state partitions, for it was one commit."""
        done = {
            part
            for part, head in heads.items()
            if head.number is not None and head.number >= replacement.number
        }
        for part in done:
            self._check_same_plan(heads[part], replacement, part)
        if done and len(done) < len(heads):
            raise TableInconsistent(
                f"{self.storage}: state partitions {sorted(done)} hold plan {replacement.number}, which has replaced all of them by one "
                f"commit. Others do not: the table went back in time; {RESTORE_BOTH}"
            )
        return bool(done)


class _StagedCount(NamedTuple):
    """The staged part of an overwrite in a state partition: a consistency check that no file is missing."""

    since: int  # number of the plan that has begun it
    files: int = 0  # how many files
    last: int = -1  # number of the last plan that has staged one

    @classmethod
    def of(cls, known: bytes | None, since: int) -> Self:
        """The count that the store has for this overwrite; an abandoned earlier one does not count."""
        told = json.loads(known).get("staged") if known is not None else None
        return cls(*told) if told is not None and told[0] == since else cls(since)

    def with_files(self, number: int, files: int) -> _StagedCount:
        """With the files of a plan; a plan that is repeated counts once."""
        return self if number == self.last else _StagedCount(self.since, self.files + files, number)


def _told_of(files: Sequence[StoredFile]) -> bytes:
    """Files as the store keeps them."""
    return json.dumps([[file.path, file.size, file.part, file.statistics] for file in files]).encode()


def _staged_files(replacement: Replacement, where: object) -> list[StoredFile]:
    """All files of an overwrite. Raises TableInconsistent: the store has lost some of them."""
    staged: list[StoredFile] = []
    for part, told in replacement.staged.items():
        own = [StoredFile(*values) for text in told for values in json.loads(text)]
        count = _StagedCount.of(replacement.known[part], replacement.since).files
        if len(own) != count:
            raise TableInconsistent(
                f"{where}, state partition {part}: plan {replacement.since} has begun an overwrite. {count} files were "
                f"staged, and the store knows {len(own)}: it lost what it had acknowledged. Restore it"
            )
        staged += own
    return staged


def _change_of(
    storage: Storage, snapshot: Snapshot, schema: TableSchema, staged: Sequence[StoredFile], *, whole: bool
) -> tuple[list[StoredFile], list[StoredFile]]:
    """The files that the commit adds, and those that it removes.

    Args:
        storage: of the table.
        snapshot: of the table.
        schema: of the table.
        staged: what was staged.
        whole: replace all rows; else those of partition keys that are in staged files. Then files that hold rows of other partition keys,
            too, are written again without the replaced ones, one state partition after the other.
    """
    if whole:
        return list(staged), snapshot.files()
    added, removed = list(staged), []
    for part in sorted({file.part for file in staged}):
        own = [file for file in staged if file.part == part]
        keys = {chunk.name.partition_key for chunk in storage.chunks(snapshot, own)}
        old = [file for file in snapshot.files(part) if _holds(storage, snapshot, file, keys)]
        if not old:
            continue
        removed += old
        kept = _without(merged_rows(storage, snapshot, schema, old).data, schema, keys)
        if kept.num_rows:
            added += put_merged(storage, snapshot, Flushed(kept, [], 0), old, schema, part)
    return added, removed


def _holds(storage: Storage, snapshot: Snapshot, file: StoredFile, keys: Collection[bytes]) -> bool:
    return any(chunk.name.partition_key in keys for chunk in storage.chunks(snapshot, [file]))


def _without(rows: Any, schema: TableSchema, keys: Collection[bytes]) -> Any:  # noqa: ANN401 - Arrow tables
    """Sorted rows without those of some partition keys."""
    start, kept = 0, [rows.slice(0, 0)]
    for chunk in chunks_of(rows, schema, "", 0):
        if chunk.name.partition_key not in keys:
            kept.append(rows.slice(start, chunk.rows))
        start += chunk.rows
    return pa.concat_tables(kept).combine_chunks()
