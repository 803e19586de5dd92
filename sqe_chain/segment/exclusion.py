"""Inputs that a batch leaves out, as a plan lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

TEXT_LIMIT = 500
"""Characters of an error's text that a plan keeps."""
SAMPLE = 5
"""Inputs left out of which the event of a batch tells, and errors that it counts."""
SAMPLE_TEXT = 200
"""Characters of their texts that it tells."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An input left out of all stages and outputs.

    Attributes:
        topic: where it stands.
        partition: where it stands.
        offset: where it stands.
        policy: `skip` or `dead_letter`.
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
        """Where it stands and why it was left out."""
        return f"{self.topic}[{self.partition}]@{self.offset} ({self.error}: {self.text})"


def record_crc(key: bytes | None, value: bytes | None) -> int:
    """A checksum of a record, by which another one at its place is known.

    >>> record_crc(b"a", None) == record_crc(None, b"a")
    False
    """
    lengths = f"{-1 if key is None else len(key)} {-1 if value is None else len(value)}"
    return crc32(value or b"", crc32(key or b"", crc32(lengths.encode())))


def excluded_fields(exclusions: Sequence[Exclusion]) -> dict[str, object]:
    """What an event tells of the inputs that a batch leaves out; nothing where there are none.

    Returns:
        `excluded_errors`: error class -> how many; `excluded_sample`: coordinates, error and the beginning of its text of
        the first ones, at most `SAMPLE`.
    """
    if not exclusions:
        return {}
    sample = [
        {
            "input": f"{one.topic}[{one.partition}]@{one.offset}",
            "error": one.error,
            "text": one.text[:SAMPLE_TEXT],
        }
        for one in exclusions[:SAMPLE]
    ]
    counts = Counter(one.error for one in exclusions)
    return {"excluded_errors": dict(counts.most_common(SAMPLE)), "excluded_sample": sample}
