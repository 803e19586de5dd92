"""Republishing a run of records at once: what `OutputTemplate` writes for each of them, side by side.

Envelopes of one output differ in numbers of fixed sizes, in chain and position, and in what key and payload bring. So the
template writes one envelope's frame, with zeros for those numbers, chain and position; that is the model of all rows, and
the columns of what differs are put into it. Where any byte stands is for the template to say.

Source: `sqe_chain.envelope.columns`, the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from sqe_chain.chain import ORDINAL_LENGTH
from sqe_chain.envelope.block import Block
from sqe_chain.envelope.columns import Ints, Rows
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


class Listed:
    """Inputs from wherever they are, side by side.

    Args:
        inputs: of each its offset, its leader epoch as it is stored, its event time, chain and position.
    """

    def __init__(self, inputs: Sequence[tuple[int, int, int, bytes, bytes]]) -> None:
        *numbers, self._chains, self._positions = zip(*inputs, strict=True)
        sizes = (map(len, self._chains), map(len, self._positions))
        self.offsets, self.epochs, self.times_ms, self.chain_sizes, self.position_sizes = (
            np.fromiter(column, np.int64, len(inputs)) for column in (*numbers, *sizes)
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
        lanes: those that envelopes state.
        lane_at: of each envelope, the index of its lane.
        places: its output partition.
    """

    def __init__(
        self,
        inputs: Block | Listed,
        at: Sequence[int],
        lanes: Sequence[int],
        lane_at: Sequence[int],
        places: Sequence[int],
    ) -> None:
        self.inputs, self.count = inputs, len(at)
        self.indexes = indexes = np.asarray(at, np.int64)
        alone = np.zeros(self.count, np.int64)
        numbers = np.fromiter(lane_at, np.int64, self.count) if len(lanes) > 1 else alone
        firsts = np.flatnonzero(np.append(True, indexes[1:] != indexes[:-1]))
        counts = np.diff(np.append(firsts, self.count))
        self.ordinals, self.ofs = np.arange(self.count) - np.repeat(firsts, counts), np.repeat(counts, counts)
        self.lanes = np.array(lanes, np.uint64)[numbers]
        self.slots = np.fromiter(places, np.int64, self.count) * len(lanes) + numbers


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


def frames(template: OutputTemplate, run: Run, before: Callable[[int], bytes]) -> Frames | None:
    """The frames of a run's envelopes; None: they are not alike, or one is a replay that is passed on.

    Args:
        template: of one of the run's lanes.
        run: the envelopes.
        before: slot -> the field `previous` for what is written next on it, when the run begins.

    Raises:
        ChainTooLong: an input has 32 links already.
    """
    inputs, indexes, count = run.inputs, run.indexes, run.count
    times = inputs.times_ms[indexes].astype(np.uint64)
    shapes = (inputs.chain_sizes[indexes] << 16) + (inputs.position_sizes[indexes] << 8)
    shapes += np.searchsorted(_LIMITS, times, "right")
    if not (shapes == shapes[0]).all():
        return None
    chain_size, root_size = int(inputs.chain_sizes[indexes[0]]), int(inputs.position_sizes[indexes[0]])
    place, time, end, mark = template.frame(bytes(chain_size), 0, 0, bytes(root_size), int(times[0]))
    own = _Rows(bytes(root_size + ORDINAL_LENGTH), count)
    own.put(0, f"V{root_size}", inputs.position_rows(indexes, root_size).view(f"V{root_size}"))
    own.put(root_size, ">u4", run.ordinals)
    mark = mark[: len(mark) - root_size]
    found = _previous(run, own.rows("S"), mark, before)
    if found is None:
        return None
    previous, firsts, last = found
    starts = _Rows(place + link_counts(0, 0) + time, count)
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
    rows = _Rows(end + bytes(ORDINAL_LENGTH) + mark + bytes(size), count)
    rows.put(1, "<u8", run.lanes)
    rows.put(len(end) - root_size, f"V{size}", own.rows("V"))
    rows.put(-size, f"V{size}", previous)
    ends, cut = rows.to_list(), rows.width - len(mark) - size
    for row, field in firsts.items():
        ends[row] = ends[row][:cut] + field
    return Frames(starts.to_list(), ends, last)


def _previous(
    run: Run, positions: Rows, mark: bytes, before: Callable[[int], bytes]
) -> tuple[Rows, dict[int, bytes], dict[int, bytes]] | None:
    """What is written before each envelope on its slot, if no position lies behind that: so it is the highest; else None.

    Args:
        run: the envelopes.
        positions: theirs.
        mark: what stands before a position in a field `previous`.
        before: see `frames`.

    Returns:
        The position before each; row -> the field, of the first one on each slot; slot -> the field for what is written next.
    """
    kind = f"V{positions.itemsize}"
    few = run.slots.max() < 1 << 16  # then numpy sorts by radix
    order = (run.slots.astype(np.uint16) if few else run.slots).argsort(kind="stable")
    slots, ordered = run.slots[order], positions[order]
    changes = slots[1:] != slots[:-1]
    if not (changes | (ordered[1:] > ordered[:-1])).all():
        return None
    firsts = np.flatnonzero(np.append(True, changes))
    ends_at = np.append(firsts[1:], len(order)) - 1
    numbers = slots[firsts].tolist()
    known = [before(slot) for slot in numbers]
    own = ordered[firsts].view(kind).tolist()
    if any(previous >= mark + one for previous, one in zip(known, own, strict=True)):
        return None
    previous = np.empty_like(positions)
    previous[order[1:]] = ordered[:-1]
    lasts = [mark + one for one in ordered[ends_at].view(kind).tolist()]
    rows = order[firsts].tolist()
    return previous.view(kind), dict(zip(rows, known, strict=True)), dict(zip(numbers, lasts, strict=True))


def envelopes(
    template: OutputTemplate,
    framed: Frames,
    keys: Iterable[bytes],
    types: Sequence[str],
    payloads: Sequence[bytes | None],
    several: Mapping[int, Sequence[bytes | None]],
) -> list[bytes]:
    """The envelopes, from their parts.

    Args:
        template: see `frames`.
        framed: their frames.
        keys: their fields of the key.
        types: what they say of their payloads' types.
        payloads: their first payloads.
        several: row -> all payloads, where there are more than one.
    """
    filled = [payload or b"" for payload in payloads]
    if len(set(types)) == 1:  # as a rule
        heads = list(map(_heads(types[0]).__getitem__, map(len, filled)))
    else:
        heads = [_heads(name)[len(payload)] for name, payload in zip(types, filled, strict=True)]
    tails = [template.tail] * len(filled)
    empty = () if all(filled) else (row for row, payload in enumerate(filled) if not payload)
    for row in {*several, *empty}:
        heads[row] = type_field(types[row])
        filled[row], deleted = payload_fields(several.get(row) or (payloads[row],))
        tails[row] = deleted + template.tail
    bodies = list(map(_join, zip(framed.starts, keys, heads, filled, framed.ends, tails, strict=True)))
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
