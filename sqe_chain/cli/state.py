"""`sqe-chain state`: shows the states of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, as_json, print_json, readable, reported
from sqe_chain.cli.files import with_counter
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, StoreOption, TracebackOption
from sqe_chain.cli.selection import line_of, selection
from sqe_chain.cli.state_files import write_states
from sqe_chain.cli.values import moment_ms, store_urls
from sqe_chain.cli.waiting import show_waiting, utc
from sqe_chain.codecs import Codec, Field
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import StoredState
from sqe_chain.protocol.holding import waiting_in
from sqe_chain.runtime.connecting import open_stores
from sqe_chain.runtime.states import Rows, decoded, stage_named, stored_rows
from sqe_chain.safe_text import one_line


def state(  # noqa: PLR0913 - options of a command
    target: FlowArgument,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of the stage.")],
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Keys (0x... for bytes); without any, all.")
    ] = None,
    *,
    store: StoreOption = None,
    match: Annotated[
        str | None,
        typer.Option(
            "--match", metavar="PATTERN", help="Only keys that match: robot-1*, with * ? and [...]."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only states for which this is true: events>100, line=L1. Repeatable.",
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Only windows that begin then or later: 2026-11-20T10:00:00Z, or milliseconds since 1970.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Only windows that begin before.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to a new file: .jsonl, .jsonl.gz or .parquet."),
    ] = None,
    waiting: Annotated[
        bool,
        typer.Option(
            "--waiting",
            help="Instead of states: how many records wait for event time in each state partition, and who holds them back.",
        ),
    ] = False,
    json: JsonOption = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Show at most N; by default 100 in a table, all as JSON."),
    ] = None,
    traceback: TracebackOption = False,
) -> None:
    """Show the states of a stage, each as of the last batch that was persisted.

    In JSON 64-bit integers are numbers: readers whose numbers are doubles lose digits beyond 2**53. For a stage with
    windows, all open and all retained final windows are shown.

    Reading does not disturb a running service; but while one runs, two states may come from different batches.
    """
    with reported(traceback=traceback):
        flow = load_flow(target)
        node = stage_named(flow, stage)
        with open_stores(flow, store_urls(store or ())) as stores:
            if waiting:
                if keys or match or where or begin or end or output or limit:
                    raise ConfigurationError(
                        "--waiting shows no states: leave out keys and all other choices"
                    )
                show_waiting(waiting_in(stores[""], flow, node), as_lines=json)
                return
            wanted = [_key(text) for text in keys or ()]
            stored = stored_rows(flow, node, stores, wanted)
            codec = node.codec
            if codec is None:
                if match or where or output or begin or end:
                    raise ConfigurationError(
                        f"stage {node.name!r} is a filter: its rows can only be listed; leave out --match, --where, --from, --to and --output"
                    )
                _show_rows(islice(stored, limit), as_lines=json)
                return
            if (begin or end) and not node.stage_kind.windowed:
                raise ConfigurationError(f"stage {node.name!r} has no windows; leave out --from and --to")
            selected = selection(match, where or (), codec, _time("--from", begin), _time("--to", end))
            found = (one for one in decoded(node, codec, stored, wanted) if selected.takes(one))
            if output is not None:
                existing = (one for one in islice(found, limit) if one.state is not None)
                windows = node.stage_kind.windowed
                count = write_states(output, with_counter(existing, "states"), codec, windows=windows)
                ERR.print(f"{count} states written to {output}")
            elif json:
                for one in islice(found, limit):
                    print_json(line_of(one, codec))
            else:
                _show(node, codec, found, limit or 100)


def _time(option: str, text: str | None) -> int | None:
    return None if text is None else moment_ms(option, text)


def _key(text: str) -> bytes:
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise ConfigurationError(
            f"key {text!r}: what follows 0x must be hexadecimal digits in pairs"
        ) from None


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
    window = ("from", "to", "window") if node.stage_kind.windowed else ()
    table = Table("key", *window, *(field.name for field in fields))
    for one in sorted(islice(found, limit), key=lambda one: (one.key, one.span)):
        values = [Text("no state", "dim")]
        if one.state is not None:
            values = [Text(one_line(_cell(field, one.state))) for field in fields]
        span = [*map(utc, one.span), "final" if one.final else "open"] if one.span else []
        table.add_row(Text(readable(one.key)), *span, *values)
    if table.row_count:
        OUT.print(table)
    else:
        ERR.print(f"stage {node.name!r} has no such states")
    if next(found, None) is not None:
        ERR.print(f"showing the first {limit}; --limit N shows more, --json all")


def _cell(field: Field, state: object) -> str:
    value = field.of(state)
    if isinstance(value, bytes):
        return readable(value)
    return "" if value is None else str(value)
