"""Distinguishes exceptions of user code from all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


class UserCodeError(Exception):
    """A function of the user raised; `raised` is its exception.

    Where user code runs between reads of a store, only this error is poison: any other may come from the store.
    """

    def __init__(self, raised: Exception) -> None:
        super().__init__(raised)
        self.raised = raised


class RunError(UserCodeError):
    """A function of the user raised on one record of several: the one at this index."""

    def __init__(self, raised: Exception, index: int) -> None:
        super().__init__(raised)
        self.index = index


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its exceptions wrapped as `UserCodeError`."""

    @wraps(function)
    def call(*arguments: object) -> object:
        try:
            return function(*arguments)
        except Exception as error:
            raise UserCodeError(error) from error

    return call
