"""The frames of many envelopes at once: what `template.frames` makes one after the other.

Envelopes of one output differ in numbers of fixed sizes, in chain and position, in key and payload. So the
template writes one envelope's frame, with zeros for those numbers, chain and position. That is the model of all rows. Then
the columns of what differs are put into it. Only the template knows the place of each byte.

Source: `sqe_chain.envelope.columns`, the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sqe_chain.chain import ORDINAL_LENGTH
from sqe_chain.envelope.block import Block
from sqe_chain.envelope.columns import Ints, Lanes, Rows
from sqe_chain.envelope.template import Frames, Source, WrittenLane, link_counts

_LONGEST_TIME: Final = 10
_DIGIT: Final = 7
_MORE: Final = 0x80
_LIMITS: Final = np.array([1, *(1 << _DIGIT * digits for digits in range(1, _LONGEST_TIME))], np.uint64)
FEWEST: Final = 30
"""Envelopes of a shape; for fewer of them columns cost more than they save."""
_OFFSET, _EPOCH, _ORDINAL, _OF = -13, -4, 1, 6
"""Places of numbers: from the end of the link's place, and from the begin of its counts."""
_join: Final = b"".join


class ListedSources:
    """What envelopes state of inputs from wherever they are, side by side."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._chains, offsets, epochs, self._positions, times_ms = zip(*sources, strict=True)
        columns = offsets, epochs, times_ms, map(len, self._chains), map(len, self._positions)
        self.offsets, self.epochs, self.times_ms, self.chain_sizes, self.position_sizes = (
            np.fromiter(column, np.int64, len(sources)) for column in columns
        )

    def chain_rows(self, indexes: Ints, size: int) -> Rows:
        """The chains of some inputs, all of one size."""
        return np.frombuffer(_join([self._chains[index] for index in indexes.tolist()]), f"V{size}")

    def position_rows(self, indexes: Ints, size: int) -> Rows:
        """The positions of some inputs, all of one size."""
        return np.frombuffer(_join([self._positions[index] for index in indexes.tolist()]), f"S{size}")


class Run:
    """The envelopes that one output makes of inputs of one partition, in their order.

    Args:
        inputs: the inputs.
        at: the input of each envelope.
        lanes: those that are written.
        lane_at: of each envelope, the index of its lane.
        partitions: its output partition.
    """

    def __init__(
        self,
        inputs: Block | ListedSources,
        at: Sequence[int],
        lanes: Sequence[WrittenLane],
        lane_at: Sequence[int],
        partitions: Sequence[int],
    ) -> None:
        self.inputs, self.count, self.written = inputs, len(at), lanes
        self.indexes = indexes = np.asarray(at, np.int64)
        alone = np.zeros(self.count, np.int64)
        numbers = np.fromiter(lane_at, np.int64, self.count) if len(lanes) > 1 else alone
        firsts = np.flatnonzero(np.append(True, indexes[1:] != indexes[:-1]))
        counts = np.diff(np.append(firsts, self.count))
        self.ordinals, self.ofs = np.arange(self.count) - np.repeat(firsts, counts), np.repeat(counts, counts)
        self.lanes = np.array([lane.template.lane for lane in lanes], np.uint64)[numbers]
        self.slots = np.fromiter(partitions, np.int64, self.count) * len(lanes) + numbers

    def slot(self, number: int) -> tuple[WrittenLane, int]:
        """Lane and output partition of a slot."""
        partition, lane = divmod(number, len(self.written))
        return self.written[lane], partition

    def only(self, rows: Ints) -> Run:
        """Some of its envelopes, in this order; each still is which of its input's it was."""
        part = copy(self)
        part.count, part.indexes = len(rows), self.indexes[rows]
        part.ordinals, part.ofs = self.ordinals[rows], self.ofs[rows]
        part.lanes, part.slots = self.lanes[rows], self.slots[rows]
        return part


def run_frames(run: Run) -> Frames | None:
    """The frames of a run's envelopes; None: one is a replay that is passed on, or they are of too many shapes.

    A shape is the sizes of chain, position and time. Lanes differ in it: partition 0 of a root takes no bytes, others do.

    Raises:
        ChainTooLong: an input has 32 links already.
    """
    times = run.inputs.times_ms[run.indexes].astype(np.uint64)
    # One number for each envelope: size of its chain, of its position (at most 140, a byte), and digits of its time.
    shapes = (run.inputs.chain_sizes[run.indexes] << 16) + (run.inputs.position_sizes[run.indexes] << 8)
    shapes += np.searchsorted(_LIMITS, times, "right")
    if (shapes == shapes[0]).all():
        framed = _alike(run, times)
        return None if framed is None else framed.written()
    return _of_shapes(run, times, shapes)


def _of_shapes(run: Run, times: Lanes, shapes: Ints) -> Frames | None:
    """The frames of envelopes of several shapes, each shape by itself: none of them may share a slot."""
    kinds = np.unique(shapes)
    if len(kinds) * FEWEST > run.count:
        return None
    parts = [np.flatnonzero(shapes == kind) for kind in kinds]
    each = [framed for rows in parts if (framed := _alike(run.only(rows), times[rows])) is not None]
    slots = [slot for framed in each for slot in framed.last]
    # A slot in two shapes: `previous` of one would have to name what the other has written.
    if len(each) < len(parts) or len(set(slots)) < len(slots):
        return None
    places = np.concatenate(parts).argsort().tolist()
    starts, ends = (
        list(chain(*columns)) for columns in zip(*[framed.written() for framed in each], strict=True)
    )
    return list(map(starts.__getitem__, places)), list(map(ends.__getitem__, places))


