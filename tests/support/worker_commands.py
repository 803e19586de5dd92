"""What tests ask workers to do; workers import this module."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from sqe_chain.engines.workers.tasks import Tasks
from sqe_chain.errors import GapError, Unavailable


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
