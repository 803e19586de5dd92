"""What goes into a stage: units, the functions that take them, and what a key's state is loaded as."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Any, Final, Literal

from sqe_chain.flow.context import Origin

Push = Callable[[object, bytes | None, bytes, Origin], None]

_UINT32 = Struct(">I")
NUMBERS = tuple(_UINT32.pack(number) for number in range(256))
"""The first path elements, ready made."""

Unit = tuple[Any, Any, str, bytes, Origin]
"""A value on its way into a stage: key (bytes; into a sieve also None, and with an id both as one), value (an
object, or None for a heartbeat; for a shuffle its bytes), full protobuf name of a serialized value (else ""),
path, origin. A plain tuple: it is made for every message."""


class Applied(Enum):
    """The type of APPLIED."""

    APPLIED = "applied"


APPLIED: Final = Applied.APPLIED
"""Instead of a state: the batch at hand is applied to this key already."""

Loaded = bytes | None | Literal[Applied.APPLIED]


def number(value: int) -> bytes:
    """One element of a path: 4 bytes, so that bytes compare as numbers do."""
    return NUMBERS[value] if value < 256 else _UINT32.pack(value)  # noqa: PLR2004 - size of the table
