"""Republishing a run of records at once: what `OutputTemplate` writes for each of them, side by side.

Envelopes of one output differ in numbers of fixed sizes, in chain and position, and in what key and payload bring. So the
template writes one envelope's frame, with zeros for those numbers, chain and position; that is the model of all rows, and
the columns of what differs are put into it. Where any byte stands is for the template to say.

Source: `sqe_chain.envelope.columns`, the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from sqe_chain.chain import ORDINAL_LENGTH
from sqe_chain.envelope.block import Block
from sqe_chain.envelope.columns import Ints, Lanes, Rows
from sqe_chain.envelope.template import OutputTemplate, link_counts, payload_fields, type_field
from sqe_chain.envelope.wire import varint

_LONGEST_TIME: Final = 10
_DIGIT: Final = 7
_MORE: Final = 0x80
_LIMITS: Final = np.array([1, *(1 << _DIGIT * digits for digits in range(1, _LONGEST_TIME))], np.uint64)
_OFFSET, _EPOCH, _ORDINAL, _OF = -13, -4, 1, 6
"""Where numbers stand: from the end of the link's place, and from the begin of its counts."""
_SHORT: Final = 4096
_join: Final = b"".join


class Run(NamedTuple):
    """The envelopes that one output makes of a run of inputs, in their order.

    Attributes:
        block: where the inputs are.
        indexes: the input of each envelope.
        ordinals: which of the envelopes made from its input this is.
        ofs: how many those are.
        lanes: the lane that it states.
        slots: a number for its lane and output partition.
    """

    block: Block
    indexes: Ints
    ordinals: Ints
    ofs: Ints
    lanes: Lanes
    slots: Ints


class Frames(NamedTuple):
    """What envelopes hold apart from key, type, payload and checksum.

    Attributes:
        starts: all before the key, of each.
        ends: all from the lane to the field `previous`, of each.
        last: that field for what is written next on a slot.
    """

    starts: list[bytes]
    ends: list[bytes]
    last: dict[int, bytes]


def frames(template: OutputTemplate, run: Run, before: Callable[[int], bytes]) -> Frames:
    """The frames of a run's envelopes.

    Args:
        template: of one of the run's lanes.
        run: the envelopes.
        before: slot -> the field `previous` for what is written next on it, when the run begins.

    Raises:
        ChainTooLong: an input has 32 links already.
    """
    block, indexes = run.block, run.indexes
    times = block.times_ms[indexes].astype(np.uint64)
    shapes = (block.chain_sizes[indexes] << 16) + (block.position_sizes[indexes] << 8)
    shapes += np.searchsorted(_LIMITS, times, "right")
    if (shapes == shapes[0]).all():
        found = _of_one_shape(template, run, times)
        return _when_rising(run, found, before) or _one_by_one(run, [(range(len(times)), found)], before)
    parts: list[tuple[Sequence[int], _Shaped]] = []
    for shape in np.unique(shapes):
        rows = np.flatnonzero(shapes == shape)
        part = Run(block, indexes[rows], run.ordinals[rows], run.ofs[rows], run.lanes[rows], run.slots[rows])
        parts.append((rows.tolist(), _of_one_shape(template, part, times[rows])))
    return _one_by_one(run, parts, before)


class _Shaped(NamedTuple):
    """Frames where chains, positions and times are each of one size.

    Attributes:
        starts: all before the key.
        ends: from the lane to the position, and room for a `previous` of the same size.
        positions: the position, of each.
        mark: what stands before it in a field `previous`.
    """

    starts: list[bytes]
    ends: _Rows
    positions: Rows
    mark: bytes

    @property
    def cut(self) -> int:
        """Where the field `previous` begins in an end."""
        return self.ends.width - len(self.mark) - self.positions.itemsize


