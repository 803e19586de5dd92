"""What a process does before its first batch, so that the batch need not: import, connect, run the code of a task once.

Nothing is published, committed, written or claimed, and no function of the user is called: a warm-up reads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import wrap
from sqe_chain.errors import Unavailable
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Header, Log, Range, StateStore
from sqe_chain.task.reading import run_serially
from sqe_chain.task.results import Job, Portion
from sqe_chain.task.states import Claim, Transition

READERS = 8
"""Consumers that are opened at most: as many as read a small batch at the same time."""

_READS_WITHIN_S = 15.0
"""How long a start waits for its preparation; a client's own limit is shorter, so this one shows that a driver hangs."""

_RECORDS = 2_000
_KEYS = 50
_NAME = "warm-up"


def warm_up(flow: CompiledFlow, log: Log, stores: Callable[[StageNode], StateStore]) -> None:
    """Warm up this process for the tasks of a flow: the last record of some input partitions is read, and headers.

    Raises:
        ChainError: something does not answer, or is wrong. The first batch will find it, too.
    """
    run_made_up_records()
    open_connections(flow, log, stores)


def open_connections(flow: CompiledFlow, log: Log, stores: Callable[[StageNode], StateStore]) -> None:
    """The part that makes connections, for reading, publishing and persisting; arguments and errors as `warm_up`."""
    _read_last_records(flow, log)
    connect(flow, log, stores)


def connect(flow: CompiledFlow, log: Log, stores: Callable[[StageNode], StateStore]) -> None:
    """The part of a process that only publishes and persists; arguments and errors as `warm_up`."""
    topics = sorted({node.topic for node in flow.outputs})
    if topics:
        writer = log.writer()
        try:
            writer.connect(topics)
        finally:
            writer.close()
    for stage in flow.stages:
        stores(stage).headers(flow.name, stage.name, [0])


def _read_last_records(flow: CompiledFlow, log: Log) -> None:
    """Open consumers, and let them fetch a record each."""
    infos = log.describe(flow.input_topics)
    tps = [(info.name, number) for info in infos.values() for number in range(info.partitions)][:READERS]
    bounds = log.bounds(tps)
    ranges = []
    for topic, number in tps:
        end = bounds[topic, number].stable_end
        start = max(bounds[topic, number].begin, end - 1)
        ranges.append(Range(topic, infos[topic].topic_id, number, start, end))

    deadline = time.monotonic() + _READS_WITHIN_S
    # Not a pool: that would wait for a consumer that gets nothing, here and when the process ends.
    fetches = [_Fetch(log, wanted) for wanted in ranges]
    for fetch in fetches:
        fetch.join(max(0.0, deadline - time.monotonic()))
    for fetch in fetches:
        if fetch.failed is not None:
            raise fetch.failed
    silent = [fetch.wanted for fetch in fetches if fetch.is_alive()]
    if silent:
        named = ", ".join(f"{wanted.topic}[{wanted.partition}]" for wanted in silent)
        raise Unavailable(f"Preparing to read {named}: nothing came within {_READS_WITHIN_S:g} s.")


class _Fetch(threading.Thread):
    """Reads a range, beside its caller.

    Attributes:
        wanted: the range.
        failed: why it could not be read; None: it could, or is being read.
    """

    def __init__(self, log: Log, wanted: Range) -> None:
        super().__init__(name=f"sqe-chain {_NAME} {wanted.topic}[{wanted.partition}]", daemon=True)
        self.wanted, self._log = wanted, log
        self.failed: Exception | None = None
        self.start()

    def run(self) -> None:
        """Read it, and drop what comes."""
        try:
            for _ in self._log.read(self.wanted):
                pass
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self.failed = error


def run_made_up_records() -> None:
    """Run a flow of our own over made-up records, in memory: what tasks import and build once is there afterwards."""
    name = f"{_NAME}-{os.getpid()}"
    log = MemoryLog(name)
    try:
        _run_flow(_made_up_flow(), log, _portions(log))
    finally:
        log.clear()


def _run_flow(flow: CompiledFlow, log: Log, portions: Sequence[Portion]) -> None:
    store = open_store(f"memory://{_NAME}-{os.getpid()}")
    store.write(flow.name, _NAME, 0, None, Header(1, _NAME, 0, _NAME), ())  # in memory, like everything here
    job = Job(Transition(flow.name, Claim(1, _NAME), 0, _NAME), 0, in_place=True)
    for _ in run_serially(flow, job, portions, log.read, lambda _stage: store):
        pass


def _made_up_flow() -> CompiledFlow:
    flow = Flow(_NAME, state_partitions=1)
    sums = flow.source(_NAME, Int64Value).aggregate(_NAME, key=_key, state=Int64Value, fold=_add)
    sums.changes().to(f"{_NAME}.changes", partitions=1)
    return flow.compile()


def _portions(log: MemoryLog) -> list[Portion]:
    log.create_topic(_NAME, 1)
    topic_id = log.topic_ids([_NAME])[_NAME]
    for number in range(_RECORDS):
        key = str(number % _KEYS)
        log.append(_NAME, 0, wrap(Int64Value(value=number), key=key, timestamp_ms=1), key.encode())
    return [Portion(Range(_NAME, topic_id, 0, 0, _RECORDS), PartitionMarks(_NAME, topic_id, 0))]


def _key(value: Int64Value) -> str:
    return str(value.value % _KEYS)


def _add(total: Int64Value, value: Int64Value) -> None:
    total.value += value.value
