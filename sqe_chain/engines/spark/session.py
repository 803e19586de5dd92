"""A Spark session as the engine needs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyspark
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqe_chain.errors import ConfigurationError

LEAST_SPARK = 4, 1
"""`DataFrame.repartitionById` came with Spark 4.1."""

LOCAL = MappingProxyType(
    {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "sqe_chain.engines.spark_daemon",  # workers that do not die of SIGTERM
    }
)
"""What `open_session` sets for a master on this machine unless told otherwise."""

WANTED = MappingProxyType(
    {
        "spark.python.unix.domain.socket.enabled": "true",  # halves what a task costs
        "spark.python.worker.reuse": "true",  # clients and imports live as long as the worker
        "spark.speculation": "false",  # a second attempt would only repeat what the first one publishes
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
)
"""What `open_session` sets unless told otherwise."""

OWN = MappingProxyType(
    {
        "spark.sql.adaptive.enabled": "false",  # the engine knows its tasks; looking again costs more than it gives
        "spark.sql.codegen.wholeStage": "false",  # the same for code that Spark would write and compile
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.leafNodeDefaultParallelism": str(1 << 20),  # one row of portions, one task
        "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),  # rows are large: see `rows`
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
        "spark.sql.execution.arrow.useLargeVarTypes": "false",
    }
)
"""What the engine sets for itself, in a session of its own."""

_LOCAL = re.compile(r"local(\[(\*|\d+)\])?")
_ATTEMPTS = 4
_LONGEST = 500
_GONE = (
    "Answer from Java side is empty", "while sending or receiving", "SparkContext was shut down", "stopped SparkContext",
    "SparkContext has been shutdown",
)  # fmt: skip
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Rows are few and large, so Java has little to do: compiling less halves what a start costs, and a small batch.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def open_session(
    master: str | None = None,
    app_name: str = "sqe-chain",
    conf: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """A Spark session, set up for small batches; the one that is there already, if there is one.

    Args:
        master: Spark's master, such as ``local[2]`` or ``spark://host:7077``; None: what Spark's own
            configuration says, else all cores of this machine.
        app_name: what Spark's pages call it.
        conf: further properties of Spark; they win over `WANTED`.

    Raises:
        ConfigurationError: Java or a Spark of at least 4.1 is missing, or Spark refuses its configuration.
    """
    check_version(pyspark.__version__)
    _check_java()
    if master is None and not {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys():
        master = "local[*]"
    settings = dict(WANTED)
    # The one setting that PySpark takes from the environment only, when no spark-submit stands before it.
    os.environ.setdefault("PYSPARK_PYTHON", conf.get("spark.pyspark.python", sys.executable))
    if master and master.startswith("local"):
        settings |= LOCAL
        if _LOCAL.fullmatch(master):  # a worker that dies is started again, as on a cluster
            cores = "1" if master == "local" else master[len("local[") : -1]
            master = f"local[{cores},{_ATTEMPTS}]"
    settings |= conf
    java = settings.get(_JAVA_OPTIONS, _QUICK_JAVA)
    if "log4j" not in java:
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {java}"
    builder = SparkSession.Builder().appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if master:
        builder = builder.master(master)
    try:
        with _deaf_to_sigterm():
            session = builder.getOrCreate()
    except PySparkException as error:
        raise ConfigurationError(
            f"Spark does not start with master {master or 'of its own configuration'}: {gist(error)}. Java 17 or "
            "newer is needed; what Spark itself says is above"
        ) from error
    except Exception as error:
        raise ConfigurationError(f"Spark refuses its configuration: {gist(error)}") from error
    check_version(session.version)
    return session


@contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """While in the context, a Java process that PySpark starts ignores SIGTERM, as it ignores SIGINT already.

    What is ignored when Java starts stays ignored. It ends with this process, whose end it sees as the end of
    its input, also when this process is killed. PySpark has no other place to say so.
    """
    gateway: Any = java_gateway
    original = gateway.Popen

    def popen(command: Sequence[str], **options: Any) -> Any:  # noqa: ANN401 - what Popen takes and gives
        before = options.pop("preexec_fn", None)

        def prepare() -> None:
            if before is not None:
                before()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return original(command, preexec_fn=prepare, **options)

    gateway.Popen = popen
    try:
        yield
    finally:
        gateway.Popen = original


def close_session(session: SparkSession) -> None:
    """Stop a session; nothing happens if Spark is gone already."""
    try:
        session.stop()
    except Exception as error:
        if not is_gone(error):
            raise


def is_gone(error: BaseException) -> bool:
    """Whether an error means that Spark's Java process is gone, or has shut Spark down."""
    return isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)) or any(
        words in str(error) for words in _GONE
    )


def own_session(session: SparkSession) -> SparkSession:
    """A session on the same Spark with the engine's settings; the given one keeps its own.

    Raises:
        ConfigurationError: Spark is older than 4.1.
    """
    check_version(session.version)
    own = session.newSession()
    for name, value in OWN.items():
        own.conf.set(name, value)
    return own


def check_version(version: str) -> None:
    """Refuse a Spark that is too old.

    Raises:
        ConfigurationError: it is.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_SPARK:
        raise ConfigurationError(
            f"Spark {version} is too old, {'.'.join(map(str, LEAST_SPARK))} is needed: pip install 'sqe-chain[spark]', and "
            "the same version on the cluster"
        )


def gist(error: BaseException) -> str:
    """What an error of Spark is about, in a line or two; its texts run over pages.

    Of an error in Python, what stands below the first trace; else how the text begins.
    """
    lines = str(error).splitlines()
    for number, line in enumerate(lines):
        if line.startswith("Traceback"):
            below = (later for later in lines[number + 1 :] if later and not later.startswith((" ", "\t")))
            return next(below, line).strip()[:_LONGEST]
    text = " ".join(line.strip() for line in lines[:2])
    return text[:_LONGEST] or type(error).__name__


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
    if not found:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "there is no java on the PATH"
        raise ConfigurationError(
            f"Spark needs Java 17 or newer, and {where}: install it (Debian: apt install openjdk-17-jre-headless) or set "
            "JAVA_HOME, or try the flow with --engine inprocess"
        )
