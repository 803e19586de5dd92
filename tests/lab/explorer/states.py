"""States of the whole: which runs are alive, where each is, what may still happen to them, and what comes next."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqe_chain.testing.invariants import Violation
from tests.lab.explorer.checks import Checks
from tests.lab.explorer.configurations import Configuration
from tests.lab.explorer.durable import Durable
from tests.lab.explorer.programs import EXPORT
from tests.lab.explorer.runs import AWAY, DONE, STOPPED, SUPERSEDED, Runs
from tests.lab.reference.words import INPUT, Books

FREE = -1
"""Instead of a node: nobody runs there."""
BITS = 46
"""Of the number of the processes in the number of a state; above are those of the durable state."""
_LOOKED_UP = 300_000
_MASK = (1 << BITS) - 1
_CALL_BITS = 24
NAMES = "abc"
Left = tuple[int, int, int, int, bool, int]
"""`Processes` without its first field."""


class Processes(NamedTuple):
    """The processes, and what may still happen.

    Attributes:
        nodes: where each run is; `FREE`: nobody runs there.
        crashes: left.
        silences: left.
        takeovers: left.
        commands: left.
        done: the last thing that happened: a service ended by itself.
        together: bits of the slots of runs beside which another one has run, where that may be a command, which moves the flow
            elsewhere. What such a run takes for the end need not be that of the flow.
    """

    nodes: tuple[int, ...]
    crashes: int
    silences: int
    takeovers: int
    commands: int
    done: bool = False
    together: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """One step of the whole.

    Attributes:
        name: as in a path. ``a``: a's next call; ``a?``: without an answer, though it took effect; ``a-``: without an
            answer, and without effect. ``a!``: a is killed; ``+a:service``: a is started.
        parts: of its text.
        make: makes it, and gives the state after it.
    """

    name: str
    parts: tuple[object, ...]
    make: Callable[[], int]

    @property
    def text(self) -> str:
        """For people."""
        return "".join(map(str, self.parts))


class States:
    """All states of a configuration: what can happen in each of them.

    Args:
        configuration: what is explored.
        merges: see `Runs`.

    Attributes:
        durable: durable states.
        runs: local states of runs.
        checks: what must hold.
    """

    def __init__(self, configuration: Configuration, *, merges: bool = True) -> None:
        self.configuration = configuration
        machine = configuration.machine()
        self.durable = Durable(machine)
        kinds = configuration.processes()
        self.runs = Runs(
            kinds, NAMES, machine, self.durable, whole_reads=configuration.whole_reads, merges=merges
        )
        self.checks = Checks(
            self.durable,
            kinds[0].flow,
            Books(machine.log.records(INPUT), kinds[0].flow.state_partitions),
            configuration.broken,
        )
        self.durable.watch = self.checks
        one = configuration
        many = (one.crashes + 1) * (one.silences + 1) * (one.takeovers + 1) * (one.commands + 1) * 2
        self._most_lefts = many << (one.alive if one.commands else 0)
        self._most_nodes = int(((1 << BITS) / self._most_lefts) ** (1 / one.alive))
        self._lefts: list[Left] = []  # what may still happen: its number is in that of a state
        self._left_ids: dict[Left, int] = {}
        # What was looked up for the states of the last layers.
        self._following: dict[int, int] = {}
        self._effects: dict[int, tuple[int, int]] = {}
        self._still: dict[
            int, tuple[tuple[int, int], ...]
        ] = {}  # processes after what asks nobody, what is started
        self._asking: dict[int, tuple[tuple[int, int], ...]] = {}  # (slot's key, call) of those that ask
        self._silent: set[int] = set()  # processes for which there may be no answer
        self._done: set[int] = set()
        self._resting: set[int] = set()
        # Runs that ask the same again. If the call had no effect, all is as before, with one silence less left. From
        # there nothing happens that does not happen from here, too.
        self._repeating: set[int] = set()

    def first(self) -> int:
        """The state before anything was started; after what was run to its end before."""
        one, state = self.configuration, 0
        for name in one.before:
            kind = next(at for at, kind in enumerate(self.runs.kinds) if kind.name == name)
            node = self.runs.start(kind, 0)
            while self.runs.nodes[node].call >= 0:
                state, answer = self.durable.after(state, self.runs.nodes[node].call)
                node = self.runs.next(node, answer)
            if self.runs.nodes[node].call != DONE:
                raise Violation("sound", f"{name}: {self.runs.nodes[node].text}")
        begin = Processes((FREE,) * one.alive, one.crashes, one.silences, one.takeovers, one.commands)
        return state << BITS | self._id(begin)

    def after(self, state: int) -> list[int]:  # noqa: C901 - the innermost loop
        """The states after one more step."""
        durable, number = state >> BITS, state & _MASK
        above = durable << BITS
        still = self._still.get(number)
        if still is None:
            still = self._look(number)
        if self.configuration.moved:
            found = [above | to for to, kind in still if self._may_start(kind, durable)]
        else:
            found = [above | to for to, _ in still]
        effects, following = self._effects, self._following
        silent = number in self._silent
        for place, call in self._asking[number]:
            key = durable << _CALL_BITS | call
            effect = effects.get(key)
            if effect is None:
                effect = effects[key] = self.durable.after(durable, call)
            after, answer = effect
            key = place << BITS | (answer + 1)
            to = following.get(key)
            if to is None:
                to = following[key] = self._answered(place, answer)
            found.append(after << BITS | to)
            if silent:
                key = place << BITS
                to = following.get(key)
                if to is None:
                    to = following[key] = self._unanswered(place)
                if after != durable:
                    found.append(after << BITS | to)
                if place not in self._repeating:
                    found.append(above | to)
        if not found or number in self._done:
            self.check_rest(durable, number)
        return found

    def forget_effects(self, most: int) -> None:
        """Forget what calls did in states that are explored already, if that is more than `most`."""
        if len(self._effects) > most or len(self._still) > _LOOKED_UP:
            for known in (
                self._effects,
                self._still,
                self._asking,
                self._following,
                self._silent,
                self._done,
                self._repeating,
            ):
                known.clear()

    # ------------------------------------------------------------------ to be continued in another process

    def tables(self) -> dict[str, dict[str, Any]]:
        """All that was found so far, as plain data."""
        found = {"durable": fields_of(self.durable), "runs": fields_of(self.runs)}
        return found | {"checks": fields_of(self.checks), "states": fields_of(self)}

    def load(self, tables: dict[str, dict[str, Any]]) -> None:
        """Go on with what `tables` gave."""
        parts = {"durable": self.durable, "runs": self.runs, "checks": self.checks, "states": self}
        for name, part in parts.items():
            for field, value in tables[name].items():
                setattr(part, field, value)

    # ------------------------------------------------------------------ moves by name

    def moves(self, state: int) -> Iterator[Move]:
        """All steps from a state, with names: those that `after` takes."""
        durable, number = state >> BITS, state & _MASK
        above = durable << BITS
        for name, text, to, kind in self._still_moves(number):
            if self._may_start(kind, durable):
                yield Move(name, (text,), partial(operator.or_, above, to))
        for slot, node in enumerate(self.processes(number).nodes):
            if node == FREE:
                continue
            place, call = number * len(NAMES) + slot, self.runs.nodes[node].call
            process, step, _ = self.runs.label(node)
            who, what = f"{process} {NAMES[slot]}, {step}: ", self.durable.calls[call]
            yield Move(NAMES[slot], (who, what), partial(self._ask, durable, place, call))
            if self.processes(number).silences:
                lost = partial(self._lose, durable, place, call, effect=True)
                yield Move(f"{NAMES[slot]}?", (who, what, "; its answer is lost"), lost)
                lost = partial(self._lose, durable, place, call, effect=False)
                yield Move(f"{NAMES[slot]}-", (who, what, "; it does not arrive"), lost)

    def _ask(self, durable: int, place: int, call: int) -> int:
        after, answer = self.durable.after(durable, call)
        return after << BITS | self._answered(place, answer)

    def _lose(self, durable: int, place: int, call: int, *, effect: bool) -> int:
        after = self.durable.after(durable, call)[0] if effect else durable
        return after << BITS | self._unanswered(place)

    # ------------------------------------------------------------------ processes

    def processes(self, number: int) -> Processes:
        """The processes in the lower half of a state's number."""
        rest, left = divmod(number, self._most_lefts)
        nodes = []
        for _ in range(self.configuration.alive):
            rest, node = divmod(rest, self._most_nodes)
            nodes.append(node - 1)
        return Processes(tuple(nodes), *self._lefts[left])

    def _id(self, processes: Processes) -> int:
        left = processes[1:]
        number = self._left_ids.get(left)
        if number is None:
            number = self._left_ids[left] = len(self._lefts)
            self._lefts.append(left)
        unit = self._most_lefts
        for node in processes.nodes:
            number += unit * (node + 1)
            unit *= self._most_nodes
        if max(processes.nodes) + 1 >= self._most_nodes:
            raise OverflowError("this configuration is too large: its states do not fit into 64 bits")
        return number

    def _look(self, number: int) -> tuple[tuple[int, int], ...]:
        """Find what can happen to these processes."""
        found = self._still[number] = tuple((to, kind) for _, _, to, kind in self._still_moves(number))
        asking = []
        for slot, node in enumerate(self.processes(number).nodes):
            if node != FREE:
                asking.append((number * len(NAMES) + slot, self.runs.nodes[node].call))
        self._asking[number] = tuple(asking)
        now = self.processes(number)
        if now.silences:
            self._silent.add(number)
        if now.done:
            self._done.add(number)
        return found

    def _still_moves(self, number: int) -> Iterator[tuple[str, str, int, int]]:
        """Kill, and start: name, text, the number of the processes after it, and the kind that is started; -1: none."""
        now = self.processes(number)
        for slot, node in enumerate(now.nodes):
            if node != FREE and now.crashes:
                to = _ended(now, slot)._replace(crashes=now.crashes - 1, done=False)
                yield f"{NAMES[slot]}!", f"{NAMES[slot]} is killed", self._id(to), -1
        if FREE not in now.nodes:
            return
        slot, alone = now.nodes.index(FREE), all(node == FREE for node in now.nodes)
        for kind, one in enumerate(self.runs.kinds):
            service = one.is_service
            if (not alone and not now.takeovers) or (not service and not now.commands):
                continue
            if alone and service and now.done:
                continue  # all is done
            to = now._replace(
                nodes=_put(now.nodes, slot, self.runs.start(kind, slot)),
                takeovers=now.takeovers - (not alone),
                commands=now.commands - (not service),
                done=False,
                together=0 if alone or not self.configuration.commands else (1 << len(now.nodes)) - 1,
            )
            yield f"+{NAMES[slot]}:{one.name}", f"{one.name} {NAMES[slot]} is started", self._id(to), kind

    def _may_start(self, kind: int, durable: int) -> bool:
        """Whether an operator would start this now: where the states are, and the commands that move them."""
        if kind < 0 or not self.configuration.moved:
            return True
        moved = self.durable.content(durable, ("home", "store new", "totals"))
        there = moved is not None and moved[0] is not None and moved[0].number >= 0
        name = self.runs.kinds[kind].name
        if name == "import":
            return not there and self.durable.content(durable, ("file", EXPORT)) is not None
        return there == (name == "moved service")

    def _answered(self, place: int, answer: int) -> int:
        number, slot = divmod(place, len(NAMES))
        now = self.processes(number)
        return self._moved(now, slot, self.runs.next(now.nodes[slot], answer))

    def _unanswered(self, place: int) -> int:
        number, slot = divmod(place, len(NAMES))
        now = self.processes(number)
        node = self.runs.without_answer(now.nodes[slot])
        if node == now.nodes[slot]:
            self._repeating.add(place)
        return self._moved(now._replace(silences=now.silences - 1), slot, node)

    def _moved(self, now: Processes, slot: int, node: int) -> int:
        end = self.runs.nodes[node].call
        if end >= 0:
            return self._id(now._replace(nodes=_put(now.nodes, slot, node)))
        kind = self.runs.kinds[self.runs.rests[self.runs.nodes[node].rest][0]]
        text = self.runs.nodes[node].text
        if end == STOPPED and text.partition(":")[0] not in kind.stops:
            raise Violation("sound", f"{kind.name} {NAMES[slot]} stops: {text}")
        if end == SUPERSEDED and now.takeovers == self.configuration.takeovers:
            raise Violation("sound", f"{kind.name} {NAMES[slot]}, the only one, is superseded: {text}")
        if end == AWAY and now.silences == self.configuration.silences:
            raise Violation("sound", f"{kind.name} {NAMES[slot]} gets all answers, and reports: {text}")
        done = end == DONE and kind.is_service and not now.together >> slot & 1
        return self._id(_ended(now, slot)._replace(done=done))

    # ------------------------------------------------------------------ ends

    def check_rest(self, durable: int, number: int) -> None:
        """Nothing happens any more, or a service has ended by itself: if nobody else runs, everything is done."""
        if any(node != FREE for node in self.processes(number).nodes) or durable in self._resting:
            return
        slept = self.processes(number).takeovers < self.configuration.takeovers
        self.checks.rest(durable, slept=slept)
        if not slept:
            self._resting.add(durable)


def _ended(now: Processes, slot: int) -> Processes:
    """After the run there is gone."""
    return now._replace(nodes=_put(now.nodes, slot, FREE), together=now.together & ~(1 << slot))


def _put(nodes: tuple[int, ...], slot: int, node: int) -> tuple[int, ...]:
    return (*nodes[:slot], node, *nodes[slot + 1 :])


_OUTSIDE = frozenset(
    {
        *(
            "machine",
            "watch",
            "_machine",
            "kinds",
            "_durable",
            "_flow",
            "_books",
            "checks",
            "durable",
            "runs",
        ),
        *("configuration", "_effects", "_still", "_asking", "_following", "_silent", "_done", "_repeating"),
    }
)


def fields_of(part: object) -> dict[str, Any]:
    """The fields of a part that are tables."""
    names = getattr(type(part), "__slots__", None) or part.__dict__
    return {name: getattr(part, name) for name in names if name not in _OUTSIDE}
