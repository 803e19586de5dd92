"""The fast paths of ordinary messages: into the states of their keys, and (`ordered_path`) into stages that go by event time.

Most messages of an aggregation are ordinary in every respect: one payload of the declared type, next
on a lane that is known, one unit, a key whose state is loaded, a fold that emits to nobody. A run of such
messages is decided about as a whole (`replays.runs`) and folded in one loop. All others go through
`SourcePartition` and `Level`, in their turn. The results are those that these would give (a property test
compares them).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sqe_chain.chain import stored_epoch
from sqe_chain.envelope.block import EnvelopeBlock
from sqe_chain.flow.context import Origin, new_origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import LiveState, PlainFold
from sqe_chain.flow.units import Unit
from sqe_chain.partitioner import key_bytes
from sqe_chain.ports import Message
from sqe_chain.replays.runs import accept_run
from sqe_chain.segment.level import Level
from sqe_chain.segment.poison import exclusion_of
from sqe_chain.segment.source_partition import SourcePartition

_FIRST: Final = bytes(4)  # the path of an only payload
KNOWN_KEYS: Final = 200_000
"""Keys that are remembered as text."""
WORTHWHILE = 50
"""Messages of a run; for fewer of them the columns cost more than they save."""


class FastPath(ABC):
    """One input partition, straight into one stage, in place.

    Args:
        inputs: takes the records that are not ordinary.
        level: takes their units.
        stage: the only stage after the source.
    """

    def __init__(self, inputs: SourcePartition, level: Level, stage: StageNode) -> None:
        self._inputs = inputs
        self._level = level
        self._stage = stage
        self._type_name = inputs.node.codec.type_name.encode() if inputs.node.codec else b""

    def feed(self, messages: Sequence[Message]) -> None:
        """Take a block of records, and fold it."""
        if len(messages) < WORTHWHILE:
            self._inputs.feed(messages)
            return
        block = EnvelopeBlock(messages, self._type_name)
        replays = begin = 0
        for end in (*np.flatnonzero(~block.columns.ordinary).tolist(), len(messages)):
            if end - begin >= WORTHWHILE and self._take(block, begin, end):
                begin = end
            replays += self._one_by_one(messages[begin : end + 1])
            begin = end + 1
        self._inputs.count(messages, replays, block.size)

    @abstractmethod
    def _take(self, block: EnvelopeBlock, begin: int, end: int) -> bool:
        """Take a run of ordinary messages; False when one of them needs a closer look, and nothing was done."""

    def _one_by_one(self, messages: Sequence[Message]) -> int:
        """Take records one by one. Returns how many of them were replays."""
        replays = self._inputs.take(messages)
        self._fold_units(self._inputs.collector.units[self._stage.index])
        return replays

    def _fold_units(self, units: list[Unit]) -> None:
        if units:
            self._level.fold(self._stage.index, units)
            units.clear()

    def _origin(self, block: EnvelopeBlock, index: int, order_ms: int = -1) -> Origin:
        inputs, message, head = self._inputs, block.messages[index], block.head(index)
        epoch, lane = stored_epoch(message.leader_epoch()), inputs.read_lane(head.lane)
        position = block.position(index)
        return new_origin((inputs.tp, message.offset(), epoch, lane, position, head, message, None, order_ms))


class PlainPath(FastPath):
    """Into the live states of their keys: no message becomes a unit.

    Args:
        inputs: takes the records that are not ordinary.
        level: takes their units.
        stage: the only node after the source.
        plain: how it lets messages be folded.
    """

    def __init__(self, inputs: SourcePartition, level: Level, stage: StageNode, plain: PlainFold) -> None:
        super().__init__(inputs, level, stage)
        self._plain = plain
        self._known: dict[bytes | str, LiveState] = {}  # so that a key of text need not be encoded
        # Only `changes()` asks for the last input of a key; that there was one is known from its first.
        self._told = any(child.side == "changes" for child in inputs.flow.children(stage.index))

    @classmethod
    def of(cls, inputs: SourcePartition, level: Level | None) -> PlainPath | None:
        """The fast path, where the flow allows it; None where it does not."""
        children = inputs.flow.children(inputs.node.index)
        if level is None or inputs.skipped or inputs.flow.poison != "stop" or len(children) != 1:
            return None
        source, stage = inputs.node, children[0]
        if not isinstance(stage, StageNode) or stage.key is None or stage.key_takes_context:
            return None
        if source.codec is None or source.raw or source.timestamp is not None:
            return None
        plain = level.plain_fold(stage.index)
        return None if plain is None else cls(inputs, level, stage, plain)

    def _take(self, block: EnvelopeBlock, begin: int, end: int) -> bool:
        if not accept_run(self._inputs.marks, block, begin, end):
            return False
        self._fold(block, begin, end)
        self._inputs.observe_run(block.columns, range(begin, end), block.values)
        return True

    def _fold(self, block: EnvelopeBlock, begin: int, end: int) -> None:
        """Fold a run of ordinary messages."""
        (entries, fold), known = self._plain, self._known
        codec: Any = self._inputs.node.codec
        decode = codec.decode
        key_of: Any = self._stage.key
        touched: dict[LiveState, int] | None = {} if self._told else None
        waiting: list[Unit] = []
        index = begin
        try:
            for index, payload in enumerate(block.payloads(begin, end), begin):
                unit = decode(payload)
                key = key_of(unit)
                if key.__class__ is not str and key.__class__ is not bytes:
                    key = key_bytes(key)
                entry = known.get(key)
                if entry is None:
                    own = key_bytes(key)
                    entry = entries.get(own)
                    if (
                        entry is None
                    ):  # not loaded yet, or written by an earlier attempt: for `Level` to decide
                        # All later units of this key come here too, so its order is kept. The order between keys does not
                        # matter: on this path nobody takes what the fold emits.
                        waiting.append((own, unit, "", _FIRST, self._origin(block, index)))
                        continue
                    if len(known) >= KNOWN_KEYS:
                        known.clear()
                    known[key] = entry
                emissions = fold(entry.state, unit)
                if emissions is not None:  # a generator changes the state only while it is run
                    deque(emissions, maxlen=0)
                if touched is not None:
                    touched[entry] = index
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            exclusion_of(self._inputs.flow, self._origin(block, index), error)  # raises: the policy is `stop`
        for entry, last in (touched or {}).items():
            entry.origin = self._origin(block, last)
        self._fold_units(waiting)
