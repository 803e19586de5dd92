"""One operation under one fault, at each of its calls in turn.

A write takes effect or not, and a read leaves nothing behind. So killed before a write is killed after the one before it.
One sweep over the moments after each write finds what sweeps before and after every call would find.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqe_chain.errors import Superseded, Unavailable
from sqe_chain.plans.events import When
from sqe_chain.testing.fault_injection import Arming
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault, Port
from tests.support.suites import points

HANGS_S: Final = 600
"""A sweep that takes longer hangs. It is made of many worlds, on machines that do other things, too."""


class Point:
    """One point of a sweep.

    Attributes:
        at: calls that pass before the fault.
        reached: whether the fault has happened.
        refused: whether what was paused has ended with an error of those expected.
    """

    def __init__(self, at: int) -> None:
        self.at, self.reached, self.refused = at, False, False

    @contextmanager
    def killed(self, faulty: Arming | FaultScript, of: Port | None = None) -> Iterator[None]:
        """The process dies after a write of what is done in here; a supervisor may start it again."""

        def die() -> None:
            self.reached = True
            raise Crash(f"after write {self.at}")

        script = faulty.script if isinstance(faulty, Arming) else faulty
        script.injected.append(InjectedFault(die, of, "after", writes=True, passes=self.at))
        try:
            yield
        except Crash:
            assert self.reached
        finally:
            script.cancel()

    @contextmanager
    def unanswered(
        self, faulty: Arming, of: Port | None = None, when: When = "before", calls: int = 1
    ) -> Iterator[None]:
        """A call of what is done in here gets no answer, before it takes effect or after that; the caller tries again."""

        def raise_unavailable() -> None:
            self.reached = True
            raise Unavailable(f"no answer at call {self.at}")

        faulty.script.injected.append(InjectedFault(raise_unavailable, of, when, passes=self.at, calls=calls))
        yield
        faulty.cancel()

    @contextmanager
    def paused(
        self,
        faulty: Arming | FaultScript,
        others: Callable[[], object],
        ends: tuple[type[Exception], ...] = (Superseded,),
        *,
        of: Port | None = None,
        when: When = "before",
    ) -> Iterator[None]:
        """What is done in here is paused at a call, others work meanwhile, and it goes on.

        Args:
            faulty: whose calls count.
            others: what others do.
            ends: errors with which it may end.
            of: at calls of this port only.
            when: before the call or after it.
        """

        def meanwhile() -> None:
            self.reached = True
            others()

        script = faulty.script if isinstance(faulty, Arming) else faulty
        script.injected.append(InjectedFault(meanwhile, of, when, passes=self.at))
        try:
            yield
        except ends:
            self.refused = True
        finally:
            script.cancel()


class Operations:
    """A table of operations: each sets up a world, does one thing under the fault of a point, repairs, and checks what must hold.

    Args:
        every: `make test` takes one point of this number.

    Attributes:
        rows: name -> calls that there are at least (fewer, and the fault does not hit what it is meant to hit), and the operation.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.rows: dict[str, tuple[int, Callable[[Point, Path], None]]] = {}

    def enter(
        self, name: str, least: int, **choices: Iterable[Any]
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Enter an operation, once for each combination of choices."""

        def enter(operation: Callable[..., None]) -> Callable[..., None]:
            for combined in itertools.product(*choices.values()):
                chosen = dict(zip(choices, combined, strict=True))
                row = ", ".join([name, *(str(getattr(one, "__name__", one)) for one in combined)])
                assert row not in self.rows
                self.rows[row] = (least, partial(operation, **chosen))
            return operation

        return enter

    def sweep(self, name: str, at: Path) -> list[Point]:
        """Do it at each point until one is not reached; in `make test` at some of them. Returns those that were."""
        least, operation = self.rows[name]
        return sweep(name, least, self.every, lambda point: operation(point, at / str(point.at)))


def sweep(what: str, least: int, every: int, act: Callable[[Point], None]) -> list[Point]:
    """Act at each point until one is not reached; in `make test` at some of them. Returns those that were.

    Args:
        what: names the sweep.
        least: the calls that there are at least: fewer, and the fault does not hit what it is meant to hit.
        every: `make test` takes one point of this number.
        act: sets up, does what is done under the fault of this point, repairs, and checks what must hold.
    """
    reached: list[Point] = []
    for at in points(what, every):
        point = Point(at)
        try:
            act(point)
        except BaseException as error:
            error.add_note(f"{what}: at call {at}")
            raise
        if not point.reached:
            assert at >= least, f"{what}: {at} calls"
            return reached
        reached.append(point)
    raise AssertionError("points do not end")
