"""What user code raises, told from what everything else raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class UserCodeError(Exception):
    """A function of the user raised; what it raised is the cause.

    Where user code is called from among reads of a store, only this is poison.
    """

    def __init__(self, raised: Exception) -> None:
        super().__init__(raised)
        self.raised = raised


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with whatever it raises wrapped as `UserCodeError`."""

    def call(*arguments: object) -> object:
        try:
            return function(*arguments)
        except Exception as error:
            raise UserCodeError(error) from error

    return call
