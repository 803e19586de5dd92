"""A broker with logins and ACLs, where one login lacks one right each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin
from confluent_kafka import Producer

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ext.dev.process import wait_until
from tests.support.waiting import PATIENCE_S

driver: Any = confluent_kafka.admin  # its stubs lack ACLs

PASSWORD: Final = "s3cret-9Qz"  # noqa: S105 - opens nothing but a server of this test
Right = tuple[str, str]
"""A topic, "group", "published" (the topic of markers) or "transactions", and an operation."""


@dataclass(frozen=True, slots=True)
class GuardedKafka:
    """Where a broker listens: with a login, and without one for whom may do anything."""

    address: str
    open_address: str
    directory: Path

    def login(self, user: str) -> Path:
        """A file of properties for `--kafka-config`."""
        path = self.directory / f"{user}.properties"
        lines = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def grant(self, rights: Mapping[str, tuple[str, Iterable[Right]]]) -> None:
        """Grant rights to users, and wait until the broker knows them.

        Args:
            rights: user -> name of its group, and what it may do.
        """
        admin = driver.AdminClient({"bootstrap.servers": self.open_address})
        bindings = [
            driver.AclBinding(
                *_resource(what, group),
                f"User:{user}",
                "*",
                driver.AclOperation[operation],
                driver.AclPermissionType.ALLOW,
            )
            for user, (group, allowed) in rights.items()
            for what, operation in allowed
        ]
        for done in admin.create_acls(bindings).values():
            done.result(PATIENCE_S)
        every = driver.AclBindingFilter(
            driver.ResourceType.ANY,
            None,
            driver.ResourcePatternType.ANY,
            None,
            None,
            driver.AclOperation.ANY,
            driver.AclPermissionType.ANY,
        )
        assert wait_until(lambda: len(admin.describe_acls(every).result()) >= len(bindings), PATIENCE_S)

    def fill(self, topic: str, values: Sequence[object]) -> None:
        """Append values as JSON."""
        producer = Producer({"bootstrap.servers": self.open_address})
        for value in values:
            producer.produce(topic, json.dumps(value), key="k")
        assert producer.flush(PATIENCE_S) == 0


def _resource(what: str, group: str) -> tuple[Any, str, Any]:
    """Kind, name and pattern of what a right is for."""
    literal = driver.ResourcePatternType.LITERAL
    if what == "transactions":
        return driver.ResourceType.TRANSACTIONAL_ID, f"{group}/", driver.ResourcePatternType.PREFIXED
    if what == "group":
        return driver.ResourceType.GROUP, group, literal
    return driver.ResourceType.TOPIC, f"{group}.published" if what == "published" else what, literal


@contextmanager
def guarded_kafka(directory: Path, users: Iterable[str], topics: Mapping[str, int]) -> Iterator[GuardedKafka]:
    """A broker that refuses what is not granted, with these users and topics.

    Args:
        directory: for the files of logins.
        users: their names; all have one password.
        topics: topic -> partitions.
    """
    logins = " ".join(f'user_{user}="{PASSWORD}"' for user in users)
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {logins};"
        ),
    }
    with KafkaServer(fast_boot=True, properties=properties, sasl=("unused", PASSWORD)) as server:
        log = KafkaLog(server.bootstrap)
        for topic, partitions in topics.items():
            log.create_topic(topic, partitions)
        log.close()
        yield GuardedKafka(server.sasl_bootstrap, server.bootstrap, directory)
