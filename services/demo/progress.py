"""Shows the progress: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

PLAIN_EVERY_S = 5.0


class ServiceRow(NamedTuple):
    """The row of one service.

    Attributes:
        kills: kills that count, and how many are wanted.
        open_plans: kills between seal and commit whose plan was finished, and how many are wanted; empty if none.
    """

    service: str
    life: int
    state: str
    kills: str
    open_plans: str
    done: int
    lag: int
    replays: int


class DemoProgress:
    """Shows rows that change, and notes that stay."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._plain_due = self._begin + PLAIN_EVERY_S
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def __enter__(self) -> Self:
        """Start showing."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing; notes stay."""
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{self.elapsed_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    def show(self, rows: Sequence[ServiceRow]) -> None:
        """Show the progress of all services; may be called often."""
        if self._live:
            self._live.update(_table(rows, self.elapsed_s))
            return
        now = time.monotonic()
        if now >= self._plain_due:
            self._plain_due = now + PLAIN_EVERY_S
            self.note("; ".join(_sentence(row) for row in rows))


def _table(rows: Sequence[ServiceRow], elapsed_s: float) -> Table:
    table = Table(title=f"{elapsed_s:.0f} s")
    for column in ("service", "life", "now", "kills", "open plans", "done", "lag", "replays"):
        table.add_column(column, justify="left" if column in ("service", "now") else "right")
    for row in rows:
        table.add_row(*(f"{figure:,}" if isinstance(figure, int) else figure for figure in row))
    return table


def _sentence(row: ServiceRow) -> str:
    open_plans = f", open plans {row.open_plans}" if row.open_plans else ""
    return f"{row.service} #{row.life} {row.state}, kills {row.kills}{open_plans}, lag {row.lag:,}"
