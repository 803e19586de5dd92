"""Runs and operators that take turns: each is paused before every call of a port, so that any other may come in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqe_chain.errors import ChainError
from sqe_chain.testing.faults import Crash, FaultScript, PortCall

_MOST_CALLS = 5_000
_actors: dict[int, Actor] = {}


class Actor:
    """Something that works step by step in a thread of its own; only one of all threads runs at a time.

    Attributes:
        flow: name of the flow that it works for.
        stopped: it is asked to end cleanly.
        done: it has ended.
        refused: the error that it ended with, if it was one of the package's own.
        failed: any other error.
    """

    def __init__(self, flow: str, work: Callable[[Actor], None]) -> None:
        self.flow = flow
        self.stopped = self.done = self.idle = False
        self.refused: ChainError | None = None
        self.failed: BaseException | None = None
        self._work, self._killed, self._calls, self._left = work, False, 0, _MOST_CALLS
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, calls: int = 1) -> None:
        """Let it make some calls of ports, at most; it may end, or come to rest, before."""
        if self.done:
            return
        self._calls, self.idle = calls, False
        self._go.release()
        self._back.acquire()

    def kill(self) -> None:
        """End it where it is, as `kill -9` does."""
        self._killed = True
        self.step()

    def drain(self) -> None:
        """Let it go on until it ends, or has nothing to do."""
        while not self.done and not self.idle:
            self.step(1_000_000)

    def rest(self) -> None:
        """Called by its work when there is nothing to do."""
        self.idle = True
        self._pause()

    def call(self) -> None:
        """Called before each call of a port."""
        if self._killed or not self._calls:
            self._pause()
        self._calls -= 1
        self._left -= 1
        if self._left < 0:
            raise AssertionError(f"{_MOST_CALLS} calls, and no end")

    def _pause(self) -> None:
        self._calls = 0
        if not self._killed:
            self._back.release()
            self._go.acquire()
        if self._killed:
            raise Crash("killed")

    def _run(self) -> None:
        _actors[threading.get_ident()] = self
        self._go.acquire()
        try:
            if not self._killed:
                self._work(self)
        except ChainError as error:
            self.refused = error
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - the world reports it
            self.failed = error
        finally:
            self.done = True
            del _actors[threading.get_ident()]
            self._back.release()


class TakingTurns(FaultScript):
    """Pauses the actor that makes a call; calls of the world itself are made at once."""

    def answer(self, call: PortCall) -> Any:
        actor = _actors.get(threading.get_ident())
        if actor is not None:
            actor.call()
        return call.make()
