"""Goal: signals reach only the process that was started, and no process outlives its owner. Method: `sleep`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sqe_chain.errors import Unavailable
from sqe_chain.ext.dev.lock import exclusive
from sqe_chain.ext.dev.process import ProcessIdentity, spawn, wait_until


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessIdentity]:
    """A process that does nothing for a while."""
    process = spawn(["sleep", "60"], log=tmp_path / "log", detached=False)
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    yield identity
    identity.kill()
    process.wait(10)


def test_a_process_ends_when_asked(sleeper: ProcessIdentity) -> None:
    assert sleeper.alive()
    assert sleeper.end(grace_s=10)
    assert not sleeper.alive()


def test_a_paused_process_ends_when_asked(sleeper: ProcessIdentity) -> None:
    sleeper.pause()
    assert sleeper.alive()
    assert sleeper.end(grace_s=10)


def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn(
        ["/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"], log=log, detached=False
    )
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    assert wait_until(lambda: "deaf" in log.read_text(encoding="utf-8"), 10)
    assert not identity.end(grace_s=0.1)
    assert not identity.alive()
    process.wait(10)


def test_a_later_process_with_the_same_pid_is_left_alone(sleeper: ProcessIdentity) -> None:
    earlier = replace(sleeper, started=sleeper.started - 1)
    assert not earlier.alive()
    earlier.kill()
    assert earlier.end(grace_s=10)
    assert sleeper.alive()


def test_a_pid_that_nobody_has_is_no_process() -> None:
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii")) + 1
    assert ProcessIdentity.of(nobody) is None
    assert not ProcessIdentity(nobody, 1).alive()


def test_a_process_started_from_a_thread_survives_the_thread(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(
        target=lambda: started.append(spawn(["sleep", "60"], log=tmp_path / "log", detached=False))
    )
    thread.start()
    thread.join()
    # The kernel would send the death signal at once.
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(0.2)
    os.killpg(started[0].pid, signal.SIGKILL)
    started[0].wait(10)


@pytest.mark.parametrize("detached", [False, True])
def test_a_killed_owner_takes_its_processes_along_unless_detached(tmp_path: Path, detached: bool) -> None:
    program = (
        "import sys, pathlib, time; from sqe_chain.ext.dev.process import spawn;"
        f"p = spawn(['sleep', '60'], log=pathlib.Path(sys.argv[1]), detached={detached});"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        identity = ProcessIdentity.of(int(owner.stdout.readline()))
        owner.kill()
    assert identity is not None
    assert wait_until(lambda: not identity.alive(), 0.3 if detached else 10) != detached
    identity.kill()


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    waited: list[bool] = []
    with (
        exclusive(tmp_path / "lock", 1),
        pytest.raises(Unavailable, match="has held"),
        exclusive(tmp_path / "lock", 0.1, lambda: waited.append(True)),
    ):
        pytest.fail("two holders")
    assert waited == [True]
    with exclusive(tmp_path / "lock", 0):
        pass
