"""A real Debezium: its embedded engine with a connector, in a process of its own that a test kills."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from sqe_chain.engines.java import java
from sqe_chain.ext.dev.jars import Jars
from sqe_chain.ext.dev.packages import fetch_jars
from tests.support.waiting import PATIENCE_S, eventually

VERSION: Final = "3.6.1.Final"
_ENGINE: Final = (("io.debezium", "debezium-embedded", VERSION), ("org.slf4j", "slf4j-simple", "2.0.17"))
JARS: Final = Jars(
    name="Debezium",
    version=VERSION,
    dependencies=(*_ENGINE, ("io.debezium", "debezium-connector-postgres", VERSION)),
    main=f"debezium-embedded-{VERSION}.jar",
    megabytes=45,
    steps=135,
)
APICURIO: Final = Jars(
    name="Debezium-Apicurio",
    version=f"{VERSION}-2.6.13.Final",
    # Of later versions Maven Central has no jar.
    dependencies=(*JARS.dependencies, ("io.apicurio", "apicurio-registry-utils-converter", "2.6.13.Final")),
    main="apicurio-registry-utils-converter-2.6.13.Final.jar",
    megabytes=100,
    steps=250,
)
"""The same, with Apicurio's converter."""
MYSQL: Final = Jars(
    name="Debezium-MySQL",
    version=VERSION,
    dependencies=(
        *_ENGINE,
        ("io.debezium", "debezium-connector-mysql", VERSION),
        ("io.debezium", "debezium-storage-kafka", VERSION),
    ),
    main=f"debezium-connector-mysql-{VERSION}.jar",
    megabytes=50,
    steps=150,
)
"""With the connector for MySQL."""
MAIN: Final = Path(__file__).with_name("DebeziumEngineMain.java")
# Not a file of offsets: a kill in the middle of writing it would leave one that nobody reads. So they are in a topic.
_SETTINGS: Final = """\
name={prefix}
bootstrap.servers={kafka}
offset.storage=org.apache.kafka.connect.storage.KafkaOffsetBackingStore
offset.storage.topic={prefix}.offsets
offset.storage.partitions=1
offset.storage.replication.factor=1
offset.flush.interval.ms={flush_ms}
database.hostname=127.0.0.1
topic.prefix={prefix}
table.include.list={tables}
poll.interval.ms=50
"""
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"


def of_postgres(port: int, prefix: str) -> dict[str, str]:
    """Settings of the connector for a PostgreSQL with ``wal_level=logical``."""
    slot = prefix.replace("-", "_").replace(".", "_")
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.port": str(port),
        "database.user": "sqe",
        "database.password": "none",
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": slot,
        "publication.autocreate.mode": "filtered",
    }


def of_mysql(port: int, prefix: str, kafka: str) -> dict[str, str]:
    """Settings of the connector for a MySQL; it keeps the history of tables in a topic."""
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.port": str(port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": "4711",
        "include.schema.changes": "false",
        "driver.allowPublicKeyRetrieval": "true",
        "schema.history.internal": "io.debezium.storage.kafka.history.KafkaSchemaHistory",
        "schema.history.internal.kafka.bootstrap.servers": kafka,
        "schema.history.internal.kafka.topic": f"{prefix}.history",
    }


def converters(converter: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a connector whose keys and values are written by one converter."""
    own = {"": converter, **{f".{name}": value for name, value in settings.items()}}
    return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in own.items()}


class DebeziumEngine:
    """The engine of one connector.

    Args:
        kafka: broker.
        connector: its settings, of `of_postgres` or `of_mysql`.
        prefix: of its topics.
        tables: what it reads, as ``schema.table``; of MySQL ``database.table``.
        flush_ms: how often it stores its offsets.
        directory: for its files.
        more: settings besides those that each test needs; others than JSON's `converters`.
        jars: its program.
    """

    def __init__(
        self,
        kafka: str,
        connector: Mapping[str, str],
        prefix: str,
        tables: str,
        flush_ms: int,
        directory: Path,
        more: Mapping[str, str] | None = None,
        jars: Jars = JARS,
    ) -> None:
        self.kafka, self.offsets = kafka, f"{prefix}.offsets"
        self._log = directory / "debezium.log"
        self._process: subprocess.Popen[bytes] | None = None
        settings, classes = directory / "debezium.properties", directory / "classes"
        own = {**connector, **converters(_JSON, {"schemas.enable": "false"}), **(more or {})}
        settings.write_text(
            _SETTINGS.format(kafka=kafka, prefix=prefix, tables=tables, flush_ms=flush_ms)
            + "".join(f"{name}={value}\n" for name, value in own.items())
        )
        path = ":".join(map(str, (classes, *sorted(fetch_jars(jars).glob("*.jar")))))
        compiler = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
        subprocess.run([*compiler, "-cp", path, "-d", str(classes), str(MAIN)], check=True)
        quick = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        self._command = [java(), *quick, "-cp", path, "DebeziumEngineMain", str(settings)]

    def start(self) -> None:
        """Start it, from the offset that was stored last."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def check(self) -> None:
        """Fail the test if it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-3_000:]

    def kill(self) -> None:
        """Send SIGKILL to it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def wait_for_stored_offset(self) -> None:
        """Wait until an offset is stored for the first time."""

        def stored() -> bool:
            self.check()
            return count_records(self.kafka, self.offsets, 1) > 0

        eventually(stored, "Debezium has stored an offset")


def count_records(kafka: str, topic: str, partitions: int) -> int:
    """How many records a topic has; 0: it does not exist."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "counts"})
    try:
        known = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        if len(known) < partitions:
            return 0
        ends = (consumer.get_watermark_offsets(TopicPartition(topic, part)) for part in range(partitions))
        return sum(end for _, end in ends)
    finally:
        consumer.close()


def records_of(kafka: str, topic: str, partitions: int) -> list[tuple[bytes, bytes | None]]:
    """Key and value of all records of a topic, partition by partition."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "reads", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, part, 0) for part in range(partitions)])
    wanted, records = count_records(kafka, topic, partitions), list[tuple[bytes, bytes | None]]()
    while len(records) < wanted:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        records.append((message.key() or b"", message.value()))
    consumer.close()
    return records
