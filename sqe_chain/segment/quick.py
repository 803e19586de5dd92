"""The short way of ordinary messages into the states of their keys.

Most messages of an aggregation are ordinary in every respect: one payload of the declared type, next
on a lane that is known, one unit, a key whose state is loaded, a fold that emits to nobody. A run of such
messages is decided about as a whole, by columns, and folded in one loop. Whatever is not ordinary goes the
general way (`Inputs`, `Level`), at its own place in the order: there is no second rule here, only the
answer that the general way would give (a property test compares them).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sqe_chain.chain import ORDINAL_LENGTH, ROOT_LENGTH, root_position, stored_epoch
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.flow.context import Origin, new_origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import LiveState, PlainFold
from sqe_chain.flow.units import Unit
from sqe_chain.partitioner import key_bytes
from sqe_chain.ports import Message
from sqe_chain.replays.marks import Mark
from sqe_chain.segment.columns import Columns, Ints, Rows
from sqe_chain.segment.inputs import Inputs, envelopes_of
from sqe_chain.segment.level import Level
from sqe_chain.segment.poison import exclusion_of

_FIRST: Final = bytes(4)  # the path of an only payload
_KNOWN_KEYS: Final = 200_000
WORTHWHILE = 50
"""Messages of a run; for fewer of them the columns cost more than they save."""
_ROOT: Final = np.dtype([("epoch", ">u4"), ("offset", ">u8")])
_OF_SIZE: Final = 4
_parse_head: Final = EnvelopeHead.FromString


class Quick:
    """One input partition, straight into one stage, in place.

    Args:
        inputs: the general way of the partition.
        level: the general way of the state partition.
        stage: the only stage behind the source.
        plain: how it lets messages be folded.
    """

    def __init__(self, inputs: Inputs, level: Level, stage: StageNode, plain: PlainFold) -> None:
        self._inputs = inputs
        self._level = level
        self._stage = stage
        self._type_name = inputs.node.codec.type_name.encode() if inputs.node.codec else b""
        self._plain = plain
        self._known: dict[bytes | str, LiveState] = {}  # so that a key of text need not be encoded
        # Only `changes()` asks for the last input of a key; that there was one is known from its first.
        self._told = any(child.side == "changes" for child in inputs.flow.children(stage.index))

    @classmethod
    def of(cls, inputs: Inputs, level: Level | None) -> Quick | None:
        """The short way, where the flow allows it; None where it does not."""
        children = inputs.flow.children(inputs.node.index)
        if level is None or inputs.skipped or inputs.flow.poison != "stop" or len(children) != 1:
            return None
        source, stage = inputs.node, children[0]
        if not isinstance(stage, StageNode) or stage.key is None or stage.key_takes_context:
            return None
        if source.codec is None or source.raw:
            return None
        plain = level.plain_fold(stage.index)
        return None if plain is None else cls(inputs, level, stage, plain)

    def feed(self, messages: Sequence[Message]) -> None:
        """Take a block of records, and fold it."""
        if len(messages) < WORTHWHILE:
            self._inputs.feed(messages)
            return
        run = _Block(messages, self._type_name)
        replays = begin = 0
        for end in (*np.flatnonzero(~run.columns.ordinary).tolist(), len(messages)):
            if end - begin >= WORTHWHILE and self._accept(run, begin, end):
                self._fold(run, begin, end)
                begin = end
            replays += self._general(messages[begin : end + 1])
            begin = end + 1
        self._inputs.count(messages, replays, run.size)

    def _general(self, messages: Sequence[Message]) -> int:
        """Take records the general way. Returns how many of them were replays."""
        replays = self._inputs.take(messages)
        self._fold_units(self._inputs.collector.units[self._stage.index])
        return replays

    def _accept(self, block: _Block, begin: int, end: int) -> bool:
        """Move the marks behind a run of ordinary messages, if all of them are new and as expected.

        The answer is that of `PartitionMarks.accept`, in its plain case: a lane that is known, positions
        that rise from its mark, `previous` and `of` as the message before them says.

        Returns:
            False when one of them needs a closer look; then nothing has moved.
        """
        columns, marks = block.columns, self._inputs.marks.lanes
        size = int(columns.position_size[begin])
        if not (columns.position_size[begin:end] == size).all():
            return False
        order = begin + columns.lane[begin:end].argsort(kind="stable")
        lanes = columns.lane[order]
        firsts = np.flatnonzero(np.append(True, lanes[1:] != lanes[:-1]))
        found = [marks.get(lane) for lane in lanes[firsts].tolist()]
        known = [mark for mark in found if mark is not None and len(mark.position) == (size or ROOT_LENGTH)]
        if len(known) < len(found):
            return False
        positions = columns.rows(columns.position[order], size, "S") if size else block.roots(order)
        before = np.roll(positions, 1)
        before[firsts] = [mark.position for mark in known]
        if not (positions > before).all():
            return False
        if size and not _witnesses_agree(columns, order, (positions, before), firsts, known):
            return False
        for mark, last in zip(known, order[np.append(firsts[1:], len(order)) - 1].tolist(), strict=True):
            mark.position, mark.offset = block.position(last), block.messages[last].offset()
            mark.head = block.head(last)
        return True

    def _fold(self, block: _Block, begin: int, end: int) -> None:
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
                    if entry is None:  # to be loaded, or to be left as it is
                        waiting.append((own, unit, "", _FIRST, self._origin(block, index)))
                        continue
                    if len(known) >= _KNOWN_KEYS:
                        known.clear()
                    known[key] = entry
                emissions = fold(entry.state, unit)
                if emissions is not None:
                    deque(emissions, maxlen=0)
                if touched is not None:
                    touched[entry] = index
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            exclusion_of(self._inputs.flow, self._origin(block, index), error)  # raises: the policy is `stop`
        for entry, last in (touched or {}).items():
            entry.origin = self._origin(block, last)
        self._fold_units(waiting)

    def _fold_units(self, units: list[Unit]) -> None:
        if units:
            self._level.fold(self._stage.index, units)
            units.clear()

    def _origin(self, block: _Block, index: int) -> Origin:
        inputs, message, head = self._inputs, block.messages[index], block.head(index)
        epoch, lane = stored_epoch(message.leader_epoch()), inputs.read_lane(head.lane)
        position = block.position(index)
        return new_origin((inputs.place, message.offset(), epoch, lane, position, head, message, None))


class _Block:
    """Records with the columns of their envelopes.

    Args:
        messages: the records.
        type_name: what envelopes say of the payload's type.
    """

    __slots__ = ("carried", "columns", "messages", "values")

    def __init__(self, messages: Sequence[Message], type_name: bytes) -> None:
        self.messages = messages
        envelopes, self.carried = envelopes_of(messages)
        self.values = [envelope or b"" for envelope in envelopes]
        self.columns = Columns(self.values, type_name, carried=self.carried)

    def head(self, index: int) -> EnvelopeHead:
        return _parse_head(self.values[index])

    def position(self, index: int) -> bytes:
        columns, message = self.columns, self.messages[index]
        size = int(columns.position_size[index])
        if not size:
            return root_position(stored_epoch(message.leader_epoch()), message.offset())
        begin = int(columns.position[index] - columns.start[index])
        return self.values[index][begin : begin + size]

    def roots(self, indexes: Ints) -> Rows:
        """Positions of messages that are their own roots."""
        chosen = [self.messages[index] for index in indexes.tolist()]
        rows = np.empty(len(chosen), _ROOT)
        rows["epoch"] = [stored_epoch(message.leader_epoch()) for message in chosen]
        rows["offset"] = [message.offset() for message in chosen]
        return rows.view(f"S{ROOT_LENGTH}")

    @property
    def size(self) -> int:
        """Bytes of the records' values."""
        if not self.carried:
            return self.columns.size
        return sum(len(message.value() or b"") for message in self.messages)

    def payloads(self, begin: int, end: int) -> list[bytes]:
        if self.carried:  # an ordinary one has a value
            return [message.value() or b"" for message in self.messages[begin:end]]
        columns = self.columns
        starts = columns.start[begin:end]
        begins, ends = columns.payload[begin:end] - starts, columns.payload_end[begin:end] - starts
        return [
            value[first:last]
            for value, first, last in zip(self.values[begin:end], begins.tolist(), ends.tolist(), strict=True)
        ]


