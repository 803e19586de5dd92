"""`python -m benchmarks.folding`: what declared sums cost a record, and what folding by columns would change.

No server. 1,000 robots, records of the workload W2 of `make bench-peers`; all ways of folding take turns, and the best round
of each counts. With the package `ptars` beside it, protobuf is decoded into columns, too.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.envelopes import Record
from benchmarks.machine import facts
from benchmarks.peers.flows import Fastening, declared_fold
from services._proto.fastening_pb2 import Fastening as FasteningMessage
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.flow import count, sum_
from sqe_chain.flow.generated_fold import fold_of, states_of
from sqe_chain.flow.stage_kind import LiveState
from sqe_chain.ports import Header, Range
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import Job, Portion
from sqe_chain.task.states import Claim, Transition

RECORDS, BLOCK, KEYS, ROUNDS = 30_000, 1_000, 1_000, 20
AGGREGATES = {"events": count(), "fastened": sum_("fastened"), "failed": sum_("failed")}
ROBOT, FASTENED, FAILED = attrgetter("robot"), attrgetter("fastened"), attrgetter("failed")
Way = Callable[[], object]


@dataclass(slots=True)
class Raw(Record):
    """A record without an envelope."""

    number: int

    def key(self) -> bytes:  # type: ignore[override]
        """See `Message`."""
        return b"robot-%04d" % self.number

    def timestamp(self) -> tuple[int, int]:
        """See `Message`."""
        return 1, 1_700_000_000_000 + self.at


class _Empty:
    """A store without states."""

    def read(self, *where: Any) -> tuple[Header, list[None], Header]:  # noqa: ANN401 - see `StateStore`
        header = Header(1, "run", 0, "0")
        return header, [None] * len(where[-1]), header


def records() -> list[Fastening]:
    """The payloads."""
    numbers = random.Random(1)
    return [
        Fastening(
            f"robot-{numbers.randrange(KEYS):04d}",
            "line-07",
            "joint 3, spindle left of axle",
            at,
            numbers.randrange(9),
            numbers.randrange(3),
        )
        for at in range(RECORDS)
    ]


def whole(payloads: Sequence[bytes], found: Sequence[Fastening]) -> Way:
    """All that a task does with raw records before it writes: read, decide, decode, fold, encode the changes."""
    read = [
        Raw(at, data, int(one.robot[-4:])) for at, (data, one) in enumerate(zip(payloads, found, strict=True))
    ]
    blocks: Any = [read[begin : begin + BLOCK] for begin in range(0, RECORDS, BLOCK)]
    declared, store = declared_fold("folding", "in", "out", raw=True), _Empty()
    declared.state_partitions = 1
    flow = declared.compile()

    def run() -> None:
        job = Job(Transition(flow.name, Claim(1, "run"), 0, "0"), 1, in_place=True)
        portion = Portion(
            Range("in", bytes(16), 0, 0, RECORDS), PartitionMarks("in", bytes(16), 0), times=EventTimes(0)
        )
        stores: Any = lambda _stage: store  # noqa: E731 - one line
        reading = Reading(flow, job, stores)
        made = [*reading.read(portion, blocks), *reading.finish()]
        assert made
        assert not reading.report.mispartitioned

    return run


class Ways:
    """Ways of folding one block, and of decoding it.

    Args:
        python_type: of the values.
        decode: bytes -> value.
        payloads: of at least one block.
    """

    def __init__(
        self, python_type: type[Any], decode: Callable[[bytes], Any], payloads: Sequence[bytes]
    ) -> None:
        self.python_type, self.payloads, self.decode = python_type, payloads[:BLOCK], decode
        self.values = list(map(decode, self.payloads))
        states, self.fold = states_of(AGGREGATES, python_type), fold_of("folding", AGGREGATES, python_type)
        self.entries = {b"robot-%04d" % number: LiveState(states()) for number in range(KEYS)}
        known = {key.decode(): key for key in self.entries}
        self.slots = {robot: slot for slot, robot in enumerate(known)}
        self.columns = [np.zeros(KEYS, np.int64) for _ in AGGREGATES]
        self.keys = [known[value.robot] for value in self.values]

    def found(self) -> dict[str, Way]:
        """All of them."""
        found: dict[str, Way] = {
            "decode": lambda: list(map(self.decode, self.payloads)),
            "the generated fold, by record (as it is)": self.by_record,
            "the same text in one loop": self.in_one_text,
            "grouped by key": self.by_key,
            "numpy, from values to columns": self.by_columns,
        }
        if issubclass(self.python_type, FasteningMessage) and find_spec("ptars") is not None:
            found["decode into columns (ptars), numpy"] = self.by_decoded_columns()
        return found

    def by_record(self) -> None:
        """As an aggregate does it."""
        entries, fold = self.entries, self.fold
        for key, value in zip(self.keys, self.values, strict=True):
            fold(entries[key].state, value)

    def in_one_text(self) -> None:
        """Without a call for each record."""
        for entry, value in zip(map(self.entries.__getitem__, self.keys), self.values, strict=True):
            state = entry.state
            one, other = value.fastened, value.failed
            state.events += 1
            if one.__class__ is int:
                state.fastened += one
            if other.__class__ is int:
                state.failed += other

    def by_key(self) -> None:
        """Each state is written once."""
        groups: dict[bytes, list[Any]] = {}
        for key, value in zip(self.keys, self.values, strict=True):
            if key in groups:
                groups[key].append(value)
            else:
                groups[key] = [value]
        for key, group in groups.items():
            state = self.entries[key].state
            state.events += len(group)
            state.fastened = sum(map(FASTENED, group), state.fastened)
            state.failed = sum(map(FAILED, group), state.failed)

    def by_columns(self) -> None:
        """States are rows of arrays, which would have to become objects at the end."""
        parts = [list(map(of, self.values)) for of in (FASTENED, FAILED)]
        assert all(set(map(type, part)) == {int} for part in parts)
        self._add(list(map(ROBOT, self.values)), *(np.fromiter(part, np.int64, BLOCK) for part in parts))

    def by_decoded_columns(self) -> Way:
        """The same, decoding included."""
        from ptars import HandlerPool  # noqa: PLC0415 - not a dependency

        descriptor: Any = self.python_type.DESCRIPTOR
        decoder = HandlerPool([descriptor.file]).get_for_message(descriptor)

        def run() -> None:
            batch = decoder.list_to_record_batch(self.payloads)
            numbers = (batch[name].to_numpy(zero_copy_only=False) for name in ("fastened", "failed"))
            self._add(batch["robot"].to_pylist(), *numbers)

        return run

    def _add(self, robots: Sequence[str], ones: Any, others: Any) -> None:  # noqa: ANN401 - arrays
        at = np.fromiter(map(self.slots.__getitem__, robots), np.int64, BLOCK)
        for column, added in zip(self.columns, (1, ones, others), strict=True):
            np.add.at(column, at, added)


def best(found: Mapping[str, Way], count: int) -> dict[str, float]:
    """Nanoseconds a record of the best round of each; they take turns."""
    costs: dict[str, float] = {}
    for _ in range(ROUNDS):
        gc.collect()
        for name, way in found.items():
            began = time.process_time()
            way()
            costs[name] = min(costs.get(name, 1e9), (time.process_time() - began) / count * 1e9)
    return costs


def main() -> None:
    """Print a table."""
    out = Console(highlight=False, soft_wrap=True)
    for name, fact in facts().items():
        out.print(f"{name}: {fact}")
    values = records()
    as_json = [msgspec.json.encode(one) for one in values]
    messages = [
        FasteningMessage(
            robot=one.robot, line=one.line, joint=one.joint, fastened=one.fastened, failed=one.failed
        )
        for one in values
    ]
    table = Table("a record", "ns", title=f"declared sums, JSON of {len(as_json[-1])} bytes, {KEYS} keys")
    for name, cost in best({"all of a task, raw topic": whole(as_json, values)}, RECORDS).items():
        table.add_row(name, f"{cost:,.0f}")
    for title, found in (
        ("JSON", Ways(Fastening, msgspec.json.Decoder(Fastening).decode, as_json)),
        (
            "protobuf",
            Ways(
                FasteningMessage, FasteningMessage.FromString, [one.SerializeToString() for one in messages]
            ),
        ),
    ):
        for name, cost in best(found.found(), BLOCK).items():
            table.add_row(f"{title}: {name}", f"{cost:,.0f}")
    out.print(table)


if __name__ == "__main__":
    main()
