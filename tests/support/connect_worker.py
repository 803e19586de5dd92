"""A real Kafka Connect worker that writes a topic's records into a file: a reader that knows nothing of positions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqe_chain.engines.java import java
from sqe_chain.ext.dev.jars import KAFKA_VERSION, SLF4J_VERSION, Jars
from sqe_chain.ext.dev.packages import fetch_jars
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S

CONNECT: Final = Jars(
    name="Connect",
    version=KAFKA_VERSION,
    dependencies=(
        ("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
        ("org.apache.kafka", "connect-file", KAFKA_VERSION),
        ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
    ),
    main=f"connect-runtime-{KAFKA_VERSION}.jar",
    megabytes=60,
    steps=105,
)
_WORKER: Final = """\
bootstrap.servers={kafka}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={directory}/offsets
offset.flush.interval.ms=1000
listeners=http://127.0.0.1:{port}
consumer.isolation.level=read_committed
consumer.auto.offset.reset=earliest
"""
_SINK: Final = """\
name=sink-{topic}
connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector
topics={topic}
file={file}
"""


class ConnectWorker:
    """A standalone worker with one sink. It runs until the end of the block.

    Args:
        kafka: broker.
        topic: that it reads; it exists.
        directory: for its files.

    Attributes:
        file: a line for each record.
    """

    def __init__(self, kafka: str, topic: str, directory: Path) -> None:
        self.file = directory / "sink.txt"
        self._log = directory / "connect.log"
        worker, sink = directory / "worker.properties", directory / "sink.properties"
        worker.write_text(_WORKER.format(kafka=kafka, directory=directory, port=own_port()))
        sink.write_text(_SINK.format(topic=topic, file=self.file))
        jars = fetch_jars(CONNECT)
        self._command = [
            java(),
            "-Xmx256m",
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.cli.ConnectStandalone",
        ]
        self._command += [str(worker), str(sink)]

    def __enter__(self) -> Self:
        """Start it."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def lines(self) -> list[str]:
        """What it has written so far."""
        assert self._process.poll() is None, self._log.read_text()[-3_000:]
        return self.file.read_text().splitlines() if self.file.exists() else []
