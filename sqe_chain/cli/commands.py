"""All commands by name. Only the one that is asked for is imported: services are started often, and others' options take time."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from sqe_chain.cli.console import OUT

COMMANDS = {
    "run": "run:run",
    "load": "load:load",
    "show": "show:show",
    "state": "state:state",
    "rebuild": "rebuild:rebuild",
    "rewind": "rebuild:rewind",
    "announce": "rebuild:announce",
    "export": "move:export_states",
    "import": "move:import_states",
    "peek": "peek:peek",
    "excluded": "dead_letters:excluded",
    "dead-letters": "dead_letters:app",
    "flows": "flows:app",
    "readers": "readers:app",
    "store": "store:app",
    "tables": "tables:app",
    "dev": "dev:app",
}
"""Name -> module in this package, and its function, or its application of several commands."""


def application(wanted: str | None = None) -> typer.Typer:
    """The command line application.

    Args:
        wanted: the command, or group of commands, that it is asked for; None or one that does not exist: all are
            there, for the help and for errors that list them.
    """
    app = typer.Typer(
        name="sqe-chain",
        help="Exact streaming on Kafka: every message carries the chain of messages it came from.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # its tracebacks show local variables, which may hold secrets
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_command)
    for name in COMMANDS if wanted is None or wanted not in COMMANDS else (wanted,):
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(f"sqe_chain.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        OUT.print(f"sqe-chain {version_of('sqe-chain')}", highlight=False)
        raise typer.Exit


def _command(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact streaming on Kafka: every message carries the chain of messages it came from."""
