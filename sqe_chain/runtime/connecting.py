"""Opens the log, the stores and the engine of a service from addresses. Drivers are imported only when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.ports import StateStore
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.interfaces import Engine
from sqe_chain.runtime.neighbours import check_kafka, check_stores
from sqe_chain.stores import open_store

if TYPE_CHECKING:
    from sqe_chain.logs.kafka import KafkaLog


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What runs the tasks.

    Attributes:
        name: `spark`, or `inprocess`.
        master: Spark's master; None: that of the Spark configuration, or else this machine.
        conf: further properties of Spark.
    """

    name: Literal["spark", "inprocess"]
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def open_log(bootstrap: str, config: Path | Mapping[str, str] | None = None) -> KafkaLog:
    """The Kafka cluster. Does not connect yet, except to check the kind of server if there is no TLS.

    Raises:
        ConfigurationError: the driver is missing, the file is wrong, a property is refused, or another kind of
            server answers.
    """
    try:
        from sqe_chain.logs.kafka import KafkaLog, load_config  # noqa: PLC0415 - the driver, when asked for
    except ModuleNotFoundError as error:
        raise _not_installed(error, "kafka") from error
    properties = load_config(config) if isinstance(config, Path) else dict(config or {})
    log = KafkaLog(bootstrap, properties)
    if "ssl" not in properties.get("security.protocol", "").lower():
        check_kafka(bootstrap)
    return log


@contextmanager
def open_stores(
    flow: Flow, urls: Mapping[str, str], *, by_workers: bool = False
) -> Iterator[dict[str, StateStore]]:
    """The stores of a service by name, "" being the default and home store, as long as the context lasts.

    Does not connect yet, except to check the kind of each server without TLS.

    Args:
        flow: the flow.
        urls: store name -> address; "" is the default and home store.
        by_workers: whether other processes use them too.

    Raises:
        ConfigurationError: an address is wrong, another kind of server answers there, or a store that the flow
            needs is not given.
    """
    with ExitStack() as opened:
        urls = _stores_for(flow, urls, by_workers=by_workers)
        stores = {name: open_store(url) for name, url in urls.items()}
        for store in stores.values():
            opened.callback(store.close)
        check_stores(urls.values())
        yield stores


def _stores_for(flow: Flow, urls: Mapping[str, str], *, by_workers: bool) -> Mapping[str, str]:
    if not flow.stages():
        return {}  # a republisher stores nothing
    if "" not in urls:
        raise ConfigurationError(
            f"flow {flow.name!r} has stages, so it needs a store for its claim and plans; give --store URL, for example "
            '--store redis://localhost:6379 or --store sqlite:///var/lib/totals.db (in Python: store="redis://localhost")'
        )
    for stage in flow.stages():
        if stage.store and stage.store not in urls:
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} needs the store {stage.store!r}; give --store {stage.store}=URL"
            )
        if by_workers and urls[stage.store or ""].startswith("memory:"):
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} would keep its states in memory://, which every worker "
                "of Spark has separately; use redis://, cassandra:// or sqlite:///, or --engine inprocess"
            )
    return urls


@contextmanager
def open_engine(choice: EngineChoice, env: Environment) -> Iterator[Callable[[Flow], Engine]]:
    """A function that makes engines of the chosen kind, as long as the context lasts.

    Raises:
        ConfigurationError: Java or pyspark is missing, or a setting of Spark is wrong.
    """
    if choice.name == "inprocess":
        yield lambda flow: InProcessEngine(flow, env.ports.log, env.ports.store)
        return
    try:
        from sqe_chain.engines.spark import SparkEngine, close_session, open_session  # noqa: PLC0415 - the driver, when asked for
    except ModuleNotFoundError as error:
        raise _not_installed(error, "spark") from error
    session = open_session(master=choice.master, app_name=env.flow.name, conf=dict(choice.conf))
    try:
        yield lambda flow: SparkEngine(flow, env.ports.log, env.ports.stores, session)
    finally:
        close_session(session)


def _not_installed(error: ModuleNotFoundError, extra: str) -> Exception:
    """The error to raise for a driver that is not installed. A missing module of our own is a bug, and raised as it is."""
    if (error.name or "").partition(".")[0] == "sqe_chain":
        return error
    return ConfigurationError(
        f"the package {error.name!r} is not installed: pip install 'sqe-chain[{extra}]'"
    )
