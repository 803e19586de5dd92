"""Goal: whatever happens at whatever point, a table holds each row of each sealed plan exactly once.

Method: a flow into a Delta table on disk, and into a table of chunks in a database in memory. Protocol and tasks are real.
Broker and store are in memory. One fault happens at each call in turn, and between each file or chunk and each commit. The process
dies, before the call or when it has taken effect. Or there is no answer. Or another run takes over, and the first one wakes up as a
zombie.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Flush, Sink, StateStore
from sqe_chain.task.flushing import FLUSHED
from sqe_chain.task.results import Job
from sqe_chain.task.states import persist
from sqe_chain.testing import Crash
from tests.support.memory_chunks import use_memory
from tests.support.suites import some
from tests.support.table_flows import TablePipeline, begun_table

Act = Callable[[TablePipeline, int], None]


@pytest.fixture(params=["delta", "chunks"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tables are."""
    found: str = request.param
    if found == "chunks":
        use_memory(monkeypatch)
        monkeypatch.setattr(TablePipeline, "place", lambda at: f"cassandra://memory/{at.name}")
    return found


def test_two_crashes_in_a_row(tmp_path: Path) -> None:
    for first in some("two crashes in a row", range(12), 3):
        for second in range(6):
            pipeline = begun_table(tmp_path / f"{first}-{second}", 2)
            pipeline.service.crash_at_call(first, "after", of="table")
            pipeline.service.run_until_crash()
            pipeline.service.crash_at_call(second, "after", of="table")
            pipeline.service.run_until_caught_up()
            pipeline.service.cancel()
            pipeline.service.run_until_caught_up()
            pipeline.check()


def test_a_compaction_between_the_crash_and_the_redo(tmp_path: Path) -> None:
    """The files of the plan that is redone are gone, so they prove nothing: the table's markers decide."""
    for call in range(8):
        pipeline = begun_table(tmp_path / str(call), 2)
        pipeline.service.crash_at_call(call, "after", of="table")
        pipeline.service.run_until_crash()
        pipeline.table.compact()
        pipeline.service.run_until_caught_up()
        pipeline.check()


def test_nothing_is_flushed_before_the_seal(tmp_path: Path) -> None:
    pipeline = begun_table(tmp_path, 2)
    before, writes = pipeline.files(), pipeline.table_writes()
    pipeline.service.crash(step=4, when="before")
    with pytest.raises(Crash):
        pipeline.service.batch()
    assert (pipeline.files(), pipeline.table_writes()) == (before, writes)


def test_a_flow_with_a_table_is_not_folded_again(tmp_path: Path) -> None:
    pipeline = begun_table(tmp_path, 2)
    with pytest.raises(ConfigurationError, match="to rebuild it is not possible"):
        pipeline.service.rebuild()


def test_headers_that_a_store_lost_are_redone_and_add_nothing(tmp_path: Path) -> None:
    pipeline = begun_table(tmp_path, 2)
    copies = pipeline.service.copy_stores()
    for _ in range(3):
        pipeline.service.run_until_caught_up()
        pipeline.feed(6)
    pipeline.service.run_until_caught_up()
    pipeline.service.service = None
    pipeline.service.roll_back(copies, stage="readings")
    pipeline.service.run_until_caught_up()
    pipeline.check()
    pipeline.feed(6)
    pipeline.service.run_until_caught_up()
    pipeline.check()


def test_written_the_other_way_round_a_crash_loses_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the table comes before the header: the same crashes, with the header first."""

    def header_first(sink: Sink, store: StateStore, job: Job, *rest: Any) -> int:
        (plan_id, stage, part, rows, before), transition = rest, job.transition
        flow, claim = transition.store_flow(stage), transition.claim
        _, (known,), _ = store.read(flow, stage, part, [FLUSHED])
        persist(store, transition, plan_id, stage, part, [], before)
        number = transition.before_number + 1
        flush = Flush(flow, stage, part, claim.epoch, claim.run_id, number, plan_id, rows, known)
        return sink.flush(flush)[0]

    monkeypatch.setattr("sqe_chain.engines.task.flush", header_first)
    lost = 0
    for number in range(6):
        pipeline = TablePipeline(tmp_path / str(number))
        pipeline.feed()
        pipeline.service.start()
        pipeline.service.crash_at_call(number, "after", of="table")
        pipeline.service.run_until_caught_up()
        lost += pipeline.rows() != pipeline.expected
    assert lost > 0
