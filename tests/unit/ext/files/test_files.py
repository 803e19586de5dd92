"""Files as rows with offsets: what a row is in each format, from any row on. Then files that are damaged or change."""

from __future__ import annotations

import encodings.aliases
import glob
import gzip
import hashlib
import os
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from errno import EACCES, EIO, EMFILE, ENAMETOOLONG, ENFILE, ENOMEM, ENOTCONN, EPERM, ESTALE, ETIMEDOUT
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import ChangedFile, ConfigurationError, UnreadableFile
from sqe_chain.ext.files import Csv, FileLoad, FileRows, FilesLog, FileSource
from sqe_chain.ext.files import _log as module
from sqe_chain.ext.files import _text as text_rows
from sqe_chain.ext.files._catalog import matching
from sqe_chain.ext.files._content import FirstLook
from sqe_chain.ext.files._log import NoLog
from sqe_chain.ports import Bounds, Commit, Range
from tests.support.file_flows import rows_of, write

NAMES = ("a.csv", "a.csv.gz", "a.jsonl", "a.ndjson.gz", "a.jsonl.zst", "a.parquet")


def decoded(rows: FileRows, start: int = 0, stop: int | None = None) -> list[Any]:
    return [row.decode() for row in rows.read(start, stop)]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_read_from_any_offset_on(tmp_path: Path, name: str) -> None:
    made = rows_of(1, 10_000)
    path = write(tmp_path / name, made)
    wanted: list[Any] = (
        [{key: str(one) for key, one in row.items()} for row in made] if "csv" in name else list(made)
    )
    rows = FileRows(path)
    assert (rows.count, rows.size) == (10_000, path.stat().st_size)
    assert rows.topic_id == hashlib.sha256(path.read_bytes()).digest()[:16]
    for start, stop in (
        (0, 3),
        (3, 4_500),
        (4_500, 4_501),
        (4_096, 4_097),
        (9_999, 10_000),
        (2, 5),
        (7, None),
    ):
        found = list(rows.read(start, stop))
        assert [row.offset for row in found] == list(range(start, stop or 10_000))
        assert [row.decode() for row in found] == wanted[start:stop], (start, stop)
    assert list(rows.read(10_000)) == []
    rows.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_second_read_goes_on_where_the_first_has_ended(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = FileRows(write(tmp_path / name, rows_of(0, 3_000)))
    opened = 0
    was = FileRows._open

    def count(self: FileRows, *arguments: Any) -> Any:
        nonlocal opened
        opened += 1
        return was(self, *arguments)

    monkeypatch.setattr(FileRows, "_open", count)
    found = [row.offset for start in range(0, 3_000, 500) for row in rows.read(start, start + 500)]
    assert found == list(range(3_000))
    assert opened == 1


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_the_content_read_is_the_content_hashed_whatever_the_time_of_the_last_change(
    tmp_path: Path, name: str
) -> None:
    """Blocks have checksums: a change that keeps size and time is noticed where it is read, before any row of it is given."""
    made = [{"robot": f"r{number:0100}", "screws": number} for number in range(30_000)]
    path = write(tmp_path / name, made)
    if name == "a.parquet":
        table = pa.Table.from_pylist(made)
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=5_000)
    assert path.stat().st_size > 3 << 20
    rows = FileRows(path)
    before, content = path.stat(), bytearray(path.read_bytes())
    content[5 * len(content) // 6] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found: list[Any] = []
    with pytest.raises(ChangedFile, match=r"bytes .* are others now"):
        found.extend(row.decode() for row in rows.read())
    plain = made if name != "a.csv" else [{key: str(one) for key, one in row.items()} for row in made]
    assert found == plain[: len(found)]


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"robot": "r1", "screws": 1}\n')


