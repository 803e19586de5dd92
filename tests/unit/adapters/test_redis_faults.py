"""Every exception class of redis-py has a meaning, decided on purpose."""

from __future__ import annotations

import inspect

import pytest
from redis import exceptions

from sqe_chain.adapters.redis.connections import MEANINGS, error_for, meaning_of
from sqe_chain.adapters.store_rules import Meaning
from sqe_chain.errors import ConfigurationError, Unavailable

CLASSES = [
    found for _, found in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(found, BaseException) and found.__module__ == exceptions.__name__
]  # fmt: skip


@pytest.mark.parametrize("found", CLASSES)
def test_every_exception_class_has_a_meaning(found: type[BaseException]) -> None:
    """Fails when redis-py gains a class: decide what it means, and add it to MEANINGS."""
    assert found in MEANINGS


def test_every_class_with_a_meaning_exists() -> None:
    assert set(MEANINGS) == set(CLASSES)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (exceptions.ConnectionError("refused"), Meaning.TRY_AGAIN),
        (exceptions.TimeoutError("late"), Meaning.TRY_AGAIN),
        (exceptions.BusyLoadingError("loading"), Meaning.TRY_AGAIN),
        (exceptions.ReadOnlyError("replica"), Meaning.TRY_AGAIN),
        (exceptions.OutOfMemoryError("full"), Meaning.TRY_AGAIN),
        (
            exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"),
            Meaning.TRY_AGAIN,
        ),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), Meaning.TRY_AGAIN),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), Meaning.SETTINGS),
        (exceptions.ResponseError("unknown command 'EVALSHA'"), Meaning.SETTINGS),
        (exceptions.AuthenticationError("invalid username-password pair"), Meaning.SETTINGS),
        (exceptions.NoPermissionError("no permissions"), Meaning.SETTINGS),
        (exceptions.ConnectionError("SSL: CERTIFICATE_VERIFY_FAILED"), Meaning.SETTINGS),
        (exceptions.DataError("Invalid input"), Meaning.PROGRAM),
        (ValueError("ours"), Meaning.PROGRAM),
    ],
)
def test_what_some_errors_mean(error: BaseException, meaning: Meaning) -> None:
    assert meaning_of(error) is meaning


def test_a_class_that_is_unknown_counts_as_its_parent() -> None:
    class Newer(exceptions.AuthenticationError):
        pass

    assert meaning_of(Newer("x")) is Meaning.SETTINGS


def test_our_errors_name_the_server_and_the_drivers_text() -> None:
    error = error_for(exceptions.TimeoutError("late"), "redis://host:1/0")
    assert isinstance(error, Unavailable)
    assert str(error) == "redis://host:1/0: TimeoutError: late"
    assert isinstance(error_for(exceptions.MovedError("1 host:2"), "a"), ConfigurationError)
    assert error_for(exceptions.DataError("x"), "a") is None
