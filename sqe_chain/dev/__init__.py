"""Real servers on one machine, from packages: for tests, for the demo and for `sqe-chain dev`.

No containers and no accounts: Kafka and Cassandra run from the jars that Maven Central publishes, Redis from
the system's package. `KafkaServer`, `RedisServer` and `CassandraServer` belong to the process that starts
them and die with it; what `up` starts goes on until `down`.

They are real, but they are one node each on the loopback interface without encryption: nothing to run
in production.
"""

from __future__ import annotations

from sqe_chain.dev.cassandra import CassandraServer
from sqe_chain.dev.kafka import KafkaServer
from sqe_chain.dev.machine import DevMachine, DevServer, down, status, up
from sqe_chain.dev.packages import cache_directory, fetch
from sqe_chain.dev.redis import RedisServer

__all__ = [
    "CassandraServer",
    "DevMachine",
    "DevServer",
    "KafkaServer",
    "RedisServer",
    "cache_directory",
    "down",
    "fetch",
    "status",
    "up",
]
