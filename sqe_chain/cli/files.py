"""Files that commands write: each appears when it is whole, and what goes into it is counted on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn

from sqe_chain.cli.console import ERR
from sqe_chain.errors import ConfigurationError

Item = TypeVar("Item")

_SHOWN_EVERY = 1_000


def check_new(file: Path) -> None:
    """Refuse a file that is there already.

    Raises:
        ConfigurationError: it is.
    """
    if file.exists():
        raise ConfigurationError(f"{file} is there already; give the name of a new file")


@contextmanager
def appearing(file: Path) -> Iterator[Path]:
    """The name to write to; it becomes the file's at the end, and nothing is left after an error."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        yield partial
        partial.rename(file)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The same items, counted on the terminal if there is one."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"))
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        for number, item in enumerate(items):
            if number % _SHOWN_EVERY == 0:
                progress.update(task, completed=number)
            yield item
