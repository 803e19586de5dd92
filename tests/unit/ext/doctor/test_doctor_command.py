"""Goal: the command's status claims no more than what was tried. Method: flows that read files, and a machine without a temporary directory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sqe_chain.cli import console
from sqe_chain.cli.commands import application
from sqe_chain.ext.doctor.command import MOST_ALIKE, some_of_each
from sqe_chain.ext.doctor.diagnostic import report
from tests.support.file_flows import rows_of, write

LOADING = """
from sqe_chain import Flow
from tests.support.file_flows import Fastening, Total, add


def robot(fastening: Fastening) -> str:
    return fastening.robot


loading = Flow("loading", state_partitions=1)
loading.files("fastenings", Fastening, "{files}/*.parquet").aggregate("total", key=robot, state=Total, fold=add)
"""


class Loading:
    """A flow that loads the files of a directory into states, as a module that commands can load."""

    def __init__(self, directory: Path, module: str) -> None:
        self.files = directory / "files"
        self.files.mkdir()
        self.target, self.store = f"{module}:loading", f"sqlite://{directory}/states.db"
        (directory / f"{module}.py").write_text(LOADING.format(files=self.files))

    def examine(self, engine: str = "inprocess") -> tuple[int, set[str]]:
        """Status of the doctor, and the checks of its errors."""
        done = CliRunner().invoke(
            application("doctor"),
            ["doctor", self.target, "--store", self.store, "--engine", engine, "--json"],
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return done.exit_code, {finding["check"] for finding in found if finding["severity"] == "error"}

    def run(self) -> int:
        """Status of a service that loads what is there."""
        where = ("--store", self.store, "--engine", "inprocess", "--once")
        return CliRunner().invoke(application("run"), ["run", self.target, *where]).exit_code


@pytest.fixture
def loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loading:
    monkeypatch.syspath_prepend(tmp_path)
    return Loading(tmp_path, f"flow_of_{tmp_path.name.replace('-', '_')}")


def test_a_flow_that_reads_files_is_started_on_copies(loading: Loading, tmp_path: Path) -> None:
    write(loading.files / "a.parquet", rows_of(1, 5))
    assert loading.examine() == (0, set())
    assert not (tmp_path / "states.db").exists()
    assert loading.run() == 0
    assert loading.examine() == (0, set())


def test_a_file_that_stops_a_start_is_found(loading: Loading) -> None:
    write(loading.files / "a.parquet", rows_of(1, 50))
    (loading.files / "b.parquet").write_bytes(b"no parquet")
    assert loading.examine() == (1, {"UnreadableFile"})
    assert loading.run() == 3


def test_an_engine_that_cannot_start_here_is_found(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(loading.files / "a.parquet", rows_of(1, 5))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert loading.examine("spark") == (1, {"no-engine"})
    assert loading.examine() == (0, set())


def without_temporary_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that is read-only, as Python finds it: none of the places that it looks at can be written."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])


def test_the_doctor_needs_no_temporary_directory(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    write(loading.files / "a.parquet", rows_of(1, 5))
    without_temporary_directories(monkeypatch)
    done = CliRunner().invoke(
        application("doctor"), ["doctor", loading.target, "--store", loading.store, "--engine", "inprocess"]
    )
    assert done.exit_code == 0, done.output
    assert "no-temporary-directory" in done.output


def test_a_command_that_needs_a_temporary_directory_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_temporary_directories(monkeypatch)
    with pytest.raises(typer.Exit) as ended, console.report_errors():
        tempfile.mkdtemp()
    assert ended.value.exit_code == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "no directory for them that this user may write" in text
    assert "TMPDIR" in text
    assert "unexpected" not in text


def test_a_thousand_partitions_with_one_fault_take_a_few_lines() -> None:
    lost = [report("lost-records", f"in[{partition}]", first=0, last=9) for partition in range(1_000)]
    other = report("one-replica", "in")
    shown = list(some_of_each([*lost, other, other]))
    assert [finding for finding, _ in shown] == [*lost[:MOST_ALIKE], other]
    assert [more for _, more in shown] == [0] * (MOST_ALIKE - 1) + [1_000 - MOST_ALIKE, 0]
    assert list(some_of_each([])) == []
