"""`sqe-chain dev`: real Kafka, Redis, Cassandra, PostgreSQL and Apicurio on this machine, without containers."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sqe_chain.adapters import open_store
from sqe_chain.cli.console import ERR, OUT
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import JsonOption, command
from sqe_chain.cli.values import properties
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import DevMachine, down, fetch, reset, status, up
from sqe_chain.ext.dev.machine import DEFAULT_KINDS
from sqe_chain.ext.dev.packages import KINDS
from sqe_chain.ports import WithSchema

app = typer.Typer(
    no_args_is_help=True, help="Real Kafka, Redis, Cassandra, PostgreSQL and Apicurio on this machine."
)

_DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIRECTORY",
        envvar="SQE_CHAIN_DEV_DIR",
        help="Directory for data and the list of servers.",
    ),
]
_MOST_PORT = 65_535


@app.command("up")
@command
def dev_up(
    *,
    directory: _DirOption = None,
    cassandra: Annotated[bool, Option("Also start Cassandra, with the tables of a store.")] = False,
    postgres: Annotated[bool, Option("Also start PostgreSQL, with the tables of a store.")] = False,
    port: Annotated[
        list[str] | None,
        Option(
            "Port of kafka, redis, cassandra or postgres; by default a free one. apicurio=PORT also starts that schema registry. Repeatable.",
            "SERVER=PORT",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Start the servers that are not running yet. They run until `down`; data of an earlier `up` is kept."""
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: the server that is starting ends, too
    ports = _ports(port or ())
    wanted = {"cassandra": cassandra, "postgres": postgres}
    with_tables = [kind for kind, asked in wanted.items() if asked or kind in ports]
    registries = ["apicurio"] if "apicurio" in ports else []
    kinds = (*DEFAULT_KINDS, *with_tables, *registries)
    fetch(lambda line: ERR.print(Text(line, "dim")), kinds)
    machine = up(
        kinds,
        directory,
        **{f"{kind}_port": ports[kind] for kind in ports},
        starting=lambda kind: ERR.print(Text(f"starting {kind}", "dim")),
    )
    for kind in with_tables:
        _make_tables(machine, kind)
    _show(machine, as_json=json)
    # Redis starts always. Who asks for another store wants to use that.
    kafka, store = machine.server("kafka"), machine.server((with_tables or ["redis"])[-1])
    if kafka and store and not json:
        OUT.print("for a service in one process, in this terminal:")
        OUT.print(f"  export SQE_CHAIN_KAFKA={kafka.address}")
        OUT.print(f"  export SQE_CHAIN_STORE={store.address}")
        for registry in filter(None, map(machine.server, registries)):
            OUT.print(f"  export SQE_CHAIN_REGISTRY={registry.address}")
        OUT.print("  export SQE_CHAIN_ENGINE=inprocess")


@app.command("status")
@command
def dev_status(*, directory: _DirOption = None, json: JsonOption = False) -> None:
    """Show the servers that were started, and whether they are running."""
    _show(status(directory), as_json=json)


@app.command("down")
@command
def dev_down(
    *,
    directory: _DirOption = None,
    delete: Annotated[
        bool, Option("Also delete all data: topics, offsets, states, tables and addresses.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Stop what `up` started. Data and addresses stay for the next `up`, unless they are deleted."""
    machine = reset(directory) if delete else down(directory)
    stopped = [server.kind for server in machine.servers if server.running]
    if delete and machine.servers and not json:
        OUT.print(f"deleted the data of: {', '.join(server.kind for server in machine.servers)}")
    elif json or not machine.servers:
        _show(status(directory), as_json=json)
    else:
        OUT.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


def _ports(given: Sequence[str]) -> dict[str, int]:
    ports = {}
    for kind, text in properties("--port", given).items():
        known = kind in KINDS and text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_PORT
        if not known:
            raise ConfigurationError(
                f"--port {kind}={text}. Expected {', '.join(KINDS)}, and a number from 1 to {_MOST_PORT}"
            )
        ports[kind] = int(text)
    return ports


def _make_tables(machine: DevMachine, kind: str) -> None:
    """Do the same as `sqe-chain store init`, with one replica: there is one node."""
    server = machine.server(kind)
    if server is None:
        return
    store = open_store(server.address)
    if isinstance(store, WithSchema):
        store.make_schema({"": 1})
        store.close()


def _show(machine: DevMachine, *, as_json: bool) -> None:
    if as_json:
        OUT.file.write(machine.as_json() + "\n")
        return
    if not machine.servers:
        OUT.print(f"nothing was started in {machine.directory} yet: sqe-chain dev up")
        return
    OUT.print(
        Text(str(machine.directory), "bold")
    )  # not as a table: a narrow terminal would cut addresses off
    for server in machine.servers:
        runs = Text("running", "green") if server.running else Text("stopped", "red")
        OUT.print(Text.assemble(f"  {server.kind:<10} ", runs, f"  {server.address}"))
        OUT.print(Text(f"  {'':<10} log: {server.log_file}", "dim"))
        if server.kind == "kafka":
            OUT.print(Text(f"  {'':<10} topics keep all records (a production Kafka: a week)", "dim"))
