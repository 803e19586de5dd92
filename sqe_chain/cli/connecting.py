"""From options to ports: the log and the engine. Drivers are imported only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqe_chain.cli.neighbours import check_kafka
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.protocol.surroundings import Engine, Surroundings

if TYPE_CHECKING:
    from sqe_chain.logs.kafka import KafkaLog


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What runs the tasks.

    Attributes:
        name: `spark`, or `inprocess`.
        master: Spark's master; None: what the Spark configuration says, else this machine.
        conf: further properties of Spark.
    """

    name: Literal["spark", "inprocess"]
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def open_log(bootstrap: str, config: Path | None) -> KafkaLog:
    """The Kafka cluster. Its client is not connected yet; but whoever answers in plain text was asked who it is.

    Raises:
        ConfigurationError: the driver is missing, the file is wrong, a property is refused, or another kind of
            server answers.
    """
    try:
        from sqe_chain.logs.kafka import KafkaLog, load_config  # noqa: PLC0415 - the driver, when asked for
    except ModuleNotFoundError as error:
        raise _missing(error, "kafka") from error
    properties = load_config(config) if config else {}
    log = KafkaLog(bootstrap, properties)
    if "ssl" not in properties.get("security.protocol", "").lower():
        check_kafka(bootstrap)
    return log


@contextmanager
def open_engine(choice: EngineChoice, around: Surroundings) -> Iterator[Callable[[Flow], Engine]]:
    """What gives engines of the kind that was asked for, as long as the context lasts.

    Raises:
        ConfigurationError: Java or pyspark is missing, or a setting of Spark is wrong.
    """
    if choice.name == "inprocess":
        yield lambda flow: InProcessEngine(flow, around.log, around.store)
        return
    try:
        from sqe_chain.engines.spark import SparkEngine, close_session, open_session  # noqa: PLC0415 - the driver, when asked for
    except ModuleNotFoundError as error:
        raise _missing(error, "spark") from error
    session = open_session(master=choice.master, app_name=around.flow.name, conf=dict(choice.conf))
    try:
        yield lambda flow: SparkEngine(flow, around.log, around.stores, session)
    finally:
        close_session(session)


def _missing(error: ModuleNotFoundError, extra: str) -> Exception:
    """The error to raise for a driver that is not installed; a module of our own is a bug, and stays one."""
    if (error.name or "").partition(".")[0] == "sqe_chain":
        return error
    return ConfigurationError(
        f"the package {error.name!r} is not installed: pip install 'sqe-chain[{extra}]'"
    )
