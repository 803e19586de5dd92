"""The `sqe-chain` command, which parses arguments and does nothing."""

from __future__ import annotations

from typing import Any

import typer

from sqe_chain.cli.commands import application


def root_command() -> Any:
    """The command with all of its subcommands."""
    return typer.main.get_command(application())


def parse_command(arguments: list[str]) -> None:
    """Let the command parse its arguments, which are those after `sqe-chain`.

    Raises:
        click.ClickException: it does not take them.
    """
    command, name = root_command(), "sqe-chain"
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, arguments)
