"""The command line application: all commands are registered here."""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Annotated

import typer

from sqe_chain.cli import (
    announce,
    dead_letters,
    dev,
    flows,
    load,
    move,
    peek,
    readers,
    rebuild,
    run,
    show,
    state,
    store,
    tables,
)
from sqe_chain.cli.console import OUT

app = typer.Typer(
    name="sqe-chain",
    help="Exact streaming on Kafka: every message carries the chain of messages it came from.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, which may hold secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        OUT.print(f"sqe-chain {version_of('sqe-chain')}", highlight=False)
        raise typer.Exit


@app.callback()
def _command(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact streaming on Kafka: every message carries the chain of messages it came from."""


app.command("run")(run.run)
app.command("load")(load.load)
app.command("show")(show.show)
app.command("state")(state.state)
app.command("rebuild")(rebuild.rebuild)
app.command("rewind")(rebuild.rewind)
app.command("announce")(announce.announce)
app.command("export")(move.export_states)
app.command("import")(move.import_states)
app.command("peek")(peek.peek)
app.command("excluded")(dead_letters.excluded)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(flows.app, name="flows")
app.add_typer(readers.app, name="readers")
app.add_typer(store.app, name="store")
app.add_typer(tables.app, name="tables")
app.add_typer(dev.app, name="dev")
