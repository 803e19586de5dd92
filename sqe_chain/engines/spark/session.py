"""Opens Spark sessions with the settings that the engine needs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pyspark
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import java_gateway
from pyspark.errors import PySparkException, PySparkImportError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from sqe_chain.engines.java import ClassArchive
from sqe_chain.errors import ConfigurationError, EngineLost

_LEAST_SPARK = 4, 1
"""`DataFrame.repartitionById` came with Spark 4.1."""

LOCAL = MappingProxyType(
    {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "sqe_chain.engines.spark_daemon",  # its workers ignore SIGTERM
    }
)
"""Further defaults of `open_session` for a master on this machine."""

WANTED = MappingProxyType(
    {
        "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of a task
        "spark.python.worker.reuse": "true",  # keep clients and imports for the next task
        "spark.speculation": "false",  # a speculative attempt would publish everything twice
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
)
"""Defaults of `open_session`."""

OWN = MappingProxyType(
    {
        "spark.sql.adaptive.enabled": "false",  # the engine plans its tasks itself; replanning only costs time
        "spark.sql.codegen.wholeStage": "false",  # compiling generated code takes longer than these plans run
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.leafNodeDefaultParallelism": str(1 << 20),  # one row of portions, one task
        "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),  # rows are large: see `rows`
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
        "spark.sql.execution.arrow.useLargeVarTypes": "false",
    }
)
"""Settings of the engine's own session."""

CONNECT = "sc://"
"""How the address of a Spark Connect server begins."""

_CLONES: WeakKeyDictionary[SparkSession, WeakSet[SparkSession]] = WeakKeyDictionary()
"""Session of Spark Connect -> those of engines on it. Each has a channel of its own. Python may never end while one is open:
the thread that would end the channel's calls is gone by then."""

_LOCAL = re.compile(r"local(\[(\*|\d+)\])?")
_ATTEMPTS = 4
_GUESSED_TASKS = 8
_KILLED = 128
_LONGEST = 500
_GONE = (
    "Answer from Java side is empty", "while sending or receiving", "SparkContext was shut down", "stopped SparkContext",
    "SparkContext has been shutdown",
)  # fmt: skip
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Rows are few and large, so Java has little to do: less compilation halves the time of a start, and of a small batch.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_START_ONCE = f"""
import sys
from sqe_chain.engines.spark.session import open_session

session = open_session("local[1]", conf={{"{_JAVA_OPTIONS}": "{_QUICK_JAVA} " + sys.argv[1]}})
session.range(1).mapInArrow(lambda batches: batches, "id long").collect()
java = session.sparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait()
"""
"""A small job, and the end of Java, for which Spark waits nowhere itself."""
_LOGGING = Path(__file__).with_name("log4j2.properties")


