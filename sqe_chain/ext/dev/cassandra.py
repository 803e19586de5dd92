"""One Cassandra node on the loopback interface."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import ClassVar

from sqe_chain.engines.java import java
from sqe_chain.ext.dev.packages import fetch_cassandra
from sqe_chain.ext.dev.server import HOST, JavaServer

_PROBE_TIMEOUT_S = 1.0
_OPTIONS_FRAME = bytes([4, 0, 0, 0, 5, 0, 0, 0, 0])
_SUPPORTED = 6
_OPCODE = 4

_DEFAULTS: dict[str, object] = {
    "cluster_name": "sqe-chain",
    "num_tokens": 1,
    "initial_token": "0",
    "auto_bootstrap": False,
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "authenticator": "AllowAllAuthenticator",
    "authorizer": "AllowAllAuthorizer",
    # Acknowledged writes are on disk, as sqe-chain requires.
    "commitlog_sync": "batch",
    # Small buffers: on a development machine memory is scarcer than speed.
    "commitlog_total_space": "256MiB",
    "memtable_heap_space": "64MiB",
    "memtable_offheap_space": "64MiB",
    "key_cache_size": "4MiB",
    "counter_cache_size": "0MiB",
    "row_cache_size": "0MiB",
    "file_cache_size": "32MiB",
    "networking_cache_size": "16MiB",
    "concurrent_reads": 8,
    "concurrent_writes": 8,
    "concurrent_counter_writes": 2,
    "concurrent_materialized_view_writes": 2,
    "concurrent_compactors": 1,
    "auto_snapshot": False,
    "hinted_handoff_enabled": False,
    "disk_failure_policy": "stop",
    "commit_failure_policy": "stop",
    # Generous timeouts, so that tests do not fail on a busy machine.
    "write_request_timeout": "10s",
    "read_request_timeout": "10s",
    "cas_contention_timeout": "5s",
}

_EXPORTS = (
    "java.base/jdk.internal.misc", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server", "java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql",
    "java.base/java.lang.ref", "java.base/java.lang.reflect", "jdk.unsupported/sun.misc",
    "jdk.attach/sun.tools.attach", "jdk.compiler/com.sun.tools.javac.file",
    "jdk.naming.dns/com.sun.jndi.dns",
)  # fmt: skip
_OPENS = (
    "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.math", "java.base/java.net", "java.base/java.nio", "java.base/java.util",
    "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader", "java.base/jdk.internal.math", "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref", "java.base/jdk.internal.reflect", "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch", "jdk.management/com.sun.management.internal",
    "jdk.compiler/com.sun.tools.javac",
)  # fmt: skip
"""Java 17 modules that Cassandra's own start script opens."""

_LOGBACK = """\
<configuration scan="false">
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{ISO8601} %logger{30} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


class CassandraServer(JavaServer):
    """A real Cassandra node in a process of its own, the only one of its cluster; arguments and errors of `JavaServer`.

    Acknowledged writes are on disk (`commitlog_sync: batch`). `properties` are those of cassandra.yaml. With the authenticator
    `PasswordAuthenticator` the first login is `cassandra`, password `cassandra`. There is no JMX, so no nodetool.
    """

    kind: ClassVar[str] = "cassandra"

    @property
    def url(self) -> str:
        """Address with a keyspace that does not exist yet. Raises ConfigurationError: the server was never started."""
        return f"cassandra://{HOST}:{self.port}/sqe_chain"

    def _prepare(self) -> None:
        super()._prepare()
        (self.data_dir / "cassandra.yaml").write_text(  # JSON is YAML
            json.dumps(self._all_properties(), indent=2) + "\n", encoding="utf-8"
        )
        (self.data_dir / "logback.xml").write_text(_LOGBACK, encoding="utf-8")

    def _command(self) -> Sequence[str]:
        jars = fetch_cassandra()
        (agent,) = jars.glob("jamm-*.jar")
        return [
            java(),
            *(f"-Xms{self._heap_mb}m", f"-Xmx{self._heap_mb}m", "-Xss256k", "-XX:MaxDirectMemorySize=256m"),
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            "-XX:+ExitOnOutOfMemoryError",
            f"-XX:ErrorFile={self.data_dir / 'crash.log'}",  # not in the current directory
            f"-javaagent:{agent}",
            "-Djdk.attach.allowAttachSelf=true",
            *(part for name in _EXPORTS for part in ("--add-exports", f"{name}=ALL-UNNAMED")),
            *(part for name in _OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")),
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Djava.net.preferIPv4Stack=true",
            f"-Djava.io.tmpdir={self._scratch}",
            f"-Dcassandra.config=file://{self.data_dir / 'cassandra.yaml'}",
            f"-Dcassandra.storagedir={self.data_dir}",
            f"-Dcassandra.logdir={self.data_dir}",
            f"-Dlogback.configurationFile=file://{self.data_dir / 'logback.xml'}",
            "-Dcassandra-foreground=yes",
            # A single node has no neighbours to wait for.
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=0",
            "-Dcassandra.load_ring_state=false",
            "-Dcassandra.superuser_setup_delay_ms=0",
            *("-cp", f"{self.data_dir}:{jars / '*'}"),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def _answers(self) -> bool:
        try:  # an OPTIONS frame of CQL needs no login
            with socket.create_connection((HOST, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(_OPTIONS_FRAME)
                answer = connection.recv(9)
        except OSError:
            return False
        return len(answer) > _OPCODE and answer[_OPCODE] == _SUPPORTED

    def _all_properties(self) -> dict[str, object]:
        seeds = {"seeds": f"{HOST}:{self._own_port}"}
        computed: dict[str, object] = {
            "listen_address": HOST,
            "rpc_address": HOST,
            "storage_port": self._own_port,
            "native_transport_port": self.port,
            "seed_provider": [
                {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [seeds]}
            ],
            "data_file_directories": [str(self.data_dir / "data")],
        }
        for name in ("commitlog", "saved_caches", "hints", "cdc_raw"):
            computed[f"{name}_directory"] = str(self.data_dir / name)
        return {**_DEFAULTS, **computed, **self._properties}
