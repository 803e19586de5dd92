"""Goal: what the driver writes for each state partition waits for disks together, and loses nothing when some of it fails.

Method: calls that only go on when others are under way, in memory.
"""

from __future__ import annotations

from threading import Barrier, Lock
from typing import Any, cast

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import Superseded, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.events import Observer
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Header, Rows, Views
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing.clock import SteppingClock

PARTITIONS, WRITERS, SECONDS = 8, 4, 20


class Together(MemoryStore):
    """A store in which a header is written only while as many writes are under way as `meeting` waits for."""

    meeting: Barrier | None = None

    def _write(
        self, cell: Any, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None:
        if self.meeting is not None and not rows:
            self.meeting.wait(SECONDS)
        return super()._write(cell, before, after, rows, views)


class Listening(Observer):
    """An observer that notes what is waited for."""

    def __init__(self) -> None:
        self.waited: list[str] = []

    def event(self, event: Any) -> None:
        self.waited += [event.what] if event.name == "waiting" else []


def environment(name: str, store: MemoryStore, writers: int = WRITERS) -> Environment:
    flow = Flow("many", state_partitions=PARTITIONS)
    flow.source("in", int, raw=True).aggregate(
        "sums", key=str, state=dict, fold=lambda state, n: state.update(n=n)
    )
    log, compiled = MemoryLog(name), flow.compile()
    log.create_topic("in", 1)
    return Environment(
        compiled,
        Ports(log, {"": store}),
        InProcessEngine(compiled, log, lambda _: store),
        Listening(),
        SteppingClock(),
        lambda: "run",
        Settings(allow_weak_durability=True),
        writers=writers,
    )


def test_headers_are_stamped_and_moved_several_at_a_time() -> None:
    store = Together("together")
    env = environment("together", store)
    StagedService(env).start()
    store.meeting = Barrier(WRITERS)  # else no call would return: each waits for three others
    service = StagedService(env)
    service.start()
    store.meeting = None
    cast("MemoryLog", env.ports.log).append("in", 0, b"7")
    assert service.batch().inputs == 1
    headers = store.headers("many", "sums", range(PARTITIONS))
    assert {header and header.number for header in headers} == {1}


@pytest.mark.parametrize("writers", [1, WRITERS])
def test_what_was_not_answered_is_repeated_and_nothing_else(writers: int) -> None:
    env = environment("repeated", MemoryStore("repeated"), writers)
    done, lock, away = list[int](), Lock(), {2, 5}

    def do(item: int) -> None:
        with lock:
            if item in away:
                away.remove(item)
                raise Unavailable("no answer")
            done.append(item)

    left = list(range(PARTITIONS))
    env.for_each("try", left, do)
    assert left == []
    assert sorted(done) == list(range(PARTITIONS))
    assert set(cast("Listening", env.observer).waited) == {"try"}


def test_an_error_that_waiting_does_not_cure_is_raised_whatever_else_fails() -> None:
    env, meeting = environment("raised", MemoryStore("raised")), Barrier(WRITERS)

    def do(item: int) -> None:
        meeting.wait(SECONDS)
        raise Superseded("a newer run") if item % 2 else Unavailable("no answer")

    with pytest.raises(Superseded):
        env.for_each("try", [0, 1, 3, 2], do)
