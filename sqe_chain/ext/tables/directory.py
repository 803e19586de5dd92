"""Where a table lives: a Delta Lake table in a local directory, or at an address of an object store. The only user of delta-rs.

A commit happens as a whole or not at all. It carries *markers*, Delta's application transactions: names with a number, kept as long
as the table. It fails if another commit has set one of its markers since its snapshot.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EACCES, EEXIST, ELOOP, ENAMETOOLONG, ENOTDIR, EPERM
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from sqe_chain.errors import ConfigurationError, TableAltered, Unavailable
from sqe_chain.errors.safe_text import without_secrets
from sqe_chain.ext.tables.arrow import PARTITION
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.delta_snapshot import MARK, DeltaSnapshot, damage_in, keep_handle, take_handle
from sqe_chain.ext.tables.files import TableFile
from sqe_chain.ext.tables.parquet_storage import ParquetStorage, is_awaited
from sqe_chain.ext.tables.storage import Conflict, StoredFile, TableChange

_TRIES: Final = 100
_NOT_POSSIBLE: Final = frozenset((EACCES, EPERM, ENOTDIR, EEXIST, ELOOP, ENAMETOOLONG))
"""Errors of a directory that waiting does not repair."""
_NOT_PERMITTED: Final = (
    os.strerror(EACCES), "lacked the necessary privileges", "lacked valid authentication credentials",
)  # fmt: skip
"""Parts of texts about a disk, and about an object store."""
_ORNAMENT: Final = re.compile(r"\x1b\[\d*m|↳")
_DRAFT: Final = ".part"
_CLEANED_EVERY: Final = 100
"""Commits after which entries of the log are deleted that have expired and are in a checkpoint: as often as there is one."""
_ASKED_FOR: Final = 100
"""Files of an object store that a start asks for."""
_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 days"}
"""Each look at a table lists its log. Entries of 30 days, the default, would slow that down."""


class TableDirectory(ParquetStorage):
    """One table. An address: it can be pickled, and opens what it needs where it is used.

    Args:
        address: a local directory, or a URL that delta-rs understands (``s3://…``, ``abfss://…``, ``gs://…``).
        options: for delta-rs, such as logins of the object store.
    """

    def __init__(self, address: str, options: Mapping[str, str] | None = None) -> None:
        self.address = address
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"table {without_secrets(self.address)}"

    @property
    def local(self) -> Path | None:
        """Its directory; None: it is elsewhere."""
        return None if "://" in self.address else Path(self.address)

    def snapshot(self) -> DeltaSnapshot | None:
        """The newest version; None: there is no table.

        Raises:
            Unavailable: no answer.
            TableAltered: a program has made it into something that this library cannot write, or its log is damaged.
            ConfigurationError: it may not be read, or is a file.
        """
        local = self.local
        with self._mapped():
            if local is not None and local.exists() and not local.is_dir():
                raise ConfigurationError(f"{self}: is a file; a table needs a directory")
            try:
                return self._snapshot_of(DeltaTable(self.address, storage_options=self._options or None))
            except TableNotFoundError as error:
                if "Unknown scheme" in str(error):
                    raise ConfigurationError(
                        f"{self}: delta-rs does not know places of this kind. Expected a directory, s3://, abfss:// or gs://. Correct the "
                        "address"
                    ) from error
                return None

    def snapshot_again(self) -> DeltaSnapshot | None:
        # Raises as `snapshot` does
        with self._mapped():
            table = self._moved_on()
            if table is not None:
                return self._snapshot_of(table)
        return self.snapshot()

    def create(self, schema: Any, name: str, description: str) -> None:  # noqa: ANN401 - an Arrow schema
        local, created = self.local, list[Path]()
        with self._mapped():
            if local is not None:
                created = [path for path in (local, *local.absolute().parents) if not path.exists()]
                local.mkdir(parents=True, exist_ok=True)  # its errors have a number, unlike those of delta-rs
            DeltaTable.create(
                self.address,
                schema,
                mode="ignore",
                partition_by=[PARTITION],
                name=name,
                description=description,
                configuration=_PROPERTIES,
                storage_options=self._options or None,
                commit_properties=CommitProperties(custom_metadata={MARK: "create"}),
            )
        self._settle(0)
        if local is not None:
            with self._mapped():
                # A directory stays when the one that it lies in is on disk: also of those above that were created with it.
                for path in (local, local.parent, *(path.parent for path in created)):
                    _sync_directory(path)

    def add_columns(self, snapshot: DeltaSnapshot, columns: Sequence[Any]) -> None:
        from deltalake import Schema  # noqa: PLC0415 - only here

        fields = Schema.from_arrow(pa.schema(columns)).fields
        properties = CommitProperties(custom_metadata={MARK: "columns"}, max_commit_retries=_TRIES)
        with self._mapped():
            # Opened again: this moves a table on to the newest version, and a snapshot has to stay as it is.
            table = DeltaTable(self.address, version=snapshot.version, storage_options=self._options or None)
            table.alter.add_columns(fields, commit_properties=properties)
        self._settle(snapshot.version)

    def put(self, path: str, file: TableFile, missing: Sequence[ChunkInfo] = ()) -> None:
        # A file is there as a whole or not at all
        del missing
        data = file.data
        local = self.local
        with self._mapped():
            if local is None:
                # Not by pyarrow, which hands over buffers, where delta-rs wants bytes.
                handler = DeltaStorageHandler(self.address, self._options or None)._handler  # noqa: SLF001 - see above
                stream: Any = handler.open_output_stream(path, None)
                stream.write(bytes(data))
                stream.close()  # only now it is there
                return
            target = local / path
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{uuid4().hex}{_DRAFT}")
            try:
                with draft.open("xb") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                try:
                    os.link(
                        draft, target
                    )  # unlike a rename it never replaces a file, which a reader may have open
                except FileExistsError:
                    return
            finally:
                draft.unlink(missing_ok=True)
            _sync_directory(target.parent)
            _sync_directory(local)

    def absent(self, files: Sequence[StoredFile]) -> list[str]:
        system, root = self._files()
        with self._mapped():
            infos = system.get_file_info([f"{root}{file.path}" for file in files])
        return [file.path for file, info in zip(files, infos, strict=True) if info.size != file.size]

    def lost(self, snapshot: DeltaSnapshot) -> list[str]:
        # By names and sizes of all files; in an object store, which is asked for each one, of the newest
        files = snapshot.files()
        if self.local is None:
            files = sorted(files, key=lambda file: file.path.rpartition("/")[2])[-_ASKED_FOR:]
        return self.absent(files)

    def commit_markers(
        self, snapshot: DeltaSnapshot, markers: Mapping[str, int], change: TableChange
    ) -> None:
        # The log refuses it where a marker was set since.
        now_ms = int(time.time() * 1_000)  # for the log; readers ignore it
        # A compaction is no change for those who follow the log.
        changed = bool(change.after) or not change.removed
        actions: list[Any] = [
            AddAction(file.path, file.size, {PARTITION: str(file.part)}, now_ms, changed, file.statistics)
            for file in change.added
        ]
        actions += [
            RemoveAction(file.path, changed, now_ms, file.size, {PARTITION: str(file.part)})
            for file in change.removed
        ]
        transactions = [Transaction(name, number) for name, number in markers.items()]
        table = snapshot._table  # noqa: SLF001 - of this module
        before = snapshot.version
        with self._mapped():
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=[PARTITION],
                commit_properties=CommitProperties(
                    custom_metadata={MARK: change.what},
                    max_commit_retries=_TRIES,
                    app_transactions=transactions,
                ),
                # By default it looks through the whole log for what has expired, after each commit.
                post_commithook_properties=PostCommitHookProperties(
                    cleanup_expired_logs=before % _CLEANED_EVERY == 0
                ),
            )
        self._settle(before + 1)
        if snapshot.entry is not None:
            keep_handle(self._key, table, before, snapshot.entry, snapshot)

    def vacuum(self, retain_hours: int) -> list[str]:
        snapshot = self.snapshot()
        if snapshot is None:
            return []
        with self._mapped():
            old = self._vacuum(snapshot, retain_hours, dry_run=True)
            awaited = {path for path in old if is_awaited(snapshot, path)}
            if awaited:  # delta-rs deletes all or nothing
                gone = [path for path in old if path not in awaited]
                self._delete(gone)
            else:
                gone = self._vacuum(snapshot, retain_hours, dry_run=False)
            gone += self._drop_drafts(retain_hours)
        return gone

    def open_file(self, path: str) -> Any:  # noqa: ANN401 - an Arrow file
        files, root = self._files()
        with self._mapped(), suppress(FileNotFoundError):
            return files.open_input_file(f"{root}{path}")
        raise FileNotFoundError(path)

    @property
    def _key(self) -> tuple[object, ...]:
        return (self.address, *sorted(self._options.items()))

    def _snapshot_of(self, table: Any) -> DeltaSnapshot:  # noqa: ANN401 - of delta-rs
        return DeltaSnapshot(table, self._mapped, self._entry(table.version()))

    def _moved_on(self) -> Any:  # noqa: ANN401 - of delta-rs
        """The table that was committed with before, at its newest version; None: it has to be opened."""
        kept = take_handle(self._key)
        if kept is None or self._entry(kept.version) != kept.entry:
            return None
        try:
            kept.table.update_incremental()
        except (DeltaError, OSError):  # opening it raises the real error
            return None
        return kept.table

    def _entry(self, version: int) -> bytes | None:
        """What the log has at a version; None: nothing any more."""
        files, root = self._files()
        try:
            with files.open_input_file(f"{root}_delta_log/{version:020d}.json") as entry:
                return bytes(entry.read())
        except FileNotFoundError:
            return None

    def _files(self) -> tuple[Any, str]:
        local = self.local
        if local is not None:
            return pafs.LocalFileSystem(), f"{local}/"
        return pafs.PyFileSystem(DeltaStorageHandler(self.address, self._options or None)), ""

    def _vacuum(self, snapshot: DeltaSnapshot, retain_hours: int, *, dry_run: bool) -> list[str]:
        paths = snapshot._table.vacuum(  # noqa: SLF001 - of this module
            retain_hours,
            dry_run=dry_run,
            enforce_retention_duration=False,
            full=True,  # also what was written and never committed, by who crashed and was superseded
            commit_properties=CommitProperties(custom_metadata={MARK: "vacuum"}),
        )
        return list(paths)

    def _delete(self, paths: Sequence[str]) -> None:
        files, root = self._files()
        for path in paths:
            files.delete_file(f"{root}{path}")

    def _drop_drafts(self, retain_hours: int) -> list[str]:
        """Delete what crashed while it wrote: delta-rs does not look at hidden files."""
        local = self.local
        before = time.time() - retain_hours * 3_600
        old = [
            draft
            for draft in (local.glob(f"{PARTITION}=*/.*{_DRAFT}") if local is not None else ())
            if draft.stat().st_mtime < before
        ]
        for draft in old:
            draft.unlink(missing_ok=True)
        return [str(draft) for draft in old]

    def _settle(self, since: int) -> None:
        """Make sure that commits after a version survive a loss of power: delta-rs leaves that to the file system."""
        local = self.local
        if local is None:
            return
        log = local / "_delta_log"
        with self._mapped():
            number = since
            while (entry := log / f"{number:020d}.json").exists() or number <= since:
                if entry.exists():
                    with entry.open("rb") as file:
                        os.fsync(file.fileno())
                number += 1
            _sync_directory(log)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise Conflict(f"{self}: {error}") from error
        except DeltaProtocolError as error:
            raise TableAltered(
                f"{self}: another program has made it into a table that this library cannot write: {error}; restore it, "
                "or ingest into another table"
            ) from error
        except (DeltaError, OSError) as error:
            local, text = self.local, _reasons_in(error)
            # Delta-rs raises any kind of error for it.
            if getattr(error, "errno", None) in _NOT_POSSIBLE or any(
                words in text for words in _NOT_PERMITTED
            ):
                raise ConfigurationError(
                    f"{self}: {text}; the service needs to read and write there"
                ) from error
            damage = damage_in(local) if local is not None and isinstance(error, DeltaError) else None
            if damage is not None:  # which waiting does not repair
                raise TableAltered(f"{self}: {damage}") from error
            raise Unavailable(f"{self}: {type(error).__name__}: {text}") from error


def _reasons_in(error: BaseException) -> str:
    """The lines of an error of delta-rs that are for people. Others have a signed URL, or what a server has sent."""
    first, *causes = (_ORNAMENT.sub("", line).strip() for line in str(error).splitlines() or [""])
    known = [
        cause for cause in causes if cause[:1].isalnum() and "://" not in cause and cause != "Caused by:"
    ]
    return without_secrets(": ".join([first, *known]))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