def _of_one_shape(template: OutputTemplate, run: Run, times: Lanes) -> _Shaped:
    block, indexes, count = run.block, run.indexes, len(times)
    chain_size, root_size = int(block.chain_sizes[indexes[0]]), int(block.position_sizes[indexes[0]])
    place, time, end, mark = template.frame(bytes(chain_size), 0, 0, bytes(root_size), int(times[0]))
    starts = _Rows(place + link_counts(0, 0) + time, count)
    if chain_size:
        begin = len(place) - template.link_size - chain_size
        starts.put(begin, f"V{chain_size}", block.chain_rows(indexes, chain_size))
    starts.put(len(place) + _OFFSET, "<u8", block.offsets[indexes])
    starts.put(len(place) + _EPOCH, "<u4", block.epochs[indexes])
    starts.put(len(place) + _ORDINAL, "<u4", run.ordinals)
    starts.put(len(place) + _OF, "<u4", run.ofs)
    for digit in range(1, len(time)):
        more = _MORE if digit < len(time) - 1 else 0
        number = (times >> np.uint64(_DIGIT * (digit - 1))).astype(np.uint8) | np.uint8(more)
        starts.put(digit - len(time), "u1", number)
    own = _Rows(bytes(root_size + ORDINAL_LENGTH), count)
    own.put(0, f"V{root_size}", block.position_rows(indexes, root_size).view(f"V{root_size}"))
    own.put(root_size, ">u4", run.ordinals)
    positions = own.rows("S")
    mark = mark[: len(mark) - root_size]
    ends = _Rows(end + bytes(ORDINAL_LENGTH) + mark + bytes(positions.itemsize), count)
    ends.put(1, "<u8", run.lanes)
    ends.put(len(end) - root_size, f"V{positions.itemsize}", own.rows("V"))
    return _Shaped(starts.to_list(), ends, positions, mark)


def _when_rising(run: Run, found: _Shaped, before: Callable[[int], bytes]) -> Frames | None:
    """Where no position lies behind one that is written before it on its slot: so that one is the highest; else None."""
    few = run.slots.max() < 1 << 16  # then numpy sorts by radix
    order = (run.slots.astype(np.uint16) if few else run.slots).argsort(kind="stable")
    slots, positions = run.slots[order], found.positions[order]
    changes = slots[1:] != slots[:-1]
    if not (changes | (positions[1:] > positions[:-1])).all():
        return None
    firsts = np.flatnonzero(np.append(True, changes))
    ends_at = np.append(firsts[1:], len(order)) - 1
    numbers = slots[firsts].tolist()
    known = [before(slot) for slot in numbers]
    mark, cut = found.mark, found.cut
    rows = order[firsts].tolist()
    if any(
        previous >= mark + own
        for previous, own in zip(
            known, positions[firsts].view(f"V{positions.itemsize}").tolist(), strict=True
        )
    ):
        return None
    previous = np.empty_like(positions)
    previous[order[1:]] = positions[:-1]
    found.ends.put(-positions.itemsize, f"V{positions.itemsize}", previous.view(f"V{positions.itemsize}"))
    ends = found.ends.to_list()
    for row, field in zip(rows, known, strict=True):
        ends[row] = ends[row][:cut] + field
    lasts = positions[ends_at].view(f"V{positions.itemsize}").tolist()
    return Frames(found.starts, ends, {slot: mark + own for slot, own in zip(numbers, lasts, strict=True)})


def _one_by_one(
    run: Run, parts: Iterable[tuple[Sequence[int], _Shaped]], before: Callable[[int], bytes]
) -> Frames:
    """The frames in their order, of several shapes, or with replays that are passed on."""
    starts, ends, owns = ([b""] * len(run.indexes) for _ in range(3))
    for rows, found in parts:
        positions = found.positions.view(f"V{found.positions.itemsize}").tolist()
        for row, start, end, own in zip(rows, found.starts, found.ends.to_list(), positions, strict=True):
            starts[row], ends[row], owns[row] = start, end[: found.cut], found.mark + own
    last: dict[int, bytes] = {}
    for row, (slot, own) in enumerate(zip(run.slots.tolist(), owns, strict=True)):
        previous = last.get(slot)
        if previous is None:
            previous = last[slot] = before(slot)
        if own > previous:  # a replay's position lies further back
            last[slot] = own
        ends[row] += previous
    return Frames(starts, ends, last)


