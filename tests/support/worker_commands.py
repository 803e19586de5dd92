"""What tests ask workers to do; workers import this module."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from sqe_chain.engines.shared_outputs import Place, SharedFile
from sqe_chain.engines.workers.tasks import Tasks
from sqe_chain.errors import GapError, Unavailable
from sqe_chain.ports import Output


def pid(_tasks: Tasks) -> int:
    return os.getpid()


def echo(_tasks: Tasks, text: str) -> str:
    return text


def die(_tasks: Tasks) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_away(_tasks: Tasks) -> None:
    raise Unavailable("nobody answers")


def find_a_gap(_tasks: Tasks) -> None:
    raise GapError("a hole").at("t", 1, 7)


def go_wrong(_tasks: Tasks) -> None:
    raise ValueError("unexpected")


def warn(_tasks: Tasks) -> None:
    logging.getLogger("some.library").warning("careful: %d", 3)


def remember(_tasks: Tasks, file: Path) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write("x")


def wait_for(_tasks: Tasks, file: Path) -> int:
    file.with_suffix(".waiting").touch()
    while not file.exists():
        time.sleep(0.01)
    return os.getpid()


def outputs_of(mark: int, number: int) -> list[Output]:
    """A block whose size depends on who makes it."""
    return [("t", mark, b"%d" % number, b"v" * 50, None, at) for at in range(1 + (number * 7 + mark) % 40)]


def put_outputs(_tasks: Tasks, shared_file: SharedFile, mark: int, blocks: int) -> list[Place | None]:
    return [shared_file.put(outputs_of(mark, number)) for number in range(blocks)]
