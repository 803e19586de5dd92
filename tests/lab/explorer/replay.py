"""One execution of a program from a rest, with a known history.

A history is as short as it can be:

* A call that gets no answer is repeated by `Retry`, which begins the whole action again. The run is then where it was when
  the action began, and it is put there: histories hold no such answers.
* A claim that another run has won begins again, and then knows no more than at first.
* Some parts of a run, such as the claim, give nothing but what they return. When such a part has returned, the history holds
  this result instead of the answers that it got. When it is run again, it returns that at once. So two runs that
  have asked differently, and have come to the same, are the same.

All three are checked: without them the same durable states are found (`tests/protocol/lab/test_explorer.py`).
"""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial, partialmethod
from typing import Any, TypeVar

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations import attempts, moving, rebuild
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Event, When
from sqe_chain.plans.results import BatchResult, StartResult
from sqe_chain.plans.retrying import Retry
from sqe_chain.ports import Header, Log
from sqe_chain.protocol import claim as claiming
from sqe_chain.protocol import with_plans
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.results import Job, Portion, Report
from tests.lab.explorer.calls import Question

T = TypeVar("T")
Way = tuple[tuple[str, int], ...]

_PARTS = ((with_plans, "stamp"), (claiming, "_stored_in"))
"""Functions that give nothing but what they return."""
_RETRY = Retry.call
_CELLS = attempts._CELLS
_FEW_CELLS = 2
_CLAIMING = with_plans, rebuild, moving
"""Modules that claim."""


class Suspended(BaseException):
    """The run waits for an answer that is not known yet. It is thrown away, and made again when there is one."""


@dataclass(slots=True)
class Returns:
    """What parts of runs returned; numbers are negative, so that they differ from those of answers."""

    known: list[tuple[str, bytes]] = field(default_factory=list)
    _ids: dict[tuple[str, bytes], int] = field(default_factory=dict)

    def id(self, part: str, data: bytes) -> int:
        """The number of what a part returned."""
        found = self._ids.get((part, data))
        if found is None:
            self.known.append((part, data))
            found = self._ids[part, data] = -len(self.known)
        return found

    def of(self, number: int) -> tuple[str, bytes]:
        """The part, and what it returned."""
        return self.known[-number - 1]


