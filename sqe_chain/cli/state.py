"""`sqe-chain state`: shows the states of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, key_as_json, print_json, print_table, utc
from sqe_chain.cli.files import with_counter
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, LimitOption, Stores, command
from sqe_chain.cli.selection import line_of, selection
from sqe_chain.cli.state_files import write_states
from sqe_chain.cli.values import key_named, moment_ms
from sqe_chain.codecs import Codec, Field
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.event_times import NOTHING
from sqe_chain.features.waiting import WaitingInputs, waiting_in
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import StoredState, readable, readable_key
from sqe_chain.runtime.connecting import open_stores
from sqe_chain.runtime.states import Rows, States, stage_named, stored_rows


@dataclass(frozen=True, kw_only=True)
class _StateChoice:
    """Which states, and how they are shown."""

    match: str | None = None
    where: list[str] | None = None
    begin: str | None = None
    end: str | None = None
    output: Path | None = None
    waiting: bool = False
    json: JsonOption = False
    limit: LimitOption = None

    @property
    def narrows(self) -> bool:
        """Whether only some states are shown, or they go to a file."""
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
    choice: _StateChoice,
) -> None:
    """Show the states of a stage, each as of the last batch that was persisted.

    In JSON 64-bit integers are numbers (docs/payloads.md). For a stage with windows, all open and all retained final windows
    are shown.

    Reading does not disturb a running service; but while one runs, two states may come from different batches.
    """
    flow = load_flow(target)
    node = stage_named(flow, stage)
    with open_stores(flow, stores.urls()) as opened:
        if choice.waiting:
            if keys or choice.narrows or choice.limit:
                raise ConfigurationError(
                    "--waiting shows no states. Expected it alone, without keys and other choices"
                )
            _show_waiting(waiting_in(opened[""], flow, node), as_lines=choice.json)
            return
        wanted = [key_named(text) for text in keys or ()]
        if node.codec is not None:
            _show_states(node, node.codec, States(flow, stage, opened).rows(wanted), choice)
        elif choice.narrows:
            raise ConfigurationError(
                f"stage {node.name!r} is a filter, whose rows can only be listed. Expected none of --match, --where, --from, --to and --output"
            )
        else:
            rows = stored_rows(flow, node, opened, wanted)
            _show_rows(islice(rows, choice.limit), as_lines=choice.json)


def _show_states(
    node: StageNode, codec: Codec[Any], states: Iterable[StoredState], choice: _StateChoice
) -> None:
    windowed, limit = node.traits.windowed, choice.limit
    if (choice.begin or choice.end) and not windowed:
        raise ConfigurationError(f"stage {node.name!r} has no windows. Expected neither --from nor --to")
    begin_ms, end_ms = moment_ms("--from", choice.begin), moment_ms("--to", choice.end)
    selected = selection(choice.match, choice.where or (), codec, begin_ms, end_ms)
    chosen = (stored for stored in states if selected.takes(stored))
    if choice.output is not None:
        existing = (stored for stored in islice(chosen, limit) if stored.state is not None)
        count = write_states(choice.output, with_counter(existing, "states"), codec, windows=windowed)
        ERR.print(f"{count} states written to {choice.output}")
    elif choice.json:
        for stored in islice(chosen, limit):
            print_json(line_of(stored, codec))
    else:
        _show(node, codec, chosen, limit or 100)


def _show_rows(rows: Rows, *, as_lines: bool) -> None:
    """Print the rows of a filter; their format is in proto/sqe_chain/v1/filters.proto and windows.proto."""
    for row, content in rows:
        if as_lines:
            print_json({"row": key_as_json(row), "hex": None if content is None else content.hex()})
        else:
            OUT.print(f"{readable_key(row)}: {'none' if content is None else f'{len(content)} bytes'}")


def _show(node: StageNode, codec: Codec[Any], states: Iterator[StoredState], limit: int) -> None:
    whole = Field("state", "other", lambda state: dumps(codec.to_json(state), ensure_ascii=False))
    fields = codec.fields() or (whole,)
    window = ("from", "to", "window") if node.traits.windowed else ()
    rows: list[list[object]] = []
    for stored in sorted(islice(states, limit), key=lambda stored: (stored.key, stored.span)):
        values: list[object] = [Text("no state", "dim")]
        if stored.state is not None:
            plain = codec.to_json(stored.state)
            values = [_cell(field, stored.state, plain) for field in fields]
        span = [*map(_utc, stored.span), "final" if stored.final else "open"] if stored.span else []
        rows.append([readable_key(stored.key), *span, *values])
    if not print_table(("key", *window, *(field.name for field in fields)), rows):
        ERR.print(f"stage {node.name!r} has no such states")
    if next(states, None) is not None:
        ERR.print(f"showing the first {limit}; --limit N shows more, --json all")


def _cell(field: Field, state: object, plain: object) -> str:
    value = field.of(state)
    # A sum of ints is an int, of any size, though its column in tables is of floats: it may have been one of floats.
    exact = plain.get(field.name) if isinstance(plain, dict) else None
    if isinstance(value, float) and type(exact) is int:
        value = exact
    if isinstance(value, bytes):
        return readable(value)
    return "" if value is None else str(value)


def _show_waiting(waiting: Sequence[WaitingInputs], *, as_lines: bool) -> None:
    """Print what waits for event time, and who holds it back: a row for each input partition."""
    if as_lines:
        for partition in waiting:
            print_json(_line(partition))
        return
    headers = ("partition", "waiting", "taken up to", "held back by", "known up to")
    rows = []
    for partition in waiting:
        holder = partition.holder
        by = ("", "") if holder is None else (holder, _moment(holder.watermark_ms))
        rows.append(
            (
                f"{partition.topic}[{partition.partition}]",
                partition.units,
                _moment(partition.taken_to_ms),
                *by,
            )
        )
    print_table(headers, rows)
    ERR.print(
        f"{sum(partition.units for partition in waiting)} records wait for event time, as of the last batch"
    )


def _utc(at_ms: int) -> str:
    return utc(at_ms).replace("T", " ").removesuffix("+00:00")


def _line(waiting: WaitingInputs) -> dict[str, object]:
    holder = waiting.holder
    return {
        "topic": waiting.topic,
        "partition": waiting.partition,
        "waiting": waiting.units,
        "taken_to_ms": waiting.taken_to_ms,
        "holder_topic": None if holder is None else holder.topic,
        "holder_partition": None if holder is None else holder.partition,
        "writer": None if holder is None else holder.writer or None,
        "watermark_ms": None if holder is None else holder.watermark_ms,
    }


def _moment(at_ms: int | None) -> str:
    return "nothing yet" if at_ms is None or at_ms <= NOTHING else _utc(at_ms)
