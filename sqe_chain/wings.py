"""Wings: features that hang on the core, in `sqe_chain.ext` or in other packages. They are found by entry points.

The core names a wing and what it wants of it; it imports none. A wing is loaded when a flow or a command asks for it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from sqe_chain.errors import ConfigurationError

WINGS: Final = "sqe_chain.wings"
"""Group of entry points: name of a feature -> the function that does it."""
COMMANDS: Final = "sqe_chain.commands"
"""Group of entry points: name of a command -> its typer application, or its function."""


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name."""
    return {point.name: point for point in entry_points(group=group)}


def load(group: str, name: str, extra: str) -> Any:  # noqa: ANN401 - whatever the wing offers under this name
    """What a wing offers under a name.

    Args:
        group: of entry points.
        name: of the entry point.
        extra: the extra of sqe-chain that installs what the wing needs.

    Raises:
        ConfigurationError: no installed package has it, or it does not load: the text names the package.
    """
    point = installed(group).get(name)
    if point is None:
        raise ConfigurationError(
            f"{name!r} is in no installed package (entry points {group!r}); pip install 'sqe-chain[{extra}]'"
        )
    try:
        return point.load()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sqe_chain":
            package = f" of package {point.dist.name}" if point.dist else ""
            raise ConfigurationError(
                f"entry point {name} = {point.value}{package} ({group}) does not load: {error}; reinstall that package"
            ) from error
        raise ConfigurationError(
            f"{name!r} needs the package {error.name!r}, which is not installed: pip install 'sqe-chain[{extra}]'"
        ) from error
