"""Assembles a service: checks the servers, opens stores and engine, connects the observers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.ports.readers import Partitions
from sqe_chain.protocol import inputs
from sqe_chain.protocol.closing import check_closes
from sqe_chain.protocol.environment import Environment, Ports
from sqe_chain.protocol.events import Stopped
from sqe_chain.protocol.interfaces import Engine, Observer
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.connecting import EngineChoice, open_engine, open_inputs, open_stores
from sqe_chain.runtime.observers import Observers, logging_to
from sqe_chain.runtime.owner import is_dead
from sqe_chain.runtime.service import Service
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.runtime.stop import ServiceClock, Stop, signals
from sqe_chain.runtime.topics import create_missing

ONCE_PATIENCE_MS = 30_000
"""How long a service that runs once waits for a broker or store that is unavailable."""

ObserverFactory = Callable[[Statistics, ServiceClock], AbstractContextManager[Sequence[Observer]]]
"""Makes further observers of a service, as long as its context lasts."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers and engine that a flow runs with.

    Attributes:
        kafka: brokers, ``host:port``; None: the flow reads files, and publishes nothing.
        kafka_config: file of librdkafka properties, or the properties.
        stores: store name -> address; "" is the default and home store.
        engine: what runs the tasks.
        create_topics: create missing topics, inputs with this number of partitions; None: do not.
        once: end when all messages that are there have been processed.
        close_windows: with `once`: then close all windows.
        files: source of files -> paths and patterns instead of those that are declared.
        looked: called with the bytes of each file whose content was looked at.
        partitions: input partitions that this reader has, such as ``0-3``; None: all, the flow is run as one.
    """

    kafka: str | None = None
    kafka_config: Path | Mapping[str, str] | None = None
    stores: Mapping[str, str] = field(default_factory=dict)
    engine: EngineChoice = field(default_factory=lambda: EngineChoice("inprocess"))
    create_topics: int | None = None
    once: bool = False
    close_windows: bool = False
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    looked: Callable[[int], object] = lambda _size: None
    partitions: str | None = None

    def flow_of(self, flow: Flow) -> Flow:
        """The flow, or the one of several readers that runs here.

        Raises:
            ConfigurationError: `partitions` are none.
            FlowError: the flow cannot be read by several readers.
        """
        return flow if self.partitions is None else flow.reader(Partitions.parse(self.partitions))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything needed to work on a flow: connected, checked, with signal handlers in place.

    Attributes:
        env: the flow and its ports; its engine runs in this process.
        engine: makes an engine of the requested kind.
        clock: the same as `env.clock`.
        stop: the request to end.
        statistics: figures from the events so far.
    """

    env: Environment
    engine: Callable[[Flow], Engine]
    clock: ServiceClock
    stop: Stop
    statistics: Statistics

    def asked_to_stop(self) -> bool:
        """Whether it was asked to end."""
        return self.stop.requested


def no_observers(_statistics: Statistics, _clock: ServiceClock) -> AbstractContextManager[Sequence[Observer]]:
    """No further observers."""
    return nullcontext(())


def launch(
    flow: Flow,
    settings: Settings,
    deployment: Deployment,
    *,
    observers: ObserverFactory = no_observers,
    stop: Stop | None = None,
    restore: Callable[[], object] | None = None,
) -> None:
    """Run a service until it is asked to stop.

    Args:
        flow: the flow.
        settings: how to run it.
        deployment: servers and engine to use.
        observers: makes further observers of the service.
        stop: a request that ends it; None: a new one.
        restore: see `prepare`.

    Raises:
        ConfigurationError: windows are to be closed, but it does not run once, or has none; or partitions are none.
        FlowError: partitions are given, and the flow cannot be read by several readers.
        ChainError: it could not start, or had to stop.
    """
    if deployment.close_windows:
        if not deployment.once:
            raise ConfigurationError(
                "--close-windows (close_windows=True) closes all windows at the end of the input, so it needs --once (once=True)"
            )
        check_closes(flow)
    if settings.overwrite is not None and not deployment.once:
        raise ConfigurationError(
            "an overwrite ends with the last row of its files, so it needs sqe-chain load (from Python once=True)"
        )
    flow = deployment.flow_of(flow)
    with prepare(flow, settings, deployment, observers=observers, stop=stop, restore=restore) as found:
        env = found.env
        if not found.stop.requested:
            env.engine = found.engine(flow)
            once, close = deployment.once, deployment.close_windows
            Service(
                env,
                found.clock,
                found.stop,
                found.statistics,
                once=once,
                close_windows=close,
                warm_up=not once,  # nothing would be ready sooner
            ).run()
        env.emit(Stopped(found.stop.reason))


@contextmanager
def prepare(
    flow: Flow,
    settings: Settings,
    deployment: Deployment,
    *,
    observers: ObserverFactory = no_observers,
    stop: Stop | None = None,
    restore: Callable[[], object] | None = None,
) -> Iterator[Prepared]:
    """Connect everything, as long as the context lasts.

    Args:
        flow: the flow.
        settings: how to run it.
        deployment: servers and engine to use.
        observers: makes further observers of the service.
        stop: a request that ends it; None: a new one.
        restore: makes the terminal usable again before a second Ctrl-C ends the process at once; SIGTERM and the first
            Ctrl-C are requests to stop. None: signals are left alone, as they must be in any thread but the main one.

    Raises:
        ChainError: something is missing, or wrong.
    """
    log = open_inputs(flow, deployment)
    stop, statistics = stop or Stop(), Statistics(time)
    clock = ServiceClock(stop, ONCE_PATIENCE_MS if deployment.once else None)
    with ExitStack() as opened:
        by_workers = deployment.engine.by_workers
        stores = opened.enter_context(open_stores(flow, deployment.stores, by_workers=by_workers))
        handle_again = opened.enter_context(signals(stop, restore)) if restore else None
        observer = Observers(statistics, clock, *opened.enter_context(observers(statistics, clock)))
        opened.enter_context(logging_to(observer))
        ports = Ports(log, stores)
        env = Environment(
            flow=flow,
            ports=ports,
            engine=InProcessEngine(flow, log, ports.store),
            observer=observer,
            clock=clock,
            new_run_id=lambda: secrets.token_hex(8),
            settings=settings,
            is_dead=is_dead,
        )
        ready = _ready(env, deployment.create_topics, stop)
        choice = deployment.engine if ready else EngineChoice("inprocess")
        engine = opened.enter_context(open_engine(choice, env))
        if handle_again:
            handle_again()  # Spark has replaced the handlers
        yield Prepared(env, engine, clock, stop, statistics)


def _ready(env: Environment, create_topics: int | None, stop: Stop) -> bool:
    """Check the topics before anything slow is started. Returns False if the service was asked to stop before that."""
    try:
        if create_topics is not None:
            create_missing(env, create_topics)
        inputs.describe(env.flow, env.log)
    except Unavailable:
        if not stop.requested:
            raise
    return not stop.requested
