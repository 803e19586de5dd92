"""Breadth first, layer after layer: each layer holds the states that are one step further away.

A state is a number of 64 bits, exact, no hash. A layer is a sorted array of them on disk, with another one that holds for each
state one from which it was reached. Which states are new is found by sorting and comparing, so that a state takes 8 bytes of
memory and 16 of disk.
"""

from __future__ import annotations

import os
import pickle
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sqe_chain.testing.invariants import Violation
from tests.lab.explorer.states import States

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.lab.explorer.configurations import Configuration

    Numbers = NDArray[np.uint64]

_CHUNK: Final = 100_000
"""States that are looked at before their successors are sorted."""
_EFFECTS: Final = 500_000
_RUNS: Final = 6
"""Sorted arrays in which a state is looked for."""


class Visited:
    """The states seen so far, in a few sorted arrays."""

    def __init__(self) -> None:
        self._arrays: list[Numbers] = []

    def __len__(self) -> int:
        return sum(map(len, self._arrays))

    def new(self, states: Numbers) -> NDArray[np.bool_]:
        """Which of these sorted states are not among them."""
        fresh = np.ones(len(states), dtype=bool)
        for known in self._arrays:
            at = np.searchsorted(known, states)
            at[at == len(known)] = 0
            fresh &= known[at] != states
        return fresh

    def add(self, states: Numbers) -> None:
        """Add states that are new, sorted."""
        if len(states):
            self._arrays.append(states)
        while len(self._arrays) > 1 and (
            len(self._arrays) > _RUNS or len(self._arrays[-2]) < 2 * len(self._arrays[-1])
        ):
            last, before = self._arrays.pop(), self._arrays.pop()
            both = np.concatenate([before, last])
            both.sort(kind="stable")
            self._arrays.append(both)


