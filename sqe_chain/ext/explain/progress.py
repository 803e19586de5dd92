"""Shows on a terminal how much of the records a command has read, and keeps it from reading too fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ReadingBar:
    """A bar with an estimate, as long as the context lasts; then it is gone. Without a terminal nothing is shown.

    Args:
        console: where it is shown.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("records,"))
        left = (TimeRemainingColumn(elapsed_when_finished=True), TextColumn("left"))
        shown = console.is_terminal
        self._bar = Progress(
            *columns, *left, console=console, transient=True, disable=not shown, redirect_stdout=False
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it, whatever has ended the command."""
        self.hide()

    def hide(self) -> None:
        """Remove it, until more is read: an answer is to be printed."""
        self._bar.stop()

    def show(self, read: int, wanted: int) -> None:
        """Show the numbers of records read and to be read; with 0 another pass begins."""
        self._bar.start()
        if self._task is None or not read:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task("", total=wanted)
        self._bar.update(self._task, completed=read)


@dataclass(slots=True)
class Slowed:
    """Keeps a rate.

    Args:
        rate: the most records in a second; None: as fast as it goes.
        wait: waits for a time in milliseconds.
        now_s: gives the time in seconds.
    """

    rate: int | None
    wait: Callable[[int], object]
    now_s: Callable[[], float]
    _began: float = 0.0

    def keep(self, read: int) -> None:
        """Wait if these records were read too early; with 0 another pass begins."""
        if not read:
            self._began = self.now_s()
        elif self.rate is not None:
            early_ms = int((read / self.rate - (self.now_s() - self._began)) * 1_000)
            if early_ms > 0:
                self.wait(early_ms)
