"""Real servers on one machine, from packages: for tests, for the demo and for `sqe-chain dev`.

No containers and no accounts: Kafka, Cassandra and Apicurio run from the jars on Maven Central, Redis and PostgreSQL from
the system's packages. `KafkaServer` and the other classes belong to the process that starts
them and die with it; servers that `up` starts run until `down`.

They are real servers, but single nodes on the loopback interface without encryption: not for production.
"""

from __future__ import annotations

from sqe_chain.engines.java import cache_directory
from sqe_chain.ext.dev.apicurio import ApicurioServer
from sqe_chain.ext.dev.cassandra import CassandraServer
from sqe_chain.ext.dev.kafka import KafkaServer
from sqe_chain.ext.dev.machine import DevMachine, DevServer, down, reset, status, up
from sqe_chain.ext.dev.packages import fetch
from sqe_chain.ext.dev.postgres import PostgresServer
from sqe_chain.ext.dev.redis import RedisServer

__all__ = [
    "ApicurioServer",
    "CassandraServer",
    "DevMachine",
    "DevServer",
    "KafkaServer",
    "PostgresServer",
    "RedisServer",
    "cache_directory",
    "down",
    "fetch",
    "reset",
    "status",
    "up",
]
