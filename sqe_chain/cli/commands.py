"""All commands by name. Only the one that is asked for is imported: services are started often, and others' options take time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, Final

import typer
import typer.core
from rich.markup import escape
from typer.main import get_command

from sqe_chain.cli.console import OUT, report_errors
from sqe_chain.cli.options import describe_shared
from sqe_chain.cli.removed import refuse_removed
from sqe_chain.errors import ConfigurationError
from sqe_chain.wings import COMMANDS as COMMAND_POINTS
from sqe_chain.wings import installed, load, unusable

COMMANDS = {
    "run": "run:run",
    "load": "load:load",
    "show": "show:show",
    "state": "state:state",
    "rebuild": "rebuild:rebuild",
    "rewind": "rebuild:rewind",
    "correct": "correct:correct",
    "announce": "rebuild:announce",
    "shadow": "shadow:app",
    "failover": "failover:failover",
    "export": "move:export_states",
    "import": "move:import_states",
    "peek": "peek:peek",
    "failed": "failed:app",
    "flows": "flows:app",
    "readers": "readers:readers",
    "store": "store:app",
}
"""Name -> module in this package, and its function, or its application of several commands."""
_EXTRAS: Final = {"web": "web", "schemas": "registry", "tables": "tables"}
"""Name of a command in a wing -> the extra that installs what it needs; of others the one that has the commands."""


class Commands(typer.core.TyperGroup):
    """All commands. One that is gone, or an option of before, ends with what to use instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own class
        """Parse the whole command line."""
        with report_errors():
            refuse_removed(args, os.environ)
        return super().parse_args(ctx, args)


_PROVE: Final = (
    "Before a flow goes into production, find out whether its functions are deterministic: sqe_chain.testing.prove crashes it at each "
    "step, without a server. See docs/break-your-own-flow.md."
)


def application(wanted: str | None = None) -> typer.Typer:
    """The command line application, with the command or group that is called; for None or an unknown name with all, for the help."""
    app = typer.Typer(
        name="sqe-chain",
        help="Exact streaming on Kafka: every message carries the chain of messages it came from.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # its tracebacks show local variables, which may hold secrets
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=escape(f"{_PROVE}\n\nOptions of many commands:\n\n{describe_shared()}"),
        cls=Commands,
    )
    app.callback()(_command)
    for name in _chosen(wanted):
        try:
            _add(app, name)
        except ConfigurationError as error:
            if name == wanted:
                raise
            app.command(name, help=escape(str(error)))(_failing(error))
    return app


def _add(app: typer.Typer, name: str) -> None:
    if name in COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        _put(app, name, getattr(import_module(f"sqe_chain.cli.{module}"), attribute))
        return
    loaded = load(COMMAND_POINTS, name, _EXTRAS.get(name, "cli"))
    try:
        trial = typer.Typer()
        _put(trial, name, loaded)
        get_command(trial)  # what is no command is found here, and not by the help of all commands
    except Exception as error:
        raise unusable(
            COMMAND_POINTS, name, f"is neither a typer application nor a command's function: {error}"
        ) from error
    _put(app, name, loaded)


def _put(app: typer.Typer, name: str, loaded: Any) -> None:  # noqa: ANN401 - a function, or an application of several commands
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        app.command(name)(loaded)


def _chosen(wanted: str | None) -> Iterable[str]:
    """The command that is asked for, alone, or all."""
    if wanted in COMMANDS:
        return (wanted,)
    others = installed(COMMAND_POINTS)
    return (wanted,) if wanted in others else (*COMMANDS, *sorted(others))


def _failing(error: ConfigurationError) -> Callable[[], None]:
    def fail() -> None:
        with report_errors():
            raise error

    return fail


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
