"""Wings: features that hang on the core, in `sqe_chain.ext` or in other packages. Entry points name them.

The core names a wing and what it wants of it; it imports none. A wing is loaded when a flow or a command asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from sqe_chain.errors import ConfigurationError

WINGS: Final = "sqe_chain.wings"
"""Group of entry points: name of a feature -> the function that does it."""
COMMANDS: Final = "sqe_chain.commands"
"""Group of entry points: name of a command -> its typer application, or its function."""
_OWN: Final = "sqe_chain"


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name."""
    return {point.name: point for point in entry_points(group=group)}


def load(group: str, name: str, extra: str = "") -> Any:  # noqa: ANN401 - whatever the package offers under this name
    """Load what a package offers under a name: a wing, a command, a kind of stage, a store or a codec.

    Args:
        group: of entry points.
        name: of the entry point.
        extra: the extra of sqe-chain that installs what a wing of sqe-chain needs.

    Raises:
        ConfigurationError: no installed package offers it, or it does not load: the text names the package.
    """
    point = installed(group).get(name)
    if point is None:
        raise ConfigurationError(
            f"{name!r} is in no installed package (entry points {group!r}). Install it: pip install 'sqe-chain[{extra}]'"
        )
    try:
        with needing(repr(name), extra if point.module.partition(".")[0] == _OWN else ""):
            return point.load()
    except ConfigurationError:
        raise
    except Exception as error:
        raise unusable(group, name, f"does not load: {type(error).__name__}: {error}") from error


def unusable(group: str, name: str, why: str) -> ConfigurationError:
    """The error for an installed entry point that cannot be used; it names the package."""
    point = installed(group)[name]
    package = f" of package {point.dist.name}" if point.dist else ""
    return ConfigurationError(
        f"entry point {name} = {point.value}{package} ({group}) {' '.join(why.split())}. Install that package again, or remove it"
    )


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Within it, a missing package is reported with the extra that installs it.

    Args:
        what: needs the package.
        extra: of sqe-chain; empty: none installs it, and the error stays as it is.

    Raises:
        ConfigurationError: a package is missing. A missing module of sqe_chain is a bug, and is raised as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not extra or package == _OWN:
            raise
        raise ConfigurationError(needed(what, package, extra)) from error


def needed(what: str, package: str, extra: str) -> str:
    """The text about a package that is not installed."""
    return f"{what} needs the package {package!r}: pip install 'sqe-chain[{extra}]'"
