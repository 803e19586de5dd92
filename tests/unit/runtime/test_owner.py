"""Goal: a process is held for dead only when that is certain. Method: living, ended and made-up ones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from sqe_chain.runtime.owner import Owner, is_dead, this_process


@pytest.fixture
def ended() -> Owner:
    """A process of this machine that has ended."""
    program = "from sqe_chain.runtime.owner import this_process; print(this_process().as_text())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    return Owner(**json.loads(done.stdout))


def test_this_process_lives() -> None:
    assert not is_dead(this_process().as_text())


def test_a_process_that_ended_is_dead(ended: Owner) -> None:
    assert is_dead(ended.as_text())


def test_a_process_that_only_waits_to_be_reaped_is_dead() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        owner = replace(this_process(), pid=process.pid, started=_started(process.pid))
        assert not is_dead(owner.as_text())
        process.kill()
        while not is_dead(owner.as_text()):  # killed, not yet reaped; bounded by the test's timeout
            pass
        assert process.returncode is None
    finally:
        process.communicate()


def test_another_process_with_the_same_id_is_another_one() -> None:
    assert is_dead(replace(this_process(), started=1).as_text())


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    living = this_process().as_text()
    monkeypatch.setattr("sqe_chain.runtime.owner.state_and_start", lambda _pid: None)  # as with hidepid=2
    assert not is_dead(living)


@pytest.mark.parametrize("field", ["host", "boot", "namespace"])
def test_elsewhere_nothing_is_certain(ended: Owner, field: str) -> None:
    for other in ("another", ""):
        changed: dict[str, Any] = {field: other}
        assert not is_dead(replace(ended, **changed).as_text())


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", "no json", '{"host": "a", "pid": 1}'])
def test_an_owner_file_with_other_content_does_not_prove_a_dead_owner(text: str) -> None:
    assert not is_dead(text)


def test_a_start_time_that_is_unknown_proves_nothing(ended: Owner) -> None:
    assert not is_dead(replace(ended, started=0).as_text())


def _started(pid: int) -> int:
    from sqe_chain.ext.dev.process import ProcessIdentity  # noqa: PLC0415 - only here

    found = ProcessIdentity.of(pid)
    assert found is not None
    return found.started
