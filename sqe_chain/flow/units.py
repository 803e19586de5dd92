"""What goes into a stage: units, and the functions that take what comes out."""

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
"""A value on its way into a stage: key (bytes; None where the stage takes units without one; with an id, both as one),
value (an object, or None for a heartbeat; for a shuffle its bytes), full protobuf name of a serialized value (else ""),
path, origin. A plain tuple: it is made for every message."""


def number(value: int) -> bytes:
    """One element of a path: 4 bytes, so that bytes compare as numbers do."""
    return NUMBERS[value] if value < 256 else _UINT32.pack(value)  # noqa: PLR2004 - size of the table
