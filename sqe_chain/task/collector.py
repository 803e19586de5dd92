"""What the operators have made, until a stage or an output takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqe_chain.envelope.partitioner import key_bytes
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode

# A bound on memory; keys may always be new.
_KNOWN_KEYS: Final = 200_000

Made = tuple[int, bytes | None, str, bytes | None]
"""A payload on its way into an output: index of the output's node, key, name of its type, encoded
payload (None for a deleted state)."""


@dataclass(slots=True)
class RunColumns:
    """Units for one stage, side by side.

    Attributes:
        keys: their keys.
        values: their values.
        paths: their paths.
        inputs: of each, which record of the block it comes from.
    """

    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    paths: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def keep(self, indexes: Sequence[int]) -> None:
        """Forget all but some, which come in this order."""
        for column in (self.keys, self.values, self.paths, self.inputs):
            column[:] = [column[index] for index in indexes]

    def sort(self) -> None:
        """Bring them into the order of their inputs, and in that of their paths."""
        order = sorted(
            range(len(self.inputs)), key=list(zip(self.inputs, self.paths, strict=True)).__getitem__
        )
        self.keep(order)

    def taken(self) -> RunColumns:
        """All of them, and forget them."""
        columns = RunColumns(self.keys[:], self.values[:], self.paths[:], self.inputs[:])
        # Generated text appends to four lists, value first. A codec that refuses a value must leave all of them as they were.
        if not len(columns.keys) == len(columns.values) == len(columns.paths) == len(columns.inputs):
            raise AssertionError("a unit was added in part: values would go under the keys of others")
        self.clear()
        return columns

    def clear(self) -> None:
        """Forget all."""
        self.keys.clear()
        self.values.clear()
        self.paths.clear()
        self.inputs.clear()


class Collector:
    """What the operators have made.

    Attributes:
        units: stage index -> units. Those of a run of records that come before a shuffle have, instead of an origin, the
            number of the record in the block.
        runs: stage index -> units of a run of records, for stages without a shuffle.
        made: payloads for outputs.
        batches: index of a `map_batches` -> units of a run of records on their way into it.
        made_of: what each payload comes from: its origin; of a run the number of the record in the block.
        made_paths: of a run: the path of each, where they may come in another order; see `order_matters`.
        keys: texts that were keys -> their bytes.
    """

    __slots__ = ("batches", "keys", "made", "made_of", "made_paths", "runs", "units")

    def __init__(self, flow: CompiledFlow) -> None:
        self.units: dict[int, list[Any]] = {}
        self.runs: dict[int, RunColumns] = {}
        self.batches: dict[int, RunColumns] = {}
        for node in flow.nodes:
            if isinstance(node, StageNode):
                self.units[node.index], self.runs[node.index] = [], RunColumns()
            elif isinstance(node, MapBatchesNode):
                self.batches[node.index] = RunColumns()
        self.made: list[Made] = []
        self.made_of: list[Any] = []
        self.made_paths: list[bytes] = []
        self.keys: dict[str, bytes] = {}

    def new_key(self, text: str) -> bytes:
        """The bytes of a key; remembered in `keys`."""
        if len(self.keys) >= _KNOWN_KEYS:
            self.keys.clear()
        known = self.keys[text] = key_bytes(text)
        return known

    def forget(self) -> None:
        """Forget payloads."""
        self.made.clear()
        self.made_of.clear()

    def sort(self) -> None:
        """Bring what a run has made into the order of its inputs, and in that of paths."""
        for columns in self.runs.values():
            columns.sort()
        for units in self.units.values():
            units.sort(key=lambda unit: (unit[4], unit[3]))
        each = list(zip(self.made_of, self.made_paths, strict=True))
        order = sorted(range(len(each)), key=each.__getitem__)
        self.made[:] = [self.made[index] for index in order]
        self.made_of[:] = [self.made_of[index] for index in order]
        self.made_paths.clear()
