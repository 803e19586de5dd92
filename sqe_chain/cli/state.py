"""`sqe-chain state`: shows the states of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, as_json, print_json, print_table, readable, utc
from sqe_chain.cli.files import with_counter
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, LimitOption, Option, Stores, command
from sqe_chain.cli.selection import line_of, selection
from sqe_chain.cli.state_files import write_states
from sqe_chain.cli.values import key_named, moment_ms
from sqe_chain.codecs import Codec, Field
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.event_times import NOTHING
from sqe_chain.features.holding import WaitingInputs, waiting_in
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import StoredState
from sqe_chain.runtime.connecting import open_stores
from sqe_chain.runtime.states import Rows, States, stage_named, stored_rows


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which states, and how they are shown."""

    match: Annotated[str | None, Option("Only keys that match: robot-1*, with * ? and [...].", "PATTERN")] = (
        None
    )
    where: Annotated[
        list[str] | None,
        Option("Only states for which this is true: events>100, line=L1. Repeatable.", "CONDITION"),
    ] = None
    begin: Annotated[
        str | None,
        Option(
            "Only windows that begin then or later: 2026-11-20T10:00:00Z, or milliseconds since 1970.",
            "TIME",
            name="from",
        ),
    ] = None
    end: Annotated[str | None, Option("Only windows that begin before.", "TIME", name="to")] = None
    output: Annotated[Path | None, Option("Write to a new file: .jsonl, .jsonl.gz or .parquet.", "FILE")] = (
        None
    )
    waiting: Annotated[
        bool,
        Option(
            "Instead of states: how many records wait for event time in each state partition, and who holds them back."
        ),
    ] = False
    json: JsonOption = False
    limit: LimitOption = None

    @property
    def narrows(self) -> bool:
        """Whether some states are left out, or go to a file."""
        return bool(self.match or self.where or self.begin or self.end or self.output)


@command
def state(
    target: FlowArgument,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of the stage.")],
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Keys (0x... for bytes); without any, all.")
    ] = None,
    *,
    stores: Stores,
    choice: Choice,
) -> None:
    """Show the states of a stage, each as of the last batch that was persisted.

    In JSON 64-bit integers are numbers: readers whose numbers are doubles lose digits beyond 2**53. For a stage with
    windows, all open and all retained final windows are shown.

    Reading does not disturb a running service; but while one runs, two states may come from different batches.
    """
    flow = load_flow(target)
    node = stage_named(flow, stage)
    with open_stores(flow, stores.urls()) as opened:
        if choice.waiting:
            if keys or choice.narrows or choice.limit:
                raise ConfigurationError("--waiting shows no states: leave out keys and all other choices")
            _show_waiting(waiting_in(opened[""], flow, node), as_lines=choice.json)
            return
        wanted = [key_named(text) for text in keys or ()]
        if node.codec is not None:
            _show_states(node, node.codec, States(flow, stage, opened).rows(wanted), choice)
        elif choice.narrows:
            raise ConfigurationError(
                f"stage {node.name!r} is a filter: its rows can only be listed; leave out --match, --where, --from, --to and --output"
            )
        else:
            rows = stored_rows(flow, node, opened, wanted)
            _show_rows(islice(rows, choice.limit), as_lines=choice.json)


def _show_states(node: StageNode, codec: Codec[Any], states: Iterable[StoredState], choice: Choice) -> None:
    windowed, limit = node.traits.windowed, choice.limit
    if (choice.begin or choice.end) and not windowed:
        raise ConfigurationError(f"stage {node.name!r} has no windows; leave out --from and --to")
    begin_ms, end_ms = _time("--from", choice.begin), _time("--to", choice.end)
    selected = selection(choice.match, choice.where or (), codec, begin_ms, end_ms)
    found = (one for one in states if selected.takes(one))
    if choice.output is not None:
        existing = (one for one in islice(found, limit) if one.state is not None)
        count = write_states(choice.output, with_counter(existing, "states"), codec, windows=windowed)
        ERR.print(f"{count} states written to {choice.output}")
    elif choice.json:
        for one in islice(found, limit):
            print_json(line_of(one, codec))
    else:
        _show(node, codec, found, limit or 100)


def _time(option: str, text: str | None) -> int | None:
    return None if text is None else moment_ms(option, text)


def _show_rows(rows: Rows, *, as_lines: bool) -> None:
    """Print the rows of a filter; their format is in proto/sqe_chain/v1/filters.proto and windows.proto."""
    for row, content in rows:
        if as_lines:
            print_json({"row": as_json(row), "hex": None if content is None else content.hex()})
        else:
            OUT.print(f"{readable(row)}: {'none' if content is None else f'{len(content)} bytes'}")


def _show(node: StageNode, codec: Codec[Any], found: Iterator[StoredState], limit: int) -> None:
    """A table with one column for each field of the state."""
    whole = Field("state", "other", lambda state: dumps(codec.to_json(state), ensure_ascii=False))
    fields = codec.fields() or (whole,)
    window = ("from", "to", "window") if node.traits.windowed else ()
    rows: list[list[object]] = []
    for one in sorted(islice(found, limit), key=lambda one: (one.key, one.span)):
        values: list[object] = [Text("no state", "dim")]
        if one.state is not None:
            values = [_cell(field, one.state) for field in fields]
        span = [*map(_utc, one.span), "final" if one.final else "open"] if one.span else []
        rows.append([readable(one.key), *span, *values])
    if not print_table(("key", *window, *(field.name for field in fields)), rows):
        ERR.print(f"stage {node.name!r} has no such states")
    if next(found, None) is not None:
        ERR.print(f"showing the first {limit}; --limit N shows more, --json all")


def _cell(field: Field, state: object) -> str:
    value = field.of(state)
    if isinstance(value, bytes):
        return readable(value)
    return "" if value is None else str(value)


def _show_waiting(found: Sequence[WaitingInputs], *, as_lines: bool) -> None:
    """Print what waits for event time, and who holds it back: a row for each input partition."""
    if as_lines:
        for one in found:
            print_json(_line(one))
        return
    headers = ("partition", "waiting", "taken up to", "held back by", "known up to")
    rows = []
    for one in found:
        holder = one.holder
        by = ("", "") if holder is None else (holder, _moment(holder.watermark_ms))
        rows.append((f"{one.topic}[{one.partition}]", one.units, _moment(one.taken_to_ms), *by))
    print_table([Column(name, no_wrap=name in ("partition", "held back by")) for name in headers], rows)
    ERR.print(f"{sum(one.units for one in found)} records wait for event time, as of the last batch")


def _utc(at_ms: int) -> str:
    return utc(at_ms).replace("T", " ").removesuffix("+00:00")


def _line(one: WaitingInputs) -> dict[str, object]:
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
    return "nothing yet" if at_ms is None or at_ms <= NOTHING else _utc(at_ms)
