"""Assembles a service: checks the servers, opens stores and engine, connects the observers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.features.closing import check_closes
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Engine, Environment, Ports, Role
from sqe_chain.plans.events import Notice, Observer, Stopped
from sqe_chain.plans.mirrors import follow_mirrors
from sqe_chain.plans.retrying import RetryingLog
from sqe_chain.plans.settings import Settings
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.runtime.connecting import (
    Deployment,
    EngineChoice,
    check_engine,
    open_engine,
    open_inputs,
    open_stores,
)
from sqe_chain.runtime.observers import Observers, forward_warnings
from sqe_chain.runtime.owner import is_dead, this_process
from sqe_chain.runtime.service import Service
from sqe_chain.runtime.stop import ServiceClock, Stop, signals

_WRITERS = 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a command works with: everything is connected and checked, and signal handlers are installed.

    Attributes:
        env: the flow and its ports; its engine runs in this process.
        engine: makes an engine of the requested kind.
        clock: the same as `env.clock`; it has the request to end.
    """

    env: Environment
    engine: Callable[[CompiledFlow], Engine]
    clock: ServiceClock

    def asked_to_stop(self) -> bool:
        """Whether it was asked to end."""
        return self.clock.stop.requested


def launch(
    flow: CompiledFlow,
    settings: Settings,
    deployment: Deployment,
    *,
    observers: Sequence[Observer] = (),
    clock: ServiceClock | None = None,
    restore: Callable[[], object] | None = None,
) -> None:
    """Run a service until it is asked to stop; for the arguments see `prepare`.

    Raises:
        ConfigurationError: windows are to be closed, but it does not run once, or has none; or partitions are none.
        FlowError: partitions are given, and the flow cannot be read by several readers.
        ChainError: it could not start, or had to stop.
    """
    if deployment.close_windows:
        if not deployment.once:
            raise ConfigurationError(
                "--close-windows (close_windows=True) without an end of the input. Expected --once (once=True)"
            )
        check_closes(flow)
    if settings.needs_end and not deployment.once:
        raise ConfigurationError(settings.needs_end)
    flow = deployment.flow_of(flow)
    with prepare(flow, settings, deployment, observers=observers, clock=clock, restore=restore) as prepared:
        env, once = prepared.env, deployment.once
        if not prepared.asked_to_stop():
            env.engine = prepared.engine(flow)
            # Warmed up, a service that runs once would be ready no sooner.
            Service(env, prepared.clock, once, deployment.close_windows, warm_up=not once).run()
        env.emit(Stopped(prepared.clock.stop.reason))


@contextmanager
def prepare(
    flow: CompiledFlow,
    settings: Settings,
    deployment: Deployment,
    *,
    observers: Sequence[Observer] = (),
    clock: ServiceClock | None = None,
    restore: Callable[[], object] | None = None,
    fails_over: bool = False,
) -> Iterator[Prepared]:
    """Connect everything, as long as the context lasts.

    Args:
        flow: the flow.
        settings: how to run it.
        deployment: servers and engine to use.
        observers: further observers of the service; those that are contexts are entered when all is connected.
        clock: its clock, with the request to end; None: a new one.
        restore: makes the terminal usable again before a second Ctrl-C ends the process at once; SIGTERM and the first
            Ctrl-C are requests to stop. None: signals are left alone, as they must be in any thread but the main one.
        fails_over: the flow is about to move to this cluster, where its topics may have other names; they are not looked at.

    Raises:
        ChainError: something is missing, or wrong.
    """
    check_engine(deployment.engine)
    log = open_inputs(flow, deployment)
    clock = clock or deployment.clock()
    with ExitStack() as opened:
        by_workers = deployment.engine.by_workers
        stores = opened.enter_context(open_stores(flow, deployment.stores, by_workers=by_workers))
        handle_again = opened.enter_context(signals(clock.stop, restore)) if restore else None
        for observer in observers:
            if isinstance(observer, AbstractContextManager):
                opened.enter_context(observer)
        observer = Observers(clock, *observers)
        opened.enter_context(forward_warnings(observer))
        ports = Ports(log, stores)
        env = Environment(
            flow=flow,
            ports=ports,
            engine=InProcessEngine(flow, log, ports.store),
            observer=observer,
            clock=clock,
            new_run_id=lambda: secrets.token_hex(8),
            settings=settings,
            role=Role(owner=this_process().as_text()),
            is_dead=is_dead,
            writers=_WRITERS,
        )
        ready = fails_over or _ready(env, deployment.create_topics, clock.stop)
        choice = deployment.engine if ready else EngineChoice("inprocess")
        engine = opened.enter_context(open_engine(choice, env))
        if handle_again:
            handle_again()  # Spark has replaced the handlers
        yield Prepared(env, engine, clock)


def _ready(env: Environment, create_topics: int | None, stop: Stop) -> bool:
    """Check the topics before anything slow is started. Returns False if the service was asked to stop before that."""
    try:
        _follow_mirrors(env)
        if create_topics is not None:
            _create_missing(env, create_topics)
        inputs.describe(env.flow, env.log)
    except Unavailable:
        if not stop.requested:
            raise
    return not stop.requested


def _follow_mirrors(env: Environment) -> None:
    """Read the inputs where the flow's last failover has noted that they are."""
    if not env.ports.stores:
        return
    log = follow_mirrors(env.ports.log, read_last_plan(env.home, env.flow.name))
    if log is not env.ports.log:
        env.ports = replace(env.ports, log=log)
        env.log = RetryingLog(log, env.retry)
        env.engine = InProcessEngine(env.flow, log, env.ports.store)


def _create_missing(env: Environment, input_partitions: int) -> None:
    """Create missing topics: outputs and dead-letter topics as declared, inputs with this number of partitions, if any.

    Better let its writer create an input that several flows share: its partitions are permanent for the lanes through it.
    """
    needed = _partitions_needed(env.flow, input_partitions)
    existing = env.log.describe(needed)
    for topic in sorted(needed.keys() - existing.keys()):
        partitions = needed[topic]
        env.log.create_topic(topic, partitions, compacted=topic == env.flow.marker_topic)
        env.emit(Notice(f"created topic {topic} with {partitions} partitions"))


def _partitions_needed(flow: CompiledFlow, input_partitions: int) -> dict[str, int]:
    """Topic -> partitions to create it with; two outputs into one topic share the larger number."""
    written = [(output.topic, output.partitions) for output in flow.outputs]
    if flow.dead_letters:
        written.append((flow.dead_letter_topic, flow.dead_letter_partitions))
    needed = dict.fromkeys(flow.input_topics if input_partitions else (), input_partitions)
    if flow.marker_topic:
        written.append((flow.marker_topic, 1))
    for topic, partitions in written:
        needed[topic] = max(needed.get(topic, 0), partitions)
    return needed
