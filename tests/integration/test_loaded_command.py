"""Goal: a copy of the loaded command is to a test what the command is. Method: both do the same, and are signalled and looked at."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sqe_chain.ext.dev.process import ProcessIdentity, wait_until
from tests.support.loaded_command import COMMAND, finished, start
from tests.support.service_processes import ROOT
from tests.support.waiting import PATIENCE_S

NOWHERE = ("--kafka", "127.0.0.1:1", "--store", "sqlite://states.db")
"""A broker that is waited for, however long."""
FLOW, ENVIRONMENT = "tests.support.chaos_flows:totals", {"PYTHONPATH": str(ROOT), "CHAOS_PREFIX": "nowhere"}
FLOWS = """
import os, sys
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from sqe_chain import Flow

print("found:", os.environ["NAME"], os.getcwd(), sys.argv[1:3], sys.path[0], flush=True)
one = Flow("one")
one.source("words", StringValue).aggregate("all", key=str, state=Int64Value, fold=lambda state, value: None)
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--version",), "sqe-chain "),
        (("run", "no_such_module:flow", *NOWHERE), "no_such_module"),
        (("run", "flows:one", "--kafka", "127.0.0.1:1", "--store", "no-such-store://here"), "found: value"),
    ],
)
def test_it_ends_as_the_command_does(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows.py").write_text(FLOWS, encoding="utf-8")
    environment = {"NAME": "value", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [COMMAND, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = tmp_path / "log"
    status = start(arguments, output=log, environment=environment).wait(PATIENCE_S)
    assert (status, _without_start(log.read_text())) == (done.returncode, _without_start(done.stdout))
    assert says in done.stdout


def _without_start(output: str) -> str:
    """What a command has written, without the time and the process of the line `starting`."""
    return re.sub(r"^\S+ \S+  starting   pid=\d+$", "starting", output, flags=re.MULTILINE)


def test_output_and_errors_are_kept_apart(tmp_path: Path) -> None:
    done = finished(["peek"], tmp_path, PATIENCE_S)
    again = subprocess.run([COMMAND, "peek"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (again.returncode, again.stdout, again.stderr)
    assert "TOPIC" in done.stderr


def test_signals_reach_its_group_from_the_first_moment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = start(["run", FLOW, *NOWHERE], output=tmp_path / "log", environment=ENVIRONMENT)
    assert (os.getpgid(copy.pid), os.getsid(copy.pid)) == (copy.pid, copy.pid)
    identity = ProcessIdentity.of(copy.pid)
    assert identity is not None
    identity.send(signal.SIGKILL)
    assert copy.wait(PATIENCE_S) == -signal.SIGKILL


STARTER = """
import os, sys, time
from pathlib import Path
from tests.support.loaded_command import start
print(start(sys.argv[2:], output=Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path / "log"), "run", FLOW, *NOWHERE]
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as starter:
        assert starter.stdout is not None
        identity = ProcessIdentity.of(int(starter.stdout.readline()))
        assert identity is not None
        assert identity.alive()
        starter.kill()
    assert wait_until(lambda: not identity.alive(), PATIENCE_S)


def test_its_successors_do_not_all_come_from_one_process(tmp_path: Path) -> None:
    parents = set()
    for _ in range(40):
        copy = start(["--version"], output=tmp_path / "log")
        assert copy.wait(PATIENCE_S) == 0
        parents.add(copy.parent)
        if len(parents) > 1:
            return
    pytest.fail("40 copies of one process, although one of two is drawn")
