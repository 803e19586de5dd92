"""Goal: what is no row, and files that change or are damaged, end by their name or under the poison policy, for every kind of table.

Method: flows into tables on disk, in memory and in a real Cassandra, as rehearsals. After each piece of bad input the table is read:
it must hold the good rows of all batches that were sealed, and nothing else.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sqe_chain.errors import ChainError, ChangedFile, TableAltered, UnreadableFile
from sqe_chain.ext.tables import open_table
from sqe_chain.features.file_inputs import FileSettings
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal

Rows = dict[tuple[str, int], float]


class Reading(msgspec.Struct):
    robot: str | None
    at_ms: int
    bar: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where tables of a kind are; each test has a table of its own."""

    at: str
    name: str

    @property
    def address(self) -> str:
        return f"{self.at}/{self.name}"

    def rows(self) -> Rows:
        found = open_table(self.address).read().to_pylist()
        rows = {(row["robot"], row["at_ms"]): row["bar"] for row in found}
        assert len(rows) == len(found)
        return rows

    def flow(self, poison: Any = "stop", payload: type = Reading, **settings: Any) -> Flow:
        flow = Flow(f"flow-{self.name}", state_partitions=2, poison=poison)
        source: Any = flow.source("raw", payload, codec="json", raw=True)
        source.ingest(self.name, partition_key="robot", row_key="at_ms", at=self.at, **settings)
        return flow

    def load(self, files: Path, poison: Any = "stop", rows: int = 10) -> Rehearsal:
        flow = Flow(f"flow-{self.name}", state_partitions=2, poison=poison)
        source = flow.files("readings", Reading, files / "*.parquet")
        source.ingest(self.name, partition_key="robot", row_key="at_ms", at=self.at)
        return Rehearsal(flow, settings=Settings(max_records=rows))


