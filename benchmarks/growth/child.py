"""One round of one case, in a process of its own: `python -m benchmarks.growth.child ARGUMENTS`, which prints its `Figures`.

The service goes on where the round before left it, so each round begins with a restart.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, cast

from pyspark.sql import SparkSession

from benchmarks.checks import check_count
from benchmarks.flows import add, pass_on, republisher
from benchmarks.growth.cases import Case
from benchmarks.growth.records import FEW, Records, numbers_of_keys, robot
from benchmarks.machine import Spent, own_cpu_s
from benchmarks.service import Service
from services._proto.fastening_pb2 import Fastening, LineTotal
from services.fastening import robot_of
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import close_session, open_session
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, StateStore
from sqe_chain.protocol.with_plans import StagedService

SMALL_BATCHES = 6
"""Batches that are almost empty; the first does not count."""

_SAMPLE = 200
_FOLDED_BEFORE = 1
"""Events of each key before the first record."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What to measure.

    Attributes:
        case: the case, as a mapping.
        name: of flow and topic.
        bootstrap: Kafka.
        store: URL of the store.
        redis_pid: the server whose processor time counts, too; 0: none.
        start: number of the round's first record.
        prepare: only create what the first round needs.
    """

    case: dict[str, Any]
    name: str
    bootstrap: str
    store: str
    redis_pid: int = 0
    start: int = 0
    prepare: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """What one round has cost.

    Attributes:
        seconds: of all batches but the first.
        cpu_s: of the service's processes and Redis, in these seconds.
        records: processed in these seconds.
        batches: in which these were processed.
        rows_read: states asked of the store in these seconds, headers apart; -1 unknown.
        rows_written: states written in these seconds.
        plan_bytes: of the last plan; -1 if there are none.
        small_ms: of a batch of a few records.
        restart_ms: from claim to recovered.
        peak_rss: bytes of memory, all of the service's Python processes.
    """

    seconds: float
    cpu_s: float
    records: int
    batches: int
    rows_read: int
    rows_written: int
    plan_bytes: int
    small_ms: float
    restart_ms: float
    peak_rss: int


class Counting:
    """A store that counts the states that are asked for, and refuses to look at all keys."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.rows_read = 0

    def __getattr__(self, name: str) -> object:
        """Everything else is the store's."""
        return getattr(self._store, name)

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """See `StateStore.read`."""
        self.rows_read += len(keys)
        return self._store.read(flow, stage, part, keys)

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """Refused: a running service must not need it."""
        raise AssertionError(f"{flow}/{stage}/{part} was scanned")


def flow_of(case: Case, name: str) -> Flow:
    """The flow of a case."""
    if not case.stages:
        return republisher(name, name, f"{name}.out")
    flow = Flow(name, state_partitions=case.state_partitions)
    stream = flow.source(name, Fastening)
    for number in range(1, case.stages):
        stream = stream.aggregate(f"stage-{number}", key=robot_of, state=LineTotal, fold=pass_on)
    stream.aggregate(f"stage-{case.stages}", key=robot_of, state=LineTotal, fold=add)
    return flow


def prepare(case: Case, arguments: Arguments) -> None:
    """Create the topic and, where sums are stored, a state of each key."""
    log = KafkaLog(arguments.bootstrap)
    log.create_topic(arguments.name, case.partitions)
    if case.stages != 1:
        return
    store = open_store(arguments.store)
    service = Service(flow_of(case, arguments.name), None, arguments.bootstrap, store, 1)
    state = LineTotal(events=_FOLDED_BEFORE).SerializeToString()
    rows: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(case.state_partitions)]
    headers = store.headers(arguments.name, "stage-1", range(case.state_partitions))

    def write(part: int) -> None:
        header = headers[part]
        assert header is not None
        assert store.write(arguments.name, "stage-1", part, header, header, rows[part]) == header
        rows[part].clear()

    for number in range(case.keys):
        key = robot(number).encode()
        part = partition_of(key, case.state_partitions)
        rows[part].append((key, state))
        if len(rows[part]) == store.max_rows:
            write(part)
    for part in range(case.state_partitions):
        write(part)
    service.protocol.leave()


def measure(case: Case, arguments: Arguments) -> Figures:
    """One round."""
    records = Records(case, arguments.name)
    stop = arguments.start + case.records
    records.write(arguments.bootstrap, arguments.start, stop)
    store = Counting(open_store(arguments.store))
    with ExitStack() as ends:
        session: SparkSession | None = None
        if case.cores:
            session = open_session(f"local[{case.cores}]", arguments.name)
            ends.callback(close_session, session)
        flow = flow_of(case, arguments.name)
        bare = arguments.store if session else cast("StateStore", store)
        began = time.perf_counter()
        service = Service(flow, session, arguments.bootstrap, bare, case.batch, in_place=case.in_place)
        restart_ms = (time.perf_counter() - began) * 1e3
        with Spent() as whole:
            assert service.protocol.batch().worked
            read, written = store.rows_read, sum(service.notes.rows)
            redis_s = own_cpu_s(arguments.redis_pid) if arguments.redis_pid else 0.0
            run = service.work_off()
            redis_s = (own_cpu_s(arguments.redis_pid) if arguments.redis_pid else 0.0) - redis_s
        rows_read, rows_written = store.rows_read - read, sum(service.notes.rows) - written
        inputs = list(service.notes.inputs)
        small_ms = list[float]()
        for _ in range(SMALL_BATCHES):
            records.write(arguments.bootstrap, stop, stop + FEW)
            stop += FEW
            began = time.perf_counter()
            assert service.protocol.batch().inputs == FEW
            small_ms.append((time.perf_counter() - began) * 1e3)
        plan = service.protocol.last if isinstance(service.protocol, StagedService) else None
        service.protocol.leave()
    check(case, arguments, stop)
    return Figures(
        seconds=run.seconds,
        cpu_s=run.spent.python_s + run.spent.java_s + redis_s,
        records=sum(inputs),
        batches=len(inputs),
        rows_read=-1 if session else rows_read,
        rows_written=rows_written,
        plan_bytes=len(plan.to_bytes()) if plan else -1,
        small_ms=median(small_ms[1:]),
        restart_ms=restart_ms,
        peak_rss=whole.peak_rss,
    )


def check(case: Case, arguments: Arguments, stop: int) -> None:
    """Everything is there once: all that was published; of the states some, among them those that came last."""
    if not case.stages:
        check_count(arguments.bootstrap, f"{arguments.name}.out", 2 * stop)
        return
    events = Counter(numbers_of_keys(case, 0, stop).tolist())
    last = numbers_of_keys(case, stop - FEW, stop).tolist()
    chosen = {*last, *random.Random(stop).sample(sorted(events), min(_SAMPLE, len(events)))}
    store, stage = open_store(arguments.store), f"stage-{case.stages}"
    before = _FOLDED_BEFORE if case.stages == 1 else 0
    for number in sorted(chosen):
        key = robot(number).encode()
        part = partition_of(key, case.state_partitions)
        _, (state,), _ = store.read(arguments.name, stage, part, [key])
        assert state is not None
        assert LineTotal.FromString(state).events == events[number] + before


def main(text: str) -> None:
    """Measure the row that the arguments name."""
    arguments = Arguments(**json.loads(text))
    case = Case(**arguments.case)
    if arguments.prepare:
        prepare(case, arguments)
    else:
        print(json.dumps(asdict(measure(case, arguments))))


if __name__ == "__main__":
    main(sys.argv[1])
