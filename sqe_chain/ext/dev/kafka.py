"""One Kafka broker (KRaft, its own controller) on the loopback interface."""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from sqe_chain.engines.java import ClassArchive, java
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.dev.jars import KAFKA_VERSION
from sqe_chain.ext.dev.packages import fetch_kafka
from sqe_chain.ext.dev.server import HOST, JavaServer, free_port

_FORMAT_TIMEOUT_S = 300
_PROBE_TIMEOUT_S = 1.0
_METADATA_API = 3
_METADATA_VERSION = 1
_SASL = "SASL_PLAINTEXT"

_DEFAULTS = {
    # One broker, so everything is kept once.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # Few partitions: each costs files, memory and time at start.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A service that misspells a topic should hear of it.
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    # A killed broker may register again when its session has ended: after 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # The default, 128 MiB, is a third of the heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
    "num.network.threads": "2",
    "num.io.threads": "4",
}


class KafkaServer(JavaServer):
    """A real Kafka broker in a process of its own; arguments and errors of `JavaServer`, and these.

    Topics are not created by mistake, records never expire, groups start without delay. `properties` can change all that. It
    acknowledges what is in the page cache, as Kafka does: a killed broker keeps it, a machine without power may not. Stop the
    broker before you copy its data directory.

    Args:
        sasl: user and password. A second listener then wants SASL/SCRAM-SHA-256 over plaintext; see `sasl_bootstrap`. They count when the
            data directory is new.
        listeners: further listeners, name -> security protocol as Kafka calls it, such as ``SSL``; see `address`. What they need, such as
            a key store, is in `properties`.
        fast_boot: compile less: starts sooner, slower under load. For tests, not for benchmarks.
        java_options: further options for the broker's Java.
        version: of Kafka; another than the default is downloaded when it is first used.
    """

    kind: ClassVar[str] = "kafka"

    def __init__(  # noqa: PLR0913 - the settings of a broker
        self,
        data_dir: Path | str | None = None,
        port: int | None = None,
        *,
        heap_mb: int = 384,
        properties: Mapping[str, str] | None = None,
        sasl: tuple[str, str] | None = None,
        listeners: Mapping[str, str] = MappingProxyType({}),
        fast_boot: bool = False,
        java_options: Sequence[str] = (),
        version: str = KAFKA_VERSION,
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, heap_mb=heap_mb, properties=properties, detached=detached)
        self._sasl = sasl
        self._listeners = {**({_SASL: _SASL} if sasl else {}), **listeners}
        self._ports: dict[str, int] = {}
        self._fast_boot = fast_boot
        self._java_options = tuple(java_options)
        self._version = version

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`. Raises ConfigurationError: the server was never started."""
        return f"{HOST}:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """`host:port` of the listener with SASL_PLAINTEXT and SCRAM-SHA-256.

        Raises:
            ConfigurationError: no `sasl` was given, or the server was never started.
        """
        if _SASL not in self._ports:
            raise ConfigurationError(
                "kafka has no SASL listener; give sasl=(user, password) and call start()"
            )
        return self.address(_SASL)

    def address(self, listener: str) -> str:
        """`host:port` of one of the further listeners; they have addresses once the server was started."""
        return f"{HOST}:{self._ports[listener]}"

    def _prepare(self) -> None:
        super()._prepare()
        for listener in self._listeners.keys() - self._ports.keys():
            self._ports[listener] = free_port()
        lines = [f"{name}={value}" for name, value in self._all_properties().items()]
        self._configuration.touch(mode=0o600)  # it may hold a password
        self._configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not (self._data / "meta.properties").exists():
            self._format()

    def _command(self) -> Sequence[str]:
        return [*self._java("kafka.Kafka", self._java_options), str(self._configuration)]

    def _answers(self) -> bool:
        try:
            return _brokers_known(self.port) > 0
        except (OSError, struct.error):
            return False

    @property
    def _configuration(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def _data(self) -> Path:
        return self.data_dir / "data"

    def _all_properties(self) -> dict[str, object]:
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **self._listeners}
        addresses = {"PLAINTEXT": self.bootstrap} | {name: self.address(name) for name in self._listeners}
        advertised = ",".join(f"{name}://{address}" for name, address in addresses.items())
        controller = f"{HOST}:{self._own_port}"
        computed = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{advertised},CONTROLLER://{controller}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._data),
        }
        if self._sasl:
            computed["sasl.enabled.mechanisms"] = "SCRAM-SHA-256"
            computed["listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
        return {**_DEFAULTS, **computed, **self._properties}

    def _java(self, main: str, options: Sequence[str] = ()) -> list[str]:
        compiler = ["-XX:TieredStopAtLevel=1"] if self._fast_boot else []
        return [
            java(),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            *compiler,
            *class_archive(self._version).options(),
            *options,
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            f"-XX:ErrorFile={self.data_dir / 'crash.log'}",  # not in the current directory
            "-Djava.awt.headless=true",
            f"-Djava.io.tmpdir={self._scratch}",
            "-Djava.net.preferIPv4Stack=true",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            "-cp",
            str(fetch_kafka(version=self._version) / "*"),
            main,
        ]

    def _format(self) -> None:
        """Write the cluster id and the first user into the empty data directory."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=", not as two arguments: an id or a password may begin with a dash.
        command = [*self._java("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster}"]
        command += [f"--config={self._configuration}"]
        if self._sasl:
            user, password = self._sasl
            command += [f"--add-scram=SCRAM-SHA-256=[name={user},password={password}]"]
        try:
            done = subprocess.run(  # noqa: S603  arguments are ours, no shell
                command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"kafka did not format {self._data} within {_FORMAT_TIMEOUT_S} s") from error
        if done.returncode:
            raise ConfigurationError(
                f"kafka cannot format {self._data}:\n{done.stdout}{done.stderr}".rstrip()
            )


def _brokers_known(port: int) -> int:
    """How many brokers the broker lists, 0 until it can lead partitions: by a request written by hand, so that no Kafka client is needed."""
    body = struct.pack(">hhih", _METADATA_API, _METADATA_VERSION, 0, -1) + struct.pack(">i", 0)
    with socket.create_connection((HOST, port), timeout=_PROBE_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (_length, _correlation, brokers) = struct.unpack(">iii", stream.read(12))
    return int(brokers)


def class_archive(version: str = KAFKA_VERSION) -> ClassArchive:
    """The archive of Kafka's classes; see `archive_classes`, which makes that of the default version."""
    return ClassArchive("kafka", fetch_kafka(version=version))


def archive_classes() -> Path:
    """Start a broker once, to archive the classes that it loads: later ones start in half the time.

    Returns:
        The archive; it is used by all brokers started by this installation from now on.

    Raises:
        ConfigurationError: Java or pyspark (its Ivy fetches the jars) are missing.
        Unavailable: the jars cannot be downloaded, or the broker does not start.
    """
    archive = class_archive()
    with archive.made() as options, KafkaServer(java_options=options) as server:
        server.stop()  # its end by itself writes the archive
    return archive.path
