"""Reads topics for an answer: changes nothing, reports how far it is, and ends soon when it is asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqe_chain.errors import ServiceStopped
from sqe_chain.ports import Log, Message, Range

_READING: Final = frozenset(
    {"describe", "topic_ids", "bounds", "read", "read_all", "offsets_at", "committed"}
)


@dataclass(slots=True)
class Pass:
    """One pass over records.

    Args:
        stopped: whether to end early.
        progressed: called at the beginning, after each block and at the end, with the numbers of records read and to be read.

    Attributes:
        wanted: records to be read.
    """

    stopped: Callable[[], bool] = lambda: False
    progressed: Callable[[int, int], object] = lambda _read, _all: None
    wanted: int = 0
    _done: int = 0  # by attempts that have ended
    _read: int = 0
    _shown: int = -1

    def begin(self, wanted: int) -> None:
        """Begin to read this number of records."""
        self.wanted, self._shown = wanted, -1
        self.reached(0)

    def reached(self, read: int) -> None:
        """All of these were read; what was read since the last call was a part of them, once or again."""
        self._done, self._read = read, 0
        self._show()

    def again(self) -> None:
        """What was read since the last call of `reached` is read again."""
        self._read = 0

    def follow(self, blocks: Iterator[Sequence[Message]]) -> Iterator[Sequence[Message]]:
        """The same blocks, counted.

        Raises:
            ServiceStopped: it was asked to stop.
        """
        for block in blocks:
            yield block
            self._read += len(block)
            self._show()
            self.check()

    def check(self) -> None:
        """End if it was asked to.

        Raises:
            ServiceStopped: it was.
        """
        if self.stopped():
            raise ServiceStopped("asked to stop before all records were read; nothing was changed")

    def _show(self) -> None:
        read = min(self._done + self._read, self.wanted)
        if read > self._shown:
            self._shown = read
            self.progressed(read, self.wanted)


class ReadOnlyLog:
    """A log whose topics and offsets nobody changes.

    Args:
        log: the log.
        reading: counts what is read.
    """

    def __init__(self, log: Log, reading: Pass) -> None:
        self._log = log
        self._reading = reading

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """The records of a range; see `Log.read`."""
        return self._reading.follow(self._log.read(read_range))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the log has
        """A call that reads. It has no others, so it needs no right to write."""
        if name not in _READING:
            raise AttributeError(f"a replay has no {name!r}: it changes neither topics nor offsets")
        return getattr(self._log, name)
