"""`sqe-chain run`: runs a flow as a service."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqe_chain.cli.listening import serve_metrics, show_cursor, show_events
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import (
    DEFAULTS,
    BatchOptions,
    FlowArgument,
    StartOption,
    command,
    settings_in,
)
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.events import Event, Observer, Ready
from sqe_chain.runtime.connecting import open_log, open_stores
from sqe_chain.runtime.durations import duration_ms
from sqe_chain.runtime.launching import launch
from sqe_chain.wings import WINGS, load


@dataclass(frozen=True, kw_only=True)
class _ServiceOptions(BatchOptions):
    """What a service takes that need not end."""

    interval: str = "5s"
    idle: str = "5s"
    start: StartOption = None
    partitions: str | None = None
    once: bool = False
    drop: list[str] | None = None
    accept_rollback: bool = False
    accept_changed_batch: bool = False
    accept_lost_dead_letters: bool = False
    max_bytes: int = DEFAULTS.max_bytes
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    web: int | None = None
    telemetry: bool = False


class StartedObjects(Observer):
    """Keeps garbage collection away from what a start leaves: modules, the flow, clients. The process is ours alone.

    In the middle of a batch a full collection of them took 73 ms.
    """

    def event(self, event: Event) -> None:
        """Freeze them before the first batch begins."""
        if isinstance(event, Ready):
            gc.freeze()


@contextmanager
def shown_on_page(flow: CompiledFlow, service: _ServiceOptions) -> Iterator[list[Observer]]:
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
def run(target: FlowArgument, *, service: _ServiceOptions) -> None:
    """Run a flow as a service, until SIGTERM or Ctrl-C.

    Then it finishes the current batch, so that the next run can continue at once. A second Ctrl-C ends the
    process immediately, which is as safe as any crash.
    """
    settings = settings_in(
        service,
        interval_ms=duration_ms(service.interval, "--interval"),
        idle_ms=duration_ms(service.idle, "--idle"),
        drop_stages=tuple(service.drop or ()),
    )
    flow = load_flow(target)
    deployment = service.deployment(once=service.once, partitions=service.partitions)
    named, clock = deployment.flow_of(flow), deployment.clock()
    traced = [load(WINGS, "telemetry", "telemetry")(named)] if service.telemetry else []
    fields_of = traced[0].log_fields if traced else None
    shown = show_events(named, service.kafka, log_json=service.log_json, fields_of=fields_of)
    # Until the service has handlers of its own: it may wait for addresses before.
    before = signal.signal(signal.SIGTERM, lambda *_: clock.stop.request("SIGTERM"))
    try:
        with (
            serve_metrics(
                named, clock, service.urls(), service.metrics_port, service.metrics_host
            ) as counted,
            shown_on_page(named, service) as newest,
        ):
            observers = [
                StartedObjects(),
                *counted,
                *newest,
                *shown,
                *traced,
            ]  # a line has the span that its event may end
            launch(flow, settings, deployment, observers=observers, clock=clock, restore=show_cursor)
    finally:
        if before is signal.SIG_DFL:  # else the process ends, with the status of what has happened here
            signal.signal(signal.SIGTERM, before)
