"""A real MirrorMaker 2 that copies topics from a cluster to another."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqe_chain.engines.java import java
from sqe_chain.ext.dev.jars import SLF4J_VERSION, Jars
from sqe_chain.ext.dev.packages import fetch_jars
from tests.support.waiting import PATIENCE_S

_VERSION: Final = "4.1.0"  # of 4.4.0, which brokers have by default, it was not found
MIRROR_MAKER: Final = Jars(
    name="MirrorMaker",
    version=_VERSION,
    dependencies=(
        ("org.apache.kafka", "connect-mirror", _VERSION),
        ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
    ),
    main=f"connect-mirror-{_VERSION}.jar",
    megabytes=60,
    steps=110,
)
_PROPERTIES: Final = """\
clusters=first,second
first.bootstrap.servers={first}
second.bootstrap.servers={second}
first->second.enabled=true
first->second.topics={topics}
second->first.enabled=false
replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
refresh.topics.interval.seconds=2
offset.flush.interval.ms=2000
consumer.auto.offset.reset=earliest
consumer.isolation.level=read_committed
dedicated.mode.enable.internal.rest=false
"""


class MirrorMaker:
    """Copies topics from the first to the second cluster, as ``first.TOPIC``, until the end of the block.

    Args:
        first: brokers.
        second: brokers.
        topics: in the first cluster; a regular expression, as MirrorMaker reads it.
        directory: for its files.
    """

    def __init__(self, first: str, second: str, topics: str, directory: Path) -> None:
        properties = directory / "mirror.properties"
        properties.write_text(_PROPERTIES.format(first=first, second=second, topics=topics))
        jars = fetch_jars(MIRROR_MAKER)
        self._log = directory / "mirror.log"
        self._command = [
            java(),
            "-Xmx256m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",  # while a broker is away: megabytes a second
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(properties),
        ]

    def __enter__(self) -> Self:
        """Start it."""
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.kill()

    def kill(self) -> None:
        """Kill it: what it has not noted as copied it copies again after the next start."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
