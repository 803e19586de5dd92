"""`sqe-chain export` and `sqe-chain import`: move a flow's states from one store to another, exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sqe_chain.cli.console import ERR
from sqe_chain.cli.files import check_new, open_text, with_counter, write_whole
from sqe_chain.cli.listening import heartbeat, prepare_command
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import (
    FlowArgument,
    ServerOptions,
    TakeoverOption,
    WeakOption,
    command,
    settings_in,
)
from sqe_chain.errors import ConfigurationError, ServiceStopped
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.moving import export_states as export_lines
from sqe_chain.operations.moving import import_states as import_lines
from sqe_chain.protocol.claim import beat
from sqe_chain.runtime.launching import Prepared
from sqe_chain.task.states import Claim


@command
def export_states(
    target: FlowArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="New file; a name that ends with .gz is compressed.")
    ],
    *,
    servers: ServerOptions,
    takeover: TakeoverOption = False,
) -> None:
    """Write all states of a flow to a file, with the plan that they belong to.

    The command claims the flow, and first waits for a run that is alive. To look at states, use `sqe-chain state`.
    """
    flow = _flow_with_states(target)
    check_new(file)
    settings = settings_in(takeover=takeover, allow_weak_durability=True)
    with (
        prepare_command(flow, settings, servers) as prepared,
        write_whole(file) as partial,
        open_text(partial, "w", compressed=file.suffix == ".gz") as out,
        _alive(prepared) as claimed,
        closing(export_lines(prepared.env, claimed)) as lines,  # releases the claim before stores are closed
    ):
        for line in unless_stopped(prepared, with_counter(lines, "states written")):
            out.write(line + "\n")


@command
def import_states(
    target: FlowArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `sqe-chain export` has written.")],
    *,
    servers: ServerOptions,
    allow_weak_durability: WeakOption = False,
) -> None:
    """Fill an empty store with the states of a file. They become visible only when all of them are there.

    Then run the service with this store, and never again with the one that the file came from.
    """
    flow = _flow_with_states(target)
    settings = settings_in(allow_weak_durability=allow_weak_durability)
    with (
        export_in(file) as lines,
        prepare_command(flow, settings, servers) as prepared,
        _alive(prepared) as claimed,
    ):
        given = unless_stopped(prepared, with_counter(lines, "states read"))
        plan = import_lines(prepared.env, given, claimed)
    ERR.print(f"flow {flow.name!r} is at plan {plan.number} in the new store")


@contextmanager
def _alive(prepared: Prepared) -> Iterator[Callable[[Claim], None]]:
    """Takes a claim, and keeps it alive: another run waits for its end."""
    claims: list[Claim] = []
    with heartbeat(prepared, lambda: beat(prepared.env, claims[-1] if claims else None)):
        yield claims.append


def unless_stopped(prepared: Prepared, lines: Iterable[str]) -> Iterator[str]:
    """The lines of an export. Raises ServiceStopped: asked to stop before the last one."""
    for line in lines:
        if prepared.asked_to_stop():
            raise ServiceStopped(
                f"flow {prepared.env.flow.name!r}: asked to stop before all of its states were moved. "
                "Run the command again"
            )
        yield line


def _flow_with_states(target: str) -> CompiledFlow:
    flow = load_flow(target)
    if not flow.stages:
        raise ConfigurationError(f"flow {flow.name!r} has no stages. Expected states to move")
    return flow


@contextmanager
def export_in(file: Path) -> Iterator[Iterator[str]]:
    """The lines of a file that `sqe-chain export` has written.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read.
    """
    try:
        if not file.is_file():
            raise ConfigurationError(
                f"{file}: no such file. Expected one that `sqe-chain export` has written"
            )
        opened = open_text(file, "r", compressed=file.suffix == ".gz")
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read as an export: {error.strerror}. Give a file that this user may read"
        ) from error
    with opened as lines:
        yield _readable_lines(file, lines)


def _readable_lines(file: Path, lines: Iterable[str]) -> Iterator[str]:
    """The lines; a truncated file, or one of another kind, raises one clear error."""
    try:
        yield from lines
    except (EOFError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as an export: {error}. Export it again") from error