@dataclass(slots=True)
class Exploration:
    """Explores one configuration.

    Args:
        configuration: what is explored.
        directory: holds the layers, and what is needed to go on after an interruption.
        merges: see `Runs`.

    Attributes:
        states: what can happen.
        layers: number of states of each layer.
        steps: steps taken so far, to states that were known as well.
        violation: the first one; None when there was none.
        path: the steps to it: names, and texts.
        whole: everything was explored.
        seconds: how long that took, over all processes.
    """

    configuration: Configuration
    directory: Path
    merges: bool = True
    states: States = field(init=False)
    layers: list[int] = field(default_factory=list)
    steps: int = 0
    violation: Violation | None = None
    path: list[tuple[str, str]] = field(default_factory=list)
    whole: bool = False
    seconds: float = 0.0
    _visited: Visited = field(default_factory=Visited)
    _began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Begin, or go on where another process was interrupted."""
        self.states = States(self.configuration, merges=self.merges)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._table_file.exists():
            self._resume()

    @property
    def found(self) -> int:
        """Distinct states found so far."""
        return sum(self.layers)

    def run(
        self, *, most: int | None = None, seconds: float | None = None, save_s: float = 300
    ) -> Iterator[None]:
        """Explore; yields after each layer.

        Args:
            most: end after this number of states.
            seconds: end after so long.
            save_s: how often to save what is needed to go on, in seconds.
        """
        try:
            if not self.layers:
                first = np.array([self.states.first()], dtype=np.uint64)
                self._keep(first, first)
            layer = self._layer("states", len(self.layers) - 1)
            saved = time.perf_counter()
            while len(layer):
                layer = self._next_layer(layer)
                now = time.perf_counter()
                self.seconds, self._began = self.seconds + now - self._began, now
                if not len(layer):
                    break
                if now - saved > save_s:
                    self._save()
                    saved = time.perf_counter()
                yield
                if (most and self.found >= most) or (seconds and self.seconds >= seconds):
                    self._save()
                    return
            self.whole = True
        except Violation as violation:
            self.violation = violation

    def counts(self) -> dict[str, int]:
        """What there was to explore."""
        states, durable = self.states, self.states.durable
        return {
            "states": self.found,
            "steps": self.steps,
            "layers": len(self.layers),
            "durable_states": len(durable.states),
            "histories": len(states.runs.nodes),
            "runs_executed": states.runs.replays,
            "calls_made": durable.made,
        }

    # ------------------------------------------------------------------ layers

    def _next_layer(self, layer: Numbers) -> Numbers:
        found: list[tuple[Numbers, Numbers]] = []
        for first in range(0, len(layer), _CHUNK):
            chunk = layer[first : first + _CHUNK]
            to, origin = array("Q"), array("Q")
            for state in chunk.tolist():
                try:
                    following = self.states.after(state)
                except Violation:
                    self.path = self._path_to(state)
                    raise
                to.extend(following)
                origin.extend([state] * len(following))
            self.steps += len(to)
            self.states.forget_effects(_EFFECTS)
            found.append(self._fresh(np.array(to, dtype=np.uint64), np.array(origin, dtype=np.uint64)))
        states = np.concatenate([one for one, _ in found])
        origins = np.concatenate([one for _, one in found])
        states, at = np.unique(states, return_index=True)
        self._keep(states, origins[at])
        return states

    def _fresh(self, states: Numbers, origins: Numbers) -> tuple[Numbers, Numbers]:
        states, at = np.unique(states, return_index=True)
        fresh = self._visited.new(states)
        return states[fresh], origins[at][fresh]

    def _keep(self, states: Numbers, origins: Numbers) -> None:
        if not len(states):
            return
        number = len(self.layers)
        np.save(self._file("states", number), states)
        np.save(self._file("origins", number), origins)
        self.layers.append(len(states))
        self._visited.add(states)

    def _file(self, what: str, layer: int) -> Path:
        return self.directory / f"{what}-{layer:05}.npy"

    def _layer(self, what: str, layer: int) -> Numbers:
        return np.load(self._file(what, layer))  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ the way to a state

    def _path_to(self, state: int) -> list[tuple[str, str]]:
        """The shortest way to a state of the last layer, and the step after it that breaks something."""
        way = [state]
        for layer in range(len(self.layers) - 1, 0, -1):
            states = self._layer("states", layer)
            at = int(np.searchsorted(states, np.uint64(way[-1])))
            way.append(int(self._layer("origins", layer)[at]))
        way.reverse()
        path = [self._step(here, to) for here, to in pairwise(way)]
        for move in self.states.moves(state):
            try:
                move.make()
            except Violation:
                return [*path, (move.name, move.text)]
        return path

    def _step(self, here: int, to: int) -> tuple[str, str]:
        return next((move.name, move.text) for move in self.states.moves(here) if move.make() == to)

    # ------------------------------------------------------------------ interruptions

    @property
    def _table_file(self) -> Path:
        return self.directory / "tables.pickle"

    def _save(self) -> None:
        saved: dict[str, Any] = {
            "configuration": self.configuration,
            "layers": self.layers,
            "steps": self.steps,
            "seconds": self.seconds,
            "tables": self.states.tables(),
        }
        file = self._table_file.with_suffix(".new")
        with file.open("wb") as out:
            pickle.dump(saved, out, protocol=5)
            out.flush()
            os.fsync(out.fileno())
        file.rename(self._table_file)

    def _resume(self) -> None:
        with self._table_file.open("rb") as data:
            saved = pickle.load(data)  # noqa: S301 - our own
        if saved["configuration"] != self.configuration:
            raise ValueError(
                f"{self.directory} holds an exploration of {saved['configuration']}; give another directory"
            )
        self.layers, self.steps, self.seconds = saved["layers"], saved["steps"], saved["seconds"]
        self.states.load(saved["tables"])
        for layer in range(len(self.layers)):
            self._visited.add(self._layer("states", layer))


def follow(configuration: Configuration, path: str, show: Callable[[str, str], None]) -> Violation | None:
    """Take the steps of a path.

    Args:
        configuration: what it is about.
        path: names of steps, with blanks between them.
        show: called with the name and the text of each.

    Returns:
        What it breaks; None: nothing.

    Raises:
        ValueError: it does not fit the configuration, or the code.
    """
    states = States(configuration)
    try:
        state = states.first()
        for name in path.split():
            move = next((one for one in states.moves(state) if one.name == name), None)
            if move is None:
                there = " ".join(one.name for one in states.moves(state))
                raise ValueError(f"there is no step {name!r} here; there are {there}")
            show(move.name, move.text)
            state = move.make()
        states.after(state)  # what is not at rest although nothing more happens
    except Violation as violation:
        return violation
    return None
