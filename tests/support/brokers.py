"""What tests do to real brokers: add a second one, restore a backup, change topics with the admin client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition

from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.dev.process import wait_until
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S

driver: Any = confluent_kafka.admin


def second_broker(first: KafkaServer, data_dir: Path) -> KafkaServer:
    """A broker that joins the cluster of `first`."""
    lines = (first.data_dir / "data" / "meta.properties").read_text("utf-8").splitlines()
    cluster = next(line for line in lines if line.startswith("cluster.id="))
    (data_dir / "data").mkdir()
    (data_dir / "data" / "meta.properties").write_text(f"version=1\nnode.id=2\n{cluster}\n", "utf-8")
    properties = (first.data_dir / "server.properties").read_text("utf-8").splitlines()
    voters = next(line for line in properties if line.startswith("controller.quorum.voters="))
    port = own_port()
    settings = {
        "node.id": "2",
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": voters.partition("=")[2],
    }
    return KafkaServer(data_dir, port, properties=settings, fast_boot=True)


@contextmanager
def restore_backup_afterwards(server: KafkaServer | RedisServer, backup: Path) -> Iterator[None]:
    """Back up a server's data, and restore them at the end of the block. The server restarts twice."""
    data = server.data_dir / ("data" if isinstance(server, KafkaServer) else "appendonlydir")
    server.stop()
    shutil.copytree(data, backup)
    server.start()
    yield
    server.stop()
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    server.start()


class Admin:
    """Kafka's admin client; each call waits until it has taken effect."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = driver.AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, assignment: list[list[int]], **config: str) -> None:
        """Create a topic with a list of replicas for each partition."""
        new = driver.NewTopic(topic, len(assignment), replica_assignment=assignment, config=_settings(config))
        self._client.create_topics([new])[topic].result(PATIENCE_S)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._client.delete_topics([topic])[topic].result(PATIENCE_S)
        assert wait_until(lambda: topic not in self._client.list_topics(timeout=10).topics, PATIENCE_S)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions, and wait until they are known."""
        self._client.create_partitions([driver.NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)
        assert wait_until(lambda: len(self._partitions(topic)) == partitions, PATIENCE_S)

    def configure(self, topic: str, **config: str) -> None:
        """Change settings of a topic."""
        entries = [
            driver.ConfigEntry(name, value, incremental_operation=driver.AlterConfigOpType.SET)
            for name, value in _settings(config).items()
        ]
        resource = driver.ConfigResource(driver.ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        for answer in self._client.incremental_alter_configs([resource]).values():
            answer.result(PATIENCE_S)

    def delete_records(self, ends: dict[tuple[str, int], int]) -> None:
        """Delete everything before these offsets, as retention does."""
        places = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
        for answer in self._client.delete_records(places).values():
            answer.result(PATIENCE_S)

    def delete_group(self, group: str) -> None:
        """Delete a group with its commits: its service starts from the beginning again.

        A run that was killed stays a member until its session ends.
        """
        assert wait_until(lambda: self._deletes(group), PATIENCE_S), f"{group} has members"

    def _deletes(self, group: str) -> bool:
        (answer,) = self._client.delete_consumer_groups([group]).values()
        try:
            answer.result(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NON_EMPTY_GROUP:
                raise
            return False
        return True

    def brokers_in_sync(self, topic: str) -> set[int]:
        """Brokers that are in sync for every partition; empty when no broker answers."""
        self._client = driver.AdminClient({"bootstrap.servers": self._bootstrap})  # one may ask a dead broker
        try:
            parts = self._partitions(topic, timeout_s=3)
        except KafkaException:
            return set()
        return set.intersection(*({node.id for node in part.isr} for part in parts))

    def _partitions(self, topic: str, timeout_s: float = PATIENCE_S) -> list[Any]:
        answers = self._client.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        return list(answers[topic].result(PATIENCE_S).partitions)


def _settings(config: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}
