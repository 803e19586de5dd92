"""`sqe-chain store`: creates the tables of a store, and checks its durability."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sqe_chain.cli.console import OUT
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import command
from sqe_chain.cli.values import properties
from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.features.view_tables import check_view_kind
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import StateStore, WithSchema, WithViewTables
from sqe_chain.runtime.connecting import open_addresses
from sqe_chain.runtime.trying import try_writes

app = typer.Typer(no_args_is_help=True, help="Create the tables of a store; check its durability.")

_UrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="URL", envvar="SQE_CHAIN_STORE", help="Address of a store, as in postgres://HOST/DATABASE."
    ),
]


@app.command("init")
@command
def store_init(
    url: _UrlArgument,
    *,
    replication: Annotated[
        int | None, Option("Replicas of each state, if the keyspace has to be created.", "N", least=1)
    ] = None,
    datacenter_replication: Annotated[
        list[str] | None, Option("The same for one data centre. Repeatable.", "DC=N")
    ] = None,
    flow: Annotated[
        list[str] | None,
        Option(
            "A flow whose views are tables: make these, too, or add the columns that they lack. Repeatable.",
            "MODULE:FLOW",
        ),
    ] = None,
    check: Annotated[
        bool,
        Option(
            "Create nothing: report settings that may lose acknowledged states, whether the tables exist, and whether the store "
            "takes writes now. What it writes does not stay."
        ),
    ] = False,
) -> None:
    """Create the tables that a store needs, or upgrade them to the newest version. May be repeated.

    Run it once, before the first service starts. An existing keyspace keeps its replication. The exit status of --check is 1 if
    anything is wrong.
    """
    wanted = _replication(replication, datacenter_replication or [])
    with _opened(url) as store:
        if check:
            _check(store)
            return
        flows = [load_flow(target) for target in flow or []]
        for each in flows:
            for stage in each.stages:
                # Only of what is made here: another view may be in another store.
                if stage.table is not None:
                    check_view_kind(stage, store)
        if not isinstance(store, WithSchema):
            OUT.print("there is nothing to create: a store of this kind has no tables")
            return
        done = store.make_schema(wanted)
        for line in (*done, *_make_views(store, flows)) or ["the tables already exist"]:
            OUT.print(line)


def _make_views(store: StateStore, flows: list[CompiledFlow]) -> Iterator[str]:
    for flow in flows:
        for stage in flow.stages:
            if stage.table is not None and isinstance(store, WithViewTables):
                yield from store.make_view_table(flow.name, stage.name, stage.table)


def _check(store: StateStore) -> None:
    if isinstance(store, WithSchema):
        version, needed = store.schema_version()
        OUT.print(f"tables: version {version}, the newest is {needed}")
        if version != needed:
            OUT.print(
                "create or upgrade them with: sqe-chain store init"
                if version < needed
                else "they are newer than this sqe-chain: use a newer one"
            )
            raise typer.Exit(1)
    weak = store.check()
    for line in weak:
        OUT.print(f"weak: {line}")
    for line in store.remarks():
        OUT.print(f"note: {line}")
    refused = _refused(store)
    if weak or refused:
        raise typer.Exit(1)
    OUT.print("durable: acknowledged writes are kept")


def _refused(store: StateStore) -> bool:
    """Whether a store takes no writes from this login now; the reason is printed, and what could not be tried."""
    run_id = secrets.token_hex(4)
    try:
        for line in try_writes(store, f"check-{run_id}", run_id):
            OUT.print(f"not tried: {line}")
    except ChainError as error:
        OUT.print(f"takes no writes: {error}")
        return True
    return False


@contextmanager
def _opened(url: str) -> Iterator[StateStore]:
    with open_addresses({"": url}) as stores:
        yield stores[""]


def _replication(everywhere: int | None, each: list[str]) -> dict[str, int]:
    if everywhere is not None and each:
        raise ConfigurationError("--replication and --datacenter-replication. Expected one of them")
    if everywhere is not None:
        return {"": everywhere}
    replicas = {}
    for name, text in properties("--datacenter-replication", each).items():
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ConfigurationError(
                f"--datacenter-replication {name}={text}. Expected a whole number above 0"
            )
        replicas[name] = int(text)
    return replicas
