"""Fault injection: crashes and outages around any call of a service, and other work while it is paused.

Every port of a service is wrapped once (`faulty_ports`). A fault can be injected before and after each call of a port,
including reads and each block of a read. One `FaultScript` holds all faults of a service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from sqe_chain.protocol.events import Event, Observer, When

Port = Literal["broker", "store", "table"]
"""What a service calls."""

Watch = Callable[[str, tuple[object, ...]], None]
"""Called after each write that took effect, with its kind (`home`, `state`, `publish`, `commit`, `table`) and
arguments."""


class Crash(BaseException):
    """The process "dies" here. The service's own error handling never sees this exception."""


@dataclass(slots=True)
class InjectedFault:
    """A fault that will happen at a future call.

    Attributes:
        action: may raise `Crash` or `Unavailable`, or do something else while the run is paused.
        of: only at calls of this port; None: of all.
        when: before the call, or after it has taken effect.
        writes: whether only calls that write count.
        passes: such calls that pass before the fault.
        calls: how many consecutive calls it affects.
    """

    action: Callable[[], object]
    of: Port | None = None
    when: When = "before"
    writes: bool = False
    passes: int = 0
    calls: int = 1


@dataclass(slots=True)
class FaultScript(Observer):
    """The faults to come, and what has happened so far.

    Attributes:
        steps: (step, before or after) -> for each future crash there, how often the step passes first.
        writes: (number of the write, before or after) at which to crash; `after` means a lost reply.
        injected: faults at future calls.
        calls: calls of ports so far.
        written: a description of each write so far.
        events: events that the service reported.
        watch: called after each write that took effect, before anything else happens.
    """

    steps: dict[tuple[int, When], list[int]] = field(default_factory=dict)
    writes: set[tuple[int, When]] = field(default_factory=set)
    injected: list[InjectedFault] = field(default_factory=list)
    calls: int = 0
    written: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    watch: Watch | None = None

    def step(self, number: int, when: When) -> None:
        passes = self.steps.get((number, when))
        if not passes:
            return
        passes[0] -= 1
        if passes[0] < 0:
            passes.pop(0)
            raise Crash(f"{when} step {number}")

    def event(self, event: Event) -> None:
        self.events.append(event)

    def cancel(self) -> None:
        """Cancel all faults that have not happened yet."""
        self.steps.clear()
        self.writes.clear()
        self.injected.clear()

    def before(self, of: Port, *, write: bool = False) -> None:
        """Called before each call of a port."""
        self.calls += 1
        if self.injected:
            self._fire(of, "before", write=write)

    def after(self, of: Port, *, write: bool = False) -> None:
        """Called after a call of a port took effect, before its reply arrives."""
        if self.injected:
            self._fire(of, "after", write=write)

    def write(self, what: str) -> int:
        """Called before each write; returns the write's number."""
        number = len(self.written)
        self.written.append(what)
        if (number, "before") in self.writes:
            self.writes.discard((number, "before"))
            raise Crash(f"before write {number}: {what}")
        return number

    def done(self, number: int) -> None:
        """Called after each write."""
        if (number, "after") in self.writes:
            self.writes.discard((number, "after"))
            raise Crash(f"after write {number}: {self.written[number]}")

    @contextmanager
    def writing(self, of: Port, what: str) -> Iterator[None]:
        """Around each call of a port that writes."""
        self.before(of, write=True)
        number = self.write(what)
        yield
        self.done(number)
        self.after(of, write=True)

    def took_effect(self, kind: str, *what: object) -> None:
        """Report a write that took effect to the watch."""
        if self.watch is not None:
            self.watch(kind, what)

    def _fire(self, of: Port, when: When, *, write: bool) -> None:
        for fault in [*self.injected]:
            if fault.when != when or fault.of not in {None, of} or (fault.writes and not write):
                continue
            if fault.passes:
                fault.passes -= 1
                continue
            fault.calls -= 1
            if not fault.calls:
                self.injected.remove(fault)
            # Calls during the action must not trigger faults: those are for the paused run.
            waiting, self.injected = self.injected, []
            try:
                fault.action()
            finally:
                self.injected = waiting
