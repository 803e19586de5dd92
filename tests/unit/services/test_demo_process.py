"""A killed service leaves nothing behind: not its children, not those in a process group of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from services.demo.process import Process, members_of_session, tail
from sqe_chain.ext.dev.process import wait_until

PARENT = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], process_group=0)
print("both are there", flush=True)
time.sleep(600)
"""


def started(command: list[str], directory: Path) -> tuple[Process, SimpleQueue[tuple[str, float, str]]]:
    heard: SimpleQueue[tuple[str, float, str]] = SimpleQueue()
    return Process("it", command, directory / "it.log", heard, directory, {"GREETING": "hello"}), heard


def test_kill_takes_the_whole_session(tmp_path: Path) -> None:
    process, heard = started([sys.executable, "-c", PARENT], tmp_path)
    name, at_s, line = heard.get(timeout=20)
    assert (name, line) == ("it", "both are there\n")
    assert at_s <= time.monotonic()
    session = process.pid
    assert len(members_of_session(session)) == 3

    process.kill()

    assert members_of_session(session) == []
    assert process.ended == -9
    process.kill()  # twice does no harm


def test_stop_asks_and_waits_for_the_exit_status(tmp_path: Path) -> None:
    polite = "trap 'echo bye; exit 7' TERM; echo $GREETING; while :; do sleep 0.01; done"
    process, heard = started(["sh", "-c", polite], tmp_path)
    assert heard.get(timeout=20)[2] == "hello\n"

    assert process.stop() == 7
    assert heard.get(timeout=1)[2] == "bye\n"
    assert tail(process.log, 10) == "hello\nbye"


def test_what_was_held_goes_on_also_in_a_session_of_its_own(tmp_path: Path) -> None:
    """A child may begin a session between being listed and being stopped; Java's child did, and hung."""
    process, _ = started(["sleep", "60"], tmp_path)
    outsider = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        process.hold()
        process._held.append(outsider.pid)
        outsider.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: state_of(outsider.pid) == "T", 10)
        process.let_go()
        assert wait_until(lambda: state_of(outsider.pid) in "RS", 10)
    finally:
        process.kill()
        outsider.kill()
        outsider.wait()


def state_of(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return stat[stat.rindex(")") + 2]


def test_a_line_can_be_sent_to_it_and_is_ignored_after_its_end(tmp_path: Path) -> None:
    process, heard = started(["sh", "-c", "read word; echo heard $word"], tmp_path)
    before = process.ended
    assert before is None

    process.tell("this")

    assert process.wait(20) == 0
    assert heard.get(timeout=1)[2] == "heard this\n"
    assert process.ended == 0
    process.tell("too late")


def test_waits_are_bounded(tmp_path: Path) -> None:
    process, _ = started(["sleep", "600"], tmp_path)
    with pytest.raises(TimeoutError, match="it did not end within 0 s"):
        process.wait(0.05)
    process.kill()


def test_the_tail_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\nc\n")

    assert tail(tmp_path / "log", 2) == "b\nc"
    assert tail(tmp_path / "none", 2) == ""
