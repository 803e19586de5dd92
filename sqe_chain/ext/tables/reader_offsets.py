"""How far a reader has read and flushed, as a plain object: which records are new, and where a restart begins.

Source: FiloDB's independent reader processes. They keep the offsets of both memtables, and rewind to the last flush
(Exactly Once Ingestion and Error Recovery, "Kafka + Independent Reader Processes").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

from sqe_chain.errors import ConfigurationError, ReadOutOfOrder

Range = tuple[int, int]
"""Offsets: from the first one to before the second one."""


class ReaderOffsets:
    """The offsets of the active memtable, of the one that is being flushed, and of what is in the table, for each input partition.

    Keep `to_json` durably after `begin_flush`, before anything is written, and after `end_flush`. After a crash, load it with empty
    memtables. The reader then reads the interrupted flush again, exactly that, and flushes it under the same number. So chunks have
    the same ids, and written ones can be skipped (`ChunkIndex`). The content of the active memtable comes after that.

        >>> reader = ReaderOffsets({"robot.readings/0": 10})
        >>> [reader.accept("robot.readings/0", offset) for offset in (10, 11, 11, 13)]
        [True, True, False, True]
        >>> reader.begin_flush(), reader.flushing, reader.accept("robot.readings/0", 14), reader.active
        (0, {'robot.readings/0': (10, 14)}, True, {'robot.readings/0': (14, 15)})
        >>> again = ReaderOffsets.from_json(reader.to_json())  # a crash comes here
        >>> again.position("robot.readings/0"), again.until("robot.readings/0"), again.active
        (10, 14, {})
        >>> [again.accept("robot.readings/0", offset) for offset in (10, 11, 13)], again.begin_flush()
        ([True, True, True], 0)
        >>> again.end_flush()
        >>> again.flushed, again.number, again.position("robot.readings/0")
        ({'robot.readings/0': 14}, 1, 14)

    Args:
        begin: input partition, by any name -> offset to begin at; others begin at 0.
    """

    def __init__(self, begin: Mapping[str, int] | None = None) -> None:
        self._flushed = _checked_offsets(dict(begin or {}))
        self._flushing: dict[str, Range] | None = None
        self._active: dict[str, Range] = {}
        self._repeating = False
        self._number = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReaderOffsets) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment] # it moves on

    def __repr__(self) -> str:
        return f"ReaderOffsets.from_json({self.to_json()!r})"

    @property
    def number(self) -> int:
        """Of the flush that is under way or is to be repeated, or else of the next one; from 0."""
        return self._number

    @property
    def flushed(self) -> dict[str, int]:
        """Everything before these offsets is in the table."""
        return dict(self._flushed)

    @property
    def flushing(self) -> dict[str, Range] | None:
        """What the memtable holds that is being flushed, or is to be flushed again after a crash; None: no flush is under way."""
        return None if self._flushing is None else dict(self._flushing)

    @property
    def active(self) -> dict[str, Range]:
        """What the active memtable holds."""
        return dict(self._active)

    def position(self, partition: str) -> int:
        """The offset to go on reading at."""
        if partition in self._active:
            return self._active[partition][1]
        if self._flushing is not None and not self._repeating and partition in self._flushing:
            return self._flushing[partition][1]
        return self._flushed.get(partition, 0)

    def until(self, partition: str) -> int | None:
        """Where a flush ends that is to be repeated: read to before this offset, then flush; None: as far as you like."""
        if not self._repeating or self._flushing is None:
            return None
        return self._flushing.get(partition, (0, self._flushed.get(partition, 0)))[1]

    def accept(self, partition: str, offset: int) -> bool:
        """Whether a record is new; if so, it is in the active memtable from now on. Offsets may have holes.

        Args:
            partition: its input partition.
            offset: its offset.

        Raises:
            ReadOutOfOrder: a flush is to be repeated, which ends before it; nothing has changed.
        """
        position = self.position(partition)
        if offset < position:
            return False
        until = self.until(partition)
        if until is not None and offset >= until:
            raise ReadOutOfOrder(
                f"{partition}: offset {offset} comes after the end of flush {self._number}, which a crash has interrupted. "
                f"Expected an offset up to {until - 1}. Read from {position} to {until - 1} and flush, then continue"
            )
        self._active[partition] = (self._active.get(partition, (position, position))[0], offset + 1)
        return True

    def begin_flush(self) -> int:
        """The active memtable is to be flushed; what comes now is in the next one. Keep `to_json` before you write anything.

        Returns:
            The number of the flush, for ids of chunks.

        Raises:
            ReadOutOfOrder: a flush is to be repeated, and not all of it was read; nothing has changed.
            ConfigurationError: another one is under way.
        """
        if self._repeating:
            for partition, (_, end) in (self._flushing or {}).items():
                if self.position(partition) < end:
                    raise ReadOutOfOrder(
                        f"{partition}: flush {self._number} is to be repeated, and offsets {self.position(partition)} to {end - 1} are "
                        "missing. Expected the same records as before the crash. Read them first"
                    )
        elif self._flushing is not None:
            raise ConfigurationError(f"flush {self._number} is under way: call end_flush when it is durable")
        else:
            self._flushing = dict(self._active)
        self._active, self._repeating = {}, False
        return self._number

    def end_flush(self) -> None:
        """The flush is durable: its rows are never read again.

        Raises:
            ConfigurationError: none is under way.
        """
        if self._flushing is None or self._repeating:
            raise ConfigurationError("no flush is under way: call begin_flush first")
        self._flushed |= {partition: end for partition, (_, end) in self._flushing.items()}
        self._flushing = None
        self._number += 1

    def to_json(self) -> str:
        """All of it, as JSON."""
        state = {
            "number": self._number,
            "flushed": self._flushed,
            "flushing": self._flushing,
            "active": self._active,
        }
        return json.dumps(state, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave, as a restart finds it: memtables are empty, so it goes back to where the last flush has ended.

        Raises:
            ConfigurationError: it is something else.
        """
        try:
            plain = json.loads(text)
            offsets = cls(plain["flushed"])
            offsets._number = _checked_offset(plain["number"])
            if plain["flushing"] is not None:
                offsets._flushing = {
                    partition: (_checked_offset(first), _checked_offset(end))
                    for partition, (first, end) in plain["flushing"].items()
                }
                offsets._repeating = True
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"no state of a reader: {type(error).__name__}: {error}") from None
        return offsets


def _checked_offsets(offsets: dict[str, int]) -> dict[str, int]:
    for offset in offsets.values():
        _checked_offset(offset)
    return offsets


def _checked_offset(offset: object) -> int:
    if type(offset) is not int or offset < 0:
        raise ConfigurationError(f"an offset is a number from 0; found {offset!r}")
    return offset
