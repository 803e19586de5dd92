"""Runs, as far as they have come: each is known by its program and by the answers since it was last at rest.

A run rests between two batches: what it knows then is in its objects, which are stored as bytes. What it knows in between is
on a Python stack. It is found again by running the program from the last rest, with the answers of its history; each
history is run once.

A call that gets no answer is repeated by `Retry`, which begins the whole action again. So the run is then where it was when
the action began, and it is put there: histories hold no such answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ChainError, Superseded, Unavailable
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.settings import Settings
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store
from tests.lab.explorer.calls import BROKER, Ask, Asking
from tests.lab.explorer.durable import Durable, Machine
from tests.lab.explorer.replay import PartwiseEngine, Replay, Returns, Suspended, Way, dump, load

NO_ANSWER = Unavailable("no answer")
STEPS = {
    0: "between",
    1: "claim",
    2: "recover",
    3: "process",
    4: "seal",
    5: "publish",
    6: "persist",
    7: "commit",
}
"""Number of a step -> its name; 0 for what is done between steps."""

DONE, SUPERSEDED, AWAY, STOPPED = -1, -2, -3, -4
"""What a run that has ended was ended by: its program, a newer run, a call without an answer, another error."""


@dataclass(slots=True)
class Outside:
    """What a program has of the world outside."""

    env: Environment
    engine: Callable[[CompiledFlow], InProcessEngine]
    ask: Ask


class Program(Protocol):
    """What a process does, from one rest to the next."""

    def step(self, outside: Outside, state: Any) -> Any:
        """Go on from a rest; None is the beginning. Returns the next rest, or None at the end."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of process.

    Attributes:
        name: for people.
        flow: its flow.
        program: what it does.
        stores: store of the flow -> store of the machine.
        settings: of its runs.
        stops: errors with which it may end although no newer run owns the flow, by their names.
    """

    name: str
    flow: CompiledFlow
    program: Program
    stores: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    settings: Settings = field(default_factory=Settings)
    stops: frozenset[str] = frozenset()

    @property
    def is_service(self) -> bool:
        """Whether it is a service, not a command."""
        return self.name.endswith("service")


@dataclass(slots=True)
class Node:
    """A run that waits for an answer.

    Attributes:
        before: the node before it; -1 at a rest.
        entry: number of the answer that led here from there; or of what a part returned that began there, see `replay`.
        call: number of the call it waits for; or how it ended, see `DONE`.
        step: number of the protocol's step.
        rest: number of the rest that it began at.
        text: of the error that ended it.
        again: the node to which `Retry` takes it back if there is no answer; -1: it does not repeat the call.
        way: number of the way through the code from `Retry` to the call.
    """

    before: int
    entry: int
    call: int
    step: int
    rest: int
    text: str = ""
    again: int = -1
    way: int = -1


class Runs:
    """All local states of runs seen so far.

    Args:
        kinds: of processes.
        names: of the runs that may be alive at the same time.
        machine: broker and stores.
        durable: numbers of calls and answers.
        whole_reads: see `Asking`.
        merges: a run that repeats an action is put to where the action began; else its history grows.
    """

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        names: str,
        machine: Machine,
        durable: Durable,
        *,
        whole_reads: bool = False,
        merges: bool = True,
    ) -> None:
        self.kinds = kinds
        self.names = names
        self.nodes: list[Node] = []
        self.replays = 0
        self.rests: list[tuple[int, int, bytes | None]] = []  # kind, name, stored objects
        self._machine = machine
        self._durable = durable
        self._whole_reads = whole_reads
        self._merges = merges
        self._rest_ids: dict[tuple[int, int, bytes | None], int] = {}
        self._first: dict[int, int] = {}  # rest -> node
        self._next: dict[tuple[int, int], int] = {}
        self._returns = Returns()
        self._ways: dict[int, bool] = {}
        self._way_ids: dict[Way, int] = {}
        self._no_answer = durable.answer_id(NO_ANSWER)

    def start(self, kind: int, name: int) -> int:
        """The node of a run that has just been started."""
        return self._at_rest(kind, name, None)

    def next(self, node: int, answer: int) -> int:
        """The node after an answer."""
        key = node, answer
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = self._find(node, answer)
        return found

    def without_answer(self, node: int) -> int:
        """The node after a call to which there is no answer."""
        found = self.nodes[node]
        if found.again < 0:
            return self.next(node, self._no_answer)
        # What is between `Retry` and the call might do something else first. Looked at once for each way through the code.
        if found.way not in self._ways:
            self._ways[found.way] = self.next(node, self._no_answer) == found.again
        return found.again if self._ways[found.way] else self.next(node, self._no_answer)

    def label(self, node: int) -> tuple[str, str, str]:
        """Kind of process, step, and call, of a node."""
        found = self.nodes[node]
        call = self._durable.calls[found.call]
        kind = self.kinds[self.rests[found.rest][0]].name
        return kind, STEPS[found.step], f"{call.port}: {call.name}"

    # ------------------------------------------------------------------ running programs again

    def _at_rest(self, kind: int, name: int, data: bytes | None) -> int:
        key = kind, name, data
        rest = self._rest_ids.get(key)
        if rest is None:
            rest = self._rest_ids[key] = len(self.rests)
            self.rests.append(key)
        if rest not in self._first:
            self._first[rest] = self._run(rest, [], [])
        return self._first[rest]

    def _find(self, node: int, answer: int) -> int:
        path, entries, at = [node], [answer], node
        while self.nodes[at].before >= 0:
            entries.append(self.nodes[at].entry)
            at = self.nodes[at].before
            path.append(at)
        return self._run(self.nodes[node].rest, path[::-1], entries[::-1])

    def _run(self, rest: int, path: list[int], entries: list[int]) -> int:
        """Run from a rest with this history; returns the node at which the run then is.

        Args:
            rest: where it begins.
            path: the nodes at which it was.
            entries: what led on from each of them.
        """
        self.replays += 1
        kind_number, name, data = self.rests[rest]
        kind = self.kinds[kind_number]
        replay = Replay(self._durable.answers, self._returns, path, entries, self._next, merges=self._merges)
        outside = self._outside(kind, self.names[name], replay)
        end, text = DONE, ""
        try:
            with replay.watching():
                state = kind.program.step(outside, None if data is None else load(data, outside.env))
            found = None if state is None else self._at_rest(kind_number, name, dump(state, outside.env))
        except Suspended:
            found = replay.found
            if found is None and replay.pending is None:
                raise AssertionError("a run is suspended only where it asks") from None
            end = DONE if replay.pending is None else self._durable.call_id(replay.pending)
        except Superseded as error:
            found, end, text = None, SUPERSEDED, str(error)
        except Unavailable as error:
            found, end, text = None, AWAY, str(error)
        except ChainError as error:
            found, end, text = None, STOPPED, f"{type(error).__name__}: {error}"
        if found is None:
            found = len(self.nodes)
            before, entry = (replay.path[-1], replay.entries[-1]) if replay.path else (-1, 0)
            again = -1
            if end >= 0 and self._merges and replay.again >= 0:
                again = (*replay.path, found)[replay.again]
            way = self._way_ids.setdefault(replay.way, len(self._way_ids))
            self.nodes.append(Node(before, entry, end, replay.step_number, rest, text, again, way))
        for key in replay.passed:  # parts that returned on the way
            self._next.setdefault(key, found)
        return found

    def _outside(self, kind: Kind, name: str, replay: Replay) -> Outside:
        machine, ask = self._machine, replay.ask
        log = faulty_log(machine.log, Asking(BROKER, ask))
        stores = {
            own: faulty_store(machine.stores[there], Asking(f"store {there}".strip(), ask, self._whole_reads))
            for own, there in kind.stores.items()
        }
        ports = Ports(log, stores)

        def engine(flow: CompiledFlow) -> InProcessEngine:
            return PartwiseEngine(replay, flow, log, ports.store)

        env = Environment(
            kind.flow, ports, engine(kind.flow), replay, replay, lambda: f"run-{name}", kind.settings
        )
        return Outside(env, engine, ask)