def rewrite_after(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [append, rewrite_after, Path.unlink])
def test_a_file_that_was_changed_is_noticed_at_the_next_read_and_at_the_end_of_one(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = write(tmp_path / "a.jsonl", rows_of(0, 10))
    rows = FileRows(path)
    begun = rows.read(0, 5)
    next(begun)
    change(path)
    if change is not Path.unlink:  # an open file stays what it is when its name is removed
        with pytest.raises(ChangedFile, match=r"a\.jsonl"):
            list(begun)
    with pytest.raises(ChangedFile, match=r"a\.jsonl"):
        list(rows.read(7))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.zst", "a.parquet"])
def test_a_file_that_was_cut_off_is_named_at_the_first_look(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, rows_of(0, 500))
    content = path.read_bytes()
    for size in (len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(UnreadableFile, match=rf"{name}: .*cut off"):
            FileRows(path)


def test_a_damaged_page_of_parquet_is_named_and_the_rows_before_it_are_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows_of(0, 40))
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"a\.parquet"):
        list(FileRows(path).read())


def test_a_page_that_differs_from_its_checksum_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": list(range(1_000, 1_040))})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index((1_010).to_bytes(8, "little"))] ^= 4
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"a\.parquet: damaged, at row 0 or after it: .*checksum"):
        list(FileRows(path).read())


