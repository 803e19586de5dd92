"""Fault points: each read, write and step of a run is a point at which a test can inject an action.

An action may raise `Crash` (the process dies) or `Unavailable` (before a write: it was refused; after a write: its
reply was lost), or call anything else. If it starts another run, which does its work and returns, then the run that
reached the point was paused meanwhile, and continues as a zombie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory._broker import Broker
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ports import Header, Home
from sqe_chain.protocol.events import When
from sqe_chain.testing import Crash
from sqe_chain.testing.faults import FaultScript

Action = Callable[[], None]


@dataclass
class FaultPoints(FaultScript):
    """A fault script that counts points, runs actions at some of them, and calls back after each write.

    Attributes:
        passed: points passed so far.
        names: of these points.
        actions: number of a point -> the action to run there.
        after_write: called after each write, before anything else happens.
    """

    passed: int = 0
    names: list[str] = field(default_factory=list)
    actions: dict[int, Action] = field(default_factory=dict)
    after_write: Action | None = None

    def point(self, name: str) -> None:
        """Pass a point; run its action, if it has one."""
        number, self.passed = self.passed, self.passed + 1
        self.names.append(name)
        action = self.actions.pop(number, None)
        if action is not None:
            self.names[-1] += " (!)"
            action()

    def act_at(self, number: int, action: Action) -> None:
        """Run an action at the n-th point from now; 0 is the next."""
        self.actions[self.passed + number] = action

    def step(self, number: int, when: When) -> None:
        super().step(number, when)
        self.point(f"{when} step {number}")

    def write(self, what: str) -> int:
        number = super().write(what)
        self.point(f"before {what}")
        return number

    def done(self, number: int) -> None:
        if self.after_write is not None:
            self.after_write()
        super().done(number)
        self.point(f"after {self.written[number]}")


class FaultPointStore(MemoryStore):
    """A store whose reads are fault points."""

    points: FaultPoints | None = None

    def home(self, flow: str) -> tuple[Home | None, int]:
        self._point("read home")
        return super().home(flow)

    def plan(self, flow: str, number: int) -> bytes | None:
        self._point(f"read plan {number}")
        return super().plan(flow, number)

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        self._point(f"read headers of {stage}")
        return super().headers(flow, stage, parts)

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        self._point(f"read {stage}/{part}")
        return super().read(flow, stage, part, keys)

    def _point(self, name: str) -> None:
        if self.points is not None:
            self.points.point(name)


class FaultPointLog(MemoryLog):
    """A broker whose requests are fault points."""

    points: FaultPoints | None = None

    def _up(self) -> Broker:
        if self.points is not None:
            self.points.point("ask the broker")
        return super()._up()


def crash() -> None:
    """The process dies."""
    raise Crash("at this point")
