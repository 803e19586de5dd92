"""The flows whose latency is measured: a service that republishes JSON, and what may follow it."""

from __future__ import annotations

import msgspec

from benchmarks.flows import PARTITIONS
from sqe_chain.flow import Flow


class Said(msgspec.Struct):
    """A record, and when it was handed to the producer."""

    key: str
    number: int
    sent_ns: int


class Latest(msgspec.Struct):
    """The last record of a key, and how many there were."""

    number: int = -1
    sent_ns: int = 0
    count: int = 0


def keep(latest: Latest, said: Said) -> None:
    """Keep the last record."""
    latest.number, latest.sent_ns = said.number, said.sent_ns
    latest.count += 1


def key_of(said: Said) -> str:
    """The key of a record."""
    return said.key


def republish(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """One envelope for each record."""
    flow = Flow(name)
    flow.source(source, Said, raw=raw).to(target, key=key_of, partitions=PARTITIONS)
    return flow


def aggregate(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """The last record of each key, once a batch."""
    flow = Flow(name, state_partitions=PARTITIONS)
    latest = flow.source(source, Said, raw=raw).aggregate("latest", key=key_of, state=Latest, fold=keep)
    latest.changes().to(target, partitions=PARTITIONS)
    return flow
