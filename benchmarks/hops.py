"""The flows whose latency is measured: a service that republishes JSON, and what may follow it."""

from __future__ import annotations

import msgspec

from benchmarks.flows import PARTITIONS
from sqe_chain.flow import Flow


class Sent(msgspec.Struct):
    """A record, and when it was handed to the producer."""

    key: str
    number: int
    sent_ns: int


class Latest(msgspec.Struct):
    """The last record of a key, and how many there were."""

    number: int = -1
    sent_ns: int = 0
    count: int = 0


def keep(latest: Latest, message: Sent) -> None:
    """Keep the last record."""
    latest.number, latest.sent_ns = message.number, message.sent_ns
    latest.count += 1


def key_of(message: Sent) -> str:
    """The key of a record."""
    return message.key


def republish(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """One envelope for each record."""
    flow = Flow(name)
    flow.source(source, Sent, raw=raw).to(target, key=key_of, partitions=PARTITIONS)
    return flow


def aggregate(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """The last record of each key, once a batch."""
    flow = Flow(name, state_partitions=PARTITIONS)
    latest = flow.source(source, Sent, raw=raw).aggregate("latest", key=key_of, state=Latest, fold=keep)
    latest.changes().to(target, partitions=PARTITIONS)
    return flow
