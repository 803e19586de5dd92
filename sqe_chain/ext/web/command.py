"""`sqe-chain web`, and the page that `sqe-chain run --web` serves beside a service."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from sqe_chain.cli.console import ERR
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import KafkaIfNeeded, Stores, command
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.web.application import LOOPBACK, Pages, application
from sqe_chain.ext.web.history import History
from sqe_chain.ext.web.records import TopicRecords
from sqe_chain.ext.web.server import served
from sqe_chain.ext.web.site import Site
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.events import Observer
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Log, StateStore
from sqe_chain.runtime.connecting import open_addresses, open_log
from sqe_chain.runtime.observers import Quiet
from sqe_chain.runtime.stop import ServiceClock, Stop, signals


@command
def web(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE:FLOW]...", help="Flows whose states and records are shown."),
    ] = None,
    *,
    kafka: KafkaIfNeeded,
    servers: Stores,
    port: Annotated[int, Option("Port of the page.", "PORT", env=True, least=0, most=65_535)] = 8_080,
    host: Annotated[
        str, Option("Address of the page; by default this machine alone can ask.", "ADDRESS")
    ] = "127.0.0.1",
    show_payloads: Annotated[bool, Option("Show the values of records.")] = False,
) -> None:
    """Serve a page that shows all flows of a store: their chain, positions, plans, keys, records and replays.

    States are also served as JSON; see /openapi.json. The page is for this machine unless --host is given, and it changes nothing.
    """
    flows = {flow.name: flow for flow in map(load_flow, targets or ())}
    log = None if kafka.kafka is None else open_log(kafka.kafka, kafka.kafka_config)
    stop = Stop()
    with (
        open_addresses(servers.urls()) as stores,
        signals(stop, lambda: None),
        serve(log, stores, flows, host, port, show_payloads=show_payloads) as bound,
    ):
        ERR.print(f"the page is at http://{host}:{bound}/ (Ctrl-C ends it)")
        while not stop.wait(3_600):
            pass


@contextmanager
def serve(
    log: Log | None,
    stores: Mapping[str, StateStore],
    flows: Mapping[str, CompiledFlow],
    host: str,
    port: int,
    *,
    show_payloads: bool = False,
    history: History | None = None,
) -> Iterator[int]:
    """Serve the page while in the context. Gives its port.

    Args:
        log: the brokers; None: none were given.
        stores: store name -> store; "" is the metadata store.
        flows: flows that were loaded, by their names.
        host: address to listen at.
        port: port; 0: any that is free.
        show_payloads: whether values of records are shown.
        history: what is known of the service that runs beside the page, which is of the only loaded flow.

    Raises:
        ConfigurationError: the port is taken.
    """

    def environment(name: str) -> Environment:
        flow = flows[name]
        if log is None:
            raise ConfigurationError(f"flow {name!r} cannot be replayed without brokers. Give --kafka")
        ports = Ports(log, stores)
        return Environment(
            flow=flow,
            ports=ports,
            engine=InProcessEngine(flow, log, ports.store),
            observer=Quiet(),
            clock=ServiceClock(Stop(), 30_000),
            new_run_id=lambda: secrets.token_hex(8),
            settings=Settings(allow_weak_durability=True),
        )

    hosts = LOOPBACK if host in {"127.0.0.1", "::1", "localhost"} else ("*",)
    pages = Pages(Site(log, stores, flows), TopicRecords(log, flows, show_payloads), environment, history)
    with served(application(pages, hosts), host, port) as bound:
        try:
            yield bound
        finally:
            pages.closing = True


@contextmanager
def beside_service(
    flow: CompiledFlow, log: Log, stores: Mapping[str, StateStore], host: str, port: int
) -> Iterator[Observer]:
    """The page beside a service that runs here, with its newest events. Gives what hears them."""
    history = History()
    with serve(log, stores, {flow.name: flow}, host, port, history=history):
        yield history
