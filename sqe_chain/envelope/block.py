"""Blocks of records, with what is asked of all of them side by side: of envelopes their fields, of raw messages little."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from sqe_chain.chain import ROOT_LENGTH, root_position, stored_epoch
from sqe_chain.envelope.carrier import envelopes_of, is_ordinary_raw
from sqe_chain.envelope.columns import Columns, Flags, Ints, Lanes, Rows
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS, EnvelopeHead, is_enveloped
from sqe_chain.ports import Headers, Message

# Big-endian, so that positions compare as bytes.
_ROOT: Final = np.dtype([("epoch", ">u4"), ("offset", ">u8")])
_parse_head: Final = EnvelopeHead.FromString
FEW_LANES: Final = 16
"""Lanes of a block up to which they are distinguished one by one; the number changes the cost alone."""


class LaneTimes(NamedTuple):
    """What ordinary records of one lane show of event time.

    Attributes:
        lane: the lane as envelopes state it.
        first: index of the first record.
        times_ms: event times of all of them, in the order of their offsets.
        latest_ms: the latest of these.
        stated_ms: the highest watermark that they bear; 0: none.
    """

    lane: int
    first: int
    times_ms: Ints
    latest_ms: int
    stated_ms: int


class Block(ABC):
    """Records of one partition, in the order of their offsets.

    Attributes:
        messages: the records.
        ordinary: which of them have one payload and nothing about them that needs a closer look; columns are right for
            those alone.
    """

    messages: Sequence[Message]
    ordinary: Flags

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the records' values."""

    @abstractmethod
    def payloads(self, begin: int, end: int) -> Sequence[bytes]:
        """The payloads of ordinary records, from one index to before another."""

    @abstractmethod
    def keys(self, begin: int, end: int) -> list[bytes | None]:
        """Their keys."""

    @abstractmethod
    def head(self, index: int) -> EnvelopeHead | None:
        """The parsed envelope of a record; None if it has none."""

    @property
    @abstractmethod
    def lanes(self) -> Lanes:
        """Their lanes as envelopes state them; 0 for records that are their own roots."""

    @property
    @abstractmethod
    def times_ms(self) -> Ints:
        """Their event times."""

    @abstractmethod
    def times(self) -> tuple[list[int], list[int], list[int]]:
        """Their lanes, times, and the watermarks that they bear (0 for none), as lists that belong to the caller."""

    @abstractmethod
    def by_lane(self) -> list[LaneTimes]:
        """Event times lane by lane, in the order in which lanes are met; all records must be ordinary."""

    @property
    @abstractmethod
    def chain_sizes(self) -> Ints:
        """Bytes of their chains; 0 for none."""

    @property
    @abstractmethod
    def position_sizes(self) -> Ints:
        """Bytes of their positions."""

    @abstractmethod
    def chain_rows(self, indexes: Ints, size: int) -> Rows:
        """Chains of some records, all of this size."""

    @abstractmethod
    def position_rows(self, indexes: Ints, size: int) -> Rows:
        """Positions of some records, all of this size."""

    def positions(self, indexes: Ints) -> list[bytes]:
        """Positions of some ordinary records."""
        return _listed(self.position_sizes[indexes], indexes, self.position_rows)

    def chains(self, indexes: Ints) -> list[bytes]:
        """Chains of some ordinary records; b"" for none."""
        return _listed(self.chain_sizes[indexes], indexes, self.chain_rows)

    @cached_property
    def headers(self) -> list[Headers | None] | None:
        """The records' headers; None when none has any."""
        headers = [message.headers() for message in self.messages]
        return None if headers.count(None) == len(headers) else headers

    @cached_property
    def distinct_lanes(self) -> list[int]:
        """The lanes that there are, each once, in no particular order."""
        distinct, rest = list[int](), self.lanes
        # Mostly there are few: to take out one after the other costs a fifth of sorting.
        while rest.size and len(distinct) < FEW_LANES:
            distinct.append(int(rest[0]))
            rest = rest[rest != rest[0]]
        return distinct + np.unique(rest).tolist() if rest.size else distinct

    def numbers_on(self, lane: int) -> list[int]:
        """The indexes of the ordinary records on a lane."""
        numbers: list[int] = ((self.lanes == lane) & self.ordinary).nonzero()[0].tolist()
        return numbers

    @cached_property
    def offsets(self) -> Ints:
        """The records' offsets."""
        return np.fromiter([message.offset() for message in self.messages], np.int64, len(self.messages))

    @cached_property
    def epochs(self) -> Ints:
        """Their leader epochs, as they are stored: plus one; 0 for none."""
        epochs = [message.leader_epoch() for message in self.messages]
        if epochs.count(epochs[0]) == len(epochs):  # it changes when a partition gets another leader
            return np.full(len(epochs), stored_epoch(epochs[0]), np.int64)
        return np.fromiter(map(stored_epoch, epochs), np.int64, len(epochs))

    @cached_property
    def rise(self) -> bool:
        """Whether their offsets do, as those of a log do."""
        return bool((self.offsets[1:] > self.offsets[:-1]).all())

    @staticmethod
    def indexes(numbers: Sequence[int]) -> Ints:
        """Numbers of records, as an array."""
        return np.fromiter(numbers, np.int64, len(numbers))

    def position(self, index: int) -> bytes:
        """The position of an ordinary record."""
        message = self.messages[index]
        return root_position(stored_epoch(message.leader_epoch()), message.offset())

    def roots(self, indexes: Sequence[int] | Ints) -> Rows:
        """Positions of records that are their own roots."""
        rows = np.empty(len(indexes), _ROOT)
        rows["epoch"], rows["offset"] = self.epochs[indexes], self.offsets[indexes]
        return rows.view(f"S{ROOT_LENGTH}")


