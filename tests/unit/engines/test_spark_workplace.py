"""Temporary directories are removed after their process has ended, however it ended; directories of others stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqe_chain.engines.spark.workplace import PREFIX, make_temporary_directory, sweep

MAKE = "from sqe_chain.engines.spark.workplace import make_temporary_directory; print(make_temporary_directory(), flush=True); {then}"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def started(then: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-W", "always::ResourceWarning", "-c", MAKE.format(then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_ends_with_its_process_and_leaves_nothing_open() -> None:
    process, directory = started("input()")
    assert directory.is_dir()
    assert process.communicate("\n")[1] == ""
    assert not directory.exists()


def test_a_forked_child_that_ends_leaves_it() -> None:
    process, directory = started(  # Python 3.12 and later warn of a fork beside threads
        "import os, sys, warnings; warnings.simplefilter('ignore', DeprecationWarning); pid = os.fork(); sys.exit(0) if not pid else os.wait(); input()"
    )
    sweep()
    assert directory.is_dir()
    assert process.communicate("\n")[1] == ""
    assert not directory.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_one() -> None:
    process, directory = started("input()")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert directory.is_dir()
    assert make_temporary_directory().is_dir()
    assert not directory.exists()


def test_what_belongs_to_a_living_process_stays() -> None:
    process, directory = started("input()")
    (directory / "modules.zip").touch()
    sweep()
    assert (directory / "modules.zip").exists()
    process.communicate("\n")


def test_what_is_somebody_elses_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of another user or program, a symbolic link, and a directory that is just being created."""
    names = {
        "others": f"{PREFIX}others",
        "program": "sqe-chain-dev",
        "made": f"{PREFIX}made",
        "target": "target",
    }
    for name in names.values():
        (place / name).mkdir()
        (place / name / "kept").touch()
    for name in ("others", "program", "target"):
        (place / names[name] / "lock").touch()
    (place / f"{PREFIX}link").symlink_to(place / "target")
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = real(path, follow_symlinks=follow_symlinks)
        if path.name != names["others"]:
            return found
        return os.stat_result((*found[:4], os.getuid() + 1, *found[5:]))

    monkeypatch.setattr(Path, "stat", stat)
    sweep()
    assert all((place / name / "kept").exists() for name in names.values())
