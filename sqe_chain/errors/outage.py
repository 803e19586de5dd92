"""Outages in user code: a codec or a function that cannot reach what it needs, whatever record it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqe_chain.errors import Unavailable, text_of

_CAUSES: Final = 16
"""Errors of a chain of causes that are looked at: a user may have tied a knot."""


def raise_outage(error: BaseException, what: str) -> None:
    """Raise `Unavailable` if an error of user code comes from an outage: the attempt is repeated, as for a store that is away.

    An outage is `Unavailable`, or one of Python's `ConnectionError`, `TimeoutError` and `socket.gaierror`. So is an error that was
    raised from one, or while one was handled; `raise … from None` cuts that off.

    Args:
        error: what user code raised.
        what: what it was to do, for people; the error's text follows.

    Raises:
        Unavailable: it is an outage.
    """
    for cause in _causes(error):
        if (
            isinstance(cause, Unavailable | ConnectionError | TimeoutError)
            or type(cause).__name__ == "gaierror"
        ):
            raise Unavailable(f"{what}: {type(cause).__name__}: {text_of(cause)}") from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, as its traceback shows it."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
