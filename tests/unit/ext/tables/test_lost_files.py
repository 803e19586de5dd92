"""Goal: a file that another program or the disk has removed or damaged is an error with its name, and never missing rows.

Method: a table on disk and one in memory, one of its files damaged in every way; readers, maintenance, and the next start.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sqe_chain.errors import TableAltered, Unavailable
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.memory import MemoryStorage, _tables
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.reading import Table
from tests.support.written_tables import Row, WrittenTable

Damage = Callable[[bytes], bytes | None]
REMEDY = "restore it from a copy"


@pytest.fixture(params=["delta", "memory"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> WrittenTable:
    """A table of three flushes, each a file for each of two state partitions."""
    base = str(tmp_path) if request.param == "delta" else f"memory://{tmp_path.name}"
    found = WrittenTable(storage_at(f"{base}/t")).claim()
    for number in range(3):
        found.flush(*(Row(f"r{robot}", at, number + at / 100) for robot in range(6) for at in range(40)))
    return found


def change(written: WrittenTable, path: str, damage: Damage) -> None:
    """Change the bytes of a file as another program would: behind the back of the library."""
    if isinstance(written.storage, MemoryStorage):
        files = _tables[written.storage.address].files
        content, at = files.pop(path)
        changed = damage(content)
        if changed is not None:
            files[path] = (changed, at)
        return
    file = Path(written.storage.address, path)
    changed = damage(file.read_bytes())
    file.unlink()
    if changed is not None:
        file.write_bytes(changed)


def some_file(written: WrittenTable) -> str:
    return str(written.storage.snapshot().files()[1].path)


def zeros(start: int, count: int) -> Damage:
    return lambda content: content[:start] + bytes(count) + content[start + count :]


DAMAGES: dict[str, tuple[Damage, str]] = {
    "gone": (lambda _: None, "is gone"),
    "cut off": (lambda content: content[: len(content) // 2], "cut off or damaged"),
    "empty": (lambda _: b"", "cut off or damaged"),
    "a page": (zeros(9, 40), "cut off or damaged"),
    "its footer": (lambda content: content[:-400] + bytes(392) + content[-8:], "cut off or damaged"),
    "its last byte": (lambda content: content[:-1] + b"x", "cut off or damaged"),
}
RESIZED = ("gone", "cut off", "empty")


@pytest.mark.parametrize("kind", DAMAGES)
def test_readers_and_compactions_name_the_file(written: WrittenTable, kind: str) -> None:
    damage, what = DAMAGES[kind]
    path = some_file(written)
    change(written, path, damage)
    told = rf"table .*/t: {path} {'is ' if what != 'is gone' else ''}{what}.*{REMEDY}"
    with pytest.raises(TableAltered, match=told):
        written.table.read()
    with pytest.raises(TableAltered, match=told):
        written.table.compact()
    if kind != "a page":
        with pytest.raises(TableAltered, match=told):
            written.table.chunks()


@pytest.mark.parametrize("kind", RESIZED)
def test_a_start_names_files_that_are_gone_or_cut_off_and_claims_nothing(
    written: WrittenTable, kind: str
) -> None:
    path = some_file(written)
    change(written, path, DAMAGES[kind][0])
    version = written.storage.snapshot().version
    with pytest.raises(TableAltered, match=rf"1 of its files .* such as {path}: .*{REMEDY}"):
        written.claim(2)
    assert written.storage.snapshot().version == version


def test_a_file_that_was_restored_is_read_again(written: WrittenTable) -> None:
    path, kept = some_file(written), list[bytes]()

    def taken(content: bytes) -> None:
        kept.append(content)

    change(written, path, taken)
    with pytest.raises(TableAltered, match="is gone"):
        written.table.read()
    if isinstance(written.storage, MemoryStorage):
        _tables[written.storage.address].files[path] = (kept[0], 0.0)
    else:
        Path(written.storage.address, path).write_bytes(kept[0])
    written.claim(2)
    written.check()


def test_a_file_that_a_compaction_and_a_vacuum_have_deleted_is_read_in_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that took its snapshot before, and is overtaken by a program that keeps nothing."""
    written = WrittenTable(storage_at(str(tmp_path / "t"))).claim()
    for number in range(3):
        written.flush(*(Row(f"r{robot}", number) for robot in range(6)))
    read: Any = TableDirectory.open_file
    overtaken: list[str] = []

    def opened(self: TableDirectory, path: str) -> Any:
        if not overtaken:
            overtaken.append(path)
            Table(storage_at(written.storage.address)).compact()
            DeltaTable(written.storage.address).vacuum(0, dry_run=False, enforce_retention_duration=False)
        return read(self, path)

    monkeypatch.setattr(TableDirectory, "open_file", opened)
    written.check()
    assert overtaken
    assert not Path(written.storage.address, overtaken[0]).exists()


def test_what_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gives no bytes may give them later: nobody should restore anything."""
    written = WrittenTable(storage_at(str(tmp_path / "t"))).claim()
    written.flush(Row("r1", 1))
    system: Any = TableDirectory.open_file

    class Failing(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(5, "Input/output error")

    def failing(self: TableDirectory, path: str) -> Any:
        with system(self, path) as opened:
            return pa.PythonFile(Failing(opened.read()), mode="r")

    monkeypatch.setattr(TableDirectory, "open_file", failing)
    with pytest.raises(Unavailable, match="Input/output error"):
        written.table.read()
