"""What an audit of all keys costs, in relation to what it cost to fold their records live; and that it finds what was altered."""

from __future__ import annotations

import time
from random import Random

from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

from benchmarks.backlog import Backlog
from benchmarks.flows import PARTITIONS, aggregation
from benchmarks.service import Service
from services._proto.fastening_pb2 import LineTotal
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.explain.audit import AuditedStage, audit, audited_stages
from sqe_chain.plans.environment import Environment

KEYS = 10_000
RECORDS = 50_000
"""Of one batch."""
ALTERED = b"robot-000007"


def auditing(out: Console, kafka: KafkaServer, redis: RedisServer, messages: int) -> None:
    """Fold a backlog, compare the states of all keys with its records, alter one state and compare again.

    Args:
        out: where the table goes.
        kafka: the brokers.
        redis: the store.
        messages: of the backlog.
    """
    backlog = Backlog("bench.audit", messages, KEYS)
    KafkaLog(kafka.bootstrap).create_topic(backlog.topic, PARTITIONS)
    backlog.write(kafka.bootstrap)
    service = Service(aggregation("bench-audit", backlog.topic), None, kafka.bootstrap, redis.url, RECORDS)
    env = service.protocol.env
    folded = service.work_off()
    sound, seconds = audited(env)
    assert (sound.keys, sound.different, sound.missing) == (KEYS, (), ())
    alter(env, ALTERED)
    altered, again = audited(env)
    assert altered.different == (ALTERED,), altered
    table = Table("what", "seconds", "records/s", "of folding live", title=f"an audit of {KEYS:,} keys")
    for name, spent in (
        ("folding live", folded.seconds),
        ("nothing is wrong", seconds),
        ("one state is altered", again),
    ):
        table.add_row(
            name, f"{spent:.1f}", f"{messages / spent / 1e3:,.0f} k/s", f"{spent / folded.seconds:.2f}"
        )
    out.print(table)


def audited(env: Environment) -> tuple[AuditedStage, float]:
    """What an audit of all keys finds, and the seconds that it took."""
    (stage,) = audited_stages(env, ())
    began = time.perf_counter()
    found = audit(env, stage, KEYS, Random(1))
    return found, time.perf_counter() - began


def alter(env: Environment, key: bytes) -> None:
    """Change a stored state by hand."""
    (stage,) = env.flow.stages
    store, cell = env.ports.store(stage), cell_of(key, env.flow.state_partitions, stage.buckets)
    header, (state,), _ = store.read(env.flow.name, stage.name, cell, [key])
    assert header is not None
    assert state is not None
    total: Message = LineTotal.FromString(state)
    total.events += 1  # type: ignore[attr-defined]
    assert (
        store.write(env.flow.name, stage.name, cell, header, header, [(key, total.SerializeToString())])
        == header
    )