class Replay:
    """One execution; also its clock and its observer.

    Args:
        answers: number -> answer.
        returns: what parts returned.
        path: the nodes of the history.
        entries: what led on from each.
        nodes: (node, entry) -> the node after it, as far as it is known.
        merges: histories are kept short.

    Attributes:
        pending: the call that the run waits for.
        found: the node at which the run is, if that was known before.
        passed: (node, entry) of the parts that returned in this execution.
        step_number: the protocol's step; 0 between two.
        again: where in the history the action began that `Retry` would repeat; -1: none.
        way: the functions between that and the call, and where each of them is.
    """

    def __init__(
        self,
        answers: Sequence[Any],
        returns: Returns,
        path: list[int],
        entries: list[int],
        nodes: Mapping[tuple[int, int], int],
        *,
        merges: bool,
    ) -> None:
        self.path = path
        self.entries = entries
        self.pending: Question | None = None
        self.found: int | None = None
        self.passed: list[tuple[int, int]] = []
        self.step_number = 0
        self.again = -1
        self.way: Way = ()
        self._answers = answers
        self._returns = returns
        self._nodes = nodes
        self._merges = merges
        self._position = 0
        self._suspended = False
        self._actions: list[int] = []

    def ask(self, call: Question) -> Any:
        """The answer to a call, if the history has one; else the run is suspended."""
        if self._suspended:
            raise Suspended  # while the stack unwinds
        if self._position == len(self.entries):
            self.pending = call
            if self._actions:
                self.again, self.way = self._actions[-1], _way_to_retry()
            self._suspend()
        answer = self._answers[self.entries[self._position]]
        self._position += 1
        if isinstance(answer, Exception):
            raise copy.copy(answer)
        return copy.copy(answer)

    def part(
        self, name: str, action: Callable[[], T], restore: Callable[[bytes], Any], keep: Callable[[T], bytes]
    ) -> T:
        """Run a part, or return what it returned.

        Args:
            name: of the part.
            action: runs it.
            restore: what is kept -> what it returned; restores what it changed.
            keep: what it returned -> what is kept of that and of what it changed.
        """
        if self._suspended:
            raise Suspended
        if not self._merges:
            return action()
        began = self._position
        if began < len(self.entries) and self.entries[began] < 0:
            part, data = self._returns.of(self.entries[began])
            if part == name:
                self._position += 1
                return restore(data)  # type: ignore[no-any-return]
        result = action()
        if self._position == len(self.entries) > began:
            entry = self._returns.id(name, keep(result))
            self.path[began + 1 :], self.entries[began:] = [], [entry]
            self._position = began + 1
            self.passed.append((self.path[began], entry))
            self.found = self._nodes.get((self.path[began], entry))
            if self.found is not None:
                self._suspend()
        return result

    def _suspend(self) -> None:
        self._suspended = True
        raise Suspended

    # Clock and observer of the run.

    def now_ms(self) -> int:
        """Time does not move."""
        return 4_102_444_800_000

    def wait(self, _milliseconds: int) -> bool:
        """Only `Retry` waits: a run that starts takes over at once."""
        if self._suspended:
            raise Suspended
        if self._merges:
            self.found = self.path[self._actions[-1]]
            self._suspend()
        return False

    def step(self, number: int, when: When) -> None:
        """Note the protocol's step."""
        self.step_number = number if when == "before" else 0

    def event(self, _event: Event) -> None:
        """Nobody listens."""

    def noted(self, retry: Retry, what: str, action: Callable[[], T]) -> T:
        """`Retry.call`, which notes where its action begins."""
        self._actions.append(self._position)
        try:
            return _RETRY(retry, what, action)
        finally:
            self._actions.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In this context parts of the protocol are parts of this execution."""
        parts = [*_PARTS, *((module, "claim") for module in _CLAIMING)]
        before = [(module, name, getattr(module, name)) for module, name in parts]
        for module, name, function in before:
            way = self._claim if name == "claim" else self._call
            setattr(module, name, partial(way, name, function))
        vars(rebuild)["StagedService"] = partial(PartwiseAggregation, self)
        attempts._CELLS = _FEW_CELLS
        Retry.call = partialmethod(_noted, self)  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            attempts._CELLS = _CELLS
            Retry.call = _RETRY  # type: ignore[method-assign]
            vars(rebuild)["StagedService"] = StagedService
            for module, name, function in before:
                setattr(module, name, function)

    def _call(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T:
        result: T = self.part(name, partial(function, *args, **named), pickle.loads, pickle.dumps)
        return result

    def _claim(
        self,
        name: str,
        function: Callable[..., T],
        env: Environment,
        read: Callable[[], Any],
        *given: Any,
        **named: bool,
    ) -> T:
        """A claim begins again when another run was faster: then it knows no more than at its beginning."""
        began, rounds = self._position, itertools.count()

        def read_again() -> Any:
            if next(rounds) and self._merges:
                self.found = self.path[began]
                self._suspend()
            return read()

        return self._call(name, function, env, read_again, *given, **named)


def _noted(retry: Retry, replay: Replay, what: str, action: Callable[[], T]) -> T:
    return replay.noted(retry, what, action)


class PartwiseEngine(InProcessEngine):
    """An engine whose calls are parts of an execution."""

    def __init__(self, replay: Replay, flow: CompiledFlow, log: Log, stores: Any) -> None:
        super().__init__(flow, log, stores)
        self._replay = replay

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        def restore(data: bytes) -> Report:
            report, self._job, self._outputs, self._states = pickle.loads(data)  # noqa: S301 - our own
            return report  # type: ignore[no-any-return]

        def keep(report: Report) -> bytes:
            return pickle.dumps((report, self._job, self._outputs, self._states))

        return self._replay.part("process", partial(super().process, job, portions), restore, keep)

    def publish(self) -> None:
        self._replay.part("publish", super().publish, pickle.loads, pickle.dumps)

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        write = partial(super().persist, level, plan_id, before)
        rows: int = self._replay.part("persist", write, pickle.loads, pickle.dumps)
        return rows


class PartwiseAggregation(StagedService):
    """A service within a rebuild; its start, and each of its batches, are parts of an execution."""

    __slots__ = ("_replay",)

    def __init__(self, replay: Replay, env: Environment) -> None:
        super().__init__(env)
        self._replay = replay

    def start(self) -> StartResult:
        return self._replay.part("start", super().start, self._restore, self._keep)

    def batch(self, *, at_end: bool = False, final: bool = False) -> BatchResult:
        batch = partial(super().batch, at_end=at_end, final=final)
        return self._replay.part("batch", batch, self._restore, self._keep)

    def _keep(self, result: object) -> bytes:
        known = {own.name: getattr(self, own.name) for own in fields(StagedService) if own.name != "env"}
        return dump((result, known), self.env)

    def _restore(self, data: bytes) -> Any:
        result, known = load(data, self.env)
        for name, value in known.items():
            setattr(self, name, value)
        return result


def _way_to_retry() -> Way:
    """The functions on the stack, up to the innermost `Retry.call`."""
    found, frame = list[tuple[str, int]](), sys._getframe(2)
    while frame.f_back is not None and frame.f_code is not _RETRY.__code__:
        found.append((frame.f_code.co_qualname, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, env: Environment) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(env): "env", id(env.flow): "flow"}

    def persistent_id(self, obj: object) -> str | None:
        return self._names.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, env: Environment) -> None:
        super().__init__(file)
        self._env = env

    def persistent_load(self, pid: str) -> object:
        return self._env if pid == "env" else self._env.flow


def dump(state: object, env: Environment) -> bytes:
    """Objects as bytes, but for the environment: that has no state of its own between two parts."""
    file = io.BytesIO()
    _Pickler(file, env).dump(state)
    return file.getvalue()


def load(data: bytes, env: Environment) -> Any:
    """What `dump` has made."""
    return _Unpickler(io.BytesIO(data), env).load()
