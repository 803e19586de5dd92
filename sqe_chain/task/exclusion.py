"""Inputs that a batch skips, as a plan lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from sqe_chain.errors import TooManyExcluded

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
    # Lengths first: else the same bytes, cut otherwise into key and value, would have one checksum.
    lengths = f"{-1 if key is None else len(key)} {-1 if value is None else len(value)}"
    return crc32(value or b"", crc32(key or b"", crc32(lengths.encode())))


_REMEMBERED: Final = 20
"""The share is computed over the last inputs: about this many times as many as allow `count` exclusions."""


@dataclass(frozen=True, slots=True)
class SkipLimit:
    """How many inputs the poison policy may skip.

    It stops when both limits are exceeded: a few bad records among few, or many among very many, are what the
    policy is for. Earlier batches count too, so that small batches are no way around it.

    Attributes:
        count: inputs that may always be skipped.
        share: share of the new inputs that may be skipped, 0 to 1; 1: there is no limit.
        excluded: skipped so far.
        inputs: new inputs so far, skipped ones included.
    """

    count: int
    share: float
    excluded: int = 0
    inputs: int = 0

    def after(self, excluded: int, inputs: int) -> SkipLimit:
        """The limit after a batch; earlier batches count less and less."""
        excluded, inputs = self.excluded + excluded, self.inputs + inputs
        if inputs * self.share > _REMEMBERED * self.count:
            excluded, inputs = excluded // 2, inputs // 2
        return replace(self, excluded=excluded, inputs=inputs)

    def check(self, flow: str, exclusions: Sequence[Exclusion], inputs: int) -> None:
        """Stop when a batch skips too much.

        Raises:
            TooManyExcluded: nothing was skipped yet.
        """
        skipped, inputs = self.excluded + len(exclusions), self.inputs + inputs
        if not exclusions or skipped <= self.count or skipped <= self.share * inputs:
            return
        (error, times), first = (
            Counter(exclusion.error for exclusion in exclusions).most_common(1)[0],
            exclusions[0],
        )
        raise TooManyExcluded(
            f"flow {flow!r}: policy {first.policy!r} would skip {skipped} of the last {inputs} inputs, which looks "
            f"like a mistake. Expected at most {self.count}, or {self.share:.0%} of them. {times} fail with {error}, first "
            f"{first.topic}[{first.partition}]@{first.offset}: {first.text}. Nothing of this batch was skipped. Fix the "
            "code or the writer, or allow more with `--max-excluded`"
        )