def test_a_footer_with_another_number_of_rows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": list(range(40)), "s": ["x" * (number % 5) for number in range(40)]})
    pq.write_table(table, path, row_group_size=15, compression="zstd")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    contradictions = 0
    for bit in range(8 * footer, 8 * (len(content) - 8)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with suppress(pa.ArrowException, OSError, ValueError):
            known = pq.read_metadata(path)
            groups = sum(known.row_group(number).num_rows for number in range(known.num_row_groups))
            if known.num_rows != groups:
                contradictions += 1
                with pytest.raises(UnreadableFile, match=r"a\.parquet"):
                    FileRows(path)
        if contradictions == 10:
            break
    assert contradictions


def test_csv_as_rfc_4180_defines_it_and_more(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b\r\n1,"x ""y"", z\r\nnext"\r\n\r\n,\r\n"",last')
    rows = FileRows(path)
    assert decoded(rows) == [{"a": "1", "b": 'x "y", z\r\nnext'}, {"a": "", "b": ""}, {"a": "", "b": "last"}]
    assert decoded(rows, 1) == decoded(rows)[1:]
    path.write_text("1;'a;b'\n2;c\\;d\n")
    other = FileRows(path, csv=Csv(delimiter=";", quote="'", escape="\\", columns=("n", "t")))
    assert decoded(other) == [{"n": "1", "t": "a;b"}, {"n": "2", "t": "c;d"}]
    path.write_bytes("name\nJürgen\n".encode("latin-1"))
    assert decoded(FileRows(path, csv=Csv(encoding="latin-1"))) == [{"name": "Jürgen"}]
    assert [row.value for row in FileRows(path).read()] == [b"J\xfcrgen"]


def test_rows_with_another_number_of_fields_are_lists_and_harm_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1\n2,3\n4,5,6\n")
    assert decoded(FileRows(path)) == [["1"], {"a": "2", "b": "3"}, ["4", "5", "6"]]


def test_files_without_rows_have_none(tmp_path: Path) -> None:
    for name, text in (("a.csv", ""), ("b.csv", "a,b\n"), ("c.jsonl", "\n \n"), ("d.jsonl.gz", "")):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        assert FileRows(path).count == 0, name


def test_rows_that_never_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rows, "MAX_ROW_BYTES", 1_000)
    path = tmp_path / "a.csv"
    path.write_text('a\n1\n"' + "2\n" * 1_000)
    with pytest.raises(UnreadableFile, match=r"a\.csv: the row at byte 4 is longer than"):
        FileRows(path)
    lines = tmp_path / "a.jsonl"
    lines.write_text("1\n" + "2" * 1_001)
    with pytest.raises(UnreadableFile, match=r"a\.jsonl: the row at byte 2 is longer than"):
        FileRows(lines)


def test_names_of_columns_must_be_there_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(UnreadableFile, match="names 'a' several times"):
        FileRows(path)
    path.write_bytes(b"a,\xff\n1,2\n")
    with pytest.raises(UnreadableFile, match="are not utf-8"):
        FileRows(path)


def test_types_of_parquet_become_json(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 23, 6, 0, 0, 123456, tzinfo=UTC)
    table = pa.table(
        {
            "ns": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
            "us": pa.array([moment], pa.timestamp("us", "UTC")),
            "money": pa.array([Decimal("12.50")], pa.decimal128(9, 2)),
            "data": pa.array([b"\x00\xff"], pa.binary()),
            "nan": pa.array([float("nan")]),
            "none": pa.array([None], pa.int64()),
            "big": pa.array([2**63 - 1]),
            "parts": pa.array(
                [[{"n": 1, "at": 5}]], pa.list_(pa.struct([("n", pa.int8()), ("at", pa.timestamp("ns"))]))
            ),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            "word": pa.array(["x"]).dictionary_encode(),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    assert decoded(FileRows(path)) == [
        {
            "ns": "2023-11-14T22:13:20.123456789Z",
            "us": "2026-11-23T06:00:00.123456Z",
            "money": "12.50",
            "data": "AP8=",
            "nan": None,
            "none": None,
            "big": 2**63 - 1,
            "parts": [{"n": 1, "at": "1970-01-01T00:00:00.000000005"}],
            "map": {"k": 1},
            "word": "x",
        }
    ]


def test_nanoseconds_keep_all_digits_wherever_they_are(tmp_path: Path) -> None:
    times = pa.array([1_000_000_001, 5_000]).cast(pa.timestamp("ns"))
    texts = ["1970-01-01T00:00:01.000000001", "1970-01-01T00:00:00.000005"]
    twins = pa.StructArray.from_arrays([times, times], ["a", "b"])
    cells: dict[str, tuple[Any, Any]] = {
        "list": (pa.ListArray.from_arrays([0, 2], times), texts),
        "large": (pa.LargeListArray.from_arrays([0, 2], times), texts),
        "fixed": (pa.FixedSizeListArray.from_arrays(times, 2), texts),
        "twins": (pa.FixedSizeListArray.from_arrays(twins, 2), [{"a": text, "b": text} for text in texts]),
        "items": (
            pa.MapArray.from_arrays([0, 2], pa.array(["x", "y"]), times),
            dict(zip("xy", texts, strict=True)),
        ),
        "keys": (
            pa.MapArray.from_arrays([0, 2], times, pa.array(["x", "y"])),
            dict(zip(texts, "xy", strict=True)),
        ),
    }
    found = parquet_of(tmp_path / "a.parquet", pa.table({name: cell for name, (cell, _) in cells.items()}))
    assert decoded(found) == [{name: value for name, (_, value) in cells.items()}]


@pytest.mark.parametrize("name", ["a.txt", "a", "a.parquet.gz"])
def test_file_names_without_a_known_format_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(ConfigurationError, match=name):
        FileRows(tmp_path / name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delimiter": ""},
        {"delimiter": ",,"},
        {"quote": "\n"},
        {"encoding": "utf-16"},
        {"encoding": "none"},
        {"encoding": "utf-7"},
        {"encoding": "hz"},
        {"columns": ("a", "a")},
    ],
)
def test_csv_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Csv(**wrong)


@pytest.mark.parametrize(
    "encoding", sorted({*encodings.aliases.aliases.values(), "none", "idna", "punycode"})
)
def test_bytes_of_any_kind_are_rows_in_each_encoding_or_make_an_unreadable_file(
    tmp_path: Path, encoding: str
) -> None:
    """An encoding in which ASCII does not stay as it is is refused; of the others none ends a load with an error of Python."""
    try:
        how = Csv(encoding=encoding)
    except ConfigurationError:
        return
    drawn = random.Random(encoding)
    for number in range(50):
        letters = bytes(
            drawn.choice([0x1B, 0x2B, 0x5C, 0x75, 0x7E, drawn.randrange(0x80, 256)]) for _ in range(6)
        )
        path = tmp_path / f"{number}.csv"
        path.write_bytes(b"a,b\n1," + letters + b"\n2,x\n")
        with suppress(UnreadableFile):
            found = [row.value for row in FileRows(path, csv=how).read()]
            assert found[-1] == b'{"a":"2","b":"x"}'


def test_other_texts_are_no_state_of_a_load() -> None:
    for wrong in ("", "[]", '{"ab": 1}', f'{{"{"0" * 32}": -1}}', f'{{"{"0" * 32}": true}}'):
        with pytest.raises(ConfigurationError):
            FileLoad.from_json(wrong)


def log_of(tmp_path: Path, base: MemoryLog | NoLog | None = None, **more: Any) -> FilesLog:
    source = FileSource("rows", (str(tmp_path / "**/*.csv"),), "csv")
    return FilesLog({"rows": source}, base or NoLog(), **more)


def test_files_are_topics_in_the_order_of_their_paths_beside_another_log(tmp_path: Path) -> None:
    base = MemoryLog("files beside")
    base.create_topic("other", 1)
    base.append("other", 0, b"x")
    (tmp_path / "deep").mkdir()
    for name, number in (("b.csv", 0), ("a.csv", 1), ("deep/c.csv", 2), ("z-copy.csv", 0)):
        write(tmp_path / name, rows_of(number, 3))
    looked: list[int] = []
    log = log_of(tmp_path, base, looked=looked.append)
    infos = log.describe(["rows", "other"])
    assert [info.label and Path(info.label).name for info in infos.values()] == [
        "a.csv",
        "b.csv",
        "c.csv",
        "",
    ]
    log.describe(["rows"])
    assert len(looked) == 4, "each file is looked at once, as long as it stays as it is"
    (topic, info), *_ = infos.items()
    assert topic == f"rows.{info.topic_id.hex()}"
    tps = [(topic, 0), ("other", 0)]
    assert log.bounds(tps) == {(topic, 0): Bounds(0, 3), ("other", 0): Bounds(0, 1)}
    assert log.topic_ids([topic, "other"]) == {topic: info.topic_id, "other": infos["other"].topic_id}
    ranges = [Range("other", infos["other"].topic_id, 0, 0, 1), Range(topic, info.topic_id, 0, 1, 3)]
    for found in (log, pickle.loads(pickle.dumps(log))):  # noqa: S301 - our own
        assert [[one.value() for one in block] for block in found.read_all(ranges)] == [
            [b"x"],
            [b'{"robot":"r1","screws":"1002"}', b'{"robot":"r2","screws":"1003"}'],
        ]
    log.commit("group", {(topic, 0): Commit(3), ("other", 0): Commit(1)})
    assert log.committed("group", tps) == {("other", 0): Commit(1)}


def test_a_file_that_was_written_again_is_looked_at_again(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    write(file, rows_of(0, 3))
    looked: list[int] = []
    log = log_of(tmp_path, NoLog(), looked=looked.append)
    (before,) = log.describe(["rows"])
    write(file, rows_of(5, 4))
    (after,) = log.describe(["rows"])
    assert after != before
    assert log.describe([after])[after].records == 4
    assert len(looked) == 2


def test_a_file_that_is_written_to_while_it_is_looked_at_is_refused(tmp_path: Path) -> None:
    """Its hash would be that of a content that it never had."""
    file = tmp_path / "a.csv"
    file.write_bytes(b"a,b\n1,2\n")
    for change in (b"x,b\n1,2\n", b"a,b\n1,2\n3,4\n"):  # of the same size, and longer
        look = FirstLook(str(file))
        assert look.read(3) == file.read_bytes()[:3]
        file.write_bytes(change)
        os.utime(file, ns=(0, 0))
        with pytest.raises(ChangedFile, match="while it was looked at"):
            look.finish()
        look.close()


def test_a_file_that_is_gone_is_named_by_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(0, 3))
    log = log_of(tmp_path)
    (topic,) = log.describe(["rows"])
    path.unlink()
    assert log.describe(["rows", topic]) == {}
    with pytest.raises(ChangedFile, match=topic):
        log.bounds([(topic, 0)])


def test_a_bad_file_stops_or_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.csv", rows_of(0, 3))
    (tmp_path / "b.csv").write_text("a,a\n1,2\n")
    with pytest.raises(UnreadableFile, match=r"b\.csv"):
        log_of(tmp_path).describe(["rows"])
    log = log_of(tmp_path, skip_bad=True)
    for _ in range(3):
        assert len(log.describe(["rows"])) == 1
    assert caplog.text.count("b.csv") == 1


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_of_many_files_only_some_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN", 2)
    for number in range(5):
        write(tmp_path / f"{number}.csv", rows_of(number, 30))
    log = log_of(tmp_path)
    infos = list(log.describe(["rows"]).values())
    before = open_descriptors()
    for start in range(0, 30, 10):
        for info in infos:
            part = Range(info.name, info.topic_id, 0, start, start + 10)
            assert [one.offset() for block in log.read(part) for one in block] == list(
                range(start, start + 10)
            )
            assert open_descriptors() <= before + 2
    assert open_descriptors() == before


def test_a_path_with_brackets_is_a_path_if_there_is_such_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].csv", rows_of(0, 2))
    log = FilesLog({"rows": FileSource("rows", (str(path),), "csv")}, NoLog())
    assert [info.label for info in log.describe(["rows"]).values()] == [str(path)]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    log = FilesLog({"rows": FileSource("rows", (str(tmp_path),), "csv")}, NoLog())
    with pytest.raises(ConfigurationError, match="is a folder; name its files"):
        log.describe(["rows"])


NAN = float("nan")


def parquet_of(path: Path, table: Any) -> FileRows:
    pq.write_table(table, path)
    return FileRows(path)


def bytes_as_text(*texts: bytes) -> Any:
    """An array of texts that need not be UTF-8, as some writers make them."""
    ends = list(accumulate(map(len, texts), initial=0))
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(texts), [None, offsets, pa.py_buffer(b"".join(texts))])


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([10**18, 0]).cast(pa.timestamp("us")),
        pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()),
        pa.array([[("a", 1), ("a", 2)], [("b", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[(NAN, 1), (NAN, 2)], [(NAN, 1), (0.5, 2)]], pa.map_(pa.float64(), pa.int64())),
        pa.array([[[(NAN, 1), (NAN, 2)]], []], pa.list_(pa.map_(pa.float32(), pa.timestamp("ns")))),
        pa.array([[({"x": 1}, 1)], []], pa.map_(pa.struct([("x", pa.int64())]), pa.int64())),
        bytes_as_text(b"\xff\xfe", b"sound"),
    ],
    ids=["time", "date", "key twice", "NaN twice", "NaN twice in a list", "struct as key", "no UTF-8"],
)
def test_a_row_of_parquet_that_python_cannot_hold_harms_no_other(tmp_path: Path, cells: Any) -> None:
    found = parquet_of(tmp_path / "a.parquet", pa.table({"number": [1, 2], "cell": cells}))
    damaged, sound = found.read()
    with pytest.raises(ValueError, match="JSON"):
        damaged.decode()
    assert sound.decode()["number"] == 2


