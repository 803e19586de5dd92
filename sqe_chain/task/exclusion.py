"""Inputs that a batch skips, as a plan lists them."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

TEXT_LIMIT = 500
"""Characters of an error's text that a plan keeps."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An input that all stages and outputs skip.

    Attributes:
        topic: of the input.
        partition: of the input.
        offset: of the input.
        policy: `skip`, `dead_letter` or `park`.
        error: class of the error.
        text: the error's text, bounded.
    """

    topic: str
    partition: int
    offset: int
    policy: str
    error: str
    text: str

    def __str__(self) -> str:
        """Which input, and why it was skipped."""
        return f"{self.topic}[{self.partition}]@{self.offset} ({self.error}: {self.text})"


def record_crc(key: bytes | None, value: bytes | None) -> int:
    """A checksum of a record, by which another record at the same offset is noticed.

    >>> record_crc(b"a", None) == record_crc(None, b"a")
    False
    """
    lengths = f"{-1 if key is None else len(key)} {-1 if value is None else len(value)}"
    return crc32(value or b"", crc32(key or b"", crc32(lengths.encode())))
