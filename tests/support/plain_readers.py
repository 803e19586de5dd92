"""Transactional flows, and a reader that knows nothing but which records are committed. It shares no code with the package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sqe_chain import Flow
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Context
from sqe_chain.ports import Range
from sqe_chain.testing import Rehearsal

PARTITIONS = 2
OUT_PARTITIONS = 3
KEYS = ("a", "b", "c", "d")


def twice(value: bytes) -> list[bytes]:
    """Two outputs of each input, with names of their own."""
    return [value + b"/0", value + b"/1"]


def key_of(value: bytes) -> str:
    return value.decode().split(":")[0]


def count(seen: dict[str, int], _: bytes) -> None:
    seen["count"] = seen.get("count", 0) + 1


def named(state: dict[str, int], context: Context) -> bytes:
    return f"{(context.key or b'').decode()}={state['count']}".encode()


def transactional_flow(
    *, stages: bool, transactional: bool = True, name: str = "plain", before: str = ""
) -> Flow:
    """Each input gives two outputs; with stages also the new count of its key, once a batch. `before` begins the names of topics."""
    flow = Flow(name, transactional=transactional, state_partitions=2)
    inputs = flow.source(f"{before}in", bytes, raw=True)
    inputs.flat_map(twice).to(f"{before}out", partitions=OUT_PARTITIONS, key=key_of, carrier="headers")
    if stages:
        counts = inputs.aggregate("counts", key=key_of, state=dict, fold=count)
        counts.changes().map(named).to(f"{before}counts", partitions=2, carrier="headers")
    return flow


def inputs_from(first: int, number: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Partition, value and key of inputs, which name their key and number."""
    for at in range(first, first + number):
        key = KEYS[at % len(KEYS)]
        yield at % PARTITIONS, f"{key}:{at}".encode(), key.encode()


def feed(log: MemoryLog, first: int, number: int) -> None:
    """Append inputs."""
    for partition, value, key in inputs_from(first, number):
        log.append("in", partition, value, key)


def committed(log: MemoryLog, topic: str) -> Iterator[tuple[int, bytes]]:
    """Partition and value of what a plain reader of committed records sees, in its order."""
    info = log.describe([topic])[topic]
    for (_, partition), bound in log.bounds([(topic, number) for number in range(info.partitions)]).items():
        for block in log.read(Range(topic, b"", partition, 0, bound.stable_end)):
            for message in block:
                yield partition, message.value() or b""


def faults(log: MemoryLog, inputs: int, *, stages: bool) -> list[str]:
    """What a plain reader has seen twice, out of order or not at all; the service is at rest."""
    counts = committed(log, "counts") if stages else None
    return faults_in(committed(log, "out"), counts, inputs)


def faults_in(
    out: Iterable[tuple[int, bytes]], counted: Iterable[tuple[int, bytes]] | None, inputs: int
) -> list[str]:
    """The same of what a reader has seen of both outputs: partitions and values, in its order."""
    found, last = list[str](), dict[tuple[int, str, int], int]()
    seen = Counter[str]()
    for partition, value in out:
        seen[value.decode()] += 1
        key, number, _ = value.decode().replace("/", ":").split(":")
        lane = partition, key, int(number) % PARTITIONS
        if int(number) < last.get(lane, -1):
            found.append(f"{value!r} after {last[lane]}")
        last[lane] = int(number)
    wanted = Counter(f"{KEYS[at % len(KEYS)]}:{at}/{nth}" for at in range(inputs) for nth in (0, 1))
    found += [
        f"{name} is there {seen[name]} times" for name in {*seen, *wanted} if seen[name] != wanted[name]
    ]
    if counted is not None:
        counts = dict[str, int]()
        for _, value in counted:
            key, number = value.decode().split("=")
            if int(number) <= counts.get(key, 0):
                found.append(f"{value!r} after {counts[key]}")
            counts[key] = int(number)
        found += [
            f"{key} ends at {counts.get(key)}"
            for nth, key in enumerate(KEYS)
            if counts.get(key, 0) != len(range(nth, inputs, len(KEYS)))
        ]
    return found


def rehearsal_of(*, stages: bool, transactional: bool = True) -> Rehearsal:
    flow = transactional_flow(stages=stages, transactional=transactional)
    return Rehearsal(flow, partitions={"in": PARTITIONS})