@pytest.fixture(params=["delta", "memory", "cassandra"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = f"t-{uuid.uuid4().hex[:12]}"
    if request.param == "cassandra":
        return Place(request.getfixturevalue("cassandra_url"), name)
    return Place(str(tmp_path / "tables") if request.param == "delta" else f"memory://{name}", name)


BAD: dict[str, tuple[object, str]] = {
    "no partition key": (Reading(None, 1), "RowWithoutKey"),
    "no row key": (b'{"robot": "r1", "at_ms": null}', "ValidationError"),
    "a text for a number": (b'{"robot": "r1", "at_ms": "late"}', "ValidationError"),
    "a fraction for a whole number": (b'{"robot": "r1", "at_ms": 1.5}', "ValidationError"),
    "beyond 64 bits": (b'{"robot": "r1", "at_ms": 99999999999999999999}', "RowOfAnotherType"),
    "beyond 64 bits with sign": (b'{"robot": "r1", "at_ms": 18446744073709551615}', "RowOfAnotherType"),
    "too large": (Reading("r" * 9_000, 1), "RowTooLarge"),
    "cut off": (b'{"robot":', "DecodeError"),
    "no JSON": (b"\xff\xfe", "DecodeError"),
    "another value": (b"[1, 2]", "ValidationError"),
    "nothing": (None, "EmptyValue"),
}


def fed(place: Place, poison: str, wrong: list[object]) -> tuple[Rehearsal, Rows, Rows]:
    """A service with good rows, then wrong ones among good ones: what it holds before them, and with all good ones."""
    service = Rehearsal(place.flow(poison, max_row_bytes=5_000))
    expected: Rows = {}

    def good(first: int) -> None:
        for at_ms in range(first, first + 5):
            service.feed("raw", Reading(f"r{at_ms % 3}", at_ms, at_ms / 4))
            expected[f"r{at_ms % 3}", at_ms] = at_ms / 4

    good(10)
    service.run_until_caught_up()
    before = dict(expected)
    good(20)
    for one in wrong:
        service.feed("raw", one)
    good(30)
    return service, before, expected


@pytest.mark.parametrize("what", BAD)
def test_under_stop_nothing_of_the_batch_is_there(place: Place, what: str) -> None:
    wrong, name = BAD[what]
    service, before, _ = fed(place, "stop", [wrong])
    with pytest.raises(ChainError, match=rf"raw\[0\]@10 cannot be processed: {name}"):
        service.run_until_caught_up()
    assert place.rows() == before


@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_other_policies_skip_these_alone(place: Place, poison: str) -> None:
    service, _, expected = fed(place, poison, [wrong for wrong, _ in BAD.values()])
    service.run_until_caught_up()
    assert place.rows() == expected
    if poison == "dead_letter":
        letters = service.log.records(f"flow-{place.name}.dead-letters")
        errors = [dict(record.headers() or [])["sqe-error"] or b"" for record in letters]
        assert sorted(errors) == sorted(name.encode() for _, name in BAD.values())


class Text(msgspec.Struct):
    robot: str | None
    at_ms: int
    bar: str = ""


class Narrow(msgspec.Struct):
    robot: str | None
    at_ms: int


@pytest.mark.parametrize(
    ("payload", "text"),
    [(Text, "column 'bar' is double, and declared as string"), (Narrow, "does? not declare")],
)
def test_a_column_that_changed_its_type_or_is_gone_stops_the_start(
    place: Place, payload: type, text: str
) -> None:
    service = Rehearsal(place.flow())
    service.feed("raw", Reading("r1", 1, 0.5))
    service.run_until_caught_up()
    other = Rehearsal(place.flow(payload=payload), log=service.log, store=service.stores)
    other.feed("raw", payload("r1", 2))
    with pytest.raises(TableAltered, match=text):
        other.run_until_caught_up()
    assert place.rows() == {("r1", 1): 0.5}


# ---------------------------------------------------------------------- files


def write(path: Path, first: int, count: int = 40, group: int = 10, **columns: Any) -> Rows:
    path.parent.mkdir(exist_ok=True)
    numbers = range(first, first + count)
    cells = {
        "robot": [f"r{number % 3}" for number in numbers],
        "at_ms": list(numbers),
        "bar": [number / 4 for number in numbers],
    } | columns
    pq.write_table(pa.table(cells), path, row_group_size=group, compression="zstd")
    return {(f"r{number % 3}", number): number / 4 for number in numbers}


def first_batch(rows: Rows) -> Rows:
    return dict(list(rows.items())[:10])


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    write(path, 500)


@pytest.mark.parametrize("change", [append, rewrite, Path.unlink], ids=lambda one: one.__name__)
def test_a_file_that_changes_while_it_is_read_stops_between_batches(
    place: Place, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "files" / "a.parquet"
    rows = write(path, 0)
    content = path.read_bytes()
    load = place.load(tmp_path / "files")
    assert load.batch()
    change(path)
    with pytest.raises((ChangedFile, UnreadableFile), match=r"a\.parquet|[0-9a-f]{32}"):
        load.run_until_caught_up()
    assert place.rows() == first_batch(rows)
    path.write_bytes(content)
    load.service = None
    load.run_until_caught_up()
    assert place.rows() == rows


@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_truncated_file_stops_or_is_skipped_until_it_is_whole(
    place: Place, tmp_path: Path, poison: str
) -> None:
    rows = write(tmp_path / "files" / "a.parquet", 0)
    path = tmp_path / "files" / "b.parquet"
    more = write(path, 100)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    load = place.load(tmp_path / "files", poison)
    if poison == "stop":
        with pytest.raises(UnreadableFile, match=r"b\.parquet: no Parquet, or cut off"):
            load.run_until_caught_up()
    else:
        load.run_until_caught_up()
        assert place.rows() == rows
    path.write_bytes(content)
    load.service = None
    load.run_until_caught_up()
    assert place.rows() == rows | more


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
def test_a_damaged_page_stops_always_and_rows_before_its_batch_stay(
    place: Place, tmp_path: Path, poison: str
) -> None:
    path = tmp_path / "files" / "a.parquet"
    rows = write(path, 0, count=4_500, group=1_500)
    content = path.read_bytes()
    begin = pq.ParquetFile(path).metadata.row_group(2).column(2).data_page_offset
    path.write_bytes(content[: begin + 20] + bytes(60) + content[begin + 80 :])
    load = place.load(tmp_path / "files", poison, rows=500)
    with pytest.raises(UnreadableFile, match=r"a\.parquet: damaged, at row [\d,]+ or after it"):
        load.run_until_caught_up()
    held = place.rows()
    assert held.items() <= rows.items()
    assert 500 <= len(held) <= 3_000
    damaged = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    path.write_bytes(content)  # another content, so another root: its rows replace those of the damaged one
    load.service = None
    with pytest.raises(ChangedFile, match=f"{damaged}.*--abandon"):
        load.run_until_caught_up()
    load.settings = replace(load.settings, groups=(FileSettings(abandon=(damaged,)),))
    load.service = None
    load.run_until_caught_up()
    assert place.rows() == rows


def test_a_column_of_a_file_that_changed_its_type_is_reported_row_by_row(
    place: Place, tmp_path: Path
) -> None:
    rows = write(tmp_path / "files" / "a.parquet", 0, count=10)
    write(tmp_path / "files" / "b.parquet", 100, count=10, at_ms=[f"at {one}" for one in range(10)])
    load = place.load(tmp_path / "files", "dead_letter")
    load.run_until_caught_up()
    assert place.rows() == rows
    letters = load.log.records(f"flow-{place.name}.dead-letters")
    assert [dict(letter.headers() or [])["sqe-error"] for letter in letters] == [b"ValidationError"] * 10