@pytest.mark.parametrize("within", [None, "list", "map"])
def test_columns_of_parquet_with_one_name_are_refused(tmp_path: Path, within: str | None) -> None:
    """Else a row would keep the last of them."""
    cells = [pa.array([1]), pa.array([2])]
    if within:
        inner = pa.StructArray.from_arrays(cells, names=["a", "a"])
        outer = (
            pa.ListArray.from_arrays([0, 1], inner)
            if within == "list"
            else pa.MapArray.from_arrays([0, 1], pa.array(["x"]), inner)
        )
        table = pa.table({"outer": outer})
    else:
        table = pa.table(cells, names=["a", "a"])
    with pytest.raises(UnreadableFile, match=r"a\.parquet: it has several columns named 'a'"):
        parquet_of(tmp_path / "a.parquet", table)


def test_parquet_without_row_groups_or_columns_has_no_rows(tmp_path: Path) -> None:
    pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("a", pa.int64())])).close()
    assert FileRows(tmp_path / "a.parquet").count == 0
    assert parquet_of(tmp_path / "b.parquet", pa.table({})).count == 0
    (tmp_path / "c.parquet").write_bytes(b"")
    with pytest.raises(UnreadableFile, match=r"c\.parquet"):
        FileRows(tmp_path / "c.parquet")


