"""Faults at any point of a run: each read, each write, each step is a point, and a test may act there.

An action at a point may raise `Crash` (the process dies), `Unavailable` (before a write: refused; after
it: the reply was lost), or call whatever it likes, such as start another run, which does its work and
returns: then the run at whose point this happened was paused all the while, and wakes as a zombie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

from sqe_chain.errors import Unavailable
from sqe_chain.logs.memory import MemoryLog
from sqe_chain.logs.memory._broker import Broker
from sqe_chain.ports import Header, Home
from sqe_chain.protocol.surroundings import When
from sqe_chain.stores.memory import MemoryStore
from sqe_chain.testing import Crash
from sqe_chain.testing.faults import Script

Action = Callable[[], None]


@dataclass
class Points(Script):
    """A script that counts points, acts at some of them, and tells who wants to look at what stands.

    Attributes:
        passed: points passed so far.
        names: what they were.
        actions: number of a point -> what happens there.
        awaited: pattern of names -> what happens at the next such point.
        look: called after each write, before anything else happens.
    """

    passed: int = 0
    names: list[str] = field(default_factory=list)
    actions: dict[int, Action] = field(default_factory=dict)
    awaited: dict[str, Action] = field(default_factory=dict)
    look: Action | None = None

    def point(self, name: str) -> None:
        """A point is passed."""
        number, self.passed = self.passed, self.passed + 1
        self.names.append(name)
        action = self.actions.pop(number, None)
        for pattern in [pattern for pattern in self.awaited if fnmatch(name, pattern)]:
            action = self.awaited.pop(pattern)
        if action is not None:
            self.names[-1] += " (!)"
            action()

    def at(self, number: int, action: Action) -> None:
        """Act at the n-th point from now; 0 is the next."""
        self.actions[self.passed + number] = action

    def step(self, number: int, when: When) -> None:
        super().step(number, when)
        self.point(f"{when} step {number}")

    def write(self, what: str) -> int:
        number = super().write(what)
        self.point(f"before {what}")
        return number

    def done(self, number: int) -> None:
        if self.look is not None:
            self.look()
        super().done(number)
        self.point(f"after {self.written[number]}")


class PointedStore(MemoryStore):
    """A store whose reads are points."""

    points: Points | None = None

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


class PointedLog(MemoryLog):
    """A broker each request to which is a point."""

    points: Points | None = None

    def _up(self) -> Broker:
        if self.points is not None:
            self.points.point("ask the broker")
        return super()._up()


def die() -> None:
    """The process dies here."""
    raise Crash("at this point")


def no_answer() -> None:
    """Broker or store do not answer; after a write: its reply is lost."""
    raise Unavailable("no answer at this point")
