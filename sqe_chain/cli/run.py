"""`sqe-chain run`: runs a flow as a service."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from sqe_chain.cli.listening import monitored, show_cursor, show_events
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import DEFAULTS, Batches, FlowArgument, Option, StartOption, command, settings_in
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.protocol.events import Observer
from sqe_chain.runtime.connecting import open_log, open_stores
from sqe_chain.runtime.durations import duration_ms
from sqe_chain.runtime.launching import launch
from sqe_chain.wings import WINGS, load


@dataclass(frozen=True, kw_only=True)
class Service(Batches):
    """What a service takes that need not end."""

    interval: Annotated[
        str,
        Option(
            "How often a batch is made: 500ms, 5s, 1m. Flows without stages never wait for it.",
            "DURATION",
            env=True,
        ),
    ] = "5s"
    idle: Annotated[
        str,
        Option(
            "How long an input partition must be silent before stages that go by event time no longer wait for it.",
            "DURATION",
            env=True,
        ),
    ] = "5s"
    start: StartOption = None
    partitions: Annotated[
        str | None,
        Option(
            "Read only these input partitions, as one of several readers of the flow: 0-3, or 0,2,4-7, or 8- (8 and all above).",
            "SET",
            env=True,
        ),
    ] = None
    once: Annotated[bool, Option("Process the messages that are there now, then end.")] = False
    drop: Annotated[
        list[str] | None, Option("Forget a stored stage that the flow no longer has. Repeatable.", "STAGE")
    ] = None
    accept_rollback: Annotated[bool, Option("Continue although the whole store went back in time.")] = False
    max_bytes: Annotated[
        int,
        Option(
            "Bytes of values read and published in one batch, by the average so far.",
            "BYTES",
            env=True,
            least=1,
        ),
    ] = DEFAULTS.max_bytes
    metrics_port: Annotated[
        int | None,
        Option(
            "Serve metrics for Prometheus, /live and /ready on this port, to programs on this machine.",
            "PORT",
            env=True,
            least=1,
            most=65_535,
        ),
    ] = None
    metrics_host: Annotated[
        str,
        Option(
            "Address for --metrics-port; 0.0.0.0 for all networks, as in a container.", "ADDRESS", env=True
        ),
    ] = "127.0.0.1"
    web: Annotated[
        int | None,
        Option(
            "Serve a page about this service on this port of this machine.", "PORT", env=True, most=65_535
        ),
    ] = None


@contextmanager
def shown_on_page(flow: CompiledFlow, service: Service) -> Iterator[list[Observer]]:
    """What hears the events of a service for its page, if a port is given."""
    if service.web is None:
        yield []
        return
    log = None if service.kafka is None else open_log(service.kafka, service.kafka_config)
    with (
        open_stores(flow, service.urls()) as stores,
        load(WINGS, "web", "web")(flow, log, stores, "127.0.0.1", service.web) as newest,
    ):
        yield [newest]


@command
def run(target: FlowArgument, *, service: Service) -> None:
    """Run a flow as a service, until SIGTERM or Ctrl-C.

    Then it finishes the current batch, so that the next run can continue at once. A second Ctrl-C ends the
    process immediately, which is as safe as any crash.
    """
    settings = settings_in(
        service,
        interval_ms=duration_ms(service.interval),
        idle_ms=duration_ms(service.idle),
        drop_stages=tuple(service.drop or ()),
    )
    flow = load_flow(target)
    deployment = service.deployment(once=service.once, partitions=service.partitions)
    named, clock = deployment.flow_of(flow), deployment.clock()
    shown = show_events(named, service.kafka, log_json=service.log_json)
    # Until the service has handlers of its own: it may wait for addresses before.
    before = signal.signal(signal.SIGTERM, lambda *_: clock.stop.request("SIGTERM"))
    try:
        with (
            monitored(named, clock, service.metrics_port, service.metrics_host) as counted,
            shown_on_page(named, service) as newest,
        ):
            observers = [*counted, *newest, *shown]
            launch(flow, settings, deployment, observers=observers, clock=clock, restore=show_cursor)
    finally:
        if before is signal.SIG_DFL:  # else the process ends, with the status of what has happened here
            signal.signal(signal.SIGTERM, before)
