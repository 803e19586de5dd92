"""Opens the log, the stores and the engine of a service from addresses. Drivers are imported only when needed."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sqe_chain.adapters import open_store
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Engine, Environment
from sqe_chain.plans.mirrors import follow_mirrors
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import Log, StateStore
from sqe_chain.ports.files import is_other_format
from sqe_chain.ports.readers import Partitions
from sqe_chain.runtime.neighbours import check_kafka, check_stores
from sqe_chain.runtime.stop import ServiceClock, Stop
from sqe_chain.wings import WINGS, load, needing

if TYPE_CHECKING:
    from sqe_chain.adapters.kafka import KafkaLog

ONCE_PATIENCE_MS = 30_000
"""How long a service that runs once waits for an unavailable broker or store."""
MOST_WORKERS: Final = 64
"""Worker processes of one service at most: one machine has not many more cores."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What runs the tasks.

    Attributes:
        name: `spark`, or `inprocess`.
        master: Spark's master; None: that of the Spark configuration, or else this machine.
        conf: further properties of Spark.
        workers: processes that run tasks, with `inprocess`; 1: the service's own.

    Raises:
        ConfigurationError: the number of workers is out of bounds, or the engine is Spark.
    """

    name: Literal["spark", "inprocess"]
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ConfigurationError(f"--workers {self.workers}. Expected 1 to {MOST_WORKERS}")
        if self.workers > 1 and self.name == "spark":
            raise ConfigurationError(
                f"--workers {self.workers} with Spark. Expected --engine inprocess. On Spark, give the number of processes with "
                f"--master local[{self.workers}]"
            )

    @property
    def by_workers(self) -> bool:
        """Whether tasks run in other processes than the service's."""
        return self.name == "spark" or self.workers > 1


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers and engine that a flow runs with.

    Attributes:
        kafka: brokers, ``host:port``; None: the flow reads files, and publishes nothing.
        kafka_config: file of librdkafka properties, or the properties.
        stores: store name -> address; "" is the default and metadata store.
        engine: what runs the tasks.
        create_topics: create missing topics, inputs with this number of partitions; None: do not.
        once: end when all messages that are there have been processed.
        close_windows: with `once`: then close all windows.
        files: source of files -> paths and patterns instead of those that are declared.
        looked: called with the bytes of each file whose content was looked at.
        partitions: input partitions of this reader, such as ``0-3``; None: all.
        registry: address of the schema registry that codecs ask; None: there is none.
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
    registry: str | None = None

    def flow_of(self, flow: CompiledFlow) -> CompiledFlow:
        """The flow with its schema registry, or the one of several readers that runs here.

        Raises:
            ConfigurationError: `partitions` are none, or the address of the registry is wrong.
            FlowError: the flow cannot be read by several readers.
        """
        if self.registry is not None:
            flow = flow.asking(load(WINGS, "registry", "registry")(self.registry))
        return flow if self.partitions is None else flow.reader(Partitions.parse(self.partitions))

    def clock(self) -> ServiceClock:
        """A clock for one service with it, and in it the request to end."""
        return ServiceClock(Stop(), ONCE_PATIENCE_MS if self.once else None)


def open_log(bootstrap: str, config: Path | Mapping[str, str] | None = None) -> KafkaLog:
    """The Kafka cluster. Does not connect yet, except to check the kind of server if there is no TLS.

    Raises:
        ConfigurationError: the driver is missing, the file is wrong, a property is refused, or another kind of
            server answers.
    """
    with needing("Kafka", "kafka"):
        from sqe_chain.adapters.kafka import KafkaLog, load_config  # noqa: PLC0415 - the driver, when asked for
    properties = load_config(config) if isinstance(config, Path) else dict(config or {})
    log = KafkaLog(bootstrap, properties)
    if "ssl" not in properties.get("security.protocol", "").lower():
        check_kafka(bootstrap)
    return log


def open_inputs(flow: CompiledFlow, deployment: Deployment) -> Log:
    """What a flow reads and where it publishes: Kafka, its files, or both. Does not connect yet; see `open_log`.

    Raises:
        ConfigurationError: as `open_log`; or Kafka is missing and the flow has topics; or the flow does not read such files.
    """
    sources = {source.name: source for source in flow.file_sources}
    for name, patterns in deployment.files.items():
        if name not in sources:
            known = ", ".join(sources) or "none"
            raise ConfigurationError(
                f"--files {name}=...: flow {flow.name!r} has no such source of files. Expected one of: {known}"
            )
        sources[name] = replace(sources[name], patterns=tuple(patterns))
        for pattern in patterns:
            if is_other_format(pattern, sources[name].format):
                raise ConfigurationError(
                    f"--files {name}={pattern}: another format. Expected {sources[name].format}, which flow {flow.name!r} reads there"
                )
    if deployment.kafka is None:
        topics = {*flow.input_topics, *flow.written_topics}
        if topics:
            raise ConfigurationError(
                f"flow {flow.name!r} reads or writes {', '.join(sorted(topics))}. Expected brokers. Give --kafka HOST:PORT (in Python: kafka=...)"
            )
    elif not sources:
        return open_log(deployment.kafka, deployment.kafka_config)
    open_files = load(WINGS, "files", "files")
    log = None if deployment.kafka is None else open_log(deployment.kafka, deployment.kafka_config)
    files: Log = open_files(sources, log, skip_bad=flow.poison != "stop", looked=deployment.looked)
    return files


