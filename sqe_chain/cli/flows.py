"""`sqe-chain flows`: lists the flows in a store, and deletes one."""

from __future__ import annotations

import secrets
import time
from contextlib import AbstractContextManager
from typing import Annotated

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, print_json, print_table, utc
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import JsonOption, KafkaIfNeeded, Stores, command
from sqe_chain.cli.values import flow_name
from sqe_chain.errors import ConfigurationError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.operations.forget import ForgetFlow, KnownFlow, known_flows
from sqe_chain.ports import StateStore
from sqe_chain.runtime.connecting import open_addresses, open_log
from sqe_chain.runtime.owner import is_dead

app = typer.Typer(no_args_is_help=True, help="List the flows in a store; forget one.")


@app.command("list")
@command
def list_flows(*, servers: Stores, json: JsonOption = False) -> None:
    """List the flows with their metadata in this store. Flows without stages store nothing."""
    with _opened(servers) as stores:
        known = known_flows(stores[""])
        if json:
            for flow in known:
                print_json(_line(flow))
            return
        for flow in known:
            if flow.unreadable:
                ERR.print(Text(one_line(f"flow {flow.name!r}: {flow.unreadable}")))
        named = ("flow", "plan", "sealed", "claimed_by", "stages", "reads", "writes")
        headers = ("flow", "plan", "sealed (UTC)", "claimed by", "stages", "reads", "writes")
        lines = map(_line, known)
        if not print_table(headers, ([_cell(line[name]) for name in named] for line in lines)):
            ERR.print("there are no flows in the store")


@app.command("forget")
@command
def forget(
    name: Annotated[str, typer.Argument(metavar="FLOW", help="The flow's name, as `flows list` shows it.")],
    *,
    kafka: KafkaIfNeeded,
    servers: Stores,
    topics: Annotated[
        bool, Option("Also delete the topics that it writes, and its dead-letter topic.")
    ] = False,
    yes: Annotated[bool, Option("Do not ask for the name again.")] = False,
) -> None:
    """Forget a flow permanently: claim, plans, all states, and its group's commits in Kafka.

    It refuses while a run of the flow is alive. You may kill it and run it again; meanwhile no run of the flow starts. Give
    every store that its stages use. Flows that read files and publish nothing need no --kafka. It forgets a flow with all of its
    readers. Published records stay without --topics. A new flow of the same name starts over, and readers of its outputs count
    them again.
    """
    flow_name(name)
    with _opened(servers) as stores:
        log = None if kafka.kafka is None else open_log(kafka.kafka, kafka.kafka_config)
        if (
            not yes
            and typer.prompt(f"Type {name} to forget that flow, with all of its states", err=True) != name
        ):
            raise ConfigurationError(f"that is another name. Expected {name}; nothing was forgotten")
        work = ForgetFlow(name, stores, log, topics, secrets.token_hex(8), is_dead, _wait)
        deleted = work.run()
    ERR.print(f"flow {name!r} is forgotten" + (f"; deleted topics: {', '.join(deleted)}" if deleted else ""))


def _wait(milliseconds: int) -> None:
    time.sleep(milliseconds / 1_000)


def _opened(servers: Stores) -> AbstractContextManager[dict[str, StateStore]]:
    urls = servers.urls()
    if "" not in urls:
        raise ConfigurationError("no store is given. Expected the one with the flows' metadata: --store URL")
    return open_addresses(urls)


def _line(known: KnownFlow) -> dict[str, object]:
    layout = known.plan.layout if known.plan else None
    return {
        "flow": known.name,
        "plan": known.home.number,
        "sealed": utc(known.plan.clock_ms, "seconds") if known.plan else None,
        "epoch": known.home.epoch,
        "claimed_by": "being forgotten" if known.forgotten_in_part else known.home.run_id or None,
        "stages": sorted(layout.stages) if layout else [],
        "reads": sorted(layout.sources) if layout else [],
        "writes": sorted({topic for topic, _ in layout.outputs.values()}) if layout else [],
        **({"unreadable": known.unreadable} if known.unreadable else {}),
    }


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return "-" if value is None else str(value)
