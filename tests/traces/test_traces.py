"""Goal: stores and broker in memory answer as real ones do, so that what the simulator finds out holds for these, too.

Method: schedules are executed in memory and recorded, call by call. Then each call is repeated on a real server, and the
answer, or the type of the error, must be the same. `python -m tests.traces` replays more of them.
"""

from __future__ import annotations

import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ports import Header
from tests.traces.recording import Recording, recorded
from tests.traces.replaying import replay_store, replayed_broker, replayed_stores

SEED = 20_000
"""`make test` runs the schedules below it."""
SCHEDULES = 24
AT_BROKER = 8
"""Topics take a broker longer than states take a store."""


@pytest.fixture(scope="module")
def recordings() -> dict[int, Recording]:
    return recorded(range(SEED, SEED + SCHEDULES))


@pytest.mark.parametrize("kind", ["sqlite", "redis", "cassandra"])
def test_a_store_answers_as_the_one_in_memory(
    kind: str, recordings: dict[int, Recording], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    address = f"sqlite://{tmp_path}/states.db"
    found = replayed_stores(
        recordings, address if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    )
    assert not found.differences
    assert found.calls > 30 * len(recordings) > 15 * SCHEDULES


def test_a_broker_answers_as_the_one_in_memory(recordings: dict[int, Recording], kafka: str) -> None:
    found = replayed_broker(dict(islice(recordings.items(), AT_BROKER)), kafka)
    assert not found.differences
    assert found.calls > 20 * AT_BROKER


class Careless(MemoryStore):
    """Compares nothing when it writes."""

    def write(self, flow: str, stage: str, part: int, before: Any, *rest: Any) -> Header | None:
        del before
        return super().write(flow, stage, part, self.headers(flow, stage, [part])[0], *rest)


def test_a_store_that_compares_nothing_is_noticed(recordings: dict[int, Recording]) -> None:
    traces = [trace for recording in recordings.values() for trace in recording.stores]
    for kind, differs in (MemoryStore, False), (Careless, True):
        stores = [replay_store(trace, kind(uuid.uuid4().hex), "again-") for trace in traces]
        assert any(store.differences for store in stores) == differs
