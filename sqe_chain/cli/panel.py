"""The live panel of a service that runs in a terminal."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sqe_chain.protocol.events import Event, Observer
from sqe_chain.runtime.lines import WARNINGS
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.safe_text import shown

_SHOWN = (WARNINGS - {"waiting"}) | {"recovered"}
"""Events that get a line above the panel, to be read later. Waiting is shown in the panel itself."""


def panel(statistics: Statistics, flow: str, kafka: str) -> Panel:
    """The figures of a service in a frame.

    Args:
        statistics: the figures.
        flow: name of the flow.
        kafka: address of the brokers.
    """
    numbers = Table.grid(padding=(0, 3), expand=False)
    for _ in range(3):
        numbers.add_column(style="dim")
        numbers.add_column(justify="right")
    one = statistics
    numbers.add_row(
        *("input rate", f"{one.rate():,.0f}/s"), *("inputs", f"{one.inputs:,}"), *("lag", f"{one.lag:,}")
    )
    numbers.add_row(
        *("batch time", f"{one.batch_ms:,} ms"),
        *("replays ignored", f"{one.replays:,}"),
        *("outputs", f"{one.outputs:,}"),
    )
    if one.epoch:
        numbers.add_row(
            *("last persist", _ago(one)),
            *("store writes", f"{one.rows:,}"),
            *("plan, epoch", f"{max(one.plan, 0):,}, {one.epoch}"),
        )
    if one.excluded:
        numbers.add_row("left out", Text(f"{one.excluded:,}", "bold yellow"))
    if one.held:
        numbers.add_row(
            "wait for event time", f"{one.held:,}", "held back by", Text(shown(one.holder or "nobody"))
        )
    body = Table.grid()
    body.add_row(numbers)
    if one.notice:
        body.add_row(Text(shown(one.notice), "yellow", overflow="fold"))
    return Panel(
        body,
        title=Text.assemble((flow, "bold"), f"  {shown(kafka)}"),
        title_align="left",
        subtitle=Text(shown(one.doing), "dim"),
        subtitle_align="left",
        expand=False,
    )


def _ago(statistics: Statistics) -> str:
    if not statistics.persisted_s:
        return "never"
    return f"{max(0.0, statistics.now_s() - statistics.persisted_s):.0f} s ago"


class LivePanel(Observer):
    """Shows the panel, and important events as lines above it.

    Args:
        console: the terminal.
        statistics: the figures; another observer updates them.
        flow: name of the flow.
        kafka: address of the brokers.
    """

    def __init__(self, console: Console, statistics: Statistics, flow: str, kafka: str) -> None:
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=lambda: panel(statistics, flow, kafka),
            refresh_per_second=4,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        """Show the panel."""
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop updating; the last figures stay on the terminal."""
        self._live.stop()

    def event(self, event: Event) -> None:
        """Print a line above the panel for an event worth keeping."""
        if event.name in _SHOWN:
            text = "  ".join(f"{field}={shown(value)}" for field, value in event.fields().items())
            self._console.print(Text.assemble((event.name, "bold"), f"  {text}"))
