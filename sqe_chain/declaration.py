"""Checks of what a user declares; every error names the place in the user's own file."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqe_chain.errors import FlowError

UserFunction = Callable[..., Any]
"""The user's own types go through it; they are checked where they reach a stage or an output."""

NAME_LENGTH = 120
TOPIC_LENGTH = 249

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGE = str(Path(__file__).parent)


def place() -> str:
    """File and line of the user's call: the first frame outside this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to name a place cheaply
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_name(what: str, name: object, where: str, length: int = NAME_LENGTH) -> None:
    """Refuse a name that stores or Kafka would not take.

    Args:
        what: what it names, for the error's text.
        name: the name.
        where: place in the user's file.
        length: characters allowed.

    Raises:
        FlowError: another type, empty, too long, or another alphabet.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > length:
        raise FlowError(f"{where}: {what} name {name!r}; 1 to {length} of letters, digits, '.', '_', '-'")


def check_topic(topic: object, where: str) -> None:
    """Refuse what Kafka does not take as a topic's name. Raises FlowError."""
    check_name("topic", topic, where, TOPIC_LENGTH)
    if topic in (".", ".."):
        raise FlowError(f"{where}: topic {topic!r}; Kafka does not allow it")


def check_callable(what: str, function: object, where: str) -> None:
    """Refuse what cannot be called. Raises FlowError."""
    if not callable(function):
        raise FlowError(f"{where}: {what} needs a function, got {function!r}")


def check_choice(what: str, found: object, choices: tuple[str, ...], where: str) -> None:
    """Refuse a word that is not one of the choices. Raises FlowError."""
    if found not in choices:
        raise FlowError(f"{where}: {what}={found!r}; one of {', '.join(map(repr, choices))}")


def wants_context(function: UserFunction | None, plain: int, where: str) -> bool:
    """Whether a function takes one positional argument more than `plain`.

    Raises:
        FlowError: it takes fewer than `plain`, or more than `plain + 1`.
    """
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # some built-ins do not say; they know no context either
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    if len(positional) < plain or len(required) > plain + 1:
        raise FlowError(
            f"{where}: {function!r} must take {plain} argument(s), or {plain + 1} with the context"
        )
    return len(required) == plain + 1
