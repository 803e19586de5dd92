"""Aggregate: fold the units of a key, one by one in their order, into the state of that key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqe_chain.codecs import Codec
from sqe_chain.errors import PoisonError
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.stages.units import APPLIED, Loaded, Push, Unit, number

Emissions = Iterable[object] | None
Failed = Callable[[Origin, Exception], None]


class Entry:
    """One key's state while a batch runs.

    Attributes:
        state: the live state.
        origin: the last input that touched it; None before the first.
        deleted: the last fold deleted it.
    """

    __slots__ = ("deleted", "origin", "state")

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - of the type that the stage declares
        self.state = state
        self.origin: Origin | None = None
        self.deleted = False


@dataclass(slots=True)
class Aggregate:
    """One stage's work on one state partition in one batch. Knows no store and no log.

    Attributes:
        node: the stage.
        now_ms: the batch's clock.
        emit: takes what the fold emits; None when nobody wants it.
        before_input: called with the next input before its first unit is folded.
        failed: called when the fold or the steps after it raise; all keys of that input go back to what they
            were before it, and the run goes on to find more. Raises to stop at once.
        careful: keep what is needed to go back.
        suspects: topic, partition and offset of inputs on trial: each is folded, and goes back.
    """

    node: StageNode
    now_ms: int
    emit: Push | None
    before_input: Callable[[Origin], None]
    failed: Failed
    careful: bool = False
    suspects: frozenset[tuple[str, int, int]] = frozenset()
    entries: dict[bytes, Entry | None] = field(default_factory=dict)
    _input: Origin | None = None
    _failing: Origin | None = None
    _kept: dict[bytes, tuple[bytes, Origin | None, bool]] = field(default_factory=dict)

    def add(self, keys: Sequence[bytes], stored: Sequence[Loaded]) -> None:
        """Take in the stored states of keys not seen yet in this batch; see `PartitionStates.load`."""
        codec = self._codec
        for key, data in zip(keys, stored, strict=True):
            if data is APPLIED:
                self.entries[key] = None
            else:
                self.entries[key] = Entry(codec.new() if data is None else codec.decode(data))

    def fold(self, units: Sequence[Unit]) -> None:
        """Fold units in the order given.

        Every key was given by `add` before.
        """
        entries = self.entries
        fold: Any = self.node.fold
        plain = not self.node.takes_context and not self.careful
        emit, origin = self.emit, self._input
        for key, value, _, path, unit_origin in units:
            entry = entries[key]
            if entry is None:
                continue
            if unit_origin is not origin:
                origin = unit_origin
                if emit is not None or not plain:
                    self._next_input(origin)
            try:
                if plain:
                    emissions = fold(entry.state, value)
                elif origin is self._failing:
                    continue
                else:
                    emissions = self._fold_with_care(entry, key, value, origin)
                if emissions is not None:
                    self._push(emissions, key, path, origin, emit)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                self.failed(origin, error)
                self._failing = origin
                self._go_back()
                continue
            entry.origin = origin
        self._input = origin

    def changed(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and new states, in key order; None for a deleted one. After the last unit.

        Raises:
            PoisonError: the fold has made a state of what cannot be stored.
        """
        self._take_back()
        return [
            (key, None if entry.deleted else self._encoded(key, entry))
            for key, entry in sorted(self.entries.items())
            if entry is not None and entry.origin is not None
        ]

    def _encoded(self, key: bytes, entry: Entry) -> bytes:
        try:
            return self._codec.encode_state(entry.state)
        except Exception as error:
            raise self._unstorable(key, error) from error

    def _unstorable(self, key: bytes, error: Exception) -> PoisonError:
        return PoisonError(
            f"stage {self.node.name!r}: the fold (declared at {self.node.place}) has made a state of key {key!r} that "
            f"cannot be stored as {self._codec.type_name}: {type(error).__name__}: {error}"
        )

    @property
    def _codec(self) -> Codec[Any]:
        if self.node.codec is None:
            raise AssertionError(f"{self.node.place}: an aggregate has states")
        return self.node.codec

    def push_changes(self, push: Push) -> None:
        """Give each changed key's newest state to the steps behind `changes()`.

        In the order (last input that touched it, key); a deleted state as None.
        """
        touched = [
            (entry.origin, key, entry) for key, entry in self.entries.items() if entry and entry.origin
        ]
        touched.sort(key=lambda one: (one[0].order, one[1]))
        self._input = None
        for origin, key, entry in touched:
            if origin is not self._input:
                self._next_input(origin)
            push(None if entry.deleted else entry.state, key, b"", origin)

    def _next_input(self, origin: Origin) -> None:
        if self.suspects:
            self._take_back()
        self.before_input(origin)
        self._kept.clear()
        self._input = origin

    def _take_back(self) -> None:
        """The input at hand is complete; a suspect goes back."""
        if self._input is not None and self._input.order in self.suspects:
            self._go_back()

    def _fold_with_care(self, entry: Entry, key: bytes, value: object, origin: Origin) -> Emissions:
        """Fold with a context, keeping what is needed to go back to before this input."""
        if self.careful and key not in self._kept:
            self._kept[key] = self._codec.encode(entry.state), entry.origin, entry.deleted
        fold: Any = self.node.fold
        if not self.node.takes_context:
            plain: Emissions = fold(entry.state, value)
            self._check_storable(key, entry)
            return plain
        context = Context(origin, key, self.now_ms)
        emissions: Emissions = fold(entry.state, value, context)
        if emissions is not None:
            emissions = list(emissions)
        entry.deleted = context.state_deleted
        if entry.deleted:
            entry.state = self._codec.new()
        self._check_storable(key, entry)
        return emissions

    def _check_storable(self, key: bytes, entry: Entry) -> None:
        """Of a state that cannot be stored, the input that made it so is to blame: later nobody knows which it was."""
        if self.careful and not self._codec.self_checking:
            try:
                self._codec.encode_state(entry.state)
            except Exception as error:
                raise self._unstorable(key, error) from error

    def _push(
        self, emissions: Iterable[object], key: bytes, path: bytes, origin: Origin, emit: Push | None
    ) -> None:
        for index, emission in enumerate(emissions):
            if emit is not None:
                emit(emission, key, path + number(index), origin)

    def _go_back(self) -> None:
        """Every key that the input at hand has touched gets back the state that it had before."""
        for key, (state, origin, deleted) in self._kept.items():
            entry = self.entries[key]
            if entry is None:
                raise AssertionError("only a key that was folded goes back")
            entry.state = self._codec.decode(state)
            entry.origin, entry.deleted = origin, deleted
