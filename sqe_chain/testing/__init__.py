"""Test your own flows without Kafka and Spark, with crashes wherever you want them.

>>> from google.protobuf.wrappers_pb2 import Int64Value
>>> from sqe_chain.flow import Flow
>>> def add(total: Int64Value, number: Int64Value) -> None:
...     total.value += number.value
>>> flow = Flow("sums")
>>> stage = flow.source("numbers", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
>>> rehearsal = Rehearsal(flow)
>>> rehearsal.feed("numbers", Int64Value(value=3))
0
>>> rehearsal.feed("numbers", Int64Value(value=4))
1
>>> rehearsal.crash(step=7, when="before")     # persisted, not committed
>>> rehearsal.run_until_caught_up()            # crashes, restarts, continues
>>> rehearsal.states("sum")[b"all"].value, rehearsal.crashes
(7, 1)
"""

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.plans.settings import Settings
from sqe_chain.testing.clock import SteppingClock
from sqe_chain.testing.fault_injection import Arming
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.proving import Fault, Feed, Finding, Proof, Schedule, prove, prove_schedule
from sqe_chain.testing.rehearsal import Rehearsal, Zombie
from sqe_chain.testing.values import ValueChanged

__all__ = [
    "Arming",
    "Crash",
    "Fault",
    "Feed",
    "Finding",
    "MemoryStore",
    "Proof",
    "Rehearsal",
    "Schedule",
    "Settings",
    "SteppingClock",
    "ValueChanged",
    "Zombie",
    "prove",
    "prove_schedule",
]
