"""A progress bar on the standard error output, where there is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def progress_bar(title: str, total: int, *, wanted: bool | None) -> Iterator[Callable[[], object]]:
    """Show a bar; nothing where there is no terminal, or no rich.

    Yields:
        A function to call after each step.
    """
    shown = sys.stderr.isatty() if wanted is None else wanted
    if not shown or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import Progress  # noqa: PLC0415 - an extra

    with Progress(console=Console(stderr=True, force_terminal=wanted), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
