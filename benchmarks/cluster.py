"""Three brokers of one cluster; clients reach them by a wire that takes its time and may be cut."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import confluent_kafka.admin

from benchmarks.wire import Wire
from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ext.dev.server import HOST, free_port

driver: Any = confluent_kafka.admin  # its stubs lack much

BROKERS = 3
_PATIENCE_S = 60
_SETTINGS = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(BROKERS),
    # Another one leads soon after a kill.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "4000",
}


class Cluster:
    """Three brokers; the first is the controller, too. What is acknowledged is on two of them at least.

    Args:
        fast_boot: as of `KafkaServer`.

    Attributes:
        brokers: the three.
        wire: where clients connect; brokers reach each other without it.
    """

    def __init__(self, *, fast_boot: bool = False) -> None:
        self._run = ExitStack()
        ports = [free_port() for _ in range(3 * BROKERS + 1)]
        own, self._outside, inside = (ports[first : 3 * BROKERS : BROKERS] for first in range(BROKERS))
        self._controller = ports[-1]
        self._directory = Path(self._run.enter_context(TemporaryDirectory(prefix="bench-cluster-")))
        self.brokers = [
            KafkaServer(
                self._directory / str(node),
                own[node],
                properties=self._settings(node, own[node], self._outside[node], inside[node]),
                fast_boot=fast_boot,
            )
            for node in range(BROKERS)
        ]
        self.wire = Wire(dict(zip(self._outside, own, strict=True)))

    def _settings(self, node: int, own: int, outside: int, inside: int) -> dict[str, str]:
        controller = f"{HOST}:{self._controller}"
        listeners = f"PLAINTEXT://{HOST}:{own},INSIDE://{HOST}:{inside}"
        return _SETTINGS | {
            "node.id": str(node + 1),
            "process.roles": "broker" if node else "broker,controller",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": listeners if node else f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{outside},INSIDE://{HOST}:{inside}",
        }

    @property
    def bootstrap(self) -> str:
        """Where all brokers are reached by the wire."""
        return ",".join(f"{HOST}:{port}" for port in self._outside)

    def __enter__(self) -> Self:
        """Start them."""
        try:
            for broker in self.brokers:
                self._run.callback(broker.kill)
            first, *others = self.brokers
            first.start()
            written = (first.data_dir / "data" / "meta.properties").read_text("utf-8")
            cluster = next(line for line in written.splitlines() if line.startswith("cluster.id="))
            for node, broker in enumerate(others, 2):
                (broker.data_dir / "data").mkdir(parents=True)
                properties = f"version=1\nnode.id={node}\n{cluster}\n"
                (broker.data_dir / "data" / "meta.properties").write_text(properties, "utf-8")
            with ThreadPoolExecutor(len(others)) as pool:
                list(pool.map(KafkaServer.start, others))
            self._run.enter_context(self.wire)
        except BaseException:
            self._run.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill them."""
        self._run.close()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with its partitions on all brokers, which lead them in turn."""
        asker = driver.AdminClient({"bootstrap.servers": self.bootstrap})
        replicas = [
            [1 + (partition + step) % BROKERS for step in range(BROKERS)] for partition in range(partitions)
        ]
        new = driver.NewTopic(name, partitions, replica_assignment=replicas)
        asker.create_topics([new])[name].result(_PATIENCE_S)