def _listed(sizes: Ints, indexes: Ints, rows: Callable[[Ints, int], Rows]) -> list[bytes]:
    """What records have, from columns of what those of one size have."""
    listed = [b""] * len(indexes)
    for size in set(sizes.tolist()) - {0}:
        chosen = (sizes == size).nonzero()[0]
        for at, row in zip(
            chosen.tolist(), rows(indexes[chosen], size).view(f"V{size}").tolist(), strict=True
        ):
            listed[at] = row
    return listed


class RawBlock(Block):
    """Records without envelopes: their values, and their times."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.values = [message.value() for message in messages]
        self.timestamps_ms = [message.timestamp()[1] for message in messages]
        self.ordinary = np.ones(len(messages), np.bool_)
        if not self._all_ordinary():
            self.ordinary = np.fromiter(map(is_ordinary_raw, messages), np.bool_, len(messages))

    def _all_ordinary(self) -> bool:
        """Whether it is plain that all of them are ordinary; see `is_ordinary_raw`."""
        return (
            self.headers is None
            and None not in self.values
            and min(self.timestamps_ms) >= -1
            and max(self.timestamps_ms) <= MAX_TIMESTAMP_MS
            and not any(map(is_enveloped, self.values))
        )

    @property
    def size(self) -> int:
        return sum([len(value) for value in self.values if value])

    def payloads(self, begin: int, end: int) -> list[bytes]:
        return [value or b"" for value in self.values[begin:end]]

    def keys(self, begin: int, end: int) -> list[bytes | None]:
        return [message.key() for message in self.messages[begin:end]]

    def head(self, index: int) -> None:
        del index

    @cached_property
    def lanes(self) -> Lanes:
        return np.zeros(len(self.messages), np.uint64)

    @cached_property
    def times_ms(self) -> Ints:
        return np.fromiter(self.timestamps_ms, np.int64, len(self.messages))

    def times(self) -> tuple[list[int], list[int], list[int]]:
        count = len(self.messages)
        return [0] * count, self.timestamps_ms.copy(), [0] * count

    def by_lane(self) -> list[LaneTimes]:
        return [LaneTimes(0, 0, self.times_ms, int(self.times_ms.max()), 0)]

    @cached_property
    def chain_sizes(self) -> Ints:
        return np.zeros(len(self.messages), np.int64)

    @cached_property
    def position_sizes(self) -> Ints:
        return np.full(len(self.messages), ROOT_LENGTH, np.int64)

    def chain_rows(self, indexes: Ints, size: int) -> Rows:
        return np.empty(len(indexes), f"V{size}")

    def position_rows(self, indexes: Ints, size: int) -> Rows:
        del size
        return self.roots(indexes)


class EnvelopeBlock(Block):
    """Records with the columns of their envelopes.

    Args:
        messages: the records.
        type_name: the payload's type by its envelope; None: anything.

    Attributes:
        values: the envelopes.
        carried: the envelopes are in the records' headers.
    """

    def __init__(self, messages: Sequence[Message], type_name: bytes | None) -> None:
        self.messages = messages
        envelopes, self.carried = envelopes_of(messages)
        self.values = [envelope or b"" for envelope in envelopes]
        self.columns = Columns(self.values, type_name, carried=self.carried)
        self.ordinary = self.columns.ordinary

    def head(self, index: int) -> EnvelopeHead:
        return _parse_head(self.values[index])

    def position(self, index: int) -> bytes:
        columns = self.columns
        size = int(columns.position_size[index])
        if not size:
            return super().position(index)
        begin = int(columns.position[index] - columns.start[index])
        return self.values[index][begin : begin + size]

    @property
    def lanes(self) -> Lanes:
        return self.columns.lane

    @property
    def times_ms(self) -> Ints:
        return self.columns.timestamp_ms

    def times(self) -> tuple[list[int], list[int], list[int]]:
        columns = self.columns
        return columns.lane.tolist(), columns.timestamp_ms.tolist(), columns.watermark_ms.tolist()

    def by_lane(self) -> list[LaneTimes]:
        # Stable, so that the records of one lane stay in the order of their offsets.
        order = self.lanes.argsort(kind="stable")
        lanes, times_ms = self.lanes[order], self.times_ms[order]
        begins = np.flatnonzero(np.append(True, lanes[1:] != lanes[:-1]))
        lanes_times = map(
            LaneTimes,
            lanes[begins].tolist(),
            order[begins].tolist(),
            np.split(times_ms, begins[1:]),
            np.maximum.reduceat(times_ms, begins).tolist(),
            np.maximum.reduceat(self.columns.watermark_ms[order], begins).tolist(),
        )
        return sorted(lanes_times, key=attrgetter("first"))

    @property
    def chain_sizes(self) -> Ints:
        return self.columns.chain_size

    @cached_property
    def position_sizes(self) -> Ints:
        stated = self.columns.position_size
        return np.where(stated, stated, ROOT_LENGTH)

    def chain_rows(self, indexes: Ints, size: int) -> Rows:
        return self.columns.rows(self.columns.chain_end[indexes] - size, size)

    def position_rows(self, indexes: Ints, size: int) -> Rows:
        if size == ROOT_LENGTH:
            return self.roots(indexes)
        return self.columns.rows(self.columns.position[indexes], size)

    @property
    def size(self) -> int:
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

    def keys(self, begin: int, end: int) -> list[bytes | None]:
        columns = self.columns
        starts, sizes = columns.key[begin:end] - columns.start[begin:end], columns.key_size[begin:end]
        fields = zip(
            self.values[begin:end],
            starts.tolist(),
            (starts + sizes).tolist(),
            columns.keyed[begin:end].tolist(),
            self.messages[begin:end],
            strict=True,
        )
        return [
            value[first:last] if keyed else message.key() for value, first, last, keyed, message in fields
        ]
