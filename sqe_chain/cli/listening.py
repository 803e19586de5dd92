"""The observers of a flow that the command runs: the panel or log lines, and Prometheus if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import time
from typing import Protocol, TypeVar

from sqe_chain.cli.console import ERR
from sqe_chain.cli.options import OperationOptions, ReaderOptions, ServerOptions
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.attempts import shadow_figures
from sqe_chain.plans.events import Event, Notice, Observer
from sqe_chain.plans.settings import Settings
from sqe_chain.runtime.connecting import Deployment, EngineChoice, open_stores
from sqe_chain.runtime.launching import Prepared, prepare
from sqe_chain.runtime.lines import Lines
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.runtime.stop import Heartbeat, ServiceClock

Result_co = TypeVar("Result_co", covariant=True)


def show_cursor() -> None:
    """Show the terminal's cursor again, which the panel hides."""
    ERR.show_cursor(show=True)


def show_events(
    flow: CompiledFlow,
    kafka: str | None,
    *,
    log_json: bool,
    fields_of: Callable[[Event], Mapping[str, object]] | None = None,
    panel: bool = True,
) -> list[Observer]:
    """What shows the events of a service: lines, or in a terminal the panel, which names the brokers.

    `fields_of` gives further fields of a line in JSON; see `Lines`. Without `panel` there are lines on a terminal, too.
    """
    if log_json or not panel or not ERR.is_terminal:
        return [Lines(flow.name, as_json=log_json, fields_of=fields_of)]
    from sqe_chain.cli.panel import LivePanel  # noqa: PLC0415 - most services have no terminal

    statistics = Statistics(time)
    return [statistics, LivePanel(ERR, statistics, flow.name, kafka or "")]


@contextmanager
def serve_metrics(
    flow: CompiledFlow, clock: ServiceClock, urls: Mapping[str, str], port: int | None, host: str
) -> Iterator[list[Observer]]:
    """What counts the events of a service for Prometheus, which may ask for them as long as the context lasts.

    Args:
        flow: the flow.
        clock: of its service.
        urls: store name -> address; what the flow's shadow is at is read from "", which keeps plans.
        port: where it listens; None: it does not.
        host: the address of this machine there.

    Raises:
        ConfigurationError: the port is taken, or this machine does not have the address; or a store is missing, or wrong.
    """
    if not port:
        yield []
        return
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - it takes long, and few ask for it

    from sqe_chain.runtime.metrics import Metrics, ShadowReader  # noqa: PLC0415 - the same
    from sqe_chain.runtime.serving import Health, serve  # noqa: PLC0415 - the same

    registry, health = CollectorRegistry(), Health(clock.quiet_ms)
    with open_stores(flow, urls) as stores, serve(port, registry, health, host):
        plans = stores.get("")
        reader = ShadowReader(lambda: {} if plans is None else shadow_figures(plans, flow.name))
        yield [Metrics(flow.name, registry, shadow=reader.figures).statistics, health]


def prepare_command(
    flow: CompiledFlow,
    settings: Settings,
    options: OperationOptions | ReaderOptions | ServerOptions,
    engine: EngineChoice | None = None,
    *,
    panel: bool = True,
    fails_over: bool = False,
) -> AbstractContextManager[Prepared]:
    """Everything that a command needs for a single task with a flow. For `panel` see `show_events`, for `fails_over` `prepare`.

    Raises:
        ChainError: something is missing or wrong.
    """
    choice = engine or EngineChoice("inprocess")
    deployment = Deployment(options.kafka, options.kafka_config, options.urls(), choice, once=True)
    who = show_events(flow, options.kafka, log_json=options.log_json, panel=panel)
    return prepare(flow, settings, deployment, observers=who, restore=show_cursor, fails_over=fails_over)


class ClaimedWork(Protocol[Result_co]):
    """What one does to a flow that it has claimed."""

    def beat(self) -> bool:
        """Show that the claim is alive; returns False if a newer run owns the flow."""

    def run(self) -> Result_co:
        """Do it."""


def work_with_heartbeat(prepared: Prepared, work: ClaimedWork[Result_co]) -> Result_co:
    """Do the work, with a heartbeat meanwhile."""
    with heartbeat(prepared, work.beat):
        return work.run()


def heartbeat(prepared: Prepared, beat: Callable[[], bool]) -> Heartbeat:
    """Shows every second, while in the context, that a claim is alive."""

    def failed(error: Exception) -> None:
        prepared.env.emit(Notice(f"the heartbeat does not reach the store: {error}"))

    return Heartbeat(beat, prepared.clock.stop, failed)
