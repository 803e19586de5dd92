"""The event time that a user's function gives for a value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from sqe_chain.envelope.head import check_timestamp
from sqe_chain.errors import EnvelopeError, PoisonError

NoTimestamp = Literal["poison", "record"]
"""What becomes of a value without a usable time: it is poison, or gets the time of its record (of an envelope: its own)."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def event_ms(found: object) -> int:
    """Milliseconds since 1970 of a time in one of the forms that people have.

    >>> event_ms(1_700_000_000_000), event_ms("2023-11-14T22:13:20Z"), event_ms("2023-11-14T23:13:20.5+01:00")
    (1700000000000, 1700000000000, 1700000000500)
    >>> event_ms(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))
    1700000000000

    Args:
        found: an int, milliseconds since 1970; text in ISO 8601, or a datetime, both with their time zone.

    Raises:
        PoisonError: it is none of these, or lies outside the bounds of event times.
    """
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            raise PoisonError(f"its event time, {found!r}, is no time in ISO 8601") from None
    if isinstance(found, datetime):
        if found.utcoffset() is None:
            raise PoisonError(
                f"its event time, {found.isoformat()}, has no time zone: it could be any of 24 hours"
            )
        found = (found - _EPOCH) // _MILLISECOND
    if not isinstance(found, int) or isinstance(found, bool):
        what = "none" if found is None else f"{found!r}, a {type(found).__name__}"
        raise PoisonError(
            f"its event time is {what}; milliseconds since 1970 (int), text in ISO 8601, or a datetime with a time zone"
        )
    try:
        check_timestamp(found)
    except EnvelopeError as error:
        raise PoisonError(str(error)) from error
    return found
