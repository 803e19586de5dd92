"""Goal: a user who has read the reference alone can ask whether a row of a file is new, one row at a time.

Method: vectors written down by hand: a folder, and steps on it: files come, go, change and are loaded, as far as a crash lets them.
What was loaded, as (content, row number), is compared with what must be, and with a set of contents that a dictionary keeps.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sqe_chain import errors
from sqe_chain.ext.files import FileLoad, FileRows

Step = tuple[Any, ...]
FORMATS = ("jsonl", "csv", "parquet", "jsonl.gz", "csv.gz", "jsonl.zst", "csv.zst")


def content_of(suffix: str, rows: range | list[int]) -> bytes:
    """A file whose rows are `{"n": row}`; the same bytes for the same rows."""
    if suffix == "parquet":
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": list(rows)}), out, row_group_size=4)
        return bytes(out.getvalue().to_pybytes())
    header = "n\n" if suffix.startswith("csv") else ""
    line = "{}\n" if header else '{{"n": {}}}\n'
    plain = (header + "".join(line.format(row) for row in rows)).encode()
    if suffix.endswith("gz"):
        return gzip.compress(plain, mtime=0)
    return bytes(pa.compress(plain, "zstd", asbytes=True)) if suffix.endswith("zst") else plain


@dataclass(frozen=True)
class Vector:
    """Steps, and which rows were loaded.

    Steps: ``("write", name, rows)``, ``("append", name, rows)``, ``("copy", name, name)``, ``("rename", name, name)``, ``("touch", name)``,
    ``("delete", name)``, ``("cut", name)``; ``("load", name, loaded)`` loads all that is new, ``("load", name, loaded, count)`` that number of rows;
    ``("keep",)``, ``("crash",)``; ``("skip", name, row, answer)`` asks for one row. An answer may be the name of an error.

    Attributes:
        name: what it shows.
        steps: in their order; names without suffix are of each format in turn.
        known: how many contents are known in the end.
    """

    name: str
    steps: list[Step]
    known: int = 1


TEN = ("write", "a", range(10))
ALL = list(range(10))
VECTORS = [
    Vector("a file", [TEN, ("load", "a", ALL)]),
    Vector("loaded again", [TEN, ("load", "a", ALL), ("load", "a", [])]),
    Vector("loaded again by another process", [TEN, ("load", "a", ALL), ("keep",), ("crash",), ("load", "a", [])]),
    Vector("a part of it, and the rest", [TEN, ("load", "a", [0, 1, 2], 3), ("load", "a", ALL[3:])]),
    Vector("row by row", [TEN, *[("load", "a", [row], 1) for row in ALL], ("load", "a", [])]),
    Vector("a part of it, kept, and a crash", [TEN, ("load", "a", [0, 1, 2], 3), ("keep",), ("crash",), ("load", "a", ALL[3:])]),
    Vector("a part of it, not kept, and a crash", [TEN, ("load", "a", [0, 1, 2], 3), ("crash",), ("load", "a", ALL)]),
    Vector("kept, a part of it, and a crash",
           [TEN, ("load", "a", [0, 1], 2), ("keep",), ("load", "a", [2, 3, 4], 3), ("crash",), ("load", "a", ALL[2:])]),
    Vector("a crash at the border of a row group", [TEN, ("load", "a", ALL[:4], 4), ("keep",), ("crash",), ("load", "a", ALL[4:])]),
    Vector("a crash within the last row group", [TEN, ("load", "a", ALL[:9], 9), ("keep",), ("crash",), ("load", "a", ALL[9:])]),
    Vector("crash after crash", [TEN, *[one for row in ALL for one in (("load", "a", [row], 1), ("keep",), ("crash",))], ("load", "a", [])]),
    Vector("a copy adds nothing", [TEN, ("copy", "a", "b"), ("load", "a", ALL), ("load", "b", [])]),
    Vector("the copy alone", [TEN, ("copy", "a", "b"), ("load", "b", ALL), ("load", "a", [])]),
    Vector("half of it, and half of its copy", [TEN, ("copy", "a", "b"), ("load", "a", ALL[:5], 5), ("load", "b", ALL[5:])]),
    Vector("turn by turn with its copy", [TEN, ("copy", "a", "b"), ("load", "a", [0], 1), ("load", "b", [1], 1), ("load", "a", [2], 1), ("load", "b", ALL[3:])]),
    Vector("written twice with the same content", [TEN, ("write", "b", range(10)), ("load", "a", ALL), ("load", "b", [])]),
    Vector("renamed", [TEN, ("load", "a", ALL), ("rename", "a", "b"), ("load", "b", [])]),
    Vector("renamed when half of it is loaded", [TEN, ("load", "a", ALL[:5], 5), ("rename", "a", "b"), ("load", "b", ALL[5:])]),
    Vector("renamed over a crash", [TEN, ("load", "a", ALL[:5], 5), ("keep",), ("rename", "a", "b"), ("crash",), ("load", "b", ALL[5:])]),
    Vector("moved into a folder", [TEN, ("load", "a", ALL[:5], 5), ("rename", "a", "deep/er/a"), ("load", "deep/er/a", ALL[5:])]),
    Vector("touched: its time is nothing", [TEN, ("load", "a", ALL[:5], 5), ("touch", "a"), ("load", "a", ALL[5:])]),
    Vector("written again with the same content", [TEN, ("load", "a", ALL[:5], 5), ("write", "a", range(10)), ("load", "a", ALL[5:])]),
    Vector("changed: another root", [TEN, ("load", "a", ALL), ("write", "a", range(1, 11)), ("load", "a", list(range(1, 11)))], 2),
    Vector("changed when half of it is loaded", [TEN, ("load", "a", ALL[:5], 5), ("write", "a", range(1, 11)), ("load", "a", list(range(1, 11)))], 2),
    Vector("changed, and changed back", [TEN, ("load", "a", ALL[:5], 5), ("write", "a", [7]), ("load", "a", [7]), TEN, ("load", "a", ALL[5:])], 2),
    Vector("one row changed", [TEN, ("load", "a", ALL), ("write", "a", [*ALL[:9], 99]), ("load", "a", [*ALL[:9], 99])], 2),
    Vector("rows in another order", [TEN, ("load", "a", ALL), ("write", "a", ALL[::-1]), ("load", "a", ALL[::-1])], 2),
    Vector("appended: all rows are new", [TEN, ("load", "a", ALL), ("append", "a", range(10, 12)), ("load", "a", list(range(12)))], 2),
    Vector("appended when half of it is loaded", [TEN, ("load", "a", ALL[:5], 5), ("append", "a", range(10, 12)), ("load", "a", list(range(12)))], 2),
    Vector("cut off by a row", [TEN, ("load", "a", ALL), ("write", "a", range(9)), ("load", "a", ALL[:9])], 2),
    Vector("the same rows in other files", [TEN, ("write", "b", range(5)), ("write", "c", range(5, 10)), ("load", "a", ALL), ("load", "b", ALL[:5]), ("load", "c", ALL[5:])], 3),
    Vector("two files turn by turn", [TEN, ("write", "b", [70, 71]), ("load", "a", [0], 1), ("load", "b", [70], 1), ("load", "a", ALL[1:]), ("load", "b", [71])], 2),
    Vector("two files over a crash", [TEN, ("write", "b", [70, 71]), ("load", "a", [0], 1), ("keep",), ("load", "b", [70], 1), ("crash",), ("load", "a", ALL[1:]), ("load", "b", [70, 71])], 2),
    Vector("deleted, and back again", [TEN, ("load", "a", ALL), ("delete", "a"), TEN, ("load", "a", [])]),
    Vector("deleted when half of it is loaded, and back under another name", [TEN, ("load", "a", ALL[:5], 5), ("delete", "a"), ("write", "b", range(10)), ("load", "b", ALL[5:])]),
    Vector("equal rows within a file are rows", [("write", "a", [1, 1, 1]), ("load", "a", [1, 1, 1])]),
    Vector("no rows", [("write", "a", []), ("load", "a", [])], 0),
    Vector("one row", [("write", "a", [5]), ("load", "a", [5]), ("load", "a", [])]),
    Vector("a file that is not there", [("load", "a", "UnreadableFile")], 0),
    Vector("rows by their numbers: the next one is new", [TEN, ("skip", "a", 0, True), ("skip", "a", 1, True), ("load", "a", ALL[2:])]),
    Vector("rows by their numbers: an old one is old", [TEN, ("skip", "a", 0, True), ("skip", "a", 0, False), ("load", "a", ALL[1:])]),
    Vector("rows by their numbers: none is left out", [TEN, ("skip", "a", 0, True), ("skip", "a", 2, "ReadOutOfOrder"), ("load", "a", ALL[1:])]),
    Vector("rows by their numbers: the first one first", [TEN, ("skip", "a", 1, "ReadOutOfOrder"), ("load", "a", ALL)]),
    Vector("many rows", [("write", "a", range(5_000)), ("load", "a", list(range(4_097)), 4_097), ("keep",), ("crash",), ("load", "a", list(range(4_097, 5_000)))]),
]  # fmt: skip
COMPRESSED_OR_PARQUET = ("parquet", "gz", "zst")
CUT = [
    Vector("cut off before it was loaded", [TEN, ("cut", "a"), ("load", "a", "UnreadableFile")], 0),
    Vector("cut off when half of it is loaded", [TEN, ("load", "a", ALL[:5], 5), ("cut", "a"), ("load", "a", "UnreadableFile")]),
    Vector("cut off, and whole again", [TEN, ("load", "a", ALL[:5], 5), ("cut", "a"), ("load", "a", "UnreadableFile"), TEN, ("load", "a", ALL[5:])]),
]  # fmt: skip


@dataclass
class Folder:
    """A folder, a load, and what it has kept: an outsider's program."""

    at: Path
    suffix: str
    load: FileLoad = field(default_factory=FileLoad)
    kept: str = "{}"
    counted: dict[str, int] = field(default_factory=dict)
    counted_kept: dict[str, int] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.at / f"{name}.{self.suffix}"

    def take(self, step: Step) -> None:
        getattr(self, f"do_{step[0]}")(*step[1:])

    def do_write(self, name: str, rows: Any) -> None:
        self.path(name).write_bytes(content_of(self.suffix, rows))

    def do_append(self, name: str, rows: Any) -> None:
        old = [row.decode()["n"] for row in FileRows(self.path(name)).read()]
        self.do_write(name, [int(one) for one in old] + list(rows))

    def do_copy(self, name: str, other: str) -> None:
        self.path(other).write_bytes(self.path(name).read_bytes())

    def do_rename(self, name: str, other: str) -> None:
        self.path(other).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).rename(self.path(other))

    def do_touch(self, name: str) -> None:
        os.utime(self.path(name), (1, 1))

    def do_delete(self, name: str) -> None:
        self.path(name).unlink()

    def do_cut(self, name: str) -> None:
        self.path(name).write_bytes(self.path(name).read_bytes()[:-9])

    def do_keep(self) -> None:
        self.kept, self.counted_kept = self.load.to_json(), dict(self.counted)

    def do_crash(self) -> None:
        self.load, self.counted = FileLoad.from_json(self.kept), dict(self.counted_kept)

    def do_skip(self, name: str, row: int, answer: bool | str) -> None:
        topic_id = FileRows(self.path(name)).topic_id
        if isinstance(answer, str):
            with pytest.raises(getattr(errors, answer)):
                self.load.accept(topic_id, row)
            return
        assert self.load.accept(topic_id, row) is answer
        self.counted[topic_id.hex()] = self.counted.get(topic_id.hex(), 0) + answer

    def do_load(self, name: str, loaded: list[int] | str, count: int | None = None) -> None:
        if isinstance(loaded, str):
            with pytest.raises(getattr(errors, loaded), match=self.path(name).name):
                FileRows(self.path(name))
            return
        rows = FileRows(self.path(name))
        own = hashlib.sha256(self.path(name).read_bytes()).hexdigest()[:32]
        assert rows.topic_id.hex() == own
        begin = self.counted.get(own, 0)
        assert self.load.next_offset(rows.topic_id) == begin
        found: list[int] = []
        if count is None:
            for row in self.load.read(rows):
                assert row.offset == begin + len(found)
                found.append(int(row.decode()["n"]))
        else:
            with rows:
                for row in rows.read(begin, begin + count):
                    assert self.load.accept(rows.topic_id, row.offset)
                    found.append(int(row.decode()["n"]))
        assert found == loaded
        if found:
            self.counted[own] = begin + len(found)


@pytest.mark.parametrize("suffix", FORMATS)
def test_vectors(tmp_path: Path, suffix: str) -> None:
    vectors = VECTORS + (CUT if suffix.endswith(COMPRESSED_OR_PARQUET) else [])
    for number, vector in enumerate(vectors):
        folder = Folder(tmp_path / str(number), suffix)
        folder.at.mkdir()
        for step in vector.steps:
            try:
                folder.take(step)
            except AssertionError as error:
                raise AssertionError(f"{vector.name}: {step[:2]}") from error
        assert folder.load == FileLoad.from_json(folder.load.to_json())
        known = {topic_id: folder.load.next_offset(bytes.fromhex(topic_id)) for topic_id in folder.counted}
        assert known == folder.counted
        assert len(known) == vector.known, vector.name
