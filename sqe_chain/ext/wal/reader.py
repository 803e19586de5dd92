"""Reads the records of a log in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqe_chain.ext.wal.record import Entry
from sqe_chain.ext.wal.segment import TornTail, damaged, entries, groups, header_size

if TYPE_CHECKING:
    from sqe_chain.ext.wal.log import WriteAheadLog
    from sqe_chain.ext.wal.segment import Segment


class Reader:
    """A place in a log, for one thread; the log may be appended to meanwhile.

    Args:
        log: the log.
        offset: the first record to read, at or after the log's `begin`.
    """

    def __init__(self, log: WriteAheadLog, offset: int) -> None:
        self._log = log
        self.offset = offset
        self._segment: Segment | None = None
        self._at = 0
        self._next = 0
        self._sequences: list[int] = []

    def read(self, max_records: int, max_bytes: int) -> list[Entry]:
        """The next records, those of whole groups: at least one group, unless nothing more is durable.

        Args:
            max_records: not one more group after so many records.
            max_bytes: not one more group after so many bytes.

        Raises:
            LogDamaged: a record is not as it was written.
            OSError: the disk fails.
        """
        found: list[Entry] = []
        size = 0
        while len(found) < max_records and size < max_bytes:
            segment, end, until = self._log.segment_at(self.offset)
            if segment is None:
                break
            if segment is not self._segment:
                self._enter(segment)
            size += self._read_from(segment, end, until, found, max_records, max_bytes - size)
        return found

    def _enter(self, segment: Segment) -> None:
        self._segment, self._next = segment, segment.base
        self._sequences, self._at = list(segment.sequences), header_size(len(segment.sequences))
        self.offset = max(self.offset, segment.base)  # records before it may have been given up

    def _read_from(
        self, segment: Segment, end: int, until: int, found: list[Entry], max_records: int, max_bytes: int
    ) -> int:
        """Read groups of a segment that ends at an offset; returns their bytes."""
        begin, files = self._at, self._log.files
        try:
            for group in groups(files, segment, self._at, until):
                if group.first != self._next or group.first + group.count > end:
                    raise damaged(
                        files, segment, self._at, f"records from offset {group.first} on are out of place"
                    )
                made = entries(files, segment, group, self._sequences, self._at)
                self._next += group.count
                self._at = group.after
                found += [one for one in made if one.offset >= self.offset]
                self.offset = max(self.offset, self._next)
                if self._next == end or len(found) >= max_records or self._at - begin >= max_bytes:
                    return self._at - begin
        except TornTail:
            pass
        except FileNotFoundError:
            raise damaged(files, segment, self._at, "the file is gone") from None
        raise damaged(files, segment, self._at, f"records from offset {self._next} to {end - 1} are missing")
