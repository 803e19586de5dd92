"""Readers: processes that run one flow side by side, each for a set of input partitions of its own, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from sqe_chain.errors import ConfigurationError

_Range = tuple[int, int | None]
MOST_RANGES: Final = 16
"""Of a set: its text is a part of names."""
_MOST_PARTITION: Final = 1_000_000
_RANGE: Final = re.compile(r"([0-9]{1,7})(-([0-9]{1,7})?)?", re.ASCII)
_OF_READERS: Final = re.compile(r"\.(readers|reader-[0-9_-]+(\.[0-9]+)?)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Partitions:
    """A set of partition numbers: of each topic that a flow reads, those with these numbers.

        >>> Partitions.parse("4-5,0-3,9-")
        Partitions(0-5,9-)
        >>> 3 in Partitions.parse("0-3"), 12 in Partitions.parse("9-"), Partitions.parse("0-3").shared(Partitions.parse("3-"))
        (True, True, 3)

    Attributes:
        ranges: first and last number of each range, in their order and with gaps between them; None: and all above.
    """

    ranges: tuple[tuple[int, int | None], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """A set from its text, such as ``0-3``, ``0,2,4-7`` or ``8-`` (8 and all above).

        Raises:
            ConfigurationError: it is none, or has too many ranges.
        """
        ranges = list[_Range]()
        for part in text.split(","):
            match = _RANGE.fullmatch(part.strip())
            first, last = (int(match[1]), match[3]) if match else (0, None)
            end = None if match and match[2] and last is None else int(last) if last is not None else first
            if (
                match is None
                or first > _MOST_PARTITION
                or (end is not None and not first <= end <= _MOST_PARTITION)
            ):
                raise ConfigurationError(
                    f"partitions {text!r}: expected numbers and ranges, such as 0-3, or 0,2,4-7, or 8- (8 and all above)"
                )
            ranges.append((first, end))
        merged = _merge(ranges)
        if len(merged) > MOST_RANGES:
            raise ConfigurationError(f"partitions {text!r}: {len(merged)} ranges; at most {MOST_RANGES}")
        return cls(merged)

    def __repr__(self) -> str:
        return f"Partitions({self})"

    def __str__(self) -> str:
        return ",".join(
            f"{first}-" if last is None else f"{first}" if last == first else f"{first}-{last}"
            for first, last in self.ranges
        )

    def __contains__(self, number: int) -> bool:
        return any(first <= number and (last is None or number <= last) for first, last in self.ranges)

    def shared(self, other: Partitions) -> int | None:
        """The smallest number that is in both; None: there is none."""
        for first, last in self.ranges:
            for begin, end in other.ranges:
                low = max(first, begin)
                if (last is None or low <= last) and (end is None or low <= end):
                    return low
        return None

    def without(self, others: Partitions) -> int | None:
        """The smallest number that is in this set and not in the other; None: there is none."""
        for first, last in self.ranges:
            number = first
            for begin, end in others.ranges:
                if begin <= number and (end is None or number <= end):
                    if end is None:
                        break
                    number = end + 1
            else:
                if last is None or number <= last:
                    return number
        return None


ALL: Final = Partitions(((0, None),))
"""All partitions: what a flow reads that runs as one."""


def union_of(sets: Iterable[Partitions]) -> Partitions:
    """All numbers that are in any of several sets; as many ranges as it takes."""
    return Partitions(_merge(span for partitions in sets for span in partitions.ranges))


def _merge(ranges: Iterable[_Range]) -> tuple[_Range, ...]:
    """Ranges in their order, with gaps between them."""
    merged = list[_Range]()
    for first, last in sorted(ranges, key=lambda span: span[0]):
        before = merged[-1] if merged else None
        if before is not None and (before[1] is None or first <= before[1] + 1):
            merged[-1] = before[0], None if before[1] is None or last is None else max(before[1], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def scope_of(flow: str, partitions: Partitions, change: int) -> str:
    """The name of a reader's claim, plans and headers.

        >>> scope_of("readings", Partitions.parse("0-3,8"), 0), scope_of("readings", Partitions.parse("4-"), 2)
        ('readings.reader-0-3_8', 'readings.reader-4-.2')

    Args:
        flow: the flow's name.
        partitions: that it reads.
        change: how often the sets of the flow's readers had been changed before: a set that comes back is another reader.
    """
    name = f"{flow}.reader-{str(partitions).replace(',', '_')}"
    return f"{name}.{change}" if change else name


def readers_of(flow: str) -> str:
    """The name of the record of a flow's readers."""
    return f"{flow}.readers"


def flow_of(name: str) -> str:
    """The flow of a reader, or of the record of its readers; of a flow its own name.

    >>> flow_of("readings.reader-0-3_8"), flow_of("readings.reader-4-.2"), flow_of("readings")
    ('readings', 'readings', 'readings')
    """
    return _OF_READERS.sub("", name)
