"""The live panel of a service that runs in a terminal."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sqe_chain.errors.safe_text import shown
from sqe_chain.plans.events import Event, Observer, Recovered, Waiting
from sqe_chain.runtime.statistics import Statistics


def panel(statistics: Statistics, flow: str, kafka: str) -> Panel:
    """The figures of a service in a frame."""
    numbers = Table.grid(padding=(0, 3), expand=False)
    for _ in range(3):
        numbers.add_column(style="dim")
        numbers.add_column(justify="right")
    numbers.add_row(
        *("input rate", f"{statistics.rate():,.0f}/s"),
        *("inputs", f"{statistics.inputs:,}"),
        *("lag", f"{statistics.lag:,}"),
    )
    numbers.add_row(
        *("batch time", f"{statistics.batch_ms:,} ms"),
        *("replays ignored", f"{statistics.replays:,}"),
        *("outputs", f"{statistics.outputs:,}"),
    )
    if statistics.epoch:
        numbers.add_row(
            *("last persist", _ago(statistics)),
            *("store writes", f"{statistics.rows:,}"),
            *("plan, epoch", f"{statistics.plan or 0:,}, {statistics.epoch}"),
        )
    if statistics.excluded:
        numbers.add_row("skipped", Text(f"{statistics.excluded:,}", "bold yellow"))
    if statistics.held:
        numbers.add_row(
            "wait for event time",
            f"{statistics.held:,}",
            "held back by",
            Text(shown(statistics.holder or "none")),
        )
    body = Table.grid()
    body.add_row(numbers)
    if statistics.notice:
        body.add_row(Text(shown(statistics.notice), "yellow", overflow="fold"))
    return Panel(
        body,
        title=Text.assemble((flow, "bold"), f"  {shown(kafka)}"),
        title_align="left",
        subtitle=Text(shown(statistics.doing), "dim"),
        subtitle_align="left",
        expand=False,
    )


def _ago(statistics: Statistics) -> str:
    if not statistics.persisted_s:
        return "never"
    return f"{max(0.0, statistics.now_s() - statistics.persisted_s):.0f} s ago"


class LivePanel(Observer):
    """Shows the panel, and important events as lines above it."""

    def __init__(self, console: Console, statistics: Statistics, flow: str, kafka: str) -> None:
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=lambda: panel(statistics, flow, kafka),
            refresh_per_second=4,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop updating; the last figures stay on the terminal."""
        self._live.stop()

    def event(self, event: Event) -> None:
        # The panel itself shows `Waiting`.
        if isinstance(event, Recovered) or (event.warns and not isinstance(event, Waiting)):
            text = "  ".join(
                f"{field}={shown(value)}"
                for field, value in event.fields().items()
                if field not in event.for_programs
            )
            self._console.print(Text.assemble((event.name, "bold"), f"  {text}"))
