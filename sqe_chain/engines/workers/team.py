"""The worker processes of a service: started, given commands, replaced when one is lost, ended with the service."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from threading import RLock
from typing import Any, Final

from sqe_chain.engines.task import raise_first
from sqe_chain.engines.workers.worker import SIGNALS, Command, Reply
from sqe_chain.errors import EngineLost, Unavailable

MOST_LOSSES: Final = 3
"""A batch is given up when workers were lost so often on it."""

_ENDS_WITHIN_S = 5.0

# Not multiprocessing: that would import the user's script again, and cannot block signals from the first instruction on.
_PROGRAM = """\
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from sqe_chain.engines.workers.worker import serve
serve(connection, *connection.recv())
"""


@dataclass(slots=True)
class _Member:
    """One worker process: commands without a reply yet, and what the last one returned."""

    number: int
    process: subprocess.Popen[bytes]
    connection: Connection
    unanswered: int = 0
    value: Any = None


class Team:
    """A number of worker processes. They start with it, and end with it, or with this process however that ends.

    When one is lost (killed, or out of memory) the others are ended as well, and new ones start with the next command.
    What they had kept is gone then, which `generation` shows. Threads may give commands at the same time: a call waits until the
    one before it has ended.

    Args:
        label: what people see in a list of processes.

    Attributes:
        generation: goes up when processes are lost.
    """

    def __init__(self, size: int, label: str) -> None:
        self.size = size
        self.generation = 0
        self._label = label
        self._members: list[_Member] = []
        self._first: Command | None = None
        self._losses = 0
        self._turn = RLock()
        self._start()

    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [member.process.pid for member in self._members]

    def prepare(self, command: Command) -> None:
        """Give every worker, and those that replace it, a command to begin with; does not wait for it."""
        if command is not self._first:
            self._first = command
            self.send_command(command)

    def send_command(self, command: Command) -> None:
        """Give all workers a command, without waiting for it. What it raises, the next `call` raises."""
        with self._turn, suppress(Unavailable, EngineLost):  # then the next call starts new ones
            for member in self._members:
                self._send(member, command)

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """Give each worker its command, and wait until all are done; returns what they returned.

        Raises:
            Unavailable: a worker was lost; a repetition is done by new ones.
            EngineLost: that has happened `MOST_LOSSES` times.
            ChainError: whatever a worker raised.
        """
        with self._turn:
            if not self._members:
                self._start()
            for member, command in zip(self._members, commands, strict=True):
                self._send(member, command)
            self._wait()
            return [member.value for member in self._members]

    def end_batch(self) -> None:
        """A batch is done: losses count from zero again."""
        self._losses = 0

    def close(self) -> None:
        """End the processes."""
        members, self._members = self._members, []
        for member in members:
            member.connection.close()
        for member in members:
            try:
                member.process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    # ------------------------------------------------------------------ small parts

    def _start(self) -> None:
        with ExitStack() as opened:
            outboxes = [_open_outbox(f"outbox-{number}") for number in range(self.size)]
            for outbox in outboxes:
                opened.callback(os.close, outbox)
            self._members = [self._begin(number, outboxes) for number in range(self.size)]
        if self._first is not None:
            self.send_command(self._first)

    def _begin(self, number: int, outboxes: Sequence[int]) -> _Member:
        """Start one process. Its signals are blocked until it handles them, so that none of them ends it."""
        mine, its = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [
                    sys.executable,
                    "-c",
                    _PROGRAM,
                    str(its.fileno()),
                    f"{self._label} {number + 1}/{self.size}",
                ],
                pass_fds=[its.fileno(), *outboxes],
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its.close()
        member = _Member(number, process, Connection(mine.detach()))
        with suppress(OSError):  # it has ended already, as the first command will find out
            member.connection.send(sys.path)
            member.connection.send((number, outboxes))
        return member

    def _send(self, member: _Member, command: Command) -> None:
        member.unanswered += 1
        try:
            member.connection.send(command)
        except OSError:
            raise self._lost(member) from None

    def _wait(self) -> None:
        """Wait until no command is unanswered."""
        failures = []
        while waiting := {member.connection: member for member in self._members if member.unanswered}:
            for ready in wait(list(waiting)):
                member = waiting[ready]  # type: ignore[index] # they are connections
                try:
                    reply: Reply = member.connection.recv()
                except (EOFError, OSError):
                    raise self._lost(member) from None
                member.unanswered -= 1
                member.value = reply.value
                if reply.failure is not None:
                    failures.append(reply.failure)
                for name, level, text in reply.warnings:
                    logging.getLogger(name).log(level, "%s", text)
        raise_first(failures)

    def _lost(self, member: _Member) -> Unavailable | EngineLost:
        """End the others, and return the error with what has happened."""
        with suppress(subprocess.TimeoutExpired):
            member.process.wait(_ENDS_WITHIN_S)
        status = member.process.poll()
        for other in self._members:
            other.process.kill()
        self.close()
        self.generation += 1
        self._losses += 1
        how = "has closed its connection" if status is None else f"has ended with status {status}"
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            how = f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
        text = f"worker {member.number + 1} of {self.size} (process {member.process.pid}) {how}"
        if self._losses < MOST_LOSSES:
            return Unavailable(f"{text}: new workers do this batch again")
        return EngineLost(
            f"{text}; {self._losses} times in one batch a worker was lost. Nothing is lost with them: start the service again, "
            "it continues where this run ended; with smaller batches (--max-records, --max-bytes) if memory was short"
        )


def _open_outbox(name: str) -> int:
    """A file without a path, gone with its last user: in memory, or on disk where the system has no such files (macOS)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
