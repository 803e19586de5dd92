"""The scheduler that asks: each call of a run becomes a question to the explorer, which answers it, or lets the run wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sqe_chain.ports import Header, Home
from sqe_chain.testing.faults import PortCall, Scheduler

BROKER = "broker"
FILE = "file"
"""Ports that are no store."""
_CONSTANT = {
    "broker": frozenset({"describe", "topic_ids", "bounds", "offsets_at", "read", "connect", "flush"}),
    "store": frozenset({"check"}),
}
"""Calls whose answers never change: those about topics, about inputs, and about settings."""
_READ = ("header-before", "rows", "header-after")
"""What a store reads one after the other."""


def frozen(value: object) -> Hashable:
    """A hashable value, equal for equal contents."""
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, Mapping):
        return tuple(sorted((frozen(key), frozen(one)) for key, one in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, *(frozen(getattr(value, one.name)) for one in fields(value))
    return value if isinstance(value, Hashable) else repr(value)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A call of a port, to the explorer.

    Attributes:
        port: `broker`, `file`, or the name of a store after `store `.
        name: method of the port; what follows a blank distinguishes several questions of one call.
        args: its arguments.
        key: the same for equal calls.
    """

    port: str
    name: str
    args: tuple[Any, ...]
    key: Hashable

    @classmethod
    def of(cls, port: str, name: str, *args: object) -> Question:
        """Make a question."""
        return cls(port, name, args, (port, name, frozen(args)))

    @property
    def method(self) -> str:
        """The method of the port."""
        return self.name.partition(" ")[0]

    def __str__(self) -> str:
        """For people."""
        shown = [str(one) for one in self.args if isinstance(one, (str, int, Home, Header))]
        if self.method == "write" and len(self.args) > 5:
            shown.append(f"{len(self.args[5])} rows")
        if self.method == "commit":
            shown = [str(self.args[0])]
        if self.method == "publish":
            shown = [str(self.args[0][0])]
        return f"{self.port}: {self.name}({', '.join(shown)})"


Ask = Callable[[Question], Any]


@dataclass(frozen=True, slots=True)
class Asking(Scheduler):
    """Asks the explorer at each call of a port.

    Attributes:
        port: see `Question`.
        ask: asks a question.
        whole_reads: a read of a store is one question; else header, rows and header are asked one after the other.
    """

    port: str
    ask: Ask
    whole_reads: bool = False

    def answer(self, call: PortCall) -> Any:
        """See `Scheduler`."""
        args = tuple(map(_kept, call.args))
        if call.name in _CONSTANT[call.of]:
            return call.make()
        if call.name != "read" or self.whole_reads:
            return self.ask(Question.of(self.port, call.name, *args))
        before, rows, after = (
            self.ask(Question.of(self.port, f"read {what}", *args))[at] for at, what in enumerate(_READ)
        )
        return before, list(rows), after


def _kept(argument: object) -> object:
    """An argument as it is now, whatever its owner does with it later."""
    if isinstance(argument, list):
        return tuple(argument)
    return dict(argument) if isinstance(argument, Mapping) else argument
