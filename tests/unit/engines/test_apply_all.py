"""Goal: changed states are written once each, whichever way; after a failure the next attempt writes what is missing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.engines.task import Applied, apply_all
from sqe_chain.errors import Superseded
from sqe_chain.flow import Flow, count
from sqe_chain.ports import Header, StateStore
from sqe_chain.task.results import ChangedStates, Job
from sqe_chain.task.states import Claim, Transition
from sqe_chain.testing.faults import PortCall, Scheduler
from sqe_chain.testing.faulty_ports import faulty_store

PARTS = 4
CLAIM = Claim(1, "run")
BEFORE = Header(1, "run", 6, "plan-6")


def flow() -> Flow:
    made = Flow("flow", state_partitions=PARTS)
    made.source("t", str, codec="json", raw=True).aggregate("per-text", key=str, events=count())
    return made


STAGE = flow().compile().stages[0].index


class Meeting(Scheduler):
    """Writers wait for each other; one of the cells has a newer owner."""

    meeting: threading.Barrier | None = None
    superseded = -1

    def answer(self, call: PortCall) -> Any:
        if call.write and self.meeting is not None:
            self.meeting.wait(60)
        if call.write and call.args[2] == self.superseded:
            return Header(2, "newer", 7, "plan-7")
        return call.make()


def made(store: StateStore) -> list[ChangedStates]:
    for part in range(PARTS):
        store.write("flow", "per-text", part, None, BEFORE, ())
    return [ChangedStates(1, STAGE, part, [(b"key-%d" % part, b"1")]) for part in range(PARTS)]


def written(store: StateStore, states: Sequence[ChangedStates], *, threads: bool) -> int:
    before = {(STAGE, part): BEFORE for part in range(PARTS)}
    job = Job(Transition("flow", CLAIM, 6, "plan-6"), 0)
    return apply_all(
        flow().compile(), job, lambda _: store, states, Applied("plan-7", before), threads=threads
    )


def numbers(store: StateStore) -> list[int]:
    headers = [store.read("flow", "per-text", part, ())[0] for part in range(PARTS)]
    return [header.number for header in headers if header is not None]


def test_cells_are_written_at_the_same_time() -> None:
    meeting = Meeting()
    store = faulty_store(MemoryStore(uuid4().hex), meeting)
    states = made(store)
    meeting.meeting = threading.Barrier(PARTS)  # writers one after the other would never meet
    assert written(store, states, threads=True) == PARTS
    assert numbers(store) == [7] * PARTS


def test_or_one_after_the_other() -> None:
    store = MemoryStore(uuid4().hex)
    assert written(store, made(store), threads=False) == PARTS
    assert numbers(store) == [7] * PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_a_cell_that_fails_is_raised_and_the_next_attempt_writes_the_rest(part: int) -> None:
    meeting = Meeting()
    store = faulty_store(MemoryStore(uuid4().hex), meeting)
    states = made(store)
    meeting.superseded = part
    with pytest.raises(Superseded):
        written(store, states, threads=True)
    assert numbers(store)[part] == 6
    meeting.superseded = -1
    assert written(store, states, threads=True) <= PARTS, "those that were written are not written again"
    assert numbers(store) == [7] * PARTS
