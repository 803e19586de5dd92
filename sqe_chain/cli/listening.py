"""The observers of a flow that the command runs: the panel or log lines, and Prometheus if asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

from sqe_chain.cli.console import ERR
from sqe_chain.cli.options import Operation, Servers
from sqe_chain.flow import Flow
from sqe_chain.protocol.events import Notice
from sqe_chain.protocol.interfaces import Observer
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.connecting import EngineChoice
from sqe_chain.runtime.health import Health
from sqe_chain.runtime.launching import Deployment, ObserverFactory, Prepared, prepare
from sqe_chain.runtime.lines import Lines
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.runtime.stop import Heartbeat, ServiceClock

Result_co = TypeVar("Result_co", covariant=True)


def show_cursor() -> None:
    """Show the terminal's cursor again, which the panel hides."""
    ERR.show_cursor(show=True)


def listening(
    flow: Flow, kafka: str | None, *, log_json: bool, metrics_port: int | None = None, metrics_host: str = ""
) -> ObserverFactory:
    """The observers of a service that the command runs.

    Args:
        flow: the flow.
        kafka: brokers, for the panel; None: there are none.
        log_json: JSON lines instead of a panel or text.
        metrics_port: port for Prometheus; None: no metrics.
        metrics_host: the address to listen on; by default that of this machine alone.
    """

    @contextmanager
    def open_observers(statistics: Statistics, clock: ServiceClock) -> Iterator[Sequence[Observer]]:
        observers: list[Observer] = []
        with ExitStack() as opened:
            if metrics_port:
                from prometheus_client import CollectorRegistry  # noqa: PLC0415 - it takes long, and few ask for it

                from sqe_chain.runtime.metrics import LOOPBACK, Metrics, serve  # noqa: PLC0415 - the same

                registry = CollectorRegistry()
                health = Health(clock.quiet_ms)
                observers += [Metrics(flow.name, registry), health]
                opened.enter_context(serve(metrics_port, registry, health, metrics_host or LOOPBACK))
            if log_json or not ERR.is_terminal:
                observers.append(Lines(flow.name, as_json=log_json))
            else:
                from sqe_chain.cli.panel import LivePanel  # noqa: PLC0415 - most services have no terminal

                observers.append(opened.enter_context(LivePanel(ERR, statistics, flow.name, kafka or "")))
            yield observers

    return open_observers


def working_on(
    flow: Flow, settings: Settings, options: Operation | Servers, engine: EngineChoice | None = None
) -> AbstractContextManager[Prepared]:
    """Everything that a command needs for a single task with a flow.

    Raises:
        ChainError: something is missing or wrong.
    """
    choice = engine or EngineChoice("inprocess")
    deployment = Deployment(options.kafka, options.kafka_config, options.urls(), choice, once=True)
    who = listening(flow, options.kafka, log_json=options.log_json)
    return prepare(flow, settings, deployment, observers=who, restore=show_cursor)


class Work(Protocol[Result_co]):
    """What one does to a flow that it has claimed."""

    def beat(self) -> bool:
        """Show that the claim is alive; returns False if a newer run owns the flow."""

    def run(self) -> Result_co:
        """Do it."""


def beating(found: Prepared, work: Work[Result_co]) -> Result_co:
    """Do the work, with a heartbeat meanwhile."""

    def failed(error: Exception) -> None:
        found.env.emit(Notice(f"the heartbeat does not reach the store: {error}"))

    with Heartbeat(work.beat, found.stop, failed):
        return work.run()