def _witnesses_agree(
    columns: Columns, order: Ints, around: tuple[Rows, Rows], firsts: Ints, marks: Sequence[Mark]
) -> bool:
    """Whether nothing is missing before any message, and siblings say the same `of`.

    Args:
        columns: the block's.
        order: the messages, lane by lane.
        around: their positions, and the position before each on its lane.
        firsts: where in the order a lane begins.
        marks: the marks of those lanes.
    """
    positions, before = around
    size = positions.itemsize
    stated = columns.previous_size[order]
    if not ((stated == 0) | (stated == size)).all():
        return False
    if ((stated > 0) & (columns.rows(columns.previous[order], size, "S") > before)).any():
        return False
    stem = size - ORDINAL_LENGTH
    own, other = (rows.view(np.uint8).reshape(-1, size)[:, :stem] for rows in (positions, before))
    siblings = np.flatnonzero(own[:, -1] == other[:, -1])  # few; then look closer
    siblings = siblings[(own[siblings] == other[siblings]).all(axis=1)]
    if not siblings.size:
        return True
    of = columns.rows(columns.chain_end[order] - _OF_SIZE, _OF_SIZE).view("<u4")
    of_before = np.roll(of, 1)
    of_before[firsts] = [mark.of for mark in marks]
    return bool((of[siblings] == of_before[siblings]).all())
