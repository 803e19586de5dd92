"""Goal: states are written to files of each form as they are, whole numbers of any length too."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pyarrow.parquet as pq
import pytest

from sqe_chain.cli import state_files
from sqe_chain.cli.files import write_whole
from sqe_chain.cli.move import export_in
from sqe_chain.codecs import codec_for
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.stored import StoredState
from sqe_chain.runtime.tables import arrow_table


class Total(msgspec.Struct):
    n: int = 0
    text: str | None = None


NUMBERS = [1, -(2**63), 2**63 - 1, 5, 2**63, -(2**200), 7, 8]


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_whole_numbers_of_any_length_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, rows: int
) -> None:
    """In Parquet their column is text then, wherever in the file the first one is that does not fit."""
    monkeypatch.setattr(state_files, "_ROWS", rows)
    codec = codec_for(Total)
    states = [StoredState(b"k%d" % index, Total(n, None)) for index, n in enumerate(NUMBERS)]
    file = tmp_path / f"states.{ending}"
    assert state_files.write_states(file, iter(states), codec) == len(states)
    if ending == "parquet":
        found = [int(row["n"]) for row in pq.read_table(file).to_pylist()]
        assert arrow_table(states, codec).column("n").to_pylist() == [str(n) for n in NUMBERS]
    else:
        lines = (file.read_bytes() if ending == "jsonl" else gzip.decompress(file.read_bytes())).decode()
        found = [json.loads(line)["state"]["n"] for line in lines.splitlines()]
    assert found == NUMBERS
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_columns_of_numbers_that_fit_stay_numbers(tmp_path: Path) -> None:
    states = [StoredState(b"k", Total(n)) for n in NUMBERS[:4]]
    state_files.write_states(tmp_path / "states.parquet", states, codec_for(Total))
    assert pq.read_table(tmp_path / "states.parquet")["n"].to_pylist() == NUMBERS[:4]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, sorted(found.name for found in tmp_path.iterdir())))

    monkeypatch.setattr(os, "fsync", fsync)
    with write_whole(tmp_path / "states") as partial:
        partial.write_text("all of them", encoding="utf-8")
    assert synced == [("states.partial", ["states.partial"]), (tmp_path.name, ["states"])]


def test_an_export_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "states.jsonl").touch()
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with (
        pytest.raises(ConfigurationError, match="cannot be read as an export: Permission denied"),
        export_in(tmp_path / "states.jsonl"),
    ):
        pytest.fail("it was read")
