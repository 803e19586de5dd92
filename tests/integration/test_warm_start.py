"""Goal: services that tests fork from a starter are processes like any other. Method: small scripts, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sqe_chain.dev.process import ProcessIdentity
from tests.support.waiting import eventually
from tests.support.warm_start import ROOT, WarmProcess

REPORT = """\
import atexit, os, signal, sys
atexit.register(lambda: print("left by the interpreter's end", flush=True))
print(__name__, sys.argv[1:], os.getcwd(), os.environ["ONE_MORE"], os.getpid() == os.getsid(0) == os.getpgrp(), sys.path[0])
print(hash("order of sets"), file=sys.stderr)
sys.exit(3)
"""
START = """\
import sys, time
from pathlib import Path
from tests.support.warm_start import WarmProcess
print(WarmProcess([sys.argv[1]], Path(sys.argv[2]), {}).identity.pid, flush=True)
time.sleep(600)
"""
SLEEP = "import time\ntime.sleep(600)\n"


def script(directory: Path, text: str) -> str:
    path = directory / "script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_it_has_arguments_environment_log_and_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, log = [script(tmp_path, REPORT), "a", "b"], tmp_path / "log"
    hashes = set()
    for run in range(4):
        log.unlink(missing_ok=True)
        assert WarmProcess(command, log, {"ONE_MORE": str(run)}).wait() == 3
        number, *said = sorted(log.read_text().splitlines(), key=lambda line: not line.strip("-").isdigit())
        hashes.add(number)
        first = f"__main__ ['a', 'b'] {tmp_path} {run} True {tmp_path}"
        assert sorted(said) == sorted([first, "left by the interpreter's end"])
    assert len(hashes) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_its_status_says_which_signal_ended_it(tmp_path: Path, number: signal.Signals) -> None:
    found = WarmProcess([script(tmp_path, SLEEP)], tmp_path / "log", {})
    assert found.poll() is None
    found.identity.send(number)
    assert found.wait() == found.poll() == -number


def test_it_ends_when_those_that_started_it_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, script(tmp_path, SLEEP), str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as asking:
        assert asking.stdout is not None
        found = ProcessIdentity.of(int(asking.stdout.readline()))
        assert found is not None
        assert found.alive()
        asking.kill()
    eventually(lambda: not found.alive(), "it has ended")
