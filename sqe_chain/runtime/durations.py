"""Durations as people write them: 500ms, 5s, 1m."""

from __future__ import annotations

import re
from decimal import Decimal

from sqe_chain.errors import ConfigurationError

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
MAX_DURATION_MS = 24 * 3_600_000


def duration_ms(text: str, of: str) -> int:
    """Milliseconds of a duration.

    Args:
        text: the duration.
        of: what it is of, for the error: the name of an option.

    >>> [duration_ms(text, "--interval") for text in ("500ms", "5s", "1.5m")]
    [500, 5000, 90000]

    Raises:
        ConfigurationError: it is not a duration, or longer than a day.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"{of}: {text!r} is no duration. Expected a number and its unit: 500ms, 5s, 1m or 1h"
        )
    milliseconds = Decimal(match.group(1)) * _MILLISECONDS[match.group(2)]
    if milliseconds > MAX_DURATION_MS:
        raise ConfigurationError(f"{of}: duration {text!r} is too long. Expected at most 24h")
    if milliseconds != int(milliseconds):
        raise ConfigurationError(f"{of}: duration {text!r} would be rounded. Expected whole milliseconds")
    return int(milliseconds)
