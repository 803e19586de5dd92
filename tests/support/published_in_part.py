"""A flow that died in the middle of a batch, and one that has read what was published by then."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.flow import Flow
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.plans import last_plan

BAD = 77
"""Poison as long as the code is strict."""


def add(total: Int64Value, number: Int64Value) -> None:
    if number.value == BAD and strict:
        raise ValueError(number.value)
    total.value += number.value


strict = True


def both(number: Int64Value) -> list[Int64Value]:
    return [number, Int64Value(value=1_000 + number.value)]


def side(number: Int64Value) -> str:
    return "high" if number.value >= 1_000 else "low"


def upstream() -> Flow:
    flow = Flow("up", state_partitions=1, poison="skip")
    summed = (
        flow.source("numbers", Int64Value)
        .flat_map(both)
        .aggregate("sums", key=side, state=Int64Value, fold=add)
    )
    summed.changes().to("totals", partitions=1)
    return flow


def hear(heard: StringValue, total: Int64Value) -> None:
    heard.value += f"{total.value} "


def downstream() -> Flow:
    flow = Flow("down", state_partitions=1)
    flow.source("totals", Int64Value).aggregate("heard", key=lambda _: "all", state=StringValue, fold=hear)
    return flow


class Pair:
    """A flow that crashed at the n-th write of its second batch, and one that has read what it had published by then."""

    def __init__(self, at: int, numbers: tuple[int, ...] = (2, 3)) -> None:
        self.store = MemoryStore(f"in-part-{id(self)}")
        self.store.restore_all()
        self.up = Rehearsal(upstream(), store=self.store, settings=Settings(allow_weak_durability=True))
        self.down = Rehearsal(downstream(), log=self.up.log)
        self.feed(1)
        self.up.run_until_caught_up()
        for number in numbers:
            self.feed(number)
        self.up.start()
        self.up.crash_at_write(at, "after")
        self.up.run_until_crash()
        self.up.script.writes.clear()
        self.crashed = self.up.crashes > 0
        self.down.run_until_caught_up()

    def feed(self, number: int) -> None:
        self.up.feed("numbers", Int64Value(value=number))

    def finish(self) -> None:
        self.up.run_until_caught_up()
        self.down.run_until_caught_up()

    def heard(self) -> str:
        return str(self.down.states("heard")[b"all"].value).strip()

    def sums(self) -> dict[bytes, int]:
        return {key: state.value for key, state in self.up.states("sums").items()}

    def plan(self) -> Plan:
        return last_plan(self.store, "up")
