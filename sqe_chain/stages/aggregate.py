"""Aggregate: fold the units of a key, one by one and in order, into the state of that key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqe_chain.codecs import Codec
from sqe_chain.codecs.sql_columns import columns_of
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import ITERABLES, check_values, title_of
from sqe_chain.flow.stage_kind import (
    NOTHING,
    LiveState,
    StageKind,
    StageTask,
    StageTraits,
    StageWork,
)
from sqe_chain.flow.state_table import StateTable
from sqe_chain.flow.stored import unreadable
from sqe_chain.flow.units import Push, Unit, UnitRun, number
from sqe_chain.stages.own_values import state_left, unstorable

_Emissions = Iterable[object] | None

_RECENT: Final = 4
"""Runs whose last inputs need no origin yet: most keys come again before that."""


@dataclass(frozen=True)
class AggregateKind(StageKind):
    """The kind of `Stream.aggregate`.

    Attributes:
        fold: ``(state, value) -> None | iterable of values``.
        states: codec of the states.
    """

    name = "aggregate"

    fold: DeclaredFunction
    states: Codec[Any]

    @property
    def codec(self) -> Codec[Any]:
        return self.states

    @property
    def state_table(self) -> StateTable:
        return StateTable(self.states, columns_of(self.states))

    @property
    def traits(self) -> StageTraits:
        return StageTraits(
            called="aggregate",
            needs=NOTHING,
            needs_key=True,
            maker=self.fold.function,
            states_by_key=True,
            gives_later=False,
            reversible=True,
            sides=("changes",),
        )

    def start(self, task: StageTask) -> Aggregate:
        return Aggregate(self, task)


@dataclass(slots=True)
class Aggregate(StageWork):
    """One aggregate's work on one state partition in one batch.

    Attributes:
        kind: the stage.
        task: its table, clock and callbacks.
        entries: the keys of this batch: live states, and None for a key whose row already contains this batch.
    """

    kind: AggregateKind
    task: StageTask
    entries: dict[bytes, LiveState | None] = field(default_factory=dict)
    # What makes of a state what decoding would make of it, after each fold; None: there is nothing to do.
    _settle: Callable[[Any], None] | None = field(init=False)
    _maker: str = field(init=False)
    # The input whose units come now, and one whose other units are skipped because it has failed. Only
    # `_fold_with_care` sets them.
    _input: Origin | None = None
    _failing: Origin | None = None
    # Key -> its state, origin and deletion from before `_input`. Invariant: it has exactly the keys that `_input` has
    # changed.
    _kept: dict[bytes, tuple[bytes, Origin | None, bool]] = field(default_factory=dict)
    # The last runs of `_fold_run`, oldest first: each with key -> index of its last unit. Their keys have no origin
    # yet.
    _recent: deque[tuple[UnitRun, dict[bytes, int]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._settle = self.kind.states.settle
        self._maker = f"stage {self.task.name!r}: fold {title_of(self.kind.fold.function)}"

    def apply(self, units: Sequence[Unit]) -> None:
        """Fold units in the order given."""
        run = UnitRun.of(units, timed=False)
        missing = set(run.keys).difference(self.entries)
        if missing:
            self._load(sorted(missing))
        if self.kind.fold.takes_context or self.task.reversible:
            self._fold_with_care(run)
        else:
            self._fold_run(run)

    def _load(self, keys: Sequence[bytes]) -> None:
        """Load the stored states of keys that this batch has not used before."""
        table, codec, entries = self.task.table, self.kind.states, self.entries
        table.load(keys)
        untouched = table.untouched
        for key in keys:
            # An earlier attempt wrote it: to fold again would count twice.
            if not untouched and table.settled(key):
                entries[key] = None
            else:
                data = table.take(key)  # the live state replaces it: no need to hold its bytes as well
                try:
                    entries[key] = LiveState(codec.new() if data is None else codec.decode(data))
                except Exception as error:
                    raise unreadable(f"key {key!r}", error) from error

    def _fold_run(self, run: UnitRun) -> None:
        """Fold units with a function that takes the value alone, and whose changes nobody reverts."""
        entries, paths, task = self.entries, run.paths, self.task
        if task.applies is not None:
            task.applies(run)
        # A number is enough where the caller knows the run, or nobody takes what is given; then no origin is made.
        numbered = task.applies is not None or task.emit is None
        fold: Any = self.kind.fold.function
        settle = self._settle
        each = enumerate(zip(run.keys, run.values, strict=True))
        index = 0
        # Bounded by the units: `each` goes on behind the one that failed. One try around the loop costs less than one for each.
        while True:
            try:
                for index, (key, value) in each:
                    entry = entries[key]
                    if entry is None:
                        continue
                    emissions = fold(entry.state, value)
                    if emissions is not None:
                        origin = index if numbered else run.origin(index)
                        self._push(emissions, entry.state, key, paths[index], origin)
                    if settle is not None:
                        settle(entry.state)
                break
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                task.failed(run.origin(index), error, run.keys[index])
        self._recent.append((run, dict(zip(run.keys, range(len(run)), strict=True))))
        if len(self._recent) > _RECENT:
            self._give_origins()

    def _give_origins(self) -> None:
        """Mark states that the oldest of the recent runs was the last to change with the input that did so."""
        run, last = self._recent.popleft()
        left = set(last)
        for _, later in self._recent:
            left.difference_update(later)
        told = self.task.changes
        changed_by = None if told or not left else run.origin(0)  # nobody asks by which one
        for key in left:
            entry = self.entries[key]
            if entry is not None:
                entry.origin = changed_by or run.origin(last[key])

    def _fold_with_care(self, run: UnitRun) -> None:
        """Fold units so that the changes of an input that fails can be reverted, or with a function that takes the context."""
        entries, task = self.entries, self.task
        for index, (key, value) in enumerate(zip(run.keys, run.values, strict=True)):
            entry, origin = entries[key], run.origin(index)
            if entry is None:
                continue
            if not origin.same_input(self._input):
                self._revert_suspect()
                self._kept.clear()
                self._input = origin
            if origin.same_input(self._failing):  # an input counts as a whole or not at all
                continue
            try:
                self._fold_one(entry, key, value, run.paths[index], origin)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                task.failed(origin, error, key)
                self._failing = origin
                self._revert()
                continue
            entry.origin = origin  # only after the fold has succeeded: marks the state as changed

    def finish(self) -> None:
        """Put new states into the table.

        Raises:
            PoisonError: a state as the fold left it cannot be stored.
        """
        self._revert_suspect()
        while self._recent:
            self._give_origins()
        table, seen = self.task.table, set[int]()
        for key, entry in sorted(self.entries.items()):
            if entry is None or entry.origin is None:  # written already, or not changed
                continue
            if entry.deleted:
                table.delete(key)
            else:
                table.put(key, self._encoded(key, entry, seen))

    def _encoded(self, key: bytes, entry: LiveState, seen: set[int]) -> bytes:
        try:
            return self.kind.states.encode_state(entry.state, seen)
        except Exception as error:
            raise unstorable(self._maker, key, error) from error

    def push_changes(self, push: Push) -> None:
        """Pass each changed key's newest state to the operators after `changes()`; None for a deleted state.

        In the order (last input that changed the state, key).
        """
        touched = [
            (entry.origin, key, entry) for key, entry in self.entries.items() if entry and entry.origin
        ]
        # By input, so that each gives its outputs in one go; by key, so that every attempt gives them in the same order.
        touched.sort(key=lambda change: (change[0].order, change[1]))
        for origin, key, entry in touched:
            push(None if entry.deleted else entry.state, key, b"", origin)

    def _revert_suspect(self) -> None:
        """Revert the current input, now complete, if it is a candidate for failure."""
        if self._input is not None and self._input.order in self.task.candidates:
            self._revert()

    def _fold_one(self, entry: LiveState, key: bytes, value: object, path: bytes, origin: Origin) -> None:
        """Fold a value, pass on what is given, and keep the state from before this input so that `_revert` can restore it."""
        if self.task.reversible and key not in self._kept:
            self._kept[key] = self.kind.states.encode(entry.state), entry.origin, entry.deleted
        fold: Any = self.kind.fold.function
        context = Context(origin, key, self.task.now_ms) if self.kind.fold.takes_context else None
        emissions: _Emissions = (
            fold(entry.state, value) if context is None else fold(entry.state, value, context)
        )
        if emissions is not None:
            self._push(emissions, entry.state, key, path, origin)
        if context is not None:  # a generator has run to its end now
            entry.deleted = context.state_deleted
            if entry.deleted:
                entry.state = self.kind.states.new()
        if self.task.reversible:
            # At the end of the batch nobody knows which input is to blame, nor for an object that two states share.
            entry.state = state_left(self.kind.states, entry.state, self._maker, key)
        elif self._settle is not None:
            self._settle(entry.state)

    def _push(
        self, emissions: Iterable[object], state: object, key: bytes, path: bytes, origin: Origin | int
    ) -> None:
        """Pass on each value before the next is made: a generator may change the state between them."""
        if emissions is state or emissions.__class__ not in ITERABLES:
            check_values("fold", self.kind.fold.function, emissions, state)
        emit: Any = self.task.emit
        settle = self._settle
        for index, emission in enumerate(emissions):
            if settle is not None:
                settle(state)
            if emit is not None:
                emit(emission, key, path + number(index), origin)

    def _revert(self) -> None:
        """Restore every state that the current input has changed."""
        for key, (state, origin, deleted) in self._kept.items():
            entry = self.entries[key]
            if entry is None:
                raise AssertionError("only a key that was folded can be reverted")
            # From bytes: an object that was kept would have been changed by the fold, too.
            entry.state = self.kind.states.decode(state)
            entry.origin, entry.deleted = origin, deleted
