"""The two programs of a storm through their lives: the consumer and the republisher."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from benchmarks.storm.system import Job, Stuck, environment
from benchmarks.storm.watching import wait
from services.demo.process import Process, tail

PATIENCE_S = 300.0
"""How long a program may do nothing before a storm gives up. Spark needed more than 120 s to start beside 30 busy processes."""

_RESTARTS_AT_MOST = 12
_LINES_OF_LOG = 25
_AIMING_S = 0.1


@dataclass(slots=True)
class Role:
    """The consumer, or the republisher, through its lives.

    Attributes:
        name: of its log.
        command: of the next life.
        job: of the run.
        process: the life of now; None while it is stopped.
        restarts: how often it had to be restarted because it ended by itself.
    """

    name: str
    command: Sequence[str]
    job: Job
    process: Process | None = None
    restarts: int = 0

    def start(self) -> Process:
        """Begin a life."""
        log = self.job.directory / f"{self.name}.log"
        self.process = Process(
            self.name, self.command, log, SimpleQueue(), self.job.directory, environment(self.job)
        )
        return self.process

    def supervise(self) -> None:
        """Restart it if it has ended by itself.

        Raises:
            Stuck: it does so again and again.
        """
        if self.process is not None and self.process.ended is not None:
            self.restarts += 1
            if self.restarts > _RESTARTS_AT_MOST:
                raise Stuck(f"{self.name} ended {self.restarts} times:\n{self.tail()}")
            self.process.kill()
            time.sleep(0.5)
            self.start()

    def kill(self) -> None:
        """End this life by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def die_where_it_aims(self, meanwhile: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
        """Ask it to kill itself behind its next publication and before its commit, and wait until it has.

        Args:
            meanwhile: called again and again, to send what it can publish.
            patience_s: for how long.

        Raises:
            Stuck: it is still alive, or it ended again and again in another way.
        """
        asked: Process | None = None

        def died() -> bool:
            nonlocal asked
            if self.process is not None and self.process.ended == -signal.SIGKILL:
                return True
            self.supervise()
            if self.process is not None and self.process is not asked:
                asked = self.process
                asked.tell("die")
            meanwhile()
            return False

        if not wait(died, patience_s, every_s=_AIMING_S):
            raise Stuck(f"{self.name} has published nothing for {patience_s:.0f} s:\n{self.tail()}")
        self.kill()

    def stop(self) -> None:
        """End this life as an operator does.

        Raises:
            Stuck: it did not end in time.
        """
        if self.process is not None:
            try:
                self.process.stop()
            except TimeoutError as error:
                raise Stuck(f"{error}:\n{self.tail()}") from error
            self.process = None

    def tail(self) -> str:
        """The end of its log."""
        return tail(self.job.directory / f"{self.name}.log", _LINES_OF_LOG)
