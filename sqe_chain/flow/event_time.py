"""The event time that a user's function gives for a value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from sqe_chain.envelope.head import check_timestamp
from sqe_chain.errors import EnvelopeError, FlowError, PoisonError
from sqe_chain.flow.functions import DeclaredFunction

NoTimestamp = Literal["poison", "record"]
"""What becomes of a value without a usable time: it is poison, or gets the time of its record (of its envelope)."""


def _at_first(_: object) -> int:
    return 0


NO_TIMES: Final = DeclaredFunction(_at_first)  # a function with a name is the same in every process
"""The `timestamp` of sources whose messages have no times: whatever has one comes after them."""


def refuse_times(time: object, what: str, goes: str) -> None:
    """Refuse times of values, where a stage needs values in the order of times. Raises FlowError."""
    if time is not None:
        raise FlowError(
            f"{what}: {goes} by the order of times, and the rows of one input have times of their own, in any order. "
            "Expected no time=. Count the rows with windowed(time=...), or let each input have one time"
        )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def event_ms(time: object) -> int:
    """Milliseconds since 1970 of an int in that unit, a text in ISO 8601 or a datetime, the last two with their time zone.

    >>> event_ms(1_700_000_000_000), event_ms("2023-11-14T22:13:20Z"), event_ms("2023-11-14T23:13:20.5+01:00")
    (1700000000000, 1700000000000, 1700000000500)
    >>> event_ms(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))
    1700000000000

    Raises:
        PoisonError: it is none of these, or lies outside the bounds of event times.
    """
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise PoisonError(f"its event time, {time!r}, is no time in ISO 8601") from None
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise PoisonError(
                f"its event time, {time.isoformat()}, has no time zone: it could be any of 24 hours"
            )
        time = (time - _EPOCH) // _MILLISECOND
    if not isinstance(time, int) or isinstance(time, bool):
        what = "none" if time is None else f"{time!r}, a {type(time).__name__}"
        raise PoisonError(
            f"its event time is {what}; milliseconds since 1970 (int), text in ISO 8601, or a datetime with a time zone"
        )
    try:
        check_timestamp(time)
    except EnvelopeError as error:
        raise PoisonError(str(error)) from error
    return time
