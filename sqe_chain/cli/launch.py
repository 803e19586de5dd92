"""A service put together from what was asked for, and run to its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

from prometheus_client import CollectorRegistry

from sqe_chain.cli.connecting import EngineChoice, open_engine, open_log
from sqe_chain.cli.console import ERR
from sqe_chain.cli.health import Health
from sqe_chain.cli.metrics import Metrics, serving
from sqe_chain.cli.options import open_stores
from sqe_chain.cli.owner import is_dead
from sqe_chain.cli.panel import LivePanel
from sqe_chain.cli.service import Service
from sqe_chain.cli.statistics import Statistics
from sqe_chain.cli.stop import ServiceClock, Stop, signals
from sqe_chain.cli.telling import Hearers, Lines, logging_to
from sqe_chain.cli.topics import create_missing
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import Unavailable
from sqe_chain.flow import Flow
from sqe_chain.protocol import inputs
from sqe_chain.protocol.surroundings import Engine, Observer, Settings, Surroundings

ONCE_PATIENCE_MS = 30_000
"""How long `--once` waits for a broker or store that is away."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for, beside the flow and the protocol's settings.

    Attributes:
        kafka: brokers, ``host:port``.
        kafka_config: file of librdkafka properties.
        stores: addresses, ``URL`` or ``NAME=URL``.
        engine: what runs the tasks.
        create_topics: create missing topics, inputs with so many partitions; None: don't.
        once: end when what is there has been processed.
        log_json: JSON lines instead of a panel or text.
        metrics_port: answer Prometheus there.
    """

    kafka: str
    kafka_config: Path | None
    stores: tuple[str, ...]
    engine: EngineChoice
    create_topics: int | None
    once: bool
    log_json: bool
    metrics_port: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a command works with: servers looked at, signals and panel in place.

    Attributes:
        around: the flow and its ports; its engine runs in this process.
        engine: gives an engine of the kind that was asked for.
        clock: the same as `around.clock`.
        stop: when to end.
        statistics: what was told so far.
    """

    around: Surroundings
    engine: Callable[[Flow], Engine]
    clock: ServiceClock
    stop: Stop
    statistics: Statistics


def launch(flow: Flow, settings: Settings, wanted: Wanted) -> None:
    """Run a service until it is asked to stop.

    Raises:
        ChainError: it could not start, or had to stop.
    """
    with prepared(flow, settings, wanted) as found:
        around, stop = found.around, found.stop
        if not stop.requested:
            around.engine = found.engine(flow)
            Service(around, found.clock, stop, found.statistics, once=wanted.once).run()
        around.tell("stopped", reason=stop.reason)


@contextmanager
def prepared(flow: Flow, settings: Settings, wanted: Wanted) -> Iterator[Prepared]:
    """Connect everything, as long as the context lasts.

    Raises:
        ChainError: something is missing, or wrong.
    """
    log = open_log(wanted.kafka, wanted.kafka_config)
    stop, statistics = Stop(), Statistics(time)
    clock = ServiceClock(stop, ONCE_PATIENCE_MS if wanted.once else None)
    with ExitStack() as opened:
        stores = opened.enter_context(
            open_stores(flow, wanted.stores, by_workers=wanted.engine.name == "spark")
        )
        handle_again = opened.enter_context(signals(stop, lambda: ERR.show_cursor(show=True)))
        observer = Hearers(statistics, clock, *_hearers(flow, wanted, statistics, clock, opened))
        opened.enter_context(logging_to(observer))
        around = Surroundings(
            flow=flow,
            log=log,
            stores=stores,
            engine=InProcessEngine(flow, log, lambda stage: stores[stage.store or ""]),
            observer=observer,
            clock=clock,
            new_run_id=lambda: secrets.token_hex(8),
            settings=settings,
            is_dead=is_dead,
        )
        choice = wanted.engine if _ready(around, wanted, stop) else EngineChoice("inprocess")
        engine = opened.enter_context(open_engine(choice, around))
        handle_again()
        yield Prepared(around, engine, clock, stop, statistics)


def _ready(around: Surroundings, wanted: Wanted, stop: Stop) -> bool:
    """Look at the topics before anything slow is started; False when asked to stop meanwhile."""
    try:
        if wanted.create_topics is not None:
            create_missing(around, wanted.create_topics)
        around.patiently("look at the topics", lambda: inputs.describe(around.flow, around.log))
    except Unavailable:
        if not stop.requested:
            raise
    return not stop.requested


def _hearers(
    flow: Flow, wanted: Wanted, statistics: Statistics, clock: ServiceClock, opened: ExitStack
) -> list[Observer]:
    """Metrics if asked for, and the panel, or lines where there is no terminal."""
    hearers: list[Observer] = []
    if wanted.metrics_port:
        registry = CollectorRegistry()
        health = Health(clock.quiet_ms)
        hearers += [Metrics(flow.name, registry), health]
        opened.enter_context(serving(wanted.metrics_port, registry, health))
    if wanted.log_json or not ERR.is_terminal:
        hearers.append(Lines(flow.name, as_json=wanted.log_json))
    else:
        hearers.append(opened.enter_context(LivePanel(ERR, statistics, flow.name, wanted.kafka)))
    return hearers
