"""Writes files so that they appear only when complete, with a counter on the terminal."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn

from sqe_chain.cli.console import ERR
from sqe_chain.errors import ConfigurationError

Item = TypeVar("Item")

_SHOWN_EVERY = 1_000


def check_new(file: Path) -> None:
    """Refuse a file that cannot be a new one, before anything is done for it.

    Raises:
        ConfigurationError: it exists, or its directory does not.
    """
    with _refusals(file):
        if file.exists():
            raise ConfigurationError(f"{file} already exists. Give the name of a new file")
        if not file.parent.is_dir():
            raise ConfigurationError(f"{file}: there is no directory {file.parent}. Create it first")


@contextmanager
def write_whole(file: Path) -> Iterator[Path]:
    """The path of a temporary file to write to. It is renamed at the end, when it is on the disk; after an error nothing is left.

    Raises:
        ConfigurationError: it cannot be written.
    """
    partial = file.with_name(f"{file.name}.partial")
    with _refusals(file):
        try:
            yield partial
            _sync(partial)
            partial.rename(file)
            with suppress(OSError):  # some file systems cannot, for directories
                _sync(file.parent)
        finally:
            with suppress(OSError):
                partial.unlink()


def _sync(path: Path) -> None:
    """Return when a file, or the names in a directory, are on the disk: who has an export may delete the states."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_text(file: Path, mode: Literal["r", "w"], *, compressed: bool) -> IO[str]:
    """Open a file of UTF-8."""
    return gzip.open(file, f"{mode}t", encoding="utf-8") if compressed else file.open(mode, encoding="utf-8")  # type: ignore[return-value]


@contextmanager
def _refusals(file: Path) -> Iterator[None]:
    """Turn an error of the system about a file into one that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from error


def with_counter(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The same items; a counter on the terminal, if there is one, shows how many have passed."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"))
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        for number, item in enumerate(items):
            if number % _SHOWN_EVERY == 0:
                progress.update(task, completed=number)
            yield item