class _Framed(NamedTuple):
    """Frames, while their lanes do not know them yet.

    Attributes:
        starts: all before the key, of each.
        ends: all from the lane to `previous`, of each.
        run: the envelopes.
        last: slot -> the field `previous` of what is written next there.
    """

    starts: list[bytes]
    ends: list[bytes]
    run: Run
    last: dict[int, bytes]

    def written(self) -> Frames:
        """The frames; the lanes learn what is written last."""
        for slot, field in self.last.items():
            lane, partition = self.run.slot(slot)
            lane.previous[partition] = field
        return self.starts, self.ends


def _alike(run: Run, times: Lanes) -> _Framed | None:
    """The frames of envelopes of one shape; None: a position lies behind what is written before it."""
    inputs, indexes, count = run.inputs, run.indexes, run.count
    chain_size, root_size = int(inputs.chain_sizes[indexes[0]]), int(inputs.position_sizes[indexes[0]])
    template = run.written[0].template
    place, time, end, mark = template.frame(bytes(chain_size), 0, 0, bytes(root_size), int(times[0]))
    own = _ByteRows(bytes(root_size + ORDINAL_LENGTH), count)
    own.put(0, f"V{root_size}", inputs.position_rows(indexes, root_size).view(f"V{root_size}"))
    own.put(root_size, ">u4", run.ordinals)
    mark = mark[: len(mark) - root_size]
    fields = _previous(run, own.rows("S"), mark)
    if fields is None:
        return None
    previous, firsts, last = fields
    starts = _ByteRows(place + link_counts(0, 0) + time, count)
    if chain_size:
        begin = len(place) - template.link_size - chain_size
        starts.put(begin, f"V{chain_size}", inputs.chain_rows(indexes, chain_size))
    starts.put(len(place) + _OFFSET, "<u8", inputs.offsets[indexes])
    starts.put(len(place) + _EPOCH, "<u4", inputs.epochs[indexes])
    starts.put(len(place) + _ORDINAL, "<u4", run.ordinals)
    starts.put(len(place) + _OF, "<u4", run.ofs)
    for digit in range(1, len(time)):
        more = _MORE if digit < len(time) - 1 else 0
        number = (times >> np.uint64(_DIGIT * (digit - 1))).astype(np.uint8) | np.uint8(more)
        starts.put(digit - len(time), "u1", number)
    size = root_size + ORDINAL_LENGTH
    rows = _ByteRows(end + bytes(ORDINAL_LENGTH) + mark + bytes(size), count)
    rows.put(1, "<u8", run.lanes)
    rows.put(len(end) - root_size, f"V{size}", own.rows("V"))
    rows.put(-size, f"V{size}", previous)
    ends, cut = rows.to_list(), rows.width - len(mark) - size
    # The first envelope of a slot follows what the lane had before, or nothing: then the field is absent.
    for row, field in firsts.items():
        ends[row] = ends[row][:cut] + field
    return _Framed(starts.to_list(), ends, run, last)


def _previous(
    run: Run, positions: Rows, mark: bytes
) -> tuple[Rows, dict[int, bytes], dict[int, bytes]] | None:
    """What is written before each envelope on its slot, the fields of the first ones, and those of what is written next.

    None if a position lies behind what is written before it. `mark` are the bytes before a position in a field `previous`.
    """
    kind = f"V{positions.itemsize}"
    few = run.slots.max() < 1 << 16  # then numpy sorts by radix
    # Stable: the envelopes of one slot stay in the order in which they are written.
    order = (run.slots.astype(np.uint16) if few else run.slots).argsort(kind="stable")
    slots, ordered = run.slots[order], positions[order]
    changes = slots[1:] != slots[:-1]
    if not (changes | (ordered[1:] > ordered[:-1])).all():
        return None
    firsts = np.flatnonzero(np.append(True, changes))
    numbers = slots[firsts].tolist()
    known = [lane.previous.get(partition, b"") for lane, partition in map(run.slot, numbers)]
    own = ordered[firsts].view(kind).tolist()
    if any(before >= mark + position for before, position in zip(known, own, strict=True)):
        return None
    previous = np.empty_like(positions)
    previous[order[1:]] = ordered[:-1]
    lasts = ordered[np.append(firsts[1:], len(order)) - 1].view(kind).tolist()
    last = {number: mark + position for number, position in zip(numbers, lasts, strict=True)}
    return previous.view(kind), dict(zip(order[firsts].tolist(), known, strict=True)), last


class _ByteRows:
    """Rows of bytes that are alike, until columns are put into them; `width` is the number of bytes of a row."""

    def __init__(self, model: bytes, count: int) -> None:
        self._bytes = bytearray(model) * count
        self._count, self.width = count, len(model)

    def put(self, at: int, kind: str, values: npt.NDArray[Any]) -> None:
        """Write a column of values of numpy's type `kind`, one for each row, at a place in the rows; below 0: from their end."""
        column: npt.NDArray[Any] = np.ndarray(
            (self._count,), kind, self._bytes, at % self.width, (self.width,)
        )
        column[:] = values

    def rows(self, kind: str) -> Rows:
        """The rows as an array of numpy's type of this code."""
        return np.frombuffer(self._bytes, f"{kind}{self.width}")

    def to_list(self) -> list[bytes]:
        frames: list[bytes] = self.rows("V").tolist()
        return frames
