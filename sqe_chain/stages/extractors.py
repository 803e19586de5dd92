"""Extractors of a sequence number from a record: from its value, its key, or a header.

>>> from sqe_chain.stages.record import Record
>>> from_header("sequence")(Record(headers=[("sequence", b"7"), ("sequence", b"8")]))
8
>>> from_value(lambda report: report["number"])(Record(value={"number": 12}))
12
>>> from_key(number_in_text)(Record(key=b"-3"))
-3
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqe_chain.stages.record import Record

_NUMBER = re.compile(rb"[+-]?[0-9]+", re.ASCII)


def number_in_text(text: bytes | str) -> int:
    """A decimal number written as text, as Java's `Long.parseLong` reads it: no spaces, no underscores.

    Raises:
        ValueError: it is anything else, or longer than a 64-bit number.
    """
    digits = text.encode() if isinstance(text, str) else text
    longest = 64  # leading zeros are allowed, but Python would also read a million digits
    if len(digits) > longest or not _NUMBER.fullmatch(digits):
        raise ValueError(f"{len(digits)} bytes that are not a decimal number")
    number = int(digits)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def from_value(function: Callable[[Any], int | None]) -> Callable[[Record], int | None]:
    """The number is read from the payload."""
    return lambda record: function(record.value)


def from_key(function: Callable[[bytes], int | None] = number_in_text) -> Callable[[Record], int | None]:
    """The number is read from the key; None where that is null.

    Beware of keys that *are* sequence numbers: they spread one sequence over all partitions, so its order is lost.
    """
    return lambda record: None if record.key is None else function(record.key)


def from_header(
    name: str, function: Callable[[bytes], int | None] = number_in_text
) -> Callable[[Record], int | None]:
    """The number is read from the last header of that name; None where there is none, or it is null."""

    def find(record: Record) -> int | None:
        for header, content in reversed(record.headers or ()):
            if header == name:
                return None if content is None else function(content)
        return None

    return find
