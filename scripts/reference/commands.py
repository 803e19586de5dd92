"""The page of the command line, from the commands' own help."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from sqe_chain.cli.commands import application
from sqe_chain.cli.options import ALSO

OFTEN = ("--traceback", "--log-json", "--json", "--kafka-config")
"""Options of nearly all commands: their lists do not repeat them."""

FLOW = "MODULE:FLOW"
"""The argument that most commands take."""


def command_page(note: str) -> str:
    """The page of the command; `note` names what made it."""
    root: Any = typer.main.get_command(application())
    commands = dict(_leaves(root, ""))
    takers = Counter(
        (_names(option), _row(option))
        for command in commands.values()
        for option in _options(command)
        if not _is_required_kafka(option)
    )
    most = {name: row for (name, row), count in reversed(takers.most_common()) if count > 1}
    shared = [row for name, row in takers if most.get(name) == row]
    parts = [
        "# The command `sqe-chain`",
        note,
        root.help or "",
        f"`{FLOW}` names the flow, as in `services.fastening:totals`.",
        "Some options may also be set in the environment, under the name given with them.",
        *(_command(f"sqe-chain {name}", command, shared) for name, command in commands.items()),
        "\n".join(("## Options of several commands", "", *shared)),
    ]
    return "\n\n".join(parts)


def _leaves(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own classes
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _options(command: Any) -> list[Any]:  # noqa: ANN401 - typer's own classes
    return [p for p in command.params if p.param_type_name == "option" and p.name != "help"]


def _is_required_kafka(option: Any) -> bool:  # noqa: ANN401 - typer's own classes
    return bool(option.required) and option.opts[0] == "--kafka"


def _row(option: Any) -> str:  # noqa: ANN401 - typer's own classes
    return f"- {_names(option)}: {_cell(option)}"


def _command(name: str, command: Any, shared: Sequence[str]) -> str:  # noqa: ANN401 - typer's own classes
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join((name, *(p.metavar or p.name.upper() for p in arguments)))
    rows = [f"- `{p.metavar or p.name.upper()}`: {_cell(p)}" for p in arguments if p.metavar != FLOW]
    needs_kafka = any(map(_is_required_kafka, _options(command)))
    shown = [option for option in _options(command) if not _is_required_kafka(option)]
    rows += [row for row in map(_row, shown) if row not in shared]
    others = [f"`{o.opts[0]}`" for o in shown if _row(o) in shared and o.opts[0] not in OFTEN]
    if needs_kafka:
        others.insert(0, "`--kafka` (required)")
    table = ["", *rows] if rows else []
    return "\n".join(
        (
            f"## `{usage}`",
            "",
            inspect.cleandoc(command.help or "").partition(f"\n\n{ALSO}")[0],
            *table,
            "",
            f"[Also](#options-of-several-commands): {', '.join(others)}." if others else "",
        )
    )


def _names(option: Any) -> str:  # noqa: ANN401 - typer's own classes
    takes = "" if option.is_flag else option.metavar or _choices(option)
    return ", ".join(f"`{name} {takes}`".replace(" `", "`") for name in option.opts)


def _choices(option: Any) -> str:  # noqa: ANN401 - typer's own classes
    """The values of an option that takes one of a few."""
    found: list[str] = re.findall(r"'([^']+)'", str(option.type_descriptor.annotation))
    return "|".join(found)


def _cell(parameter: Any) -> str:  # noqa: ANN401 - typer's own classes
    said = [getattr(parameter, "help", "") or ""]
    default = parameter.default
    if default not in (None, False, ()) and not callable(default):
        said.append(f"Default `{default}`.")
    if parameter.required and parameter.param_type_name == "option":
        said.append("Required.")
    if parameter.envvar:
        said.append(f"`{parameter.envvar}`")
    return " ".join(part for part in said if part)
