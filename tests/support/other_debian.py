"""Programs of another Debian, which `scripts/debian-root` has put into a directory: they run with that Debian's loader and libraries."""

from __future__ import annotations

from pathlib import Path


class NotHere(Exception):
    """This machine lacks a program; the text names it, and how to get it."""


def program_of(root: Path, path: str, made_by: str) -> list[str]:
    """The command that starts a program.

    Args:
        root: of that Debian.
        path: of the program below it.
        made_by: what makes the root, for the error.

    Raises:
        NotHere: there is no such root, or no such program in it.
    """
    real = root / path
    libraries = sorted((root / "usr/lib").glob("*-linux-gnu"))
    loaders = sorted(root.glob("usr/lib*/ld-linux*.so.*"))
    if not real.exists() or not loaders:
        raise NotHere(f"there is no {real}: {made_by} makes that Debian")
    return [str(loaders[0]), "--library-path", ":".join(map(str, libraries)), str(real)]