class Contents(NamedTuple):
    """What payloads bring into envelopes.

    Attributes:
        heads: the field of the type, of each, and what stands before its payload.
        payloads: the payload, or all fields of several.
        deleted: row -> the field of deleted indexes.
    """

    heads: list[bytes]
    payloads: list[bytes]
    deleted: dict[int, bytes]


def contents(
    types: Sequence[str],
    payloads: Sequence[bytes | None],
    several: Mapping[int, Sequence[bytes | None]],
) -> Contents:
    """The fields of types and payloads.

    Args:
        types: of each envelope.
        payloads: its first payload.
        several: row -> all its payloads, where there are more than one.
    """
    filled = [payload or b"" for payload in payloads]
    if len(set(types)) == 1:  # as a rule
        heads = list(map(_heads(types[0]).__getitem__, map(len, filled)))
    else:
        heads = [_heads(name)[len(payload)] for name, payload in zip(types, filled, strict=True)]
    deleted: dict[int, bytes] = {}
    empty = () if all(filled) else (row for row, payload in enumerate(filled) if not payload)
    for row in {*several, *empty}:
        heads[row] = type_field(types[row])
        filled[row], none = payload_fields(several.get(row) or (payloads[row],))
        if none:
            deleted[row] = none
    return Contents(heads, filled, deleted)


def envelopes(
    template: OutputTemplate, framed: Frames, keys: Iterable[bytes], content: Contents
) -> list[bytes]:
    """The envelopes, from their parts.

    Args:
        template: see `frames`.
        framed: their frames.
        keys: their fields of the key.
        content: their payloads.
    """
    tails: Iterable[bytes] = repeat(template.tail)
    if content.deleted:
        tails = [content.deleted.get(row, b"") + template.tail for row in range(len(framed.starts))]
    columns = framed.starts, keys, content.heads, content.payloads, framed.ends, tails
    bodies = list(map(_join, zip(*columns, strict=False)))  # tails may have no end
    sums = np.fromiter(map(crc32, bodies), np.uint32, len(bodies)).astype("<u4")
    return list(map(add, bodies, sums.view(f"V{sums.itemsize}").tolist()))


class _Heads(dict[int, bytes]):
    """Size of a payload -> the field of its type, and what stands before the payload."""

    def __init__(self, type_name: str) -> None:
        self._type = type_field(type_name)

    def __missing__(self, size: int) -> bytes:
        head = self._type + b"\x3a" + varint(size)
        if size < _SHORT:
            self[size] = head
        return head


_heads = lru_cache(64)(_Heads)


class _Rows:
    """Rows of bytes that are alike, until columns are put into them.

    Args:
        model: each row.
        count: how many.

    Attributes:
        width: bytes of a row.
    """

    def __init__(self, model: bytes, count: int) -> None:
        self._bytes = bytearray(model) * count
        self._count, self.width = count, len(model)

    def put(self, at: int, kind: str, values: npt.NDArray[Any]) -> None:
        """Write a column.

        Args:
            at: where in a row; below 0: counted from its end.
            kind: how values stand there, as numpy says it.
            values: one for each row.
        """
        column: npt.NDArray[Any] = np.ndarray(
            (self._count,), kind, self._bytes, at % self.width, (self.width,)
        )
        column[:] = values

    def rows(self, kind: str) -> Rows:
        """The rows as an array of numpy's type of this letter."""
        return np.frombuffer(self._bytes, f"{kind}{self.width}")

    def to_list(self) -> list[bytes]:
        """The rows."""
        found: list[bytes] = self.rows("V").tolist()
        return found
