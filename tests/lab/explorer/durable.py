"""What outlives processes: claims, plans, cells, commits, records. Contents are kept once, and known by numbers.

It is cut into variables, which a call reads or writes as a whole. A variable is a home record with its plans, a cell, a
group's commits, or a topic. The product's store and log do what a call does, once for each content of its variables.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import HomeCopy, MemoryStore, PartCopy, StoreCopy
from sqe_chain.errors import ChainError
from sqe_chain.ports import Locations
from tests.lab.explorer.calls import BROKER, FILE, Question, frozen

Variable = tuple[Any, ...]
"""Kind, and what distinguishes it from others of its kind: store, flow, stage and cell; group; topic."""

ABSENT = 0
"""Number of the content of a variable that was never written."""

_KINDS = {
    "home": "home",
    "set_home": "home",
    "beat": "home",
    "plan": "home",
    "headers": "cell",
    "read": "cell",
    "write": "cell",
    "scan": "cell",
    "locations": "locations",
    "set_locations": "locations",
}


def variables_of(call: Question) -> tuple[Variable, ...]:
    """The variables that a call reads or writes."""
    args = call.args
    if call.port == FILE:
        return (("file", args[0]),)
    if call.port == BROKER:
        return (("topic", args[0][0]) if call.method == "publish" else ("commits", args[0]),)
    kind = _KINDS[call.method]
    if kind != "cell":
        return ((kind, call.port, args[0]),)
    cells = args[2] if call.method == "headers" else (args[2],)
    return tuple(("cell", call.port, args[0], args[1], cell) for cell in cells)


@dataclass(slots=True)
class Machine:
    """Broker and stores in memory, on which calls are made.

    Args:
        log: the broker; its inputs never change.
        stores: name -> store.
    """

    log: MemoryLog
    stores: dict[str, MemoryStore]

    def make(
        self, call: Question, variables: tuple[Variable, ...], contents: list[Any]
    ) -> tuple[Any, list[Any]]:
        """Make a call where these variables have these contents; returns the answer, and the contents after it."""
        if call.port == FILE:
            return (contents[0], contents) if call.method == "load" else (None, [call.args[1]])
        if call.port == BROKER:
            return self._ask_broker(call, contents[0])
        store = self.stores[call.port.removeprefix("store").strip()]
        store.restore_all(_store_copy(variables, contents))
        try:
            answer = getattr(store, call.method)(*call.args)
            if call.method == "scan":
                answer = tuple(answer)
        except (ChainError, ValueError) as error:
            answer = error
        return answer, _contents(variables, store.copy_all())

    def _ask_broker(self, call: Question, content: Any) -> tuple[Any, list[Any]]:
        if call.method == "publish":  # nobody here reads outputs: so all that matters is which there are
            return None, [(content or frozenset()) | {call.args[0]}]
        group, log = call.args[0], self.log
        log.forget(group)
        log.commit(group, dict(content or ()))
        answer = getattr(log, call.method)(*call.args)
        tps = {tp for tp, _ in content or ()} | set(call.args[1])
        return answer, [tuple(sorted(log.committed(group, tps).items()))]


def _store_copy(variables: tuple[Variable, ...], contents: list[Any]) -> StoreCopy:
    copy = StoreCopy()
    for variable, content in zip(variables, contents, strict=True):
        if content is None:
            continue
        if variable[0] == "home":
            copy.homes[variable[2]] = HomeCopy(content[0], content[1], dict(content[2]))
        elif variable[0] == "cell":
            copy.parts[variable[2:]] = PartCopy(content[0], dict(content[1]))
        else:
            copy.locations[variable[2]] = Locations(content[0], content[1], dict(content[2]))
    return copy


def _contents(variables: tuple[Variable, ...], copy: StoreCopy) -> list[Any]:
    found: list[Any] = []
    for variable in variables:
        if variable[0] == "home":
            home = copy.homes.get(variable[2])
            known = home is not None and (home.home is not None or home.beat or home.plans)
            found.append(
                (home.home, home.beat, tuple(sorted(home.plans.items()))) if home and known else None
            )
        elif variable[0] == "cell":
            cell = copy.parts.get(variable[2:])
            there = cell is not None and (cell.header is not None or cell.states)
            found.append((cell.header, tuple(sorted(cell.states.items()))) if cell and there else None)
        else:
            at = copy.locations.get(variable[2])
            found.append((at.epoch, at.number, tuple(sorted(at.stages.items()))) if at else None)
    return found


class Watch(Protocol):
    """Looks at everything that is new."""

    def content(self, variable: Variable, before: Any, after: Any) -> None:
        """A variable has changed from one content to another in a way that was not seen before."""

    def state(self, state: int) -> None:
        """A durable state is seen for the first time."""


@dataclass(slots=True)
class Durable:
    """All durable states seen so far, and what calls do to them.

    Args:
        machine: makes the calls.
        watch: looks at what is new.

    Attributes:
        variables: variable -> its place in a state.
        contents: number -> (place of its variable, content).
        states: number -> the numbers of the contents of all variables.
        calls: number -> call.
        answers: number -> answer.
        made: calls that were made so far; all others were known.
    """

    machine: Machine
    watch: Watch | None = None
    variables: dict[Variable, int] = field(default_factory=dict)
    contents: list[tuple[int, Any]] = field(default_factory=lambda: [(-1, None)])
    states: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    calls: list[Question] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    made: int = 0
    _content_ids: dict[tuple[int, Hashable], int] = field(default_factory=dict)
    _state_ids: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})
    _call_ids: dict[Hashable, int] = field(default_factory=dict)
    _answer_ids: dict[Hashable, int] = field(default_factory=dict)
    _places: list[tuple[int, ...]] = field(default_factory=list)  # of the variables of each call
    _known: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def call_id(self, call: Question) -> int:
        """The number of a call."""
        found = self._call_ids.get(call.key)
        if found is None:
            found = self._call_ids[call.key] = len(self.calls)
            self.calls.append(call)
            self._places.append(
                tuple(self.variables.setdefault(one, len(self.variables)) for one in variables_of(call))
            )
        return found

    def answer_id(self, answer: Any) -> int:
        """The number of an answer."""
        key = (type(answer).__name__, str(answer)) if isinstance(answer, Exception) else frozen(answer)
        key = type(answer).__name__, key
        found = self._answer_ids.get(key)
        if found is None:
            found = self._answer_ids[key] = len(self.answers)
            self.answers.append(answer)
        return found

    def after(self, state: int, call_id: int) -> tuple[int, int]:
        """The durable state after a call, and the number of its answer."""
        places, numbers = self._places[call_id], self.states[state]
        size = len(numbers)
        before = tuple([numbers[place] if place < size else ABSENT for place in places])
        found = self._known.get((call_id, *before))
        if found is None:
            found = self._known[call_id, *before] = self._make(call_id, before)
        contents, answer = found
        if contents == before:
            return state, answer
        changed = [*numbers]
        for place, number in zip(places, contents, strict=True):
            if place >= len(changed):
                changed += [ABSENT] * (place + 1 - len(changed))
            changed[place] = number
        return self._state_id(tuple(changed)), answer

    def content(self, state: int, variable: Variable) -> Any:
        """The content of a variable; None when it was never written."""
        return self.contents[self.content_id(state, variable)][1]

    def content_id(self, state: int, variable: Variable) -> int:
        """The number of the content of a variable."""
        place, numbers = self.variables.get(variable, len(self.variables)), self.states[state]
        return numbers[place] if place < len(numbers) else ABSENT

    def _make(self, call_id: int, before: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        self.made += 1
        call, variables = self.calls[call_id], variables_of(self.calls[call_id])
        contents = [self.contents[number][1] for number in before]
        answer, after = self.machine.make(call, variables, contents)
        if self.watch is not None:
            for variable, old, new in zip(variables, contents, after, strict=True):
                if old != new:
                    self.watch.content(variable, old, new)
        numbers = tuple(map(self._content_id, self._places[call_id], after))
        return numbers, self.answer_id(answer)

    def _content_id(self, place: int, content: Any) -> int:
        if content is None:
            return ABSENT
        key = place, content if isinstance(content, frozenset) else frozen(content)
        found = self._content_ids.get(key)
        if found is None:
            found = self._content_ids[key] = len(self.contents)
            self.contents.append((place, content))
        return found

    def _state_id(self, numbers: tuple[int, ...]) -> int:
        found = self._state_ids.get(numbers)
        if found is None:
            found = self._state_ids[numbers] = len(self.states)
            self.states.append(numbers)
            if self.watch is not None:
                self.watch.state(found)
        return found