def follow_failover(log: Log, stores: Mapping[str, StateStore], flow: CompiledFlow) -> Log:
    """The log as the flow reads it since its last failover, for what only shows; the same where its store does not answer."""
    with suppress(ChainError):
        return follow_mirrors(log, read_last_plan(stores[""], flow.name) if "" in stores else None)
    return log


@contextmanager
def open_stores(
    flow: CompiledFlow, urls: Mapping[str, str], *, by_workers: bool = False
) -> Iterator[dict[str, StateStore]]:
    """The stores of a service by name, as long as the context lasts.

    Does not connect yet, except to check the kind of each server without TLS.

    Args:
        flow: the flow.
        urls: store name -> address; "" is the default and metadata store.
        by_workers: whether other processes use them too.

    Raises:
        ConfigurationError: an address is wrong, another kind of server answers there, or a store is missing.
    """
    with open_addresses(_stores_for(flow, urls, by_workers=by_workers)) as stores:
        yield stores


@contextmanager
def open_addresses(urls: Mapping[str, str]) -> Iterator[dict[str, StateStore]]:
    """Stores by name, as long as the context lasts, without regard to a flow; see `open_stores`.

    Raises:
        ConfigurationError: an address is wrong, or another kind of server answers there.
    """
    with ExitStack() as opened:
        stores = {name: open_store(url) for name, url in urls.items()}
        for store in stores.values():
            opened.enter_context(shared(repr(store), store.close))
        check_stores(urls.values())
        yield stores


@contextmanager
def shared(what: str, close: Callable[[], object]) -> Iterator[None]:
    """Use something that all threads of this process share, such as connections; it is closed when the last context ends."""
    key = os.getpid(), what
    with _uses_lock:
        _uses[key] += 1
    try:
        yield
    finally:
        with _uses_lock:  # a thread that begins to use it now must not find it half closed
            _uses[key] -= 1
            if not _uses[key]:
                close()


_uses: Counter[tuple[int, str]] = Counter()
_uses_lock = threading.Lock()


def _stores_for(flow: CompiledFlow, urls: Mapping[str, str], *, by_workers: bool) -> Mapping[str, str]:
    if not flow.keeps_plans:
        return {}  # a republisher stores nothing
    if "" not in urls:
        why = "has stages" if flow.stages else "reads files" if flow.file_sources else "is transactional"
        raise ConfigurationError(
            f"flow {flow.name!r} {why}. Expected a store for its claim and plans. Give --store URL, for example "
            '--store redis://localhost:6379 or --store sqlite:///var/lib/totals.db (in Python: store="redis://localhost")'
        )
    for stage in flow.stages:
        if stage.store and stage.store not in urls:
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} needs the store {stage.store!r}. Expected its address. Give --store {stage.store}=URL"
            )
        if by_workers and urls[stage.store or ""].startswith("memory:"):
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} has a store in memory://, which each worker has for itself. Expected a store "
                "that all share. Use redis://, cassandra://, postgres:// or sqlite:///, or --engine inprocess with one worker"
            )
    return urls


def check_engine(choice: EngineChoice) -> None:
    """Check that what an engine needs is installed, before a start changes anything.

    Raises:
        ConfigurationError: Java, pyspark or cloudpickle is missing.
    """
    if choice.name == "inprocess":
        if choice.workers > 1:
            with needing("--workers", "workers"):
                import_module("sqe_chain.engines.workers")
        return
    try:
        with needing("the engine spark", "spark"):
            from sqe_chain.engines.spark import check_spark  # noqa: PLC0415 - the driver, when asked for
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, or run with --engine inprocess") from None
    check_spark(choice.master)


@contextmanager
def open_engine(choice: EngineChoice, env: Environment) -> Iterator[Callable[[CompiledFlow], Engine]]:
    """A function that makes engines of the chosen kind, which `check_engine` has passed, as long as the context lasts.

    Raises:
        ConfigurationError: a setting of Spark is wrong.
    """
    if choice.name == "inprocess" and choice.workers > 1:
        with _open_team(choice.workers, env) as made:
            yield made
        return
    if choice.name == "inprocess":
        yield lambda flow: InProcessEngine(flow, env.ports.log, env.ports.store, threads=True)
        return
    from sqe_chain.engines.spark import SparkEngine, close_session, open_session  # noqa: PLC0415 - the driver, when asked for

    session = open_session(master=choice.master, app_name=env.flow.name, conf=dict(choice.conf))
    with shared("Spark", partial(close_session, session)):
        yield lambda flow: SparkEngine(flow, env.ports.log, env.ports.stores, session)


@contextmanager
def _open_team(workers: int, env: Environment) -> Iterator[Callable[[CompiledFlow], Engine]]:
    """Worker processes, which start while the service does, and engines that use them."""
    from sqe_chain.engines.workers import Team, WorkersEngine  # noqa: PLC0415 - it needs cloudpickle

    team = Team(workers, f"sqe-chain worker of {env.flow.name}")
    try:
        yield lambda flow: WorkersEngine(flow, env.ports.log, env.ports.stores, team)
    finally:
        team.close()
