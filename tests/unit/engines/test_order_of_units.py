"""Goal: after a shuffle units come by state partition, stage, topic, partition, offset and path, for any packer and sender.

Method: packers get units in another order, or pieces arrive in another one. The real tasks of workers run in this
process, where a later partition went to an earlier worker.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.engines import units as module
from sqe_chain.engines.spark.rows import ORDER, Packer, units_of
from sqe_chain.engines.units import UnitPacker, merged
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.engines.workers.tasks import Outboxes, Tasks
from sqe_chain.flow import Flow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Log, StateStore
from sqe_chain.task.results import Units
from sqe_chain.testing import Rehearsal
from tests.support.unit_rows import UnitRow, blocks_of, rows_of
from tests.support.word_flows import append_word, same_key, stored_words, word, words_by_first_letter


def unit(offset: int, path: int = 0, part: int = 0) -> UnitRow:
    return (
        part,
        1,
        "t",
        0,
        offset,
        path.to_bytes(4),
        b"key",
        "tag",
        b"value",
        f"window {offset}" if path else None,
        (),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_a_packer_brings_units_into_order_that_come_in_another_one(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "ROWS", size)
    rows = [unit(offset, path, part) for part in range(2) for offset in range(6) for path in range(3)]
    given = rows.copy()
    random.Random(size).shuffle(given)
    packer = UnitPacker()
    packed = [*packer.add(blocks_of(given)), *packer.finish()]
    packed.sort(key=lambda one: one[0])
    assert rows_of(merged(packed)) == rows


def test_pieces_of_one_input_are_brought_into_the_order_of_their_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark sorts rows by the first unit in each, and rows that are equal by that in any order."""
    monkeypatch.setattr(module, "ROWS", 2)
    rows = [unit(5, path) for path in range(12)]
    packer = Packer(1, 0, 0)
    batches = [*packer.add(Units(1, blocks_of(rows))), *packer.finish()]
    table = pa.Table.from_batches(batches).combine_chunks()
    for seed in range(10):
        order = list(range(table.num_rows))
        random.Random(seed).shuffle(order)
        ordered = table.take(pa.array(order)).sort_by([(name, "ascending") for name in ORDER])
        assert rows_of(units_of(ordered.to_batches(max_chunksize=1), [])) == rows


# --- workers ---------------------------------------------------------------------------------------------


class TeamOfTasks:
    """The tasks of three workers, one after the other in this process."""

    size, generation = 3, 0

    def __init__(self, files: Sequence[int]) -> None:
        self._tasks = [Tasks(Outboxes(files, number)) for number in range(self.size)]
        self._begun = False

    def prepare(self, command: Callable[[Tasks], None]) -> None:
        if not self._begun:
            self._begun = True
            self.send_command(command)

    def send_command(self, command: Callable[[Tasks], None]) -> None:
        for tasks in self._tasks:
            command(tasks)

    def call(self, commands: Sequence[Callable[[Tasks], Any]]) -> list[Any]:
        return [command(tasks) for command, tasks in zip(commands, self._tasks, strict=True)]

    def end_batch(self) -> None:
        """Losses are counted by batch; none is lost here."""


@pytest.fixture
def by_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rehearsals run on the engine of workers, which read partitions 1, 2 and 0."""
    with ExitStack() as opened:
        files = [os.memfd_create(f"outbox-{number}") for number in range(TeamOfTasks.size)]
        for file in files:
            opened.callback(os.close, file)

        def made(
            flow: Flow, log: Log, stores: Callable[[StageNode], StateStore], **_: object
        ) -> WorkersEngine:
            by_name = {stage.store or "": stores(stage) for stage in flow.compile().stages}
            engine = WorkersEngine(flow.compile(), log, by_name, cast("Team", TeamOfTasks(files)))
            engine._owners |= {("words", partition): (partition + 2) % 3 for partition in range(3)}
            return engine

        monkeypatch.setattr("sqe_chain.testing.rehearsal.InProcessEngine", made)
        yield


def words_of_three_partitions() -> Rehearsal:
    flow = Flow("words-by-workers", state_partitions=2)
    letters = words_by_first_letter(flow)
    letters.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return Rehearsal(flow, partitions={"words": 3})


def fed() -> Rehearsal:
    rehearsal = words_of_three_partitions()
    for text in ("a", "d", "e"):
        for partition in (2, 1, 0):
            rehearsal.feed("words", word(f"{text}{partition}"), partition=partition)
    rehearsal.run_until_caught_up()
    return rehearsal


BY_LETTER = {"a": "a0 a1 a2", "d": "d0 d1 d2", "e": "e0 e1 e2"}
"""Of two state partitions the second one has `d`."""
TOGETHER = {"all": "a0 d0 e0 a1 d1 e1 a2 d2 e2"}
"""Units of the second stage go by the inputs that they come from, not by the state partitions of the first."""


@pytest.mark.usefixtures("by_workers")
def test_workers_fold_by_partition_and_offset_whichever_worker_has_read() -> None:
    rehearsal = fed()
    assert stored_words(rehearsal, "letters") == BY_LETTER
    assert stored_words(rehearsal, "all") == TOGETHER


def test_one_process_does_the_same() -> None:
    rehearsal = fed()
    assert stored_words(rehearsal, "letters") == BY_LETTER
    assert stored_words(rehearsal, "all") == TOGETHER
