"""`sqe-chain tables`: shows a table, merges its small files, and deletes files that nobody needs any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, print_json, print_table
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import JsonOption, command
from sqe_chain.cli.values import properties
from sqe_chain.wings import needing

if TYPE_CHECKING:
    from sqe_chain.ext.tables import Table

app = typer.Typer(no_args_is_help=True, help="Tables that flows write: show, compact, vacuum.")

_AddressArgument = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="Directory or URL of one table: what ingest was given as at, then / and its name.",
    ),
]
_OptionsOption = Annotated[
    list[str] | None,
    Option("For delta-rs: logins and settings of an object store. Repeatable.", "NAME=VALUE"),
]


@app.command("show")
@command
def show(address: _AddressArgument, *, option: _OptionsOption = None, json: JsonOption = False) -> None:
    """Show what a table is: who writes it, its columns and keys, files, rows and bytes. Reads no rows."""
    table = _opened(address, option).describe()
    total = table.total
    if json:
        print_json({**asdict(table), "columns": dict(table.columns), **asdict(total)})
        return
    OUT.print(
        f"stage {table.stage!r} of flow {table.flow!r}, version {table.version}; commit {table.commits}"
    )
    OUT.print(f"partition key {', '.join(table.partition_key)}; row key {', '.join(table.row_key)}")
    OUT.print(Text(", ".join(f"{name} {of}" for name, of in table.columns.items())))
    print_table(
        ("state partition", "files", "rows, replaced ones included", "bytes"),
        (
            (number, f"{part.files:,}", f"{part.rows:,}", f"{part.size:,}")
            for number, part in [*table.state_partitions.items(), ("all", total)]
        ),
    )


@app.command("compact")
@command
def compact(
    address: _AddressArgument,
    *,
    option: _OptionsOption = None,
    json: JsonOption = False,
) -> None:
    """Merge the files of each state partition, and drop replaced rows. Readers and writers go on meanwhile.

    Each state partition is one commit, so it may be killed and run again. The old files stay until a vacuum.
    """
    done = _opened(address, option).compact()
    if json:
        print_json(asdict(done))
        return
    OUT.print(
        f"{done.files_before:,} files became {done.files_after:,}; {done.rows_left_out:,} replaced rows were left out"
    )


@app.command("vacuum")
@command
def vacuum(
    address: _AddressArgument,
    *,
    option: _OptionsOption = None,
    retain_hours: Annotated[
        int,
        Option("Keep what versions of the last hours need: longer than any reader takes.", "HOURS", least=1),
    ] = 168,
    json: JsonOption = False,
) -> None:
    """Delete files that no version of the last hours needs, and what writers that died have left."""
    gone = _opened(address, option).vacuum(retain_hours=retain_hours)
    for path in gone:
        if json:
            print_json({"deleted": path})
    if not json:
        OUT.print(f"{len(gone):,} files deleted")
    if not gone:
        ERR.print(f"nothing is older than {retain_hours} hours and unused")


def _opened(address: str, option: list[str] | None) -> Table:
    options: Mapping[str, str] = properties("--option", option or ())
    with needing("a table", "tables"):
        from sqe_chain.ext.tables import open_table  # noqa: PLC0415 - it needs pyarrow and delta-rs

        return open_table(address, options)
