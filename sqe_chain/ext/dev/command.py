"""`sqe-chain dev`: real Kafka, Redis and Cassandra on this machine, without containers."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sqe_chain.adapters import open_store
from sqe_chain.cli.console import ERR, OUT
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import command
from sqe_chain.ext.dev import DevMachine, down, fetch, kafka, reset, status, up
from sqe_chain.ext.dev.machine import DEFAULT_KINDS
from sqe_chain.ports import WithSchema

app = typer.Typer(
    no_args_is_help=True, help="Real Kafka, Redis and Cassandra on this machine, for development."
)

DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIRECTORY",
        envvar="SQE_CHAIN_DEV_DIR",
        help="Directory for data and the list of servers.",
    ),
]
JsonOption = Annotated[bool, Option("All information as one JSON object.")]


@app.command("up")
@command
def dev_up(
    *,
    directory: DirOption = None,
    kafka_port: Annotated[int | None, Option("By default a free one.", "PORT", least=1, most=65_535)] = None,
    redis_port: Annotated[int | None, Option("By default a free one.", "PORT", least=1, most=65_535)] = None,
    cassandra: Annotated[bool, Option("Also start Cassandra, with the tables of a store.")] = False,
    cassandra_port: Annotated[
        int | None, Option("By default a free one.", "PORT", least=1, most=65_535)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Start the servers that are not running yet. They run until `down`; data of an earlier `up` is kept."""
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: the server that is starting ends, too
    kinds = (*DEFAULT_KINDS, "cassandra") if cassandra or cassandra_port else DEFAULT_KINDS
    fetch(lambda line: ERR.print(Text(line, "dim")), kinds)
    machine = up(
        kinds, directory, kafka_port=kafka_port, redis_port=redis_port, cassandra_port=cassandra_port
    )
    if "cassandra" in kinds:
        _make_tables(machine)
    _show(machine, as_json=json)


@app.command("warm")
@command
def dev_warm() -> None:
    """Let Kafka and Spark start in half the time: archive the Java classes that they load. Takes a minute, once."""
    fetch(lambda line: ERR.print(Text(line, "dim")), ("kafka",))
    archives = [(kafka.class_archive(), kafka.archive_classes)]
    if importlib.util.find_spec("pyspark"):
        from sqe_chain.engines.spark import session  # noqa: PLC0415 - only here, because it loads Spark

        archives.append((session.class_archive(), session.archive_classes))
    for archive, make in archives:
        OUT.print(f"{archive.name}: {archive.path if archive.path.exists() else make()}")


@app.command("status")
@command
def dev_status(*, directory: DirOption = None, json: JsonOption = False) -> None:
    """Show the servers that were started, and whether they are running."""
    _show(status(directory), as_json=json)


@app.command("down")
@command
def dev_down(*, directory: DirOption = None, json: JsonOption = False) -> None:
    """Stop what `up` started. Data and addresses stay for the next `up`."""
    machine = down(directory)
    stopped = [server.kind for server in machine.servers if server.running]
    if json or not machine.servers:
        _show(status(directory), as_json=json)
    else:
        OUT.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@app.command("reset")
@command
def dev_reset(*, directory: DirOption = None) -> None:
    """Stop what `up` started, and delete all of its data: topics, offsets, states and tables."""
    machine = reset(directory)
    if machine.servers:
        OUT.print(f"deleted the data of: {', '.join(server.kind for server in machine.servers)}")
    else:
        _show(machine, as_json=False)


def _make_tables(machine: DevMachine) -> None:
    """Do the same as `sqe-chain store init`, with one replica: there is one node."""
    server = machine.server("cassandra")
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
            OUT.print(Text(f"  {'':<10} topics keep all records; by Kafka's own default for a week", "dim"))
