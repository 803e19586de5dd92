"""A standalone Spark cluster on the loopback interface: one master, and workers as separate processes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sqe_chain.engines.java import java
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev.process import ProcessIdentity
from sqe_chain.ext.dev.server import HOST, Server

_EXECUTOR = b"CoarseGrainedExecutorBackend"


class _SparkServer(Server):
    """A Spark daemon, started with the `spark-class` of the pyspark package."""

    main: ClassVar[str]
    ready: ClassVar[str]
    """Text in its log once it is ready."""

    start_timeout_s: ClassVar[float] = 300
    stop_timeout_s: ClassVar[float] = 20

    _start_of_log = 0

    def _prepare(self) -> None:
        self._start_of_log = self.log_file.stat().st_size if self.log_file.exists() else 0

    def _answers(self) -> bool:
        with self.log_file.open("rb") as log:
            log.seek(self._start_of_log)
            return self.ready.encode() in log.read()

    def _command(self) -> Sequence[str]:
        address = ("--host", HOST, "--port", str(self.port), "--webui-port", "0")
        return [str(_home() / "bin" / "spark-class"), self.main, *address, *self._arguments()]

    def _arguments(self) -> Sequence[str]:
        return ()

    def _environment(self) -> Mapping[str, str]:
        return {
            "JAVA_HOME": str(Path(java()).resolve().parents[1]),
            "SPARK_HOME": str(_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
            "PYTHONPATH": "",  # a worker must not import from this process's path: on another machine it could not
        }


class SparkMaster(_SparkServer):
    """The master of a standalone cluster.

    Args:
        data_dir: for its log. None: a temporary directory, removed by `close`.
        port: its port. None: a free one, the same over restarts.
        detached: leave it running when this process ends.

    Raises:
        ConfigurationError: Java or pyspark are missing.
    """

    kind: ClassVar[str] = "spark-master"
    main: ClassVar[str] = "org.apache.spark.deploy.master.Master"
    ready: ClassVar[str] = "New state: ALIVE"

    @property
    def url(self) -> str:
        """The master URL for drivers and workers.

        Raises:
            ConfigurationError: the server was never started.
        """
        return f"spark://{HOST}:{self.port}"


class SparkWorker(_SparkServer):
    """A worker: it starts executors, which are children of its process.

    Executors run in their own directories below `data_dir` and without `PYTHONPATH`: they can import
    installed packages, and modules that a driver ships.

    Args:
        master: the master's URL.
        cores: cores it offers.
        memory_mb: memory it offers to executors, in MiB.
        data_dir: its log, and the executors' directories. None: a temporary directory, removed by `close`.
        port: its port. None: a free one, the same over restarts.
        detached: leave it running when this process ends.

    Raises:
        ConfigurationError: Java or pyspark are missing.
    """

    kind: ClassVar[str] = "spark-worker"
    main: ClassVar[str] = "org.apache.spark.deploy.worker.Worker"
    ready: ClassVar[str] = "Successfully registered with master"

    def __init__(
        self,
        master: str,
        data_dir: Path | str | None = None,
        port: int | None = None,
        *,
        cores: int = 1,
        memory_mb: int = 1024,
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self._master = master
        self._cores = cores
        self._memory_mb = memory_mb

    def executors(self) -> list[ProcessIdentity]:
        """The executors that are running on this worker."""
        found = (ProcessIdentity.of(pid) for pid in _children(self.identity.pid) if _is_executor(pid))
        return [executor for executor in found if executor is not None]

    def _arguments(self) -> Sequence[str]:
        size = ("--cores", str(self._cores), "--memory", f"{self._memory_mb}m")
        return [*size, "--work-dir", str(self.data_dir / "work"), self._master]


class SparkConnectServer(_SparkServer):
    """A Spark Connect server with a Spark of its own on two cores. Its Python workers import installed packages alone."""

    kind: ClassVar[str] = "spark-connect"
    ready: ClassVar[str] = "Spark Connect server started"

    @property
    def url(self) -> str:
        """The address for clients. Raises ConfigurationError: the server was never started."""
        return f"sc://{HOST}:{self.port}"

    def _command(self) -> Sequence[str]:
        conf = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.sql.artifact.isolation.enabled": "true",
            "spark.ui.enabled": "false",
        }
        options = [f"--conf={name}={value}" for name, value in conf.items()]
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        return [str(_home() / "bin" / "spark-submit"), "--master=local[2,4]", *options, f"--class={main}"]

    def _environment(self) -> Mapping[str, str]:
        return {**super()._environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "768m"}


def executor_of(pid: int) -> int | None:
    """Pid of the executor that a Python worker belongs to; None if it has none, or its executor is gone."""
    while pid > 1:
        if _is_executor(pid):
            return pid
        pid = _parent(pid)
    return None


def _home() -> Path:
    """Spark's directory in the pyspark package, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError("Spark comes with pyspark, which is missing: pip install 'sqe-chain[spark]'")
    return Path(found.submodule_search_locations[0])


def _children(pid: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(int(entry.name)) == pid:
            yield int(entry.name)


def _parent(pid: int) -> int:
    """Parent of a process; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[1])


def _is_executor(pid: int) -> bool:
    try:
        return _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
