"""Fault injection: what happens at the calls of a service's ports is asked of a scheduler.

Every port of a service is wrapped once (`faulty_ports`). A wrapped port makes no call by itself: it asks its `Scheduler`.
That one makes the call, lets something happen before or after it, or answers in its place. `FaultScript` is the scheduler of
tests and of `prove`, whose faults a test names or a seed draws. The explorer of this project tries every order of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sqe_chain.plans.events import Event, Observer, When

Port = Literal["broker", "store", "table"]
"""What a service calls."""


class Crash(BaseException):
    """The process "dies" here. The service's own error handling never sees this exception."""


@dataclass(slots=True, eq=False)
class PortCall:
    """A call of a port that a scheduler has to answer.

    Attributes:
        of: whose call it is: a `Port`, or what the tests of this project add.
        name: the method: of a log, `read` is one block and `publish` one record.
        port: the port without faults.
        args: the arguments, by position.
        text: what the call writes, in words; empty: it reads.
        make: makes the call, and returns its answer.
    """

    of: str
    name: str
    port: Any
    args: tuple[Any, ...]
    text: str
    make: Callable[[], Any]

    @property
    def write(self) -> bool:
        """Whether it writes."""
        return bool(self.text)


class Scheduler(Protocol):
    """Decides what happens at each call of a port."""

    def answer(self, call: PortCall) -> Any:  # noqa: ANN401 - of any port
        """The answer to a call; raise the error that its caller gets instead."""


Watch = Callable[[PortCall, Any], None]
"""Called after each call that took effect, with the call and its answer."""


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
        method: only at calls of this method; empty: of all.
    """

    action: Callable[[], object]
    of: Port | None = None
    when: When = "before"
    writes: bool = False
    passes: int = 0
    calls: int = 1
    method: str = ""

    def concerns(self, call: PortCall, when: When) -> bool:
        """Whether it counts such calls."""
        return (
            self.when == when
            and self.of in {None, call.of}
            and (call.write or not self.writes)
            and self.method in {"", call.name}
        )


@dataclass(slots=True)
class FaultScript(Observer):
    """The scheduler that makes all calls, with the faults to come; and what has happened so far.

    Attributes:
        steps: (step, before or after) -> for each future crash there, how often the step passes first.
        writes: (number of the write, before or after) at which to crash; `after` means a lost reply.
        injected: faults at future calls.
        made: (port, method) -> how often it was called so far.
        written: a description of each write so far.
        events: events that the service reported.
        watch: called after each call that took effect, before anything else happens.
    """

    steps: dict[tuple[int, When], list[int]] = field(default_factory=dict)
    writes: set[tuple[int, When]] = field(default_factory=set)
    injected: list[InjectedFault] = field(default_factory=list)
    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    written: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    watch: Watch | None = None

    @property
    def calls(self) -> int:
        """Calls of ports so far."""
        return self.made.total()

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

    def answer(self, call: PortCall) -> Any:  # noqa: ANN401 - of any port
        self.made[call.of, call.name] += 1
        self.at(call, "before")
        answer = self._write(call) if call.write else self._make(call)
        self.at(call, "after")
        return answer

    def at(self, call: PortCall, when: When) -> None:
        """Called before each call of a port; and after it took effect, before its reply arrives."""
        for fault in [*self.injected]:
            if not fault.concerns(call, when):
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

    def _write(self, call: PortCall) -> Any:  # noqa: ANN401 - of any port
        number = len(self.written)
        self.written.append(call.text)
        if (number, "before") in self.writes:
            self.writes.discard((number, "before"))
            raise Crash(f"before write {number}: {call.text}")
        answer = self._make(call)
        if (number, "after") in self.writes:
            self.writes.discard((number, "after"))
            raise Crash(f"after write {number}: {call.text}")
        return answer

    def _make(self, call: PortCall) -> Any:  # noqa: ANN401 - of any port
        answer = call.make()
        if self.watch is not None:
            self.watch(call, answer)
        return answer
