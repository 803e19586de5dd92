"""Functions of the user, as nodes and kinds of stages hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UserFunction = Callable[..., Any]
"""Any function of the user; its precise type was checked where it was declared."""


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """A function of the user, and how it wants to be called.

    Attributes:
        function: the function.
        takes_context: whether it wants the context as its last argument.
    """

    function: UserFunction
    takes_context: bool = False


def functions_in(holder: object) -> tuple[DeclaredFunction, ...]:
    """The functions of the user in the fields of a dataclass."""
    values = (getattr(holder, name, None) for name in getattr(holder, "__dataclass_fields__", ()))
    return tuple(value for value in values if isinstance(value, DeclaredFunction))
