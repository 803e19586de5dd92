"""Goal: what the doctor reads of a machine is true. Method: processes with real limits, disks, programs and clocks."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.ext.doctor.command import directories_of_files
from sqe_chain.ext.doctor.machine import Clocked, Machine, clock_differences

LOOK = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from sqe_chain.ext.doctor.machine import Machine
print(json.dumps(asdict(Machine.here([Path(name) for name in sys.argv[1:]])), default=str))
"""


def look(environment: Mapping[str, str], *directories: Path, files: int | None = None) -> dict[str, Any]:
    """What a process with this environment, and with this limit of open files, finds."""

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    run = subprocess.run(
        [sys.executable, "-c", LOOK, *map(str, directories)],
        env={**os.environ, **environment},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def fake_java(home: Path, answer: str) -> dict[str, str]:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(home)}


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('java version "1.8.0_202"', 1),
        ('openjdk version "21" 2023-09-19', 21),
        ("Unrecognized option: -version", 0),
    ],
)
def test_the_version_of_java_is_read(tmp_path: Path, answer: str, version: int) -> None:
    assert look(fake_java(tmp_path / "jdk", answer))["java_version"] == version


def test_a_machine_without_java_is_known(tmp_path: Path) -> None:
    found = look({"JAVA_HOME": str(tmp_path / "nowhere")})
    assert (found["java"], found["java_version"]) == ("", 0)


def test_the_limit_of_open_files_is_that_of_the_process() -> None:
    assert look({}, files=300)["open_files"] == 300


def test_the_disks_of_stores_and_of_temporary_files_are_looked_at(tmp_path: Path) -> None:
    other = Path("/dev/shm")  # noqa: S108 - a file system of its own, which is looked at only
    disks = {disk["directory"]: disk for disk in look({"TMPDIR": str(tmp_path)}, other)["disks"]}
    assert {str(Path.cwd()), str(tmp_path), str(other)} <= disks.keys()
    size = os.statvfs(other)
    assert disks[str(other)]["total"] == size.f_blocks * size.f_frsize


def test_directories_are_those_of_stores_that_are_files(tmp_path: Path) -> None:
    urls = [f"sqlite://{tmp_path}/totals.db?timeout_s=3", "redis://:secret@host:6379/0", "memory://here"]
    assert directories_of_files(urls) == [tmp_path]


def test_a_directory_that_is_gone_is_no_disk(tmp_path: Path) -> None:
    here = Machine.here([tmp_path / "gone"])
    assert tmp_path / "gone" not in {disk.directory for disk in here.disks}
    assert json.dumps(asdict(here), default=str)


class Servers:
    """Two servers; the question takes 40 ms to arrive, and so does the answer."""

    def __init__(self, times: Mapping[str, int]) -> None:
        self.times = times

    def clocks(self) -> Mapping[str, int]:
        return self.times


def times(*readings: int) -> Iterator[int]:
    yield from readings


@pytest.mark.parametrize(
    ("server_ms", "ahead_ms"), [(1_000, 0), (1_080, 0), (1_040, 0), (5_080, 4_000), (400, -600)]
)
def test_the_time_that_an_answer_takes_is_no_difference(server_ms: int, ahead_ms: int) -> None:
    clock = times(1_000, 1_080)
    store = Servers({"a": server_ms})
    assert isinstance(store, Clocked)
    assert clock_differences(store, lambda: next(clock)) == {"a": ahead_ms}
