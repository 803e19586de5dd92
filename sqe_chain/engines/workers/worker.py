"""The program of a worker process: takes commands from the service, one after the other, until the service is gone.

Signals it leaves to the service, which finishes its batch and then ends its workers by closing the connection. The
system does the same when the service is killed. A thread watches the connection, and ends the process whatever the other
threads do.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from sqe_chain.engines.task import failure_of
from sqe_chain.engines.workers.tasks import Outboxes, Tasks
from sqe_chain.errors import ErrorRecord

Command = Callable[[Tasks], Any]
"""What a worker is asked to do. It is pickled, so it is a method of `Tasks`, or a partial of one."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""What supervisors and terminals send to all processes of a service."""


@dataclass(slots=True)
class Reply:
    """What became of a command.

    Attributes:
        warnings: logger, level and text of what was logged meanwhile.
    """

    value: Any = None
    failure: ErrorRecord | None = None
    warnings: list[tuple[str, int, str]] = field(default_factory=list)


class _Warnings(logging.Handler):
    """Collects warnings of libraries, for the service's own log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.name, record.levelno, record.getMessage()))


def serve(connection: Connection, number: int, outboxes: Sequence[int]) -> None:
    """Work until the service is gone, which is at the other end of the connection. Signals of `SIGNALS` are blocked."""
    for which in SIGNALS:
        signal.signal(which, _go_on)  # a handler, unlike SIG_IGN, is not passed on to what user code starts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    tasks = Tasks(Outboxes(outboxes, number))
    while True:  # this is the service
        command, reply = inbox.get(), Reply()
        try:
            reply.value = pickle.loads(command)(tasks)  # noqa: S301 - made by the service
        except BaseException as error:  # noqa: BLE001 - sent to the service
            reply.failure = failure_of(error)
        reply.warnings, warnings.found = warnings.found, []
        try:
            connection.send(reply)
        except OSError:
            os._exit(1)  # the service is gone


def _receive(connection: Connection, inbox: SimpleQueue[bytes]) -> None:
    """Take commands, and see when the service is gone."""
    while True:  # until the service is gone, and this process with it
        try:
            inbox.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # nothing to tidy up: whatever counts was acknowledged


def _go_on(_number: int, _frame: object) -> None:
    """Handle a signal that the service handles."""
