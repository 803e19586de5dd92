"""`sqe-chain state --waiting`: what waits for event time in a stage, and who holds it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Column, Table
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, print_json
from sqe_chain.protocol.event_times import NOTHING
from sqe_chain.protocol.holding import Waiting


def show_waiting(found: Sequence[Waiting], *, as_lines: bool) -> None:
    """Print a row for each input partition, or each as a line of JSON.

    Args:
        found: what waits.
        as_lines: as JSON.
    """
    if as_lines:
        for one in found:
            print_json(_line(one))
        return
    table = Table(
        Column("partition", no_wrap=True),
        "waiting",
        "taken up to",
        Column("held back by", no_wrap=True),
        "known up to",
    )
    for one in found:
        holder = one.holder
        by = ("", "") if holder is None else (str(holder), _moment(holder.watermark_ms))
        name = Text(f"{one.topic}[{one.partition}]")
        table.add_row(name, str(one.units), _moment(one.taken_to_ms), *map(Text, by))
    OUT.print(table)
    ERR.print(f"{sum(one.units for one in found)} records wait for event time, as of the last batch")


def utc(at_ms: int) -> str:
    """A date and time in UTC; a time outside Python's calendar as a number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)


def _line(one: Waiting) -> dict[str, object]:
    holder = one.holder
    return {
        "topic": one.topic,
        "partition": one.partition,
        "waiting": one.units,
        "taken_to_ms": one.taken_to_ms,
        "holder_topic": None if holder is None else holder.topic,
        "holder_partition": None if holder is None else holder.partition,
        "writer": None if holder is None else holder.writer or None,
        "watermark_ms": None if holder is None else holder.watermark_ms,
    }


def _moment(at_ms: int | None) -> str:
    return "nothing yet" if at_ms is None or at_ms <= NOTHING else utc(at_ms)