@pytest.mark.parametrize("text", ['a,b\n1,"x\n2,y\n3,z\n', 'a,b\n1,2\n3,"x', 'a,b\n1,"2\r\n'])
def test_a_quote_that_is_never_closed_is_named(tmp_path: Path, text: str) -> None:
    """Else all rows after it would be one field, in silence."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UnreadableFile, match=r"a\.csv: the quote in the row at byte \d+ is never closed"):
        FileRows(tmp_path / "a.csv")
    assert FileRows(tmp_path / "a.csv", csv=Csv(quote="")).count == text.count("\n") - (text[-1] == "\n")


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("bom.csv.gz", gzip.compress(b"\xef\xbb\xbfa,b\r\n1,2\r\n"), 1),
        ("crlf.csv", b'\xef\xbb\xbfa,b\r\n1,"x\r\ny"\r\n\r\n2,z', 2),
        ("bom.jsonl", b'\xef\xbb\xbf{"a": 1}\n', 1),
        ("bom-in-members.jsonl.gz", gzip.compress(b"\xef") + gzip.compress(b'\xbb\xbf{"a": 1}\n'), 1),
        ("bom-in-members.csv.gz", gzip.compress(b"\xef") + gzip.compress(b"\xbb\xbfa,b\r\n1,2\r\n"), 1),
        ("broken.jsonl", b'{"a": 1}\n{"a":', 2),
        ("members.jsonl.gz", gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n'), 2),
        ("frames.jsonl.zst", 2 * pa.compress(b'{"a": 1}\n', "zstd", asbytes=True), 2),
        ("nothing.csv", b"", 0),
        ("mark.csv", b"\xef\xbb\xbf", 0),
        ("nothing.csv.gz", gzip.compress(b""), 0),
    ],
    ids=range(11),
)
def test_files_of_other_programs(tmp_path: Path, name: str, content: bytes, count: int) -> None:
    (tmp_path / name).write_bytes(content)
    rows = FileRows(tmp_path / name)
    assert rows.count == count
    first = next(iter(rows.read()), None)
    assert first is None or set(first.decode()) <= {"a", "b"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cr.csv", b"a,b\r1,2\r3,4\r"),
        ("utf16.csv", "a,b\n1,2\n".encode("utf-16")),
        ("rubbish.jsonl.gz", gzip.compress(b"{}\n") + b"rubbish"),
    ],
    ids=["cr", "utf-16", "rubbish"],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFile, match=name):
        FileRows(tmp_path / name)


def test_links_and_what_is_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.csv", rows_of(0, 3))
    (tmp_path / "same.csv").symlink_to("a.csv")
    (tmp_path / "nowhere.csv").symlink_to("nothing")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    assert len(log_of(tmp_path).describe(["rows"])) == 1
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(UnreadableFile, match=r"loop\.csv: cannot be looked at"):
        log_of(tmp_path).describe(["rows"])
    log = log_of(tmp_path, skip_bad=True)
    for _ in range(3):
        assert len(log.describe(["rows"])) == 1
    assert caplog.text.count("loop.csv") == 1


PATTERNS = (
    "*", "**", "**/*", "*/*", "**/x.csv", "*/x.csv", "a/**", "a/**/x*", "[ab]/?.csv", "a/../a/*", ".*", ".*/*", "**/.h*/*", "*/.h*",
    "a/*/", "nothing/*", "x.csv/*", "**/**/x.csv", "a//*",
)  # fmt: skip


@pytest.mark.parametrize("relative", [False, True])
def test_patterns_match_what_glob_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool
) -> None:
    for name in ("x.csv", "a/x.csv", "a/y.csv", "a/b/x.csv", "a/b/c/x.csv", "b/.h/x.csv", ".h/x.csv", ".x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a" / "nowhere").symlink_to("nothing")
    monkeypatch.chdir(tmp_path)
    for pattern in PATTERNS:
        whole = pattern if relative else f"{tmp_path}/{pattern}"
        # A part without magic is not looked at, and folders are no files.
        found = {path for path in matching(whole) if os.path.isfile(path)}  # noqa: PTH113
        wanted = {path for path in glob.glob(whole, recursive=True) if os.path.isfile(path)}  # noqa: PTH113, PTH207
        assert found == wanted, pattern


class Failing:
    """`os.scandir`, which fails for one folder: when it is opened, or after its first name, or where it is asked for a folder."""

    def __init__(self, folder: Path, code: int, when: str) -> None:
        self.folder, self.code, self.when, self._real = str(folder), code, when, os.scandir

    def __call__(self, path: str) -> Any:
        if path != self.folder:
            return self._real(path)
        self._fail("opening")
        return self

    def __enter__(self) -> Any:
        return self._entries()

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def _entries(self) -> Any:
        with self._real(self.folder) as entries:
            for entry in entries:
                yield SimpleNamespace(name=entry.name, path=self.folder, is_dir=self._is_dir)
                self._fail("going on")

    def _is_dir(self) -> bool:
        self._fail("asking")
        return True

    def _fail(self, when: str) -> None:
        if when == self.when:
            raise OSError(self.code, os.strerror(self.code), self.folder)


CANNOT = [EACCES, EPERM, EIO, ESTALE, EMFILE, ENFILE, ENOMEM, ENOTCONN, ETIMEDOUT, ENAMETOOLONG]


@pytest.mark.parametrize("code", CANNOT)
@pytest.mark.parametrize("when", ["opening", "asking", "going on"])
@pytest.mark.parametrize("pattern", ["data/*/*.csv", "data/**/*.csv", "data/*/x.csv"])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    when: str,
    pattern: str,
) -> None:
    """Else its rows would count as read, and a load that replaces a table would take them away."""
    for number, name in enumerate(("a", "b")):
        (tmp_path / "data" / name).mkdir(parents=True)
        write(tmp_path / "data" / name / "x.csv", rows_of(number, 3))
    source = FileSource("rows", (f"{tmp_path}/{pattern}",), "csv")
    log, skipping = (FilesLog({"rows": source}, NoLog(), skip_bad=skip) for skip in (False, True))
    assert len(log.describe(["rows"])) == 2
    folder = tmp_path / "data"
    if pattern == "data/*/*.csv" and when != "asking":
        folder /= "b"
    monkeypatch.setattr(os, "scandir", Failing(folder, code, when))
    for one in (log, skipping):
        with pytest.raises(UnreadableFile) as raised:
            one.describe(["rows"])
        assert str(raised.value) == f"{folder}: the folder cannot be listed: {os.strerror(code)}"
    monkeypatch.undo()
    assert len(log.describe(["rows"])) == len(skipping.describe(["rows"])) == 2


def test_folders_that_are_not_there_or_lead_in_a_circle_hold_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows_of(0, 3))
    (tmp_path / "self").symlink_to(".")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "b.csv", rows_of(1, 3))
    assert len(log_of(tmp_path).describe(["rows"])) == 2
    nothing = FileSource("rows", (f"{tmp_path}/nothing/*.csv", f"{tmp_path}/a.csv/*.csv"), "csv")
    assert FilesLog({"rows": nothing}, NoLog()).describe(["rows"]) == {}
