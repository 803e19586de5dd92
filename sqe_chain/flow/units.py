"""Units, the input of stages, and `Push`, the type of the functions that take their output."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from sqe_chain.flow.context import Origin

Push = Callable[[object, bytes | None, bytes, Origin], None]

_UINT32 = Struct(">I")
NUMBERS = tuple(_UINT32.pack(number) for number in range(256))
"""The first path elements, ready made."""

Unit = tuple[Any, Any, str, bytes, Origin]
"""A value on its way into a stage: key (bytes; None where the stage takes units without one; key and id packed together
where ids decide), value (an object, or None for a heartbeat; serialized for a shuffle), full protobuf name of a serialized
value (otherwise ""), path, origin. A plain tuple, because one is made for every message."""


def number(value: int) -> bytes:
    """One element of a path: 4 bytes, big-endian, so that paths compare as their numbers do."""
    return NUMBERS[value] if value < 256 else _UINT32.pack(value)  # noqa: PLR2004 - size of the table
