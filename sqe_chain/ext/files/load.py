"""How far files are loaded, as a plain object: the rule of sources of files, one record at a time, without engine or store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Self

from sqe_chain.errors import ConfigurationError, ReadOutOfOrder
from sqe_chain.ext.files.rows import FileRows, Row
from sqe_chain.ports.files import is_hash


class FileLoad:
    """The rows that are counted, by content. A row counts once, under any file name and however often it is loaded.

    Keep what `to_json` gives together with what you have made of the rows, in one step: then a crash anywhere costs repeated work
    alone.

    Args:
        offsets: hash of a content, as `FileRows.topic_id` -> its next offset.

    >>> load = FileLoad()
    >>> one = bytes(16)
    >>> load.accept(one, 0), load.accept(one, 1), load.accept(one, 0)
    (True, True, False)
    >>> again = FileLoad.from_json(load.to_json())
    >>> again.next_offset(one), again.accept(one, 1), again.accept(one, 2)
    (2, False, True)
    """

    def __init__(self, offsets: Mapping[bytes, int] | None = None) -> None:
        self._next: dict[bytes, int] = {}
        for topic_id, offset in (offsets or {}).items():
            if len(topic_id) != 16 or type(offset) is not int or offset < 0:  # noqa: PLR2004 - bytes of a topic id
                raise ConfigurationError(f"{topic_id!r}: {offset!r}; must be 16 bytes, and an offset from 0")
            self._next[bytes(topic_id)] = offset

    def __eq__(self, other: object) -> bool:
        """Whether the same rows are counted."""
        return isinstance(other, FileLoad) and self._next == other._next

    __hash__ = None  # type: ignore[assignment] # it moves on

    def __repr__(self) -> str:
        return f"FileLoad.from_json({self.to_json()!r})"

    def next_offset(self, topic_id: bytes) -> int:
        """The first offset of a content that is not counted."""
        return self._next.get(topic_id, 0)

    def accept(self, topic_id: bytes, offset: int) -> bool:
        """Whether a row is new; if so it is counted from now on.

        Args:
            topic_id: its file's content, 16 bytes.
            offset: its number.

        Raises:
            ReadOutOfOrder: rows before it are missing; nothing has changed.
        """
        expected = self.next_offset(topic_id)
        if offset > expected:
            raise ReadOutOfOrder(
                f"content {topic_id.hex()}: row {offset} comes after row {expected - 1}. Expected row {expected}. "
                f"Read the file from row {expected} on"
            )
        if offset < expected:
            return False
        self._next[topic_id] = offset + 1
        return True

    def read(self, rows: FileRows) -> Iterator[Row]:
        """The rows of a file that are not counted yet; each is counted when the next one is asked for, or the end is reached.

        Args:
            rows: the file.

        Raises:
            ChangedFile, UnreadableFile: see `FileRows.read`.
        """
        for row in rows.read(self.next_offset(rows.topic_id)):
            yield row
            self.accept(rows.topic_id, row.offset)

    def to_json(self) -> str:
        """All of it, as JSON: hash, hexadecimal -> next offset."""
        return json.dumps({topic_id.hex(): offset for topic_id, offset in sorted(self._next.items())})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The same from what `to_json` gave.

        Raises:
            ConfigurationError: it is something else.
        """
        try:
            offsets = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"no state of a load: {error}") from None
        if not isinstance(offsets, dict) or not all(
            is_hash(name) and type(offset) is int and offset >= 0 for name, offset in offsets.items()
        ):
            raise ConfigurationError("no state of a load; must be an object of hashes and their next offsets")
        return cls({bytes.fromhex(name): offset for name, offset in offsets.items()})