def open_session(
    master: str | None = None,
    app_name: str = "sqe-chain",
    conf: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """A Spark session with settings for small batches; the active one, if there is one.

    Args:
        master: Spark's master, such as ``local[2]`` or ``spark://host:7077``; ``sc://host:15002`` is a Spark Connect server. None: the one
            in Spark's own configuration, else all cores of this machine.
        app_name: name of the application in Spark's UI.
        conf: further properties of Spark; they override the defaults.

    Raises:
        ConfigurationError: Java or a Spark of at least 4.1 is missing, or Spark refuses its configuration.
        EngineLost: Java was killed while it started.
    """
    if master and master.startswith(CONNECT):
        return _connect(master, conf)
    check_spark()
    master, settings = _settings_for(master, conf)
    builder = SparkSession.Builder().appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if master:
        builder = builder.master(master)
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _java_ignores_sigterm(started):
            session = builder.getOrCreate()
    except Exception as error:
        if any(map(_was_killed, started)) or is_gone(error):
            raise EngineLost(
                f"Spark's Java process ended while it started: {gist(error)}. It was killed, or memory is short; nothing was "
                "begun, start again"
            ) from error
        if not isinstance(error, PySparkException):
            raise ConfigurationError(f"Spark refuses its configuration: {gist(error)}") from error
        raise ConfigurationError(
            f"Spark does not start with master {master or 'of its own configuration'}: {gist(error)}. Java 17 or "
            "newer is needed; see Spark's own output above"
        ) from error
    check_version(session.version)
    return session


def _settings_for(master: str | None, conf: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """The master as Spark takes it, and all settings of a Spark that is started here."""
    if master is None and not {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys():
        master = "local[*]"
    settings = dict(WANTED)
    # Without spark-submit, PySpark reads this one setting only from the environment.
    os.environ.setdefault("PYSPARK_PYTHON", conf.get("spark.pyspark.python", sys.executable))
    if master and master.startswith("local"):
        settings |= LOCAL
        if _LOCAL.fullmatch(
            master
        ):  # plain local[N] never retries a task; retry after a worker died, as on a cluster
            cores = "1" if master == "local" else master[len("local[") : -1]
            master = f"local[{cores},{_ATTEMPTS}]"
    settings |= conf
    java = settings.get(_JAVA_OPTIONS) or " ".join((_QUICK_JAVA, *class_archive().options()))
    if "log4j" not in java:
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {java}"
    return master, settings


def _connect(address: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of a Spark Connect server. That one has its own settings: those of this module are for a Spark that is started here."""
    try:
        session = SparkSession.Builder().remote(address).getOrCreate()
        for name, value in conf.items():
            session.conf.set(name, value)
        check_version(session.version)
    except ConfigurationError:
        raise
    except PySparkImportError as error:
        raise ConfigurationError(
            f"Spark Connect at {address}: {gist(error)}. Install its client: pip install 'sqe-chain[spark,spark-connect]'."
        ) from None
    except Exception as error:
        raise ConfigurationError(
            f"Spark Connect at {address}: {gist(error)}. Expected a server that answers and takes the settings. Check --master and --spark-conf."
        ) from error
    return session


def is_connect(session: SparkSession) -> bool:
    """Whether a session is of Spark Connect: then there is no `sparkContext`, and Java is on another machine."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def tasks_at_once(session: SparkSession) -> int:
    """How many tasks run at the same time; a guess for Spark Connect, which does not report it."""
    if is_connect(session):
        return int(session.conf.get("spark.default.parallelism", str(_GUESSED_TASKS)) or _GUESSED_TASKS)
    return int(session.sparkContext.defaultParallelism)


def class_archive() -> ClassArchive:
    """The archive of Spark's classes; see `archive_classes`."""
    return ClassArchive("spark", Path(_find_spark_home()) / "jars")


def archive_classes() -> Path:
    """Start Spark once, to archive the classes that it loads: its next starts take half the time.

    Returns:
        The archive; `open_session` uses it from now on, unless Java's options are given.

    Raises:
        ConfigurationError: Java is missing, or Spark does not start; the text has the end of its output.
    """
    archive = class_archive()
    with archive.made() as options:
        # In a process of its own: Java ends, and writes the archive, only with the Python that started it.
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", _START_ONCE, " ".join(options)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        message = f"Spark does not start, so its classes cannot be archived:\n{done.stderr[-2_000:]}"
        raise ConfigurationError(message)
    return archive.path


@contextmanager
def _java_ignores_sigterm(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """In this context, a Java process that PySpark starts, added to `started`, ignores SIGTERM; SIGINT it ignores anyway.

    A signal that is ignored when Java starts stays ignored. Java still ends with this process, even if that is
    killed: its input then ends. PySpark has no option for this, so its `Popen` is replaced.
    """
    gateway: Any = java_gateway
    original = gateway.Popen

    def popen(command: Sequence[str], **options: Any) -> Any:  # noqa: ANN401 - as Popen
        before = options.pop("preexec_fn", None)

        def prepare() -> None:
            if before is not None:
                before()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        started.append(original(command, preexec_fn=prepare, **options))
        return started[-1]

    gateway.Popen = popen
    try:
        yield
    finally:
        gateway.Popen = original


def _was_killed(process: subprocess.Popen[bytes]) -> bool:
    """Whether a signal has ended it, or what it had started (a shell then adds 128)."""
    with suppress(
        subprocess.TimeoutExpired
    ):  # PySpark looks at a file, and may be faster than the end of the process
        return not 0 <= process.wait(1) < _KILLED
    return False


def close_session(session: SparkSession) -> None:
    """Stop a session, and those of engines on it that Spark Connect has; no error if Spark is already gone."""
    for each in (*_CLONES.pop(session, ()), session):
        try:
            each.stop()
        except Exception as error:
            if not is_gone(error):
                raise


def is_gone(error: BaseException) -> bool:
    """Whether an error means that Spark's Java process is gone, or has shut Spark down."""
    return isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)) or any(
        words in str(error) for words in _GONE
    )


def own_session(session: SparkSession) -> SparkSession:
    """A new session on the same Spark with the engine's settings; the given session keeps its own.

    Raises:
        ConfigurationError: Spark is older than 4.1.
    """
    check_version(session.version)
    given: Any = (
        session  # only sessions of Connect are cloned; of these, `newSession` is younger than Spark 4.1
    )
    own: SparkSession = given.cloneSession() if is_connect(session) else session.newSession()
    if is_connect(session):
        _CLONES.setdefault(session, WeakSet()).add(own)
    for name, value in OWN.items():
        own.conf.set(name, value)
    if not is_connect(session):
        _expect_its_end(own)
    return own


def _expect_its_end(session: SparkSession) -> None:
    """Silence PySpark's thread for accumulators when Java is gone: the next call of Spark reports that in one line, with what to do."""
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is None:  # a PySpark that does it otherwise
        return
    said: Callable[[object, object], None] = type(server).handle_error.__get__(server)

    def handle_error(request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            said(request, client_address)

    server.handle_error = handle_error


def check_version(version: str) -> None:
    """Refuse a Spark that is too old.

    Raises:
        ConfigurationError: it is.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _LEAST_SPARK:
        raise ConfigurationError(
            f"Spark {version} is too old, {'.'.join(map(str, _LEAST_SPARK))} is needed: pip install 'sqe-chain[spark]', and "
            "the same version on the cluster"
        )


def gist(error: BaseException) -> str:
    """The essence of a Spark error, in a line or two: the full text is often several pages.

    For an error in Python the line after the first traceback, otherwise the first two lines.
    """
    lines = str(error).splitlines()
    for number, line in enumerate(lines):
        if line.startswith("Traceback"):
            below = (later for later in lines[number + 1 :] if later and not later.startswith((" ", "\t")))
            return next(below, line).strip()[:_LONGEST]
    text = " ".join(line.strip() for line in lines[:2])
    return text[:_LONGEST] or type(error).__name__


def check_spark(master: str | None = None) -> None:
    """Check that Spark can start here; a client of Spark Connect needs no Java.

    Args:
        master: as in `open_session`.

    Raises:
        ConfigurationError: Java or a Spark of at least 4.1 is missing.
    """
    check_version(pyspark.__version__)
    if master and master.startswith(CONNECT):
        return
    home = os.environ.get("JAVA_HOME")
    present = Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
    if not present:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise ConfigurationError(
            f"Spark needs Java 17 or newer, and {where}: install it (Debian: apt install openjdk-17-jre-headless) or set "
            "JAVA_HOME, or run with --engine inprocess"
        )
