"""A service that is asked to stop before it has begun has ended well: supervisors take 143 for a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n"
CONNECTING = f"""
from sqe_chain import Flow
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.runtime import launching


def open_inputs(*_):
    {KILLED}
    log = MemoryLog()
    log.create_topic("in", 1)
    log.create_topic("out", 1)
    return log


launching.open_inputs = open_inputs
flow = Flow("early")
flow.source("in", bytes, raw=True).to("out", partitions=1)
"""


@pytest.mark.parametrize("module", ["while it is imported", "while it connects"])
def test_sigterm_before_the_service_has_begun_ends_with_0(tmp_path: Path, module: str) -> None:
    (tmp_path / "early.py").write_text(KILLED if module == "while it is imported" else CONNECTING)
    command = [sys.executable, "-m", "sqe_chain.cli", "run", "early:flow", "--kafka", "127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--engine", "inprocess"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr


def test_of_another_command_it_does_not_report_that_the_work_is_done(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(KILLED)
    command = [sys.executable, "-m", "sqe_chain.cli", "show", "early:flow"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode
