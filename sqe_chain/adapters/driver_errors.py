"""What the exceptions of drivers mean: each store has a table of its driver's classes, and the rest is here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from sqe_chain.errors import ChainError, ConfigurationError, Unavailable

CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
"""In the text of an error whose cause is a certificate that is not trusted."""


class Meaning(Enum):
    """What to do about an exception."""

    TRY_AGAIN = "the servers or the network: it may pass; whether a write was done is unknown, and sending it again is safe"
    SETTINGS = "address, login, rights, tables, limits, kind of server: somebody has to change something"
    REPLY = "an error that the server itself sent: its first word decides"
    SEVERAL = "one error for each node that was asked: the worst of them decides"
    PROGRAM = "misuse of the driver, or a part of it that is not used here: crash"


def meaning_in(table: Mapping[type[BaseException], Meaning], error: BaseException) -> Meaning:
    """The meaning of an exception's class in a table; a class that is missing counts as its parent."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), Meaning.PROGRAM)


def error_of(meaning: Meaning, text: str) -> ChainError | None:
    """Our error for an exception with this meaning; None for programming errors, which must crash."""
    if meaning is Meaning.TRY_AGAIN:
        return Unavailable(text)
    return ConfigurationError(text) if meaning is Meaning.SETTINGS else None


@contextmanager
def raised_as_ours(
    kinds: tuple[type[BaseException], ...],
    mapped: Callable[[BaseException, str], ChainError | None],
    address: str,
) -> Iterator[None]:
    """Raise our errors in place of a driver's.

    Args:
        kinds: the classes of the driver's exceptions.
        mapped: takes an exception and the address, returns our error; None: the exception itself is raised.
        address: of the servers, without passwords.
    """
    try:
        yield
    except kinds as error:
        known = mapped(error, address)
        if known is None:
            raise
        raise known from error
