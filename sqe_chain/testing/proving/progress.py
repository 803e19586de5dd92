"""A progress bar on the standard error output, where there is a terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self


class Progress:
    """A bar; nothing where there is no terminal, or no rich.

    Args:
        title: what goes on.
        total: steps at most.
        wanted: whether it is shown; None: if there is a terminal.
    """

    def __init__(self, title: str, total: int, wanted: bool | None) -> None:  # noqa: FBT001
        self._bar: Any = None
        shown = sys.stderr.isatty() if wanted is None else wanted
        if shown and find_spec("rich") is not None:
            from rich.console import Console  # noqa: PLC0415 - an extra
            from rich.progress import Progress as Bar  # noqa: PLC0415 - an extra

            self._bar = Bar(console=Console(stderr=True, force_terminal=wanted), transient=True)
            self._task = self._bar.add_task(title, total=total)

    def advance(self) -> None:
        """One more step is done."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
